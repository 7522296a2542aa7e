// Package protocol completes go-sdk's MCP: a stdio server that no line can end, no answers to cancelled requests, and
// correct error codes.
//
// It refuses a frame that is not UTF-8 or JSON (-32700). It refuses one (-32600) that is not an object or not JSON-RPC
// 2.0; whose id is not a string or an integer of at most 2^53-1; or that has more than MaxDepth levels, MaxValues values
// or MaxFrame bytes. It refuses params that are not an object (-32602). The answer has the id of the request, or none if the frame's id can't be trusted. Bad notifications
// and bad responses get no answer. Errors repeat nothing of the client's frame except its id and a plausible revision.
package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Serve serves MCP on in and out, one frame per line, until the end of input or of ctx, and then returns nil. It
// cancels the running calls then, and waits for them. s needs Middleware.
//
// At most 128 requests are in flight. Further ones are refused (-32603), and wait in the pipe while the client doesn't
// read. While Serve runs, SIGPIPE doesn't end the process. A blocked Read of in outlives Serve.
func Serve(ctx context.Context, s *mcp.Server, in io.Reader, out io.Writer) error {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE) // makes a write to a closed stdout fail
	defer signal.Stop(broken)
	c := newConn(ctx, in, out)
	defer c.stopReading()
	defer c.stopWriting()
	err := s.Run(context.WithoutCancel(ctx), c)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, errAbandoned) {
		return nil
	}
	return fmt.Errorf("serve MCP: %w", err)
}

// methods lists the methods of a server that has only tools.
var methods = []string{
	"initialize", "ping", "server/discover", "subscriptions/listen", "tools/list", "tools/call",
	"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/roots/list_changed",
}

// Middleware restricts a server to tools: other methods are not found (-32601), where go-sdk would answer with an empty
// list. An error without a code becomes internal (-32603), or -32600 for a second initialize. A panic becomes internal,
// too; it would otherwise end every session. Add it last, with Server.AddReceivingMiddleware.
func Middleware() mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			if !slices.Contains(methods, method) {
				return nil, ownError(nil, jsonrpc.CodeMethodNotFound)
			}
			defer func() {
				if p := recover(); p != nil {
					slog.Error("panic", "method", method, "stack", string(debug.Stack())) // its value may contain arguments
					res, err = nil, ownError(nil, jsonrpc.CodeInternalError)
				}
			}()
			if res, err = next(ctx, method, req); err == nil {
				return res, nil
			}
			code := int64(jsonrpc.CodeInternalError)
			if method == "initialize" {
				code = jsonrpc.CodeInvalidRequest
			}
			return nil, ownError(err, code)
		}
	}
}
