package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/hub/upstream"
	"github.com/slimctl/slimctl/server/protocol"
)

// Bounds on requests.
const (
	// maxRequests limits concurrent requests. Connections are limited, too, but a call of the older era continues after
	// its connection has ended.
	maxRequests = 256
	// patience is the time after its creation during which requests wait for a server that was never up.
	patience = 10 * time.Second
)

// receive is middleware before go-sdk's own handling of each request.
func (h *Hub) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		if method == "ping" || strings.HasPrefix(method, "notifications/") {
			defer rescue(method, &err)
			return next(ctx, method, req)
		}
		begin, tool := time.Now(), ""
		defer func() {
			err = withCode(err)
			h.meter.Operation(false, method, tool, errorType(res, err), time.Since(begin))
		}()
		defer rescue(method, &err)
		if h.running.Add(1); h.running.Load() > maxRequests {
			h.running.Add(-1)
			const text = "too many requests at once; try again"
			if call, ok := req.(*mcp.CallToolRequest); ok {
				h.mu.Lock()
				t := h.catalog.tools[call.Params.Name]
				h.mu.Unlock()
				return tooManyRequests(text).result(t, call.Params.Arguments), nil
			}
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: text}
		}
		defer h.running.Add(-1)
		ctx = withCaller(ctx, req)
		h.awaitSettled(ctx, method)
		if !h.offers(method) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no server behind the hub offers " + method}
		}
		switch method {
		case "initialize", "server/discover":
			if res, err = next(ctx, method, req); err == nil {
				h.describeServers(res)
			}
			return res, err
		case "tools/call":
			res, tool, err = h.guardCall(ctx, next, req.(*mcp.CallToolRequest))
			return res, err
		case "resources/read":
			return h.readUnlisted(ctx, next, req.(*mcp.ReadResourceRequest))
		case "logging/setLevel":
			if p, ok := req.GetParams().(*mcp.SetLoggingLevelParams); ok {
				ss := req.GetSession().(*mcp.ServerSession)
				h.levels.setLevel(ss, p.Level)
				h.cleanUpAfter(ss)
			}
		}
		return next(ctx, method, req)
	}
}

// rescue is deferred at the edge of a goroutine. It logs a panic and sets *err.
func rescue(where string, err *error) {
	if recover() == nil { // its value may contain arguments
		return
	}
	slog.Error("panic", "in", where, "stack", string(debug.Stack()))
	if err != nil {
		*err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
	}
}

// awaitSettled waits for the first start of every server, so that a client that connects immediately sees all tools.
func (h *Hub) awaitSettled(ctx context.Context, method string) {
	if method != "initialize" && method != "server/discover" && !strings.HasSuffix(method, "/list") {
		return
	}
	for _, s := range h.listServers() {
		late := time.After(time.Until(s.made.Add(patience)))
		select {
		case <-s.settled:
		case <-late:
		case <-ctx.Done():
			return
		}
	}
}

// closesSession reports whether a call gives back a session of browser-shell, which is possible also when the log is full.
func closesSession(server string, arguments json.RawMessage) bool {
	var call struct{ Argv []string }
	return server == "browser_shell" && json.Unmarshal(arguments, &call) == nil && len(call.Argv) == 1 && call.Argv[0] == "close"
}

// guardCall admits a call if the policy does and its line can be logged.
func (h *Hub) guardCall(ctx context.Context, next mcp.MethodHandler, req *mcp.CallToolRequest) (_ mcp.Result, name string, err error) {
	h.mu.Lock()
	t, policy := h.catalog.tools[req.Params.Name], h.policy
	listed := h.catalog.listNames()
	h.mu.Unlock()
	var s *server
	if t != nil {
		s = t.server
	}
	r := h.record.beginLine(ctx, req.Session, s, req.Params.Meta)
	r.Tool = h.record.redactor.String(fmt.Sprintf("%.64s", req.Params.Name))
	if err := h.record.log.Ready(); err != nil && !(errors.Is(err, audit.ErrFull) && s != nil && closesSession(s.config.Name, req.Params.Arguments)) {
		return unrecorded(err).result(t, req.Params.Arguments), "", nil
	}
	if refusal := noExecutor(req.Params.Name); t == nil && refusal != nil {
		res := refusal.result(t, req.Params.Arguments)
		if e := r.writeLine(res, refusal.rule, nil); e != nil {
			res = unrecorded(e).result(t, req.Params.Arguments)
		}
		return res, "", nil
	}
	if t == nil {
		return nil, "", r.writeLine(nil, "tool.unknown", protocol.UnknownTool(listed))
	}
	server := t.server.config
	d := policy.Check(guard.Call{Server: server.Name, Tool: t.tool.Name, Alias: t.alias, Arguments: req.Params.Arguments, ReadOnly: isReadOnly(t.tool), Shell: server.Shell})
	if d != nil {
		h.meter.Denied(server.Name, t.alias, d.Rule)
		res := denied(d).result(t, req.Params.Arguments)
		if e := r.writeLine(res, d.Rule, nil); e != nil {
			res = unrecorded(e).result(t, req.Params.Arguments)
		}
		return res, t.alias, nil
	}
	defer h.calls.beginCall(callerFrom(ctx).RequestID)()
	if policy.ChecksArguments(server.Name) {
		if f := t.checkArguments(req.Params.Arguments); f != nil {
			res := f.result(t, req.Params.Arguments)
			if e := r.writeLine(res, "", nil); e != nil {
				res = unrecorded(e).result(t, req.Params.Arguments)
			}
			return res, t.alias, nil
		}
	}
	var as written
	res, err := next(context.WithValue(ctx, writtenKey{}, &as), "tools/call", req)
	answer, _ := res.(*mcp.CallToolResult)
	if e := r.writeLine(answer, "", err); e != nil && err == nil {
		return unrecorded(e).result(t, req.Params.Arguments), t.alias, nil
	}
	if err == nil && answer != nil && answer == as.CallToolResult {
		res = as
	}
	return res, t.alias, err
}

// admitText checks requests to a server other than tool calls.
func (h *Hub) admitText(ctx context.Context, s *server, ss *mcp.ServerSession, meta mcp.Meta, texts ...string) error {
	h.mu.Lock()
	policy := h.policy
	h.mu.Unlock()
	d := policy.CheckText(s.config.Name, s.config.Shell, texts...)
	if d == nil {
		return nil
	}
	h.meter.Denied(s.config.Name, "", d.Rule)
	if err := h.record.beginLine(ctx, ss, s, meta).writeLine(nil, d.Rule, nil); err != nil {
		h.log.Warn("a denial is not in the audit log", "error", err)
	}
	return denied(d)
}

// callTool is the handler of every tool.
func (h *Hub) callTool(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	h.mu.Lock()
	t := h.catalog.tools[req.Params.Name]
	h.mu.Unlock()
	if t == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the tool is gone; list the tools again"}
	}
	var res *mcp.CallToolResult
	err := h.forwardRequest(ctx, t.server, "tools/call", t.alias, req.Session, req.Params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) (err error) {
		params := &mcp.CallToolParams{Meta: meta, Name: t.tool.Name, InputResponses: req.Params.InputResponses, RequestState: req.Params.RequestState}
		if req.Params.Arguments != nil {
			params.Arguments = req.Params.Arguments
		}
		ctx, tap := upstream.WithTap(ctx)
		res, err = up.CallTool(ctx, params)
		if text := tap.Result(); err == nil && text != nil {
			keep(ctx, written{res, text, !isOlder(req.Session) && !isNewer(up)})
		}
		return err
	})
	f := tooMany(err)
	if f != nil || errors.As(err, &f) {
		return f.result(t, req.Params.Arguments), nil
	}
	return res, err
}

func (h *Hub) getPrompt(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	h.mu.Lock()
	p := h.catalog.prompts[req.Params.Name]
	h.mu.Unlock()
	if p == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the prompt is gone; list the prompts again"}
	}
	if err := h.admitText(ctx, p.server, req.Session, req.Params.Meta, slices.Collect(maps.Values(req.Params.Arguments))...); err != nil {
		return nil, err
	}
	var res *mcp.GetPromptResult
	err := h.forwardRequest(ctx, p.server, "prompts/get", "", req.Session, req.Params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) (err error) {
		params := *req.Params
		params.Meta, params.Name = meta, p.prompt.Name
		res, err = up.GetPrompt(ctx, &params)
		return err
	})
	return res, err
}

// readUnlisted also asks the only server of a hub for resources that it doesn't list.
func (h *Hub) readUnlisted(ctx context.Context, next mcp.MethodHandler, req *mcp.ReadResourceRequest) (mcp.Result, error) {
	h.mu.Lock()
	_, listed := h.catalog.resources[req.Params.URI]
	alone := len(h.servers) == 1
	h.mu.Unlock()
	if listed || !alone {
		return next(ctx, "resources/read", req)
	}
	res, err := h.readResource(ctx, req)
	if err == nil && res.NeedsInput() && isOlder(req.Session) {
		return next(ctx, "resources/read", req) // go-sdk sends requests to the client
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (h *Hub) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	s := h.findOwner(req.Params.URI)
	if s == nil {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	if err := h.admitText(ctx, s, req.Session, req.Params.Meta, req.Params.URI); err != nil {
		return nil, err
	}
	var res *mcp.ReadResourceResult
	err := h.forwardRequest(ctx, s, "resources/read", "", req.Session, req.Params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) error {
		params := *req.Params
		params.Meta = meta
		got, err := up.ReadResource(ctx, &params)
		if err != nil {
			return err
		}
		own := *got // the original may be shared by the session
		own.Meta = maps.Clone(own.Meta)
		res = &own
		return nil
	})
	return res, err
}

func (h *Hub) forwardCompletion(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	params := *req.Params
	ref := *params.Ref
	var s *server
	h.mu.Lock()
	if p := h.catalog.prompts[ref.Name]; ref.Type == "ref/prompt" && p != nil {
		s, ref.Name = p.server, p.prompt.Name
	} else if t := h.catalog.templates[ref.URI]; ref.Type == "ref/resource" && t != nil {
		s = t.server
	} else if len(h.servers) == 1 {
		s = h.servers[0]
	}
	h.mu.Unlock()
	if s == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown reference"}
	}
	texts := []string{ref.URI, params.Argument.Value}
	if params.Context != nil {
		texts = slices.AppendSeq(texts, maps.Values(params.Context.Arguments))
	}
	if err := h.admitText(ctx, s, req.Session, params.Meta, texts...); err != nil {
		return nil, err
	}
	var res *mcp.CompleteResult
	err := h.forwardRequest(ctx, s, "completion/complete", "", req.Session, params.Meta, func(ctx context.Context, up *mcp.ClientSession, meta mcp.Meta) (err error) {
		params.Meta, params.Ref = meta, &ref
		res, err = up.Complete(ctx, &params)
		return err
	})
	return res, err
}

// findOwner returns the server of a resource: the one that lists it, the only one, or the one whose template has the
// longest matching prefix.
func (h *Hub) findOwner(uri string) *server {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.catalog.resources[uri]; ok {
		return r.server
	}
	if len(h.servers) == 1 {
		return h.servers[0]
	}
	var best *server
	longest := -1
	for _, t := range h.catalog.templates {
		begin, _, _ := strings.Cut(t.template.URITemplate, "{")
		if strings.HasPrefix(uri, begin) && len(begin) > longest {
			best, longest = t.server, len(begin)
		}
	}
	return best
}

// forwardRequest sends a request to a server. The server's messages about it go to the client. It returns the server's
// own error, or a *failure.
func (h *Hub) forwardRequest(ctx context.Context, s *server, method, tool string, ss *mcp.ServerSession, meta mcp.Meta,
	do func(context.Context, *mcp.ClientSession, mcp.Meta) error,
) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, h.callTimeout(s))
	defer cancel()
	session, flight, done, err := s.findSession(ctx, ss)
	if err != nil {
		return h.clientError(outer, s, err)
	}
	defer done()
	begin := time.Now()
	meta = h.upstreamMeta(ctx, s, session, ss, meta)
	h.setLevel(ctx, session, flight, meta)
	c, meta := flight.beginCall(ctx, ss, stripNewEra(session, meta))
	err = do(ctx, session, meta)
	flight.endCall(c)
	h.meter.Operation(true, method, tool, errorType(nil, withCode(err)), time.Since(begin))
	return h.clientError(outer, s, err)
}

func (h *Hub) callTimeout(s *server) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.policy.Timeout(s.config.Name, s.config.CallTimeout)
}
