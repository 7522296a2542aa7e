package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/hub/guard"
)

// Codes of failures, as browser-shell has them.
const (
	codeBlocked = -32004
	codeTimeout = -32007
)

// failure is the hub's error for a call that it could not complete. It becomes a result with isError, so that the model
// can react.
type failure struct {
	name, rule, text string
	code             int // 0: none
	retryable        bool
	after            time.Duration
}

// Error returns the text for requests that are not tool calls.
func (f *failure) Error() string { return f.text }

// meta returns the machine-readable part, as in the results of browser-shell.
func (f *failure) meta() mcp.Meta {
	meta := mcp.Meta{"name": f.name, "rule": f.rule, "retryable": f.retryable, "retry_after_ms": f.after.Milliseconds()}
	if f.code != 0 {
		meta["code"] = f.code
	}
	return meta
}

func (f *failure) result() *mcp.CallToolResult {
	text := fmt.Sprintf("%s %s: %s", f.name, f.rule, f.text)
	return &mcp.CallToolResult{Meta: f.meta(), IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

func denied(d *guard.Denial) *failure {
	return &failure{name: "POLICY_BLOCKED", code: codeBlocked, rule: d.Rule, text: d.Message}
}

func unrecorded() *failure {
	return &failure{
		name: "POLICY_BLOCKED", code: codeBlocked, rule: "audit.unavailable", retryable: true,
		text: "the audit log cannot be written, so nothing is run or shown; tell the operator",
	}
}

// wireError returns the JSON-RPC error for an error: go-sdk would send code 0.
func wireError(err error) error {
	var known *jsonrpc.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	own := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	if f := (*failure)(nil); errors.As(err, &f) {
		own.Data, _ = json.Marshal(f.meta()) // strings and numbers encode
		if f.code == codeBlocked {
			own.Code = jsonrpc.CodeInvalidParams
		}
	}
	return own
}

// receive is middleware before go-sdk's own handling of each request.
func (h *Hub) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil { // its value may contain arguments
				h.log.Error("panic", "method", method, "stack", string(debug.Stack()))
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		if method == "initialize" || method == "server/discover" || strings.HasSuffix(method, "/list") {
			h.awaitSettled(ctx)
		}
		switch r := req.(type) {
		case *mcp.CallToolRequest:
			return h.guardCall(ctx, next, r)
		case *mcp.ServerRequest[*mcp.SetLoggingLevelParams]:
			h.levels.set(r.Session, r.Params.Level)
		}
		if res, err = next(ctx, method, req); err != nil {
			return nil, wireError(err)
		}
		switch r := res.(type) {
		case *mcp.InitializeResult:
			r.Instructions = h.instructions()
		case *mcp.DiscoverResult:
			r.Instructions = h.instructions()
		}
		return res, nil
	}
}

// awaitSettled waits for the first start of every server, so that a client that connects immediately sees all tools.
func (h *Hub) awaitSettled(ctx context.Context) {
	late := time.After(time.Until(h.begun.Add(firstTime)))
	for _, s := range h.servers {
		select {
		case <-s.settled:
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

// instructions returns those of all servers.
func (h *Hub) instructions() string {
	var parts []string
	for _, s := range h.servers {
		s.mu.Lock()
		text := s.offer.instructions
		s.mu.Unlock()
		if text != "" {
			parts = append(parts, fmt.Sprintf("# %s\n\n%s", s.Name, text))
		}
	}
	return strings.Join(parts, "\n\n")
}

// findTool returns the tool of a name, which may be in the form that the hub doesn't list.
func (h *Hub) findTool(name string) *tool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.catalog.tools[name]; t != nil {
		return t
	}
	return h.catalog.forms[name]
}

// guardCall admits a call if the rules do and its line can be logged.
func (h *Hub) guardCall(ctx context.Context, next mcp.MethodHandler, req *mcp.CallToolRequest) (mcp.Result, error) {
	t := h.findTool(req.Params.Name)
	line := h.record.begin(req.Session, req.Params.Name, t)
	if h.record.log.Ready() != nil {
		return unrecorded().result(), nil
	}
	if t == nil {
		err := &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %.80q; tools/list names those that are there", req.Params.Name)}
		return recorded(line, nil, "tool.unknown", err)
	}
	s := t.server
	if d := s.Rules.Check(guard.Call{Server: s.Name, Tool: t.tool.Name, Arguments: req.Params.Arguments, ReadOnly: isReadOnly(t.tool)}); d != nil {
		return recorded(line, denied(d).result(), d.Rule, nil)
	}
	if f := t.checkArguments(req.Params.Arguments); f != nil {
		return recorded(line, f.result(), "", nil)
	}
	params := *req.Params
	params.Name = t.alias
	own := *req
	own.Params = &params
	res, err := next(ctx, "tools/call", &own)
	answer, _ := res.(*mcp.CallToolResult)
	return recorded(line, answer, "", err)
}

// recorded returns the answer to a call once its line is written.
func recorded(l *line, res *mcp.CallToolResult, rule string, err error) (mcp.Result, error) {
	if l.write(res, rule, err) != nil && err == nil {
		return unrecorded().result(), nil
	}
	return asResult(res, wireError(err))
}

// admitText checks requests to a server other than tool calls.
func (s *server) admitText(client *mcp.ServerSession, what string, texts ...string) error {
	d := s.Rules.CheckText(texts...)
	if d == nil {
		return nil
	}
	line := s.hub.record.begin(client, what, nil)
	line.Note = "server " + s.Name
	if err := line.write(nil, d.Rule, nil); err != nil {
		s.hub.log.Warn("a denial is not in the audit log", "error", err)
	}
	return denied(d)
}

// forward is the handler of a tool.
func (t *tool) forward(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var res *mcp.CallToolResult
	err := t.server.do(ctx, req.Session, req.Params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) (err error) {
		params := &mcp.CallToolParams{Meta: meta, Name: t.tool.Name, InputResponses: req.Params.InputResponses, RequestState: req.Params.RequestState}
		if req.Params.Arguments != nil {
			params.Arguments = req.Params.Arguments
		}
		res, err = up.CallTool(ctx, params)
		return err
	})
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.result(), nil
	}
	return res, err
}

// getPrompt returns the handler of a prompt.
func (s *server) getPrompt(name string) mcp.PromptHandler {
	return func(ctx context.Context, req *mcp.GetPromptRequest) (res *mcp.GetPromptResult, err error) {
		if err := s.admitText(req.Session, "prompts/get", slices.Collect(maps.Values(req.Params.Arguments))...); err != nil {
			return nil, err
		}
		return res, s.do(ctx, req.Session, req.Params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) (err error) {
			params := *req.Params
			params.Meta, params.Name = meta, name
			res, err = up.GetPrompt(ctx, &params)
			return err
		})
	}
}

// readResource is the handler of a server's resources and templates.
func (s *server) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	if err := s.admitText(req.Session, "resources/read", req.Params.URI); err != nil {
		return nil, err
	}
	var res *mcp.ReadResourceResult
	err := s.do(ctx, req.Session, req.Params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) error {
		params := *req.Params
		params.Meta = meta
		got, err := up.ReadResource(ctx, &params)
		if err == nil {
			own := *got // the original may be shared by the session
			own.Meta = maps.Clone(own.Meta)
			res = &own
		}
		return err
	})
	return res, err
}

func (h *Hub) complete(ctx context.Context, req *mcp.CompleteRequest) (res *mcp.CompleteResult, err error) {
	params := *req.Params
	ref := *params.Ref
	h.mu.Lock()
	s := h.catalog.owners[ref.URI]
	if p := h.catalog.prompts[ref.Name]; ref.Type == "ref/prompt" && p != nil {
		s, ref.Name = p.server, p.name
	}
	h.mu.Unlock()
	if s == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown reference; prompts/list and resources/templates/list name those that are there"}
	}
	texts := []string{params.Argument.Value}
	if params.Context != nil {
		texts = slices.AppendSeq(texts, maps.Values(params.Context.Arguments))
	}
	if err := s.admitText(req.Session, "completion/complete", texts...); err != nil {
		return nil, err
	}
	err = s.do(ctx, req.Session, params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) (err error) {
		params.Meta, params.Ref = meta, &ref
		res, err = up.Complete(ctx, &params)
		return err
	})
	return res, err
}

func (h *Hub) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	h.mu.Lock()
	s := h.catalog.owners[req.Params.URI]
	h.mu.Unlock()
	if s == nil {
		return mcp.ResourceNotFoundError(req.Params.URI)
	}
	if err := s.admitText(req.Session, "resources/subscribe", req.Params.URI); err != nil {
		return err
	}
	return s.follow(ctx, req.Params.URI)
}

// do sends a request to the server. The server's messages about it go to the client. It returns the server's own error,
// or a *failure.
func (s *server) do(ctx context.Context, client *mcp.ServerSession, meta mcp.Meta, send func(context.Context, *mcp.ClientSession, mcp.Meta) error) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	l, err := s.linkFor(ctx, client)
	if err != nil {
		return err
	}
	meta = s.hub.serverMeta(l, client, meta)
	c := l.beginCall(ctx, client, meta)
	err = send(ctx, l.session, meta)
	l.endCall(c)
	if err != nil && outer.Err() != nil {
		return outer.Err()
	}
	return s.clientError(ctx, l, err)
}

func (s *server) timedOut() *failure {
	return &failure{
		name: "TIMEOUT", code: codeTimeout, rule: "call.timeout", retryable: true,
		text: fmt.Sprintf("server %s did not answer within %s; it may still be at work", s.Name, s.Timeout),
	}
}

// endings are the errors of a request whose link has ended.
var endings = []error{mcp.ErrConnectionClosed, mcp.ErrSessionMissing, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE}

// clientError converts an error of a request to the one for the client.
func (s *server) clientError(ctx context.Context, l *link, err error) error {
	var theirs *jsonrpc.Error
	var unreached *url.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return s.timedOut()
	case errors.As(err, &unreached):
		l.fail(unreached)
	case l.isGone() || slices.ContainsFunc(endings, func(e error) bool { return errors.Is(err, e) }):
	case errors.As(err, &theirs):
		return theirs
	default:
		return &failure{name: "SERVER_FAILED", rule: "server.answer", text: fmt.Sprintf("server %s: %v", s.Name, err)}
	}
	f := &failure{name: "SERVER_DOWN", rule: "server.ended", retryable: !s.NoRestart, text: fmt.Sprintf("server %s ended during the call; it is started again", s.Name)}
	if s.NoRestart {
		f.text = fmt.Sprintf("server %s ended during the call; its operator can start it: POST /v1/mcp/servers/%s/start", s.Name, s.Name)
	}
	return f
}

// serverMeta returns a request's _meta for the server: in the newer era each request describes the client and its
// capabilities.
func (h *Hub) serverMeta(l *link, client *mcp.ServerSession, meta mcp.Meta) mcp.Meta {
	m := maps.Clone(meta)
	if m == nil {
		m = mcp.Meta{}
	}
	era := []string{mcp.MetaKeyProtocolVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities, mcp.MetaKeyLogLevel}
	if !l.isNewer() {
		for _, key := range era { // a server of the older era would assume the newer one
			delete(m, key)
		}
		return m
	}
	m[mcp.MetaKeyProtocolVersion] = l.session.InitializeResult().ProtocolVersion
	if p := client.InitializeParams(); isOlder(client) {
		m[mcp.MetaKeyClientCapabilities] = capabilitiesOf(p)
		if p.ClientInfo != nil {
			m[mcp.MetaKeyClientInfo] = p.ClientInfo
		}
		if level := h.levels.get(client); level != "" {
			m[mcp.MetaKeyLogLevel] = level
		}
	}
	return m
}

// capabilitiesOf returns a client's capabilities in wire form; go-sdk's type always includes roots.
func capabilitiesOf(p *mcp.InitializeParams) map[string]any {
	m := map[string]any{}
	if p.Capabilities == nil {
		return m
	}
	if text, err := json.Marshal(p.Capabilities); err == nil {
		_ = json.Unmarshal(text, &m) // it is an object
	}
	delete(m, "roots")
	if p.Capabilities.RootsV2 != nil {
		m["roots"] = p.Capabilities.RootsV2
	}
	return m
}
