// Package protocol is what go-sdk leaves open of MCP: a stdio server that no
// line can end, no answer to what was cancelled, and error codes that fit.
//
// A frame is refused if it is not UTF-8 or JSON (-32700), or not an object,
// not JSON-RPC 2.0, has an id that is not a string or a plain integer of at
// most 2^53-1, a key twice in one object, a \u0000, half a surrogate pair, more
// than MaxDepth levels, MaxValues values or MaxFrame bytes (-32600), or params
// that are no object (-32602). The answer has the id of the request, or no id where the
// frame has none that is sure to be its own. Bad notifications and bad
// responses get no answer. No error repeats what the client sent, but its id
// and a revision that looks like one.
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

// Serve answers MCP on in and out, one frame a line, until the end of input or
// of ctx, for which it gives nil. Running calls are cancelled then; Serve
// waits for them. s needs Middleware.
//
// At most 128 requests are in flight; further ones are refused (-32603), and
// wait in the pipe while out takes nothing. While Serve runs, SIGPIPE doesn't
// end the process. A Read of in that still blocks outlives Serve.
func Serve(ctx context.Context, s *mcp.Server, in io.Reader, out io.Writer) error {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE) // so that a write to a closed stdout fails
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

// methods are those of a server that has tools and nothing else.
var methods = []string{
	"initialize", "ping", "server/discover", "subscriptions/listen", "tools/list", "tools/call",
	"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/roots/list_changed",
}

// Middleware is for a server that has tools and nothing else: other methods
// are not found (-32601), where go-sdk would answer with an empty list. An
// error without a code is internal (-32603), or -32600 for an initialize that
// comes twice; so is a panic, which would end every session.
// It is for Server.AddReceivingMiddleware, added last.
func Middleware() mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			if !slices.Contains(methods, method) {
				return nil, ownError(nil, jsonrpc.CodeMethodNotFound)
			}
			defer func() {
				if p := recover(); p != nil {
					slog.Error("panic", "method", method, "stack", string(debug.Stack())) // its value may hold arguments
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
