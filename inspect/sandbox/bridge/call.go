package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
)

// call answers one tools/call with the result of the tool inside, or a failure.
func (b *Bridge) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	x := b.enter()
	defer x.endCall()
	if late := x.awaitBoot(ctx, req); late != nil {
		return late.result(req.Params.Arguments), nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if x.failed != nil {
		return down("container.start", "the image did not start: %v", x.failed).result(req.Params.Arguments), nil
	}
	if err := x.container.Record(sandbox.Event{Event: sandbox.EventExec, Command: commandOf(req)}); err != nil {
		b.conf.Say("a call can't be recorded, so it isn't run: %v", err)
		return unrecorded.result(req.Params.Arguments), nil
	}
	within, cancel := context.WithTimeout(ctx, b.conf.call)
	defer cancel()
	defer x.cancelAtEnd(cancel)()
	res, err := x.client.call(within, req)
	file := outputOf(res)
	uncopied := x.container.Mirror(within, file)
	if err == nil && uncopied != nil {
		b.conf.Say("a call's record or file can't be copied, so it isn't answered: %v", uncopied)
		return unkept.result(req.Params.Arguments), nil
	}
	if err == nil {
		return x.located(res, file), nil
	}
	var theirs *jsonrpc.Error
	switch {
	case errors.As(err, &theirs) && !closedCode(theirs.Code):
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return x.failure(within, err).result(req.Params.Arguments), nil
}

// closedCode reports whether a code is in the range that MCP 2026-07-28 closes to new codes. go-sdk uses it for
// connection failures.
func closedCode(code int64) bool { return -32019 <= code && code <= -32000 }

// awaitBoot waits for the container, and sends progress to a client that requested it.
func (x *box) awaitBoot(ctx context.Context, req *mcp.CallToolRequest) (late *failure) {
	began := time.Now()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	timer := time.NewTimer(bootPatience)
	defer timer.Stop()
	for {
		select {
		case <-x.ready:
			return nil
		case <-ctx.Done():
			return nil
		case <-timer.C:
			f := down("container.starting", "the image is still being fetched or booted; call again")
			f.retryable, f.after = true, 5*time.Second
			return f
		case <-ticker.C:
			if token := req.Params.GetProgressToken(); token != nil {
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // fails if the client has left
					ProgressToken: token, Progress: time.Since(began).Seconds(), Message: "booting the image",
				})
			}
		}
	}
}

// cancelAtEnd calls cancel if the container ends before the returned function is called.
func (x *box) cancelAtEnd(cancel func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-x.over:
			cancel()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// commandOf returns the evidence's form of a call: tool, session and subcommand, without values that could be secret.
// The audit log inside has the values, redacted.
func commandOf(req *mcp.CallToolRequest) []string {
	var args struct {
		SessionID string `json:"session_id"`
		Argv      []any  `json:"argv"`
	}
	_ = json.Unmarshal(req.Params.Arguments, &args) // the tool refuses an invalid object
	out := []string{fmt.Sprintf("%.64s", req.Params.Name), fmt.Sprintf("%.64s", args.SessionID)}
	if len(args.Argv) > 0 {
		out = append(out, fmt.Sprintf("%.32v", args.Argv[0]))
	}
	return out
}

// outputOf returns the path below /output of a file that a call wrote; "" if there is none.
func outputOf(res *mcp.CallToolResult) string {
	var result struct{ Stdout string }
	var data struct{ Path string }
	if res == nil {
		return ""
	}
	text, _ := json.Marshal(res.StructuredContent) // it was JSON
	if json.Unmarshal(text, &result) != nil || json.Unmarshal([]byte(result.Stdout), &data) != nil || len(data.Path) > 1024 {
		return ""
	}
	below, ok := strings.CutPrefix(path.Clean(data.Path), "/output/")
	if !ok {
		return ""
	}
	return below
}

// located adds the path on this machine of a file that a call wrote.
func (x *box) located(res *mcp.CallToolResult, file string) *mcp.CallToolResult {
	if dir := x.container.Directory(); file != "" && dir != "" {
		res.Content = append(res.Content, &mcp.TextContent{
			Text: fmt.Sprintf("The file is at %s on the user's machine.", filepath.Join(dir, "output", file)),
		})
	}
	return res
}

// failure is a call that was not completed inside. It becomes a result with isError, like the hub's.
type failure struct {
	code      policy.Code // 0: none
	name      string      // for a failure without a code
	rule      string
	text      string
	retryable bool
	after     time.Duration
}

func down(rule, format string, args ...any) *failure {
	return &failure{name: "SERVER_DOWN", rule: rule, text: fmt.Sprintf(format, args...)}
}

var unrecorded = &failure{
	code: policy.PolicyBlocked, rule: "audit.unavailable", retryable: true,
	text: "the call can't be recorded, so it is not run; tell the operator",
}

var unkept = &failure{
	code: policy.PolicyBlocked, rule: "audit.unavailable",
	text: "the call has run, but its record or its file can't be copied to the artifacts directory; tell the operator",
}

// failure returns the reason for a call's failure that neither the client nor the tool caused.
func (x *box) failure(within context.Context, err error) *failure {
	select {
	case <-x.over:
		return x.describeEnd()
	default:
	}
	switch {
	case errors.Is(err, errTooLarge):
		return &failure{code: policy.BudgetExceeded, rule: "answer.size", text: fmt.Sprintf("the tool's answer is larger than %d bytes; ask for less", maxAnswer)}
	case errors.Is(within.Err(), context.DeadlineExceeded):
		f := &failure{
			code: policy.Timeout, rule: "call.timeout", retryable: true,
			text: fmt.Sprintf("the tool did not answer within %s; it may still be at work", x.bridge.conf.call),
		}
		if err := x.container.Record(sandbox.Event{Event: sandbox.EventTimeout, Code: f.code, Rule: f.rule, Detail: f.text}); err != nil {
			x.bridge.conf.Say("a timeout can't be recorded: %v", err)
		}
		return f
	}
	wait, cancel := context.WithTimeout(x.bridge.ctx, endPatience)
	defer cancel()
	if _, gone := x.client.tools(wait); gone != nil { // an ending container breaks its connections first
		select {
		case <-x.over:
			return x.describeEnd()
		case <-wait.Done():
		}
	}
	return &failure{name: "SERVER_FAILED", rule: "container.answer", text: fmt.Sprintf("the tool gave no answer that can be understood: %.300q", err), retryable: true}
}

// describeEnd returns the reason for the container's end, in words.
func (x *box) describeEnd() *failure {
	const again = "; its sessions are gone, and the next call boots another"
	f := &failure{code: x.status.Code, rule: "limit." + x.status.Reason, retryable: true}
	switch x.status.Reason {
	case sandbox.ReasonTimeout:
		f.text = "the container ran for its --timeout and was ended" + again
	case sandbox.ReasonMemory:
		f.text = "the container needed more than its --memory and ended" + again
	case sandbox.ReasonPIDs:
		f.text = "the container wanted more processes than its --pids-limit and ended" + again
	default:
		how := fmt.Sprintf("with exit status %d", x.status.ExitCode)
		if x.err != nil {
			how = fmt.Sprintf("and its engine says: %.300s", x.err)
		}
		f.name, f.rule, f.text = "SERVER_DOWN", "container.ended", "the container ended during the call, "+how+again
	}
	return f
}

// exitUnavailable is the exit_code of a failure without a code.
const exitUnavailable = 69

// result returns the failure as a result with the tool's four keys.
func (f *failure) result(arguments json.RawMessage) *mcp.CallToolResult {
	name, head := f.name, f.name
	meta := mcp.Meta{"rule": f.rule, "retryable": f.retryable, "retry_after_ms": f.after.Milliseconds()}
	if f.code != 0 {
		name, meta["code"] = f.code.Name(), int(f.code)
		head = fmt.Sprintf("%s (%d)", name, int(f.code))
	}
	meta["name"] = name
	return protocol.NewRefusal(arguments, cmp.Or(f.code.ExitCode(), exitUnavailable), fmt.Sprintf("%s %s: %s", head, f.rule, f.text), meta)
}
