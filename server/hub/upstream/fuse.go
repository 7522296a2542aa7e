package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// fuse ends one attempt after a panic, so that a fault which one server provokes doesn't affect the others.
type fuse struct {
	server string
	once   sync.Once
	blown  chan struct{} // closed after a panic
	err    error         // set before blown is closed
}

func newFuse(server string) *fuse { return &fuse{server: server, blown: make(chan struct{})} }

// rescue is deferred at the edge of a server's goroutine. It logs a panic, ends the attempt, and sets *err.
func (f *fuse) rescue(where string, err *error) {
	if recover() == nil { // its value may contain arguments
		return
	}
	slog.Error("panic", "server", f.server, "in", where, "stack", string(debug.Stack()))
	f.once.Do(func() {
		f.err = fmt.Errorf("internal error of the hub in %s; the hub's stderr has the stack", where)
		close(f.blown)
	})
	if err != nil {
		*err = f.err
	}
}

// cause returns the error of the panic, or err if there was none.
func (f *fuse) cause(err error) error {
	select {
	case <-f.blown:
		return f.err
	default:
		return err
	}
}

// needParams lists the methods whose handlers require parameters although go-sdk lets a server omit them.
var needParams = []string{"elicitation/create", "notifications/elicitation/complete", "notifications/resources/updated"}

// edge is the outermost middleware of a session in both directions.
func (f *fuse) edge(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer f.rescue(method, &err)
		if slices.Contains(needParams, method) && isNil(req.GetParams()) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: method + " has no params"}
		}
		return next(ctx, method, req)
	}
}

// isNil reports whether a request has no parameters: go-sdk passes nil or a nil pointer.
func isNil(p mcp.Params) bool { return p == nil || reflect.ValueOf(p).IsNil() }

// Try calls f. A panic of f is logged and ends the running attempt; the server is restarted as after any other failure.
func (s *Server) Try(what string, f func()) {
	s.mu.Lock()
	fuse := s.fuse
	s.mu.Unlock()
	if fuse == nil { // it was never started
		fuse = newFuse(s.config.Name)
	}
	defer fuse.rescue(what, nil)
	f()
}
