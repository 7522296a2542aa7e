package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/hub/upstream"
	"github.com/slimctl/slimctl/server/policy"
)

// failure is what the hub says of a call that it could not bring to an end. It
// is a result with isError: the model can do something about it.
type failure struct {
	name, rule, text string
	code             int // 0: none
	retryable        bool
	after            time.Duration
}

const codeTimeout = int(policy.Timeout)

// Error is for what is no call of a tool, and has no such result.
func (f *failure) Error() string { return f.text }

// meta is what a program can read of it, as in the results of browser-shell.
func (f *failure) meta() mcp.Meta {
	meta := mcp.Meta{"name": f.name, "rule": f.rule, "retryable": f.retryable, "retry_after_ms": f.after.Milliseconds()}
	if f.code != 0 {
		meta["code"] = f.code
	}
	return meta
}

func (f *failure) result() *mcp.CallToolResult {
	head := f.name
	if f.code != 0 {
		head = fmt.Sprintf("%s (%d)", f.name, f.code)
	}
	return &mcp.CallToolResult{
		Meta: f.meta(), IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("%s %s: %s", head, f.rule, f.text)}},
	}
}

func denied(d *guard.Denial) *failure {
	return &failure{name: policy.PolicyBlocked.Name(), code: int(policy.PolicyBlocked), rule: d.Rule, text: d.Message}
}

// noExecutor refuses a tool that promises to run anything, and that no server has; nil is for any other name.
func noExecutor(tool string) *failure {
	if !policy.IsExecutor(tool) {
		return nil
	}
	r := policy.NoExecutor("the tools that tools/list shows")
	return &failure{name: r.Code.Name(), code: int(r.Code), rule: r.Rule, text: r.Message}
}

func unrecorded(err error) *mcp.CallToolResult {
	f := failure{
		name: policy.PolicyBlocked.Name(), code: int(policy.PolicyBlocked), rule: "audit.unavailable", retryable: true,
		text: "the audit log cannot be written, so nothing is run or shown; tell the operator",
	}
	if errors.Is(err, audit.ErrFull) {
		f.rule, f.text = "audit.full", "the audit log is full, so nothing is run; tell the operator to move its older files away"
	}
	return f.result()
}

// coded gives an error of no code one: go-sdk would say 0.
func coded(err error) error {
	var known *jsonrpc.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	own := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	if f := (*failure)(nil); errors.As(err, &f) {
		own.Data, _ = json.Marshal(f.meta()) // strings and numbers encode
		if f.code == int(policy.PolicyBlocked) {
			own.Code = jsonrpc.CodeInvalidParams
		}
	}
	return own
}

// errorType is the attribute error.type of the OTel MCP conventions.
func errorType(res mcp.Result, err error) string {
	var known *jsonrpc.Error
	if errors.As(err, &known) {
		return fmt.Sprint(known.Code)
	}
	failed := false
	switch r := res.(type) {
	case *mcp.CallToolResult:
		failed = r != nil && r.IsError
	case written:
		failed = r.IsError
	}
	if failed {
		return "tool_error"
	}
	return ""
}

// failed gives the error that a client gets to see.
func (h *Hub) failed(outer context.Context, s *server, err error) error {
	var theirs *jsonrpc.Error
	var down *upstream.DownError
	var own *failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &down):
		return &failure{name: "SERVER_DOWN", rule: "server.down", text: down.Error(), retryable: down.RetryIn > 0 || down.State == upstream.Starting, after: down.RetryIn}
	case errors.As(err, &theirs):
		return theirs
	case outer.Err() != nil:
		return outer.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{
			name: "TIMEOUT", code: codeTimeout, rule: "call.timeout", retryable: true,
			text: fmt.Sprintf("server %s did not answer within %s; it may still be at work", s.config.Name, h.callTimeout(s)),
		}
	case errors.Is(err, mcp.ErrConnectionClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		if s.config.NoRestart {
			return &failure{name: "SERVER_DOWN", rule: "server.ended", text: fmt.Sprintf("server %s ended during the call; it is not started again by itself", s.config.Name)}
		}
		return &failure{name: "SERVER_DOWN", rule: "server.ended", text: fmt.Sprintf("server %s ended during the call; it is started again", s.config.Name), retryable: true}
	}
	return &failure{name: "SERVER_FAILED", rule: "server.answer", text: fmt.Sprintf("server %s: %v", s.config.Name, err)}
}
