package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// childVar makes the test binary a server on stdio. It tells its kind.
const childVar = "HUB_TEST_CHILD"

func TestMain(m *testing.M) {
	if kind := os.Getenv(childVar); kind != "" {
		child(kind)
		return
	}
	firstTime = time.Hour // on a busy machine, too, lists are whole
	os.Exit(m.Run())
}

func child(kind string) {
	if kind == "single" { // the second of a hub's ends at once
		lock, err := net.Listen("unix", fmt.Sprintf("@hub-test-%d", os.Getppid()))
		if err != nil {
			os.Exit(4)
		}
		defer lock.Close()
		kind = "old"
	}
	switch kind {
	case "exits":
		fmt.Fprintln(os.Stderr, "no such display")
		os.Exit(3)
	case "silent":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	case "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	case "forking": // as npx does: what answers is a child of what was started
		cmd := exec.Command("/bin/sh", "-c", "trap '' TERM HUP; while :; do sleep 60; done")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			os.Exit(5)
		}
		fmt.Fprintln(os.Stderr, "child", cmd.Process.Pid)
	}
	transport := &mcp.StdioTransport{}
	if kind == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
		defer func() { forever() }()
	}
	if err := childServer(kind).Run(context.Background(), transport); err != nil && kind != "stubborn" {
		os.Exit(1)
	}
}

// childServer has a tool for each thing that a hub can lose.
func childServer(kind string) *mcp.Server {
	o := &mcp.ServerOptions{
		Instructions:       "instructions of " + kind,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Ref.Name + r.Params.Ref.URI + r.Params.Argument.Value}}}, nil
		},
	}
	if kind == "old" {
		o.SupportedProtocolVersions = []string{"2025-11-25"}
	}
	if kind == "bare" {
		o = &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{}}
	}
	s := mcp.NewServer(&mcp.Implementation{Name: kind, Version: "1"}, o)
	schema := json.RawMessage(`{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}`)
	tool := func(name string, h mcp.ToolHandler) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: schema, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: name == "echo"}}, h)
	}
	text := func(format string, args ...any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
	}
	tool("echo", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		meta, err := json.Marshal(r.Params.Meta)
		return text("%s %s", r.Params.Arguments, meta), err
	})
	tool("pid", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text("%d", os.Getpid()), nil
	})
	if kind != "bare" {
		tool("structured", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			res := text("both")
			res.StructuredContent = map[string]any{"n": 1.5, "list": []any{nil, true}}
			res.Meta = mcp.Meta{"own": "meta"}
			return res, nil
		})
		tool("bad", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			res := text("it went wrong")
			res.IsError = true
			return res, nil
		})
		tool("error", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: 4242, Message: "own words", Data: json.RawMessage(`{"why":["a",1]}`)}
		})
		tool("progress", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 3 {
				if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i), Message: fmt.Sprintf("%s %d", r.Params.Arguments, i)}); err != nil {
					return nil, err
				}
			}
			return text("done"), nil
		})
		tool("wait", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args struct{ Began, Ended string }
			_ = json.Unmarshal(r.Params.Arguments, &args)
			_ = os.WriteFile(args.Began, nil, 0o600)
			<-ctx.Done()
			_ = os.WriteFile(args.Ended, nil, 0o600)
			return nil, ctx.Err()
		})
		tool("hang", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args struct{ Began string }
			_ = json.Unmarshal(r.Params.Arguments, &args)
			_ = os.WriteFile(args.Began, nil, 0o600)
			forever()
			return nil, nil
		})
		tool("crash", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			os.Exit(3)
			return nil, errors.New("unreachable")
		})
		tool("log", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text("logged"), r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "hello"})
		})
		tool("ask", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "name?"})
			if err != nil {
				return text("no answer: %v", err), nil
			}
			return text("%s", res.Action), nil
		})
		tool("input", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if a, ok := r.Params.InputResponses["who"].(*mcp.ElicitResult); ok {
				return text("%s %s", a.Action, r.Params.RequestState), nil
			}
			return &mcp.CallToolResult{RequestState: "opaque", InputRequests: mcp.InputRequestMap{"who": &mcp.ElicitParams{Message: "name?"}}}, nil
		})
		tool("grow", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			tool("grown", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("grown"), nil })
			return text("ok"), nil
		})
		tool("touch", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text("ok"), s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "test://" + kind})
		})
		read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "of " + kind}}}, nil
		}
		s.AddResource(&mcp.Resource{URI: "test://" + kind, Name: kind}, read)
		s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "test://" + kind + "/{id}", Name: kind}, read)
		s.AddPrompt(&mcp.Prompt{Name: "greet"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Description: kind}, nil
		})
	}
	if kind == "late" {
		time.Sleep(time.Second) // a client that comes before must still see everything
	}
	return s
}

// forever stays. Without cgo the runtime calls select {} a deadlock, and ends the program.
func forever() { time.Sleep(math.MaxInt64) }
