package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/protocol"
)

// web is the HTTP side: three ways to speak MCP on one path.
type web struct {
	server    *mcp.Server
	stateless http.Handler // the newer era, and requests of the older one that need no session
	stateful  http.Handler // sessions of the older era
	sessions  sessions
	old       oldSSE
	streams   streams

	ctx context.Context
	end func()
}

func newWeb(s *mcp.Server) *web {
	get := func(*http.Request) *mcp.Server { return s }
	w := &web{
		server:    s,
		stateless: mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true}),
		stateful:  mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{MaxRequestBodyBytes: maxBody, SessionTimeout: sessionIdle}),
	}
	w.sessions.delete = w.drop
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

func (w *web) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(Path, local(protocol.Frames(w)))
	return mux
}

// Headers that tell the ways apart.
const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
	headerMethod   = "Mcp-Method"
)

// ServeHTTP takes checked frames.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	r = identify(r)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	r = r.WithContext(ctx)
	out := &stream{ResponseWriter: rw, control: http.NewResponseController(rw)}
	defer out.close()

	session := r.Header.Get(headerSession)
	newer := r.Header.Get(headerProtocol) >= newEra
	if r.Method == http.MethodPost && !newer {
		body, err := io.ReadAll(r.Body) // it is in memory already
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		status := http.StatusOK
		if r.URL.RawQuery != "" {
			status = http.StatusBadRequest // the answer of this transport is on its stream, where go-sdk alone writes
		}
		if refuse(out, body, status) {
			return
		}
	}
	switch {
	case r.Method == http.MethodPost && !newer && r.URL.RawQuery != "":
		w.old.post(out, r)
	case r.Method == http.MethodPost && (newer || session == ""):
		w.post(out, r, newer, cancel)
	case r.Method == http.MethodPost || r.Method == http.MethodDelete && session != "":
		w.sessions.serve(w.stateful, out, r)
	case r.Method == http.MethodGet && session != "" && !newer:
		defer w.streams.open(out, r, cancel)()
		w.sessions.serve(w.stateful, out, r)
	case r.Method == http.MethodGet && r.Header.Get(headerProtocol) == "" && strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
		defer w.streams.open(out, r, cancel)()
		w.old.open(w.server, out, r)
	default:
		out.Header().Set("Allow", "POST")
		http.Error(out, "Method Not Allowed", http.StatusMethodNotAllowed)
	}
}

// post serves a request that belongs to no session: one that begins one, or
// one that needs none.
func (w *web) post(out *stream, r *http.Request, newer bool, cancel func()) {
	body, err := io.ReadAll(r.Body) // it is in memory already
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case !newer && methodOf(body) == "initialize":
		w.sessions.begin(w.stateful, out, r)
		return
	case newer && r.Header.Get(headerMethod) == "subscriptions/listen": // go-sdk compares it with the body
		defer w.streams.open(out, r, cancel)()
	}
	w.stateless.ServeHTTP(out, r)
}

func methodOf(body []byte) (method string) {
	var frame map[string]json.RawMessage // a struct would take Method too
	if json.Unmarshal(body, &frame) == nil {
		_ = json.Unmarshal(frame["method"], &method) // "" then
	}
	return method
}

// drop ends a session.
func (w *web) drop(id string) {
	for ss := range w.server.Sessions() {
		if ss.ID() == id {
			ss.Close()
		}
	}
}

// local refuses what a web page may have sent: a request of another origin,
// whatever its method, and one for a name that was made to lead here (MCP
// basic/transports "Security Warning").
func local(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		as := *r
		as.Method = http.MethodPost // a stream, too, is not for another site's page
		if origin.Check(&as) != nil || rebound(r) {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rebound tells whether a request that came in by loopback, or by a unix
// socket, names another host.
func rebound(r *http.Request) bool {
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

// Bounds on what lasts.
const (
	// maxStreams is one for each session, as SDKs open them, and leaves more than
	// half of maxClients: streams that only wait can't keep requests out.
	maxStreams = maxSessions
	// keepAlive is how often a stream that says nothing shows that it is there:
	// proxies end silent ones, often after 60 s.
	keepAlive = 25 * time.Second
)

// streams are the connections that last as long as their client wants. When
// there are too many the oldest one is ended; its client opens another. So
// nobody can be kept out for ever, by however many.
type streams struct {
	mu   sync.Mutex
	list []*func()
}

// open gives what to call at the end. The connection ends with the stream, and the stream with the token of its caller.
func (s *streams) open(w http.ResponseWriter, r *http.Request, cancel func()) func() {
	w.Header().Set("Connection", "close")
	stop := func() bool { return true }
	if text := r.Header.Get(headerUntil); text != "" {
		until, _ := strconv.ParseInt(text, 10, 64) // 0, which is long ago, for what is none
		stop = time.AfterFunc(time.Until(time.Unix(until, 0)), cancel).Stop
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) >= maxStreams {
		(*s.list[0])()
		s.list = s.list[1:]
	}
	own := &cancel
	s.list = append(s.list, own)
	return func() {
		stop()
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

// stream is a ResponseWriter that sends comments while it has nothing to say.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController

	onHeader func(http.Header) // called before they are sent; nil: not

	mu     sync.Mutex // go-sdk writes an event at once
	timer  *time.Timer
	begun  bool
	closed bool
}

// Unwrap is for http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	s.ResponseWriter.WriteHeader(status)
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	return s.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	return s.control.Flush()
}

// begin sees whether it is a stream of events.
func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	if s.onHeader != nil {
		s.onHeader(s.Header())
	}
	if strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream") {
		s.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold events back
		s.timer = time.AfterFunc(keepAlive, s.comment)
	}
}

func (s *stream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if _, err := s.ResponseWriter.Write([]byte(": still here\n\n")); err != nil || s.control.Flush() != nil {
		return // the handler hears of it by itself
	}
	s.timer.Reset(keepAlive)
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
