package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/hub/upstream"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
)

// failure is the hub's error for a call that it could not complete. It becomes a result with isError, so that the model
// can react.
type failure struct {
	name, rule, text string
	code             int // 0: none
	retryable        bool
	after            time.Duration
}

const codeTimeout = int(policy.Timeout)

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

// exitUnavailable is the exit_code of a failure without a code.
const exitUnavailable = 69

// result returns the failure as the result of a call of t, which is nil for a missing tool. A tool whose results have
// the four keys of browser-shell keeps them.
func (f *failure) result(t *tool, arguments json.RawMessage) *mcp.CallToolResult {
	head := f.name
	if f.code != 0 {
		head = fmt.Sprintf("%s (%d)", f.name, f.code)
	}
	text := fmt.Sprintf("%s %s: %s", head, f.rule, f.text)
	if t != nil && !t.fourKeys() {
		return &mcp.CallToolResult{Meta: f.meta(), IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	}
	return protocol.NewRefusal(arguments, cmp.Or(policy.Code(f.code).ExitCode(), exitUnavailable), text, f.meta())
}

// hasFourKeys reports whether a tool's results are those of browser-shell, by its outputSchema.
func hasFourKeys(t *mcp.Tool) bool {
	var schema struct{ Required []string }
	text, err := json.Marshal(t.OutputSchema)
	return err == nil && json.Unmarshal(text, &schema) == nil && slices.Equal(schema.Required, []string{"session_id", "exit_code", "stdout", "stderr"})
}

// tooMany returns the failure for an error by which browser-shell refuses a call beyond the number that it takes.
func tooMany(err error) *failure {
	var theirs *jsonrpc.Error
	if errors.As(err, &theirs) && theirs.Code == protocol.CodeTooMany && string(theirs.Data) == protocol.TooMany {
		return tooManyRequests(theirs.Message)
	}
	return nil
}

func tooManyRequests(text string) *failure {
	return &failure{name: policy.BudgetExceeded.Name(), code: int(policy.BudgetExceeded), rule: "calls.count", text: text, retryable: true}
}

func denied(d *guard.Denial) *failure {
	return &failure{name: policy.PolicyBlocked.Name(), code: int(policy.PolicyBlocked), rule: d.Rule, text: d.Message}
}

// noExecutor returns the refusal for a missing tool whose name promises to run arbitrary commands; nil for any other
// name.
func noExecutor(tool string) *failure {
	if !policy.IsExecutor(tool) {
		return nil
	}
	r := policy.NoExecutor("the tools that tools/list shows")
	return &failure{name: r.Code.Name(), code: int(r.Code), rule: r.Rule, text: r.Message}
}

func unrecorded(err error) *failure {
	f := &failure{
		name: policy.PolicyBlocked.Name(), code: int(policy.PolicyBlocked), rule: "audit.unavailable", retryable: true,
		text: "the audit log cannot be written, so nothing is run or shown; tell the operator",
	}
	if errors.Is(err, audit.ErrFull) {
		f.rule, f.text = "audit.full", "the audit log is full, so nothing is run; tell the operator to move its older files away"
	}
	return f
}

// withCode adds a code to an error without one: go-sdk would send 0.
func withCode(err error) error {
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

// errorType returns the attribute error.type of the OTel MCP conventions.
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

// clientError converts an error to the one for the client.
func (h *Hub) clientError(outer context.Context, s *server, err error) error {
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
