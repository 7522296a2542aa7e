package hub

import (
	"context"
	"errors"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

// maxPending bounds what a call has for a client that doesn't read; more is dropped.
const maxPending = 256

// flight is the calls that one process runs, by what it says of them.
type flight struct {
	mu     sync.Mutex
	calls  map[*call]bool
	tokens map[float64]*call // by the progress token that the process knows
	minted float64

	level   mcp.LoggingLevel // what session was told
	session *mcp.ClientSession
}

// call is a request on its way. Its client is told things by a goroutine of its
// own, so that a slow one doesn't hold the server up.
type call struct {
	ctx   context.Context // the request's
	ss    *mcp.ServerSession
	token any     // the client's
	given float64 // the server's; 0: none
	news  chan func()
	told  chan struct{}
}

// begin gives the call and its _meta, in which the progress token is one that
// no other call of the process ever had: clients choose the same ones.
func (f *flight) begin(ctx context.Context, ss *mcp.ServerSession, meta mcp.Meta) (*call, mcp.Meta) {
	c := &call{ctx: ctx, ss: ss, news: make(chan func(), maxPending), told: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls, f.tokens = map[*call]bool{}, map[float64]*call{}
	}
	f.calls[c] = true
	switch token := meta["progressToken"].(type) {
	case string, float64:
		f.minted++
		c.token, c.given = token, f.minted
		meta["progressToken"] = c.given
		f.tokens[c.given] = c
	default:
		delete(meta, "progressToken") // neither a string nor a number is none
	}
	go c.tell()
	return c, meta
}

func (c *call) tell() {
	defer close(c.told)
	for f := range c.news {
		if c.ctx.Err() == nil {
			func() {
				defer rescue("telling a client", nil)
				f()
			}()
		}
	}
}

// end waits until the client was told everything: the answer comes last.
func (f *flight) end(c *call) {
	f.mu.Lock()
	delete(f.calls, c)
	delete(f.tokens, c.given)
	close(c.news)
	f.mu.Unlock()
	<-c.told
}

// post never blocks. f.mu is held, so that the call doesn't end meanwhile.
func (c *call) post(f func()) {
	select {
	case c.news <- f:
	default:
	}
}

// only gives the call that a message without a name must belong to; nil if
// calls of several clients run, since one must not see what is another's.
func (f *flight) only() *call {
	var found *call
	for c := range f.calls {
		if found != nil && found.ss != c.ss {
			return nil
		}
		found = c
	}
	return found
}

func (f *flight) progress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	token, _ := req.Params.ProgressToken.(float64)
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.tokens[token]
	if c == nil {
		return
	}
	params := *req.Params
	params.ProgressToken = c.token
	c.post(func() { _ = c.ss.NotifyProgress(c.ctx, &params) }) // a client that has gone hears nothing
}

func (f *flight) logged(_ context.Context, req *mcp.LoggingMessageRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.only(); c != nil {
		c.post(func() { _ = c.ss.Log(c.ctx, req.Params) })
	}
}

func (f *flight) elicited(_ context.Context, req *mcp.ElicitationCompleteNotificationRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.only(); c != nil {
		c.post(func() { _ = c.ss.NotifyElicitationComplete(c.ctx, req.Params) })
	}
}

// asked hands what a server asks of its client to the one that it works for.
func (f *flight) asked(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req.GetParams().(type) {
		case *mcp.CreateMessageWithToolsParams, *mcp.ElicitParams, *mcp.ListRootsParams:
		default:
			return next(ctx, method, req)
		}
		f.mu.Lock()
		c := f.only()
		f.mu.Unlock()
		if c == nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "it is not clear which client this is for: calls of none, or of several, run"}
		}
		both, cancel := context.WithCancel(c.ctx) // its values lead to the client's stream
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		res, err := c.ask(both, req.GetParams())
		var theirs *jsonrpc.Error
		if errors.As(err, &theirs) {
			return nil, theirs
		}
		return res, err
	}
}

func (c *call) ask(ctx context.Context, params mcp.Params) (mcp.Result, error) {
	switch p := params.(type) {
	case *mcp.CreateMessageWithToolsParams:
		return result(c.ss.CreateMessageWithTools(ctx, p))
	case *mcp.ElicitParams:
		return result(c.ss.Elicit(ctx, p))
	case *mcp.ListRootsParams:
		return result(c.ss.ListRoots(ctx, p))
	}
	return nil, jsonrpcNotFound
}

var jsonrpcNotFound = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}

// result avoids an interface that holds a nil pointer.
func result[R mcp.Result](res R, err error) (mcp.Result, error) {
	if err != nil {
		return nil, err
	}
	return res, nil
}

// options are those of a process of the server.
func (s *server) options(f *flight, onState func(upstream.Status)) upstream.Options {
	client := &mcp.ClientOptions{
		// Who is behind the hub is not known yet when a server of the older era
		// is told this. A client that can't is asked, and says so.
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{},
			Sampling:    &mcp.SamplingCapabilities{Tools: &mcp.SamplingToolsCapabilities{}, Context: &mcp.SamplingContextCapabilities{}},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		MultiRoundTrip:              &mcp.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: f.progress,
		LoggingMessageHandler:       f.logged,
		ElicitationCompleteHandler:  f.elicited,
	}
	if onState != nil { // a session's own process says the same as the first
		client.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { s.again(tools) }
		client.PromptListChangedHandler = func(context.Context, *mcp.PromptListChangedRequest) { s.again(prompts) }
		client.ResourceListChangedHandler = func(context.Context, *mcp.ResourceListChangedRequest) { s.again(resources) }
	}
	client.ResourceUpdatedHandler = s.updated
	return upstream.Options{
		Client: client, Receiving: []mcp.Middleware{f.asked}, OnState: onState,
		Hub:  s.hub.name,
		Info: &mcp.Implementation{Name: "browser-shell hub", Version: s.hub.opts.Version},
	}
}
