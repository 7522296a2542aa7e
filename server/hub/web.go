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

// web is the HTTP side: three transports of MCP on one path.
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
	w.sessions.delete = w.dropSession
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

func (w *web) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(Path, refuseForeign(protocol.Frames(w)))
	return mux
}

// Headers that distinguish the transports.
const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
	headerMethod   = "Mcp-Method"
)

// ServeHTTP accepts checked frames only.
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
		if refuseFrame(out, body, status) {
			return
		}
	}
	switch {
	case r.Method == http.MethodPost && !newer && r.URL.RawQuery != "":
		w.old.servePost(out, r)
	case r.Method == http.MethodPost && (newer || session == ""):
		w.servePost(out, r, newer, cancel)
	case r.Method == http.MethodPost || r.Method == http.MethodDelete && session != "":
		w.sessions.serveSession(w.stateful, out, r)
	case r.Method == http.MethodGet && session != "" && !newer:
		defer w.streams.addStream(out, r, cancel)()
		w.sessions.serveSession(w.stateful, out, r)
	case r.Method == http.MethodGet && r.Header.Get(headerProtocol) == "" && strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
		defer w.streams.addStream(out, r, cancel)()
		w.old.serveStream(w.server, out, r)
	default:
		out.Header().Set("Allow", "POST")
		http.Error(out, "Method Not Allowed", http.StatusMethodNotAllowed)
	}
}

// servePost serves a request outside a session: one that begins a session, or one that needs none.
func (w *web) servePost(out *stream, r *http.Request, newer bool, cancel func()) {
	body, err := io.ReadAll(r.Body) // it is in memory already
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case !newer && methodOf(body) == "initialize":
		w.sessions.serveInitialize(w.stateful, out, r)
		return
	case newer && r.Header.Get(headerMethod) == "subscriptions/listen": // go-sdk compares it with the body
		defer w.streams.addStream(out, r, cancel)()
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

// dropSession ends a session.
func (w *web) dropSession(id string) {
	for ss := range w.server.Sessions() {
		if ss.ID() == id {
			ss.Close()
		}
	}
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

// Limits for streams.
const (
	// maxStreams is one per session, as SDKs open them. It leaves more than half of maxClients: idle streams can't keep
	// requests out.
	maxStreams = maxSessions
	// keepAlive is the interval of signs of life on an idle stream: proxies end idle ones, often after 60 s.
	keepAlive = 25 * time.Second
)

// streams holds the long-lived connections. If there are too many, the oldest is ended, and its client opens another.
// So nobody can be kept out.
type streams struct {
	mu   sync.Mutex
	list []*func()
}

// addStream returns a function to call at the end. The connection ends with the stream, and the stream with its
// caller's token.
func (s *streams) addStream(w http.ResponseWriter, r *http.Request, cancel func()) func() {
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

// stream is a ResponseWriter that sends comments while it is idle.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController

	onHeader func(http.Header) // called before they are sent; nil: not

	mu     sync.Mutex // go-sdk writes an event at once
	timer  *time.Timer
	begun  bool
	closed bool
}

// Unwrap supports http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detectStream()
	s.ResponseWriter.WriteHeader(status)
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detectStream()
	return s.ResponseWriter.Write(p)
}

// FlushError supports http.ResponseController.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detectStream()
	return s.control.Flush()
}

// detectStream detects a stream of events.
func (s *stream) detectStream() {
	if s.begun {
		return
	}
	s.begun = true
	if s.onHeader != nil {
		s.onHeader(s.Header())
	}
	if strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream") {
		s.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold events back
		s.timer = time.AfterFunc(keepAlive, s.sendComments)
	}
}

func (s *stream) sendComments() {
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
