// Package bridge is an MCP server on stdio for the tool of an image. The first call boots the image, all calls are
// forwarded to the tool inside, and the container ends with the client. It answers initialize and tools/list before
// anything runs.
//
// The container's answers are hostile: their size, depth and time are limited, and none can end the server. Failures of
// a container are results with isError, like browser-shell's refusals, so that the model reads them;
// docs/mcp-clients.md has the codes.
package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
)

// Limits for a client's waiting.
const (
	// bootPatience is the time for which a call waits for the container. Clients give up after a minute with an
	// unhelpful error; the container continues to boot.
	bootPatience = 45 * time.Second
	// healthPatience is the time for the tool of a running container to answer.
	healthPatience = 2 * time.Minute
	// callPatience limits a call; none of our tools takes longer.
	callPatience = 10 * time.Minute
	// tick is the interval of progress notifications while the container boots.
	tick = 2 * time.Second
	// endPatience is the time for which a failed call waits for the reason, if its container seems to have ended.
	endPatience = 15 * time.Second
)

// Container is a running image; *sandbox.Sandbox implements most of it.
type Container interface {
	// Dial connects to the public port of the image.
	Dial(ctx context.Context) (net.Conn, error)
	// Wait waits for the end of the container.
	Wait(ctx context.Context) (sandbox.Status, error)
	// Stop ends it and waits.
	Stop(ctx context.Context) (sandbox.Status, error)
	// Record adds an event to its evidence.
	Record(e sandbox.Event) error
	// Mirror copies the audit log, and a file below /output unless that is "", to Directory.
	Mirror(ctx context.Context, file string) error
	// Logs returns its output.
	Logs() []byte
	// Directory returns the directory on this machine for its artifacts; empty for none.
	Directory() string
}

// Config configures a Bridge.
type Config struct {
	// Describe returns the tool as the image's files define it. It is called once, at the start. After an error clients
	// see the usual tool until the image runs.
	Describe func(ctx context.Context) (*mcp.Tool, error)
	// Boot starts the image with the given key for its public port. The container must end with ctx.
	Boot func(ctx context.Context, key string) (Container, error)
	// Idle is the time without calls after which a container ends; 0: at the end of input.
	Idle time.Duration
	// Served is called when no answer will come any more; the container's end may take longer.
	Served func()
	// Version is slimctl's own.
	Version string
	// Say receives messages for people, one line at a time.
	Say func(format string, args ...any)

	// health and call replace healthPatience and callPatience in tests.
	health, call time.Duration
}

// Bridge is the server of one client.
type Bridge struct {
	conf Config
	mcp  *mcp.Server

	ctx       context.Context // ends with Serve
	described chan struct{}   // closed when the tool is known
	news      atomic.Bool     // a running image has other tools than were shown before

	mu    sync.Mutex
	box   *box // nil: none runs
	boxes sync.WaitGroup
	tools map[string]*mcp.Tool
}

// New returns a Bridge.
func New(conf Config) *Bridge {
	conf.health, conf.call = cmp.Or(conf.health, healthPatience), cmp.Or(conf.call, callPatience)
	b := &Bridge{conf: conf, described: make(chan struct{}), tools: map[string]*mcp.Tool{}}
	b.mcp = mcp.NewServer(
		&mcp.Implementation{Name: policy.ToolName, Title: "Browser", Version: conf.Version},
		&mcp.ServerOptions{
			Logger:       slog.New(slog.DiscardHandler),
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}},
		},
	)
	b.mcp.AddSendingMiddleware(b.send)
	b.mcp.AddReceivingMiddleware(b.receive)
	b.mcp.AddReceivingMiddleware(protocol.Middleware())
	return b
}

// Serve serves MCP on in and out until the end of input or of ctx. It then ends the container and waits until it is
// completely removed.
func (b *Bridge) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
	go b.describe()
	err := protocol.Serve(ctx, b.mcp, in, out)
	cancel()
	b.conf.Served()
	b.boxes.Wait()
	return err
}

// describe offers the tool before the image runs.
func (b *Bridge) describe() {
	defer close(b.described)
	t, err := b.conf.Describe(b.ctx)
	if err != nil && b.ctx.Err() == nil {
		b.conf.Say("the image's tool can't be read before it runs, so the usual one is shown: %v", err)
	}
	if t == nil {
		t = server.Tool(policy.Default())
	}
	b.setTools([]*mcp.Tool{t})
}

// setTools sets the tools that clients see, and reports whether they saw others before.
func (b *Bridge) setTools(tools []*mcp.Tool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := map[string]*mcp.Tool{}
	for _, t := range tools {
		next[t.Name] = t
		if sameTools(b.tools[t.Name], t) {
			continue
		}
		if len(b.tools) > 0 {
			b.news.Store(true)
		}
		if err := b.addTool(t); err != nil {
			b.conf.Say("tool %.64q of the image is left out: %v", t.Name, err)
			delete(next, t.Name)
			continue
		}
		changed = true
	}
	for name := range b.tools {
		if next[name] == nil {
			b.news.Store(true)
			b.mcp.RemoveTools(name)
			changed = true
		}
	}
	b.tools = next
	return changed
}

// addTool adds a tool to go-sdk, which panics on an invalid schema.
func (b *Bridge) addTool(t *mcp.Tool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%.200v", p)
		}
	}()
	b.mcp.AddTool(t, nil) // calls don't reach it: see receive
	return nil
}

// sameTools reports whether clients see two tools as equal.
func sameTools(a, b *mcp.Tool) bool {
	return a != nil && reflect.DeepEqual(plain(a), plain(b))
}

func plain(v any) (out any) {
	text, err := json.Marshal(v)
	if err == nil {
		_ = json.Unmarshal(text, &out) // it is JSON
	}
	return out
}

// receive is middleware before go-sdk's own handling of each request.
func (b *Bridge) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch method {
		case "tools/list":
			select {
			case <-b.described:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		case "tools/call":
			call, ok := req.(*mcp.CallToolRequest)
			if !ok {
				break
			}
			res, err := b.call(ctx, call)
			if err != nil {
				return nil, err
			}
			return res, nil
		}
		return next(ctx, method, req)
	}
}

// send drops go-sdk's notification of the first list, which may come late: a client waits for that list's answer.
func (b *Bridge) send(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "notifications/tools/list_changed" && !b.news.Load() {
			return nil, nil
		}
		return next(ctx, method, req)
	}
}
