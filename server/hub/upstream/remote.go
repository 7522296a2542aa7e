package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/http/httpguts"
)

// The transports of remote servers in Config and Status.
const (
	streamable = "streamable-http"
	sse        = "sse"
)

// httpLink is a connection to a remote server.
type httpLink struct {
	mcp  mcp.Transport
	http *http.Transport
	fuse *fuse
	stop context.CancelFunc // ends all requests

	failing sync.Once
	failed  chan struct{} // closed when the server is unreachable
	why     error

	mu   sync.Mutex
	conn mcp.Connection
}

func dialRemote(s *Server, f *fuse) (*httpLink, error) {
	u, err := url.Parse(s.config.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address %q: not http://host or https://host", s.config.URL)
	}
	headers, err := readHeaders(s.config.Headers)
	if err != nil {
		return nil, err
	}
	l := &httpLink{fuse: f, failed: make(chan struct{})}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	l.http = &http.Transport{ // no proxy: the operator named the server
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
	}
	client := &http.Client{Transport: &roundTripper{ctx: ctx, link: l, origin: u.Scheme + "://" + u.Host, headers: headers}}
	if s.config.Transport == sse {
		l.mcp = &mcp.SSEClientTransport{Endpoint: s.config.URL, HTTPClient: client, MaxEventSize: maxEvent}
	} else {
		l.mcp = &mcp.StreamableClientTransport{Endpoint: s.config.URL, HTTPClient: client, MaxEventSize: maxEvent}
	}
	return l, nil
}

// Connect keeps the connection, since only that can be closed immediately: a session waits for its requests.
func (l *httpLink) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := l.mcp.Connect(ctx)
	l.mu.Lock()
	l.conn = conn
	l.mu.Unlock()
	return conn, err
}

func (l *httpLink) transport() mcp.Transport { return l }

// straggle is the delay of an answer if the server may have sent messages about the request: these arrive on another
// stream here, without conn's fences.
const straggle = 3 * time.Millisecond

func (l *httpLink) watch(c *mcp.Client) {
	var heard atomic.Bool // setting a level triggers no messages
	c.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			heard.Store(true)
			return next(ctx, method, req)
		}
	})
	c.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			var meta map[string]any
			if p := req.GetParams(); !isNil(p) { // go-sdk's own ping has none
				meta = p.GetMeta()
			}
			if heard.Load() || meta["progressToken"] != nil || meta[mcp.MetaKeyLogLevel] != nil {
				time.Sleep(straggle)
			}
			return res, err
		}
	})
}

func (l *httpLink) pid() int { return 0 }

func (l *httpLink) gone() <-chan struct{} { return l.failed }

func (l *httpLink) cause(session error) error {
	select {
	case <-l.failed:
		return l.why
	default:
	}
	if session == nil {
		return errors.New("the connection ended")
	}
	return session
}

func (l *httpLink) fail(err error) {
	l.failing.Do(func() {
		l.why = err
		close(l.failed)
	})
}

// end notifies the server, if it is reachable, and ends all requests.
func (l *httpLink) end() error {
	late := time.AfterFunc(time.Second, l.stop)
	defer late.Stop()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // notifying the server is a courtesy
	}
	l.stop()
	l.http.CloseIdleConnections()
	return nil
}

var _ link = (*httpLink)(nil)

// roundTripper limits requests to the one configured origin, whatever a redirect or an SSE endpoint event says. It also
// limits answers, and ends requests with the link.
type roundTripper struct {
	ctx    context.Context
	link   *httpLink
	origin string

	headers http.Header // of each request
}

// maxHeader limits a header's value, in bytes.
const maxHeader = 8 << 10

// readHeaders reads the values of headers. Its errors name the source of a value, never the value.
func readHeaders(sources map[string]Source) (http.Header, error) {
	h := http.Header{}
	for name, source := range sources {
		var value, where string
		if source.File != "" {
			where = "file " + source.File
			f, err := os.Open(source.File)
			if err != nil {
				return nil, fmt.Errorf("header %s: %w", name, err)
			}
			text, err := io.ReadAll(io.LimitReader(f, maxHeader+1))
			f.Close()
			if err != nil {
				return nil, fmt.Errorf("header %s: %w", name, err)
			}
			value = strings.TrimSpace(string(text))
		} else {
			where, value = "variable "+source.Env, os.Getenv(source.Env)
		}
		if value == "" || len(value) > maxHeader || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("header %s: %s has no value of one line and at most %d bytes", name, where, maxHeader)
		}
		h.Set(name, value)
	}
	return h, nil
}

func (t *roundTripper) RoundTrip(req *http.Request) (_ *http.Response, err error) {
	defer t.link.fuse.rescue("HTTP", &err)
	if origin := req.URL.Scheme + "://" + req.URL.Host; origin != t.origin {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("%s refers to %s, which the configuration does not name", t.origin, origin)
	}
	ctx, cancel := context.WithCancel(req.Context())
	unlink := context.AfterFunc(t.ctx, cancel)
	done := func() { unlink(); cancel() }
	req = req.Clone(ctx)
	maps.Copy(req.Header, t.headers)
	res, err := t.link.http.RoundTrip(req)
	if err != nil {
		// The server is unreachable. Other errors may concern this request only.
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" && ctx.Err() == nil {
			t.link.fail(err)
		}
		done()
		return nil, err
	}
	stream := strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
	res.Body = &body{ReadCloser: res.Body, link: t.link, done: done, stream: stream, room: maxLine}
	return res, nil
}

// maxEvent limits an event of a stream in bytes: a line of data, and its name and id.
const maxEvent = maxLine + 64<<10

// body limits an answer, or each line of a stream. A longer one ends the link: go-sdk wouldn't report it to the caller,
// or would close the session without a reason.
type body struct {
	io.ReadCloser
	link   *httpLink
	done   func()
	stream bool
	room   int // remaining bytes
}

func (b *body) Read(p []byte) (int, error) {
	if b.room == 0 {
		b.link.fail(errHuge)
		return 0, errHuge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.room)])
	b.room -= n
	if i := bytes.LastIndexByte(p[:n], '\n'); b.stream && i >= 0 {
		b.room = maxLine - (n - i - 1)
	}
	return n, err
}

func (b *body) Close() error {
	b.done()
	return b.ReadCloser.Close()
}
