package hub

import (
	"context"
	"errors"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

// maxPending limits the queued messages for a client that doesn't read; more are dropped.
const maxPending = 256

// flight holds the running calls of one process, to route the process's messages.
type flight struct {
	mu     sync.Mutex
	calls  map[*call]bool
	tokens map[float64]*call // by the progress token that the process received
	minted float64

	level   mcp.LoggingLevel // last level sent to session
	session *mcp.ClientSession
}

// call is a request in progress. A goroutine of its own notifies the client, so that a slow client doesn't delay the
// server.
type call struct {
	ctx   context.Context // the request's
	ss    *mcp.ServerSession
	token any     // the client's
	given float64 // ours, sent to the server; 0: none
	news  chan func()
	told  chan struct{}
}

// beginCall returns the call and its _meta. The progress token in it is unique for the process: clients choose equal
// ones.
func (f *flight) beginCall(ctx context.Context, ss *mcp.ServerSession, meta mcp.Meta) (*call, mcp.Meta) {
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
		delete(meta, "progressToken") // neither a string nor a number: invalid
	}
	go c.runPosted()
	return c, meta
}

func (c *call) runPosted() {
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

// endCall waits until the client has received everything: the answer comes last.
func (f *flight) endCall(c *call) {
	f.mu.Lock()
	delete(f.calls, c)
	delete(f.tokens, c.given)
	close(c.news)
	f.mu.Unlock()
	<-c.told
}

// post never blocks. The caller holds f.mu, so that the call doesn't end meanwhile.
func (c *call) post(f func()) {
	select {
	case c.news <- f:
	default:
	}
}

// findSole returns the call to which a message without a name must belong. It returns nil if calls of several clients
// run, since no client may see another's data.
func (f *flight) findSole() *call {
	var found *call
	for c := range f.calls {
		if found != nil && found.ss != c.ss {
			return nil
		}
		found = c
	}
	return found
}

func (f *flight) forwardProgress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	token, _ := req.Params.ProgressToken.(float64)
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.tokens[token]
	if c == nil {
		return
	}
	params := *req.Params
	params.ProgressToken = c.token
	c.post(func() { _ = c.ss.NotifyProgress(c.ctx, &params) }) // fails if the client has left
}

func (f *flight) forwardLog(_ context.Context, req *mcp.LoggingMessageRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.findSole(); c != nil {
		c.post(func() { _ = c.ss.Log(c.ctx, req.Params) })
	}
}

func (f *flight) forwardElicitation(_ context.Context, req *mcp.ElicitationCompleteNotificationRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.findSole(); c != nil {
		c.post(func() { _ = c.ss.NotifyElicitationComplete(c.ctx, req.Params) })
	}
}

// forwardRequest forwards a server's request to the client for which it works.
func (f *flight) forwardRequest(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req.GetParams().(type) {
		case *mcp.CreateMessageWithToolsParams, *mcp.ElicitParams, *mcp.ListRootsParams:
		default:
			return next(ctx, method, req)
		}
		f.mu.Lock()
		c := f.findSole()
		f.mu.Unlock()
		if c == nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "this request cannot be assigned to one client: calls of none, or of several, are in flight"}
		}
		both, cancel := context.WithCancel(c.ctx) // its values identify the client's stream
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		res, err := c.askClient(both, req.GetParams())
		var theirs *jsonrpc.Error
		if errors.As(err, &theirs) {
			return nil, theirs
		}
		return res, err
	}
}

func (c *call) askClient(ctx context.Context, params mcp.Params) (mcp.Result, error) {
	switch p := params.(type) {
	case *mcp.CreateMessageWithToolsParams:
		return asResult(c.ss.CreateMessageWithTools(ctx, p))
	case *mcp.ElicitParams:
		return asResult(c.ss.Elicit(ctx, p))
	case *mcp.ListRootsParams:
		return asResult(c.ss.ListRoots(ctx, p))
	}
	return nil, jsonrpcNotFound
}

var jsonrpcNotFound = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}

// asResult avoids an interface that holds a nil pointer.
func asResult[R mcp.Result](res R, err error) (mcp.Result, error) {
	if err != nil {
		return nil, err
	}
	return res, nil
}

// clientOptions returns the client options for a process of the server.
func (s *server) clientOptions(f *flight, onState func(upstream.Status)) upstream.Options {
	client := &mcp.ClientOptions{
		// The client behind the hub is not known yet when a server of the older era receives this. A client that can't
		// answer refuses the request.
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{},
			Sampling:    &mcp.SamplingCapabilities{Tools: &mcp.SamplingToolsCapabilities{}, Context: &mcp.SamplingContextCapabilities{}},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		MultiRoundTrip:              &mcp.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: f.forwardProgress,
		LoggingMessageHandler:       f.forwardLog,
		ElicitationCompleteHandler:  f.forwardElicitation,
	}
	if onState != nil { // a session's own process reports the same as the first
		client.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { s.requestRefresh(tools) }
		client.PromptListChangedHandler = func(context.Context, *mcp.PromptListChangedRequest) { s.requestRefresh(prompts) }
		client.ResourceListChangedHandler = func(context.Context, *mcp.ResourceListChangedRequest) { s.requestRefresh(resources) }
	}
	client.ResourceUpdatedHandler = s.forwardUpdate
	return upstream.Options{
		Client: client, Receiving: []mcp.Middleware{f.forwardRequest}, OnState: onState,
		Hub:  s.hub.name,
		Info: &mcp.Implementation{Name: "browser-shell hub", Version: s.hub.opts.Version},
	}
}
