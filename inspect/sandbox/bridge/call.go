package bridge

import (
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
)

// call answers one tools/call: by the tool inside, or by a failure.
func (b *Bridge) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	x := b.enter()
	defer x.leave()
	if late := x.booted(ctx, req); late != nil {
		return late.result(), nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if x.failed != nil {
		return down("container.start", "the image did not start: %v", x.failed).result(), nil
	}
	x.container.Event(sandbox.EventExec, describeCall(req))
	within, cancel := context.WithTimeout(ctx, b.conf.call)
	defer cancel()
	defer x.cancelAtEnd(cancel)()
	res, err := x.client.call(within, req)
	if err == nil {
		return x.located(res), nil
	}
	var theirs *jsonrpc.Error
	switch {
	case errors.As(err, &theirs):
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return x.failure(within, err).result(), nil
}

// booted waits for the container, and keeps the client informed if it asked for that.
func (x *box) booted(ctx context.Context, req *mcp.CallToolRequest) (late *failure) {
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
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // a client that has gone hears nothing
					ProgressToken: token, Progress: time.Since(began).Seconds(), Message: "booting the image",
				})
			}
		}
	}
}

// cancelAtEnd calls cancel when the container ends before the function that it gives is called.
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

// describeCall is what the evidence has of a call: what was done, but none of its values. The audit log inside has these,
// redacted.
func describeCall(req *mcp.CallToolRequest) string {
	var args struct {
		SessionID string `json:"session_id"`
		Argv      []any  `json:"argv"`
	}
	_ = json.Unmarshal(req.Params.Arguments, &args) // the tool refuses what is none
	what := fmt.Sprintf("%.64q", req.Params.Name)
	if len(args.Argv) > 0 {
		what += fmt.Sprintf(" %.32q", fmt.Sprint(args.Argv[0]))
	}
	if args.SessionID != "" {
		what += fmt.Sprintf(" session %.64q", args.SessionID)
	}
	return what
}

// located tells where a file that a call wrote is on this machine, once the container has ended.
func (x *box) located(res *mcp.CallToolResult) *mcp.CallToolResult {
	text, _ := json.Marshal(res.StructuredContent) // it was JSON
	var result struct{ Stdout string }
	var data struct{ Path string }
	if json.Unmarshal(text, &result) != nil || json.Unmarshal([]byte(result.Stdout), &data) != nil {
		return res
	}
	below, ok := strings.CutPrefix(path.Clean(data.Path), "/output/")
	dir := x.container.Directory()
	if !ok || dir == "" || len(below) > 1024 {
		return res
	}
	res.Content = append(res.Content, &mcp.TextContent{
		Text: fmt.Sprintf("At the end of this session the file is at %s on the user's machine.", filepath.Join(dir, "output", below)),
	})
	return res
}

// failure is a call that came to no end inside. It becomes a result with isError, as the hub has its own.
type failure struct {
	code      policy.Code // 0: none
	name      string      // of a failure without a code
	rule      string
	text      string
	retryable bool
	after     time.Duration
}

func down(rule, format string, args ...any) *failure {
	return &failure{name: "SERVER_DOWN", rule: rule, text: fmt.Sprintf(format, args...)}
}

// failure tells why a call failed that neither the client nor the tool ended.
func (x *box) failure(within context.Context, err error) *failure {
	select {
	case <-x.over:
		return x.ended()
	default:
	}
	switch {
	case errors.Is(err, errTooLarge):
		return &failure{code: policy.BudgetExceeded, rule: "answer.size", text: fmt.Sprintf("the tool's answer is larger than %d bytes; ask for less", maxAnswer)}
	case errors.Is(within.Err(), context.DeadlineExceeded):
		return &failure{
			code: policy.Timeout, rule: "call.timeout", retryable: true,
			text: fmt.Sprintf("the tool did not answer within %s; it may still be at work", x.bridge.conf.call),
		}
	}
	wait, cancel := context.WithTimeout(x.bridge.ctx, endPatience)
	defer cancel()
	if _, gone := x.client.tools(wait); gone != nil { // a container that ends breaks its connections first
		select {
		case <-x.over:
			return x.ended()
		case <-wait.Done():
		}
	}
	return &failure{name: "SERVER_FAILED", rule: "container.answer", text: fmt.Sprintf("the tool gave no answer that can be understood: %.300q", err), retryable: true}
}

// ended tells how the container ended.
func (x *box) ended() *failure {
	const again = "; its sessions are gone, and the next call boots another"
	switch {
	case x.status.TimedOut:
		return &failure{code: policy.Timeout, rule: "container.timeout", retryable: true, text: "the container ran for its --timeout and was ended" + again}
	case x.status.OOMKilled:
		return &failure{code: policy.SandboxViolation, rule: "container.memory", retryable: true, text: "the container needed more than its --memory and was ended" + again}
	case x.err != nil:
		f := down("container.ended", "the container ended during the call: %v%s", x.err, again)
		f.retryable = true
		return f
	}
	f := down("container.ended", "the container ended during the call, with exit status %d%s", x.status.ExitCode, again)
	f.retryable = true
	return f
}

func (f *failure) result() *mcp.CallToolResult {
	name, head := f.name, f.name
	meta := mcp.Meta{"rule": f.rule, "retryable": f.retryable, "retry_after_ms": f.after.Milliseconds()}
	if f.code != 0 {
		name, meta["code"] = f.code.Name(), int(f.code)
		head = fmt.Sprintf("%s (%d)", name, int(f.code))
	}
	meta["name"] = name
	return &mcp.CallToolResult{
		Meta: meta, IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("%s %s: %s", head, f.rule, f.text)}},
	}
}
