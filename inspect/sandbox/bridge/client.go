package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits for a container's answers.
const (
	maxAnswer = 16 << 20 // bytes of an answer with all messages before it
	maxTools  = 100
)

// endpoint is the URL of the image's tool. Its address is only a name: Container.Dial makes the connections.
const endpoint = "http://127.0.0.1:8080/mcp"

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes", maxAnswer)

// overKey is the context key of a flag for an answer that is too large, since go-sdk's errors don't report that.
type overKey struct{}

// client is a client of one container's tool. Each request has a session of its own, so that a failing one breaks no
// other; from revision 2026-07-28 on sessions don't exist anyway.
type client struct {
	http      *http.Client
	transport *http.Transport
}

func newClient(dial func(context.Context) (net.Conn, error), key string) *client {
	t := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
	}
	return &client{transport: t, http: &http.Client{
		Transport: &keyed{key, t},
		// The container can't redirect requests.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// keyed adds the key to requests and limits answers.
type keyed struct {
	key  string
	next http.RoundTripper
}

func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-AIO-API-Key", k.key)
	res, err := k.next.RoundTrip(r)
	if err == nil {
		over, _ := r.Context().Value(overKey{}).(*atomic.Bool)
		res.Body = &bounded{res.Body, maxAnswer, over}
	}
	return res, err
}

type bounded struct {
	io.ReadCloser
	room int
	over *atomic.Bool // may be nil
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.room == 0 {
		if b.over != nil {
			b.over.Store(true)
		}
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.room)])
	b.room -= n
	return n, err
}

// connect opens a session with the outer client's name.
func (c *client) connect(ctx context.Context, who *mcp.Implementation, o *mcp.ClientOptions) (*mcp.ClientSession, error) {
	if who == nil {
		who = &mcp.Implementation{Name: "slimctl mcp"}
	}
	o.Capabilities = &mcp.ClientCapabilities{}
	o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	return mcp.NewClient(who, o).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: c.http, MaxRetries: -1, DisableStandaloneSSE: true, MaxEventSize: maxAnswer,
	}, nil)
}

// tools returns the container's tools.
func (c *client) tools(ctx context.Context) ([]*mcp.Tool, error) {
	s, err := c.connect(ctx, nil, &mcp.ClientOptions{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var out []*mcp.Tool
	for t, err := range s.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if len(out) == maxTools {
			return nil, fmt.Errorf("the image has more than %d tools", maxTools)
		}
		out = append(out, t)
	}
	if len(out) == 0 {
		return nil, errors.New("the image has no tool yet")
	}
	return out, nil
}

// call forwards a call, and the progress of the call back.
func (c *client) call(ctx context.Context, req *mcp.CallToolRequest) (_ *mcp.CallToolResult, err error) {
	over := &atomic.Bool{}
	ctx = context.WithValue(ctx, overKey{}, over)
	defer func() {
		if err != nil && over.Load() {
			err = errTooLarge
		}
	}()
	news := &news{ctx: ctx, session: req.Session, token: req.Params.GetProgressToken()}
	defer news.end()
	s, err := c.connect(ctx, clientOf(req), &mcp.ClientOptions{ProgressNotificationHandler: news.progress})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	params := &mcp.CallToolParams{Name: req.Params.Name, Meta: metaOf(req)}
	if req.Params.Arguments != nil {
		params.Arguments = req.Params.Arguments
	}
	res, err := s.CallTool(ctx, params)
	if err != nil {
		return nil, err
	}
	if res.NeedsInput() {
		return nil, errors.New("the tool asks for input, which slimctl mcp does not support")
	}
	delete(res.Meta, mcp.MetaKeyServerInfo)
	// A new result: other fields concern only the container and us.
	own := &mcp.CallToolResult{Meta: res.Meta, Content: res.Content, StructuredContent: res.StructuredContent, IsError: res.IsError}
	if own.Content == nil {
		own.Content = []mcp.Content{}
	}
	asWritten(own)
	return own, nil
}

// clientOf returns the client of a request.
func clientOf(req *mcp.CallToolRequest) *mcp.Implementation {
	if req.Session == nil || req.Session.InitializeParams() == nil {
		return nil
	}
	return req.Session.InitializeParams().ClientInfo
}

// metaOf returns a request's _meta without the keys that go-sdk's client sets itself.
func metaOf(req *mcp.CallToolRequest) mcp.Meta {
	m := maps.Clone(req.Params.Meta)
	maps.DeleteFunc(m, func(k string, _ any) bool {
		return strings.HasPrefix(k, "io.modelcontextprotocol/") && k != mcp.MetaKeyClientInfo
	})
	return m
}

// asWritten restores in structured content the order of keys in the accompanying text.
func asWritten(res *mcp.CallToolResult) {
	if len(res.Content) == 0 {
		return
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	var value any
	if ok && json.Unmarshal([]byte(text.Text), &value) == nil && reflect.DeepEqual(value, res.StructuredContent) {
		res.StructuredContent = json.RawMessage(text.Text)
	}
}

// news forwards progress to a client until its call has ended.
type news struct {
	ctx     context.Context
	session *mcp.ServerSession
	token   any

	mu    sync.Mutex
	ended bool
}

func (n *news) progress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	if n.token == nil || req.Params == nil {
		return
	}
	params := *req.Params
	params.ProgressToken = n.token
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.ended {
		_ = n.session.NotifyProgress(n.ctx, &params) // fails if the client has left
	}
}

func (n *news) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
}
