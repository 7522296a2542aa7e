// Package front is the HTTP side of the MCP endpoint: it limits and identifies clients, checks frames, and hands requests
// to go-sdk's streamable HTTP, for both protocol eras.
package front

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/protocol"
)

// Path is the path of MCP; /healthz answers besides.
const Path = "/mcp"

// NewHandler returns the handler of Path and /healthz. Add protocol.Middleware to s first. ready returns why the server
// can't answer calls, or nil. ended receives the name of each MCP session that has ended; see audit.Caller.
func NewHandler(s *mcp.Server, ready func() error, ended func(session string)) http.Handler {
	return newFront(s, ended).handler(ready)
}

func newFront(s *mcp.Server, ended func(session string)) *front {
	get := func(*http.Request) *mcp.Server { return s }
	f := &front{
		stateless: mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true}),
		stateful:  mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{MaxRequestBodyBytes: maxBody, SessionTimeout: sessionIdle}),
		sessions:  sessions{ended: ended},
	}
	s.AddReceivingMiddleware(f.receive)
	return f
}

func (f *front) handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(Path, refuseForeign(identify(protocol.Frames(f))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// front serves streamable HTTP: from revision 2026-07-28 on without sessions.
type front struct {
	stateless http.Handler // also for requests of the older era that need no session
	stateful  http.Handler
	sessions  sessions
	streams   streams
}

// newEra is the first revision without sessions.
const newEra = "2026-07-28"

// Headers that distinguish requests.
const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
	headerMethod   = "Mcp-Method"
)

// ServeHTTP accepts checked frames only.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session, newer := r.Header.Get(headerSession), r.Header.Get(headerProtocol) >= newEra
	switch {
	case r.Method == http.MethodPost && newer && r.Header.Get(headerMethod) == "subscriptions/listen": // go-sdk compares it with the body
		r, end := f.streams.addStream(w, r)
		defer end()
		f.stateless.ServeHTTP(w, r)
	case r.Method == http.MethodPost && newer:
		f.stateless.ServeHTTP(w, r)
	case r.Method == http.MethodPost && session == "" && protocol.MethodOf(r) == "initialize":
		if !f.sessions.makeRoom() {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many sessions are at work; try again", http.StatusServiceUnavailable)
			return
		}
		f.stateful.ServeHTTP(w, r)
	case r.Method == http.MethodPost && session == "":
		f.stateless.ServeHTTP(w, r)
	case r.Method == http.MethodPost || r.Method == http.MethodDelete && session != "":
		f.sessions.serveSession(f.stateful, w, r)
	case r.Method == http.MethodGet && session != "" && !newer:
		r, end := f.streams.addStream(w, r)
		defer end()
		f.sessions.serveSession(f.stateful, w, r)
	default:
		w.Header().Set("Allow", "POST")
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	}
}

// receive adds the session of each initialize before its answer leaves.
func (f *front) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if ss, ok := req.GetSession().(*mcp.ServerSession); ok && err == nil && method == "initialize" && ss.ID() != "" {
			f.sessions.addSession(ss, req.GetExtra().Header.Get(headerCaller))
		}
		return res, err
	}
}

// Headers by which the program in front names the caller. They are trusted on a unix socket only, whose directory
// limits access; on a port any client could send them.
const (
	headerRequest = "X-Request-Id"
	headerCaller  = "X-Browser-Shell-Caller"
	headerUntil   = "X-Browser-Shell-Until"   // the end of the caller's token, in seconds since 1970; none for a key
	headerOwn     = "X-Browser-Shell-Session" // the name of the MCP session, set here alone
)

var (
	requestID = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)
	subject   = lazyregexp.New(`^[!-~]{1,256}$`)
)

// identify leaves exactly one id and at most one caller in a request, and removes untrusted headers.
func identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids, callers, until := r.Header.Values(headerRequest), r.Header.Values(headerCaller), r.Header.Get(headerUntil)
		for _, name := range []string{headerCaller, headerUntil, headerOwn} {
			r.Header.Del(name)
		}
		r.Header.Set(headerRequest, newRequestID())
		if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
			if len(ids) == 1 && requestID.MatchString(ids[0]) {
				r.Header.Set(headerRequest, ids[0])
			}
			if len(callers) == 1 && subject.MatchString(callers[0]) {
				r.Header.Set(headerCaller, callers[0])
			}
			if until != "" {
				r.Header.Set(headerUntil, until)
			}
		}
		next.ServeHTTP(w, r)
	})
}

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// CallerOf returns the caller of a request with these headers, which NewHandler has checked.
func CallerOf(h http.Header) audit.Caller {
	return audit.Caller{RequestID: h.Get(headerRequest), Subject: h.Get(headerCaller), Session: h.Get(headerOwn)}
}

// refuseForeign refuses requests that a web page may have sent: those of another origin, whatever the method, and those
// for a name that was rebound to this machine (MCP basic/transports "Security Warning").
func refuseForeign(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		as := *r
		as.Method = http.MethodPost // a stream, too, is not for another site's page
		if origin.Check(&as) != nil || isRebound(r) {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isRebound reports whether a request over loopback or a unix socket names another host.
func isRebound(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	ap, err := netip.ParseAddrPort(addr.String())
	if addr.Network() != "unix" && (err != nil || !ap.Addr().Unmap().IsLoopback()) {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil || !ip.Unmap().IsLoopback()
}

// maxStreams is one per session, as SDKs open them. It leaves more than half of maxClients: idle streams can't keep
// requests out.
const maxStreams = maxSessions

// streams holds the long-lived connections. If there are too many, the oldest is ended, and its client opens another.
// So nobody can be kept out.
type streams struct {
	mu   sync.Mutex
	list []*context.CancelFunc
}

// addStream returns the request of a stream and a function to call at its end. The connection ends with the stream, and
// the stream with its caller's token.
func (s *streams) addStream(w http.ResponseWriter, r *http.Request) (_ *http.Request, end func()) {
	w.Header().Set("Connection", "close")
	until := time.Now().AddDate(1, 0, 0)
	if text := r.Header.Get(headerUntil); text != "" {
		seconds, _ := strconv.ParseInt(text, 10, 64) // 0, which is long ago, for what is none
		until = time.Unix(seconds, 0)
	}
	ctx, cancel := context.WithDeadline(r.Context(), until)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) >= maxStreams {
		(*s.list[0])()
		s.list = s.list[1:]
	}
	own := &cancel
	s.list = append(s.list, own)
	return r.WithContext(ctx), func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, f := range s.list {
			if f == own {
				s.list = append(s.list[:i:i], s.list[i+1:]...)
				return
			}
		}
	}
}
