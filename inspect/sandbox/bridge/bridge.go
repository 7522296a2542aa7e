// Package bridge is an MCP server on stdio for the tool of an image: its first call boots the image, all calls go to the
// tool inside, and the container ends with the client. initialize and tools/list are answered before anything runs.
//
// What the container answers is hostile: its size, its depth and the time it takes are bounded, and nothing in it ends the
// server. What goes wrong with a container is a result with isError, as all that browser-shell refuses, so that the model
// reads it; see docs/mcp-clients.md for the codes.
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

// Bounds on what a client waits for.
const (
	// bootPatience is how long a call waits for the container. Clients give up after a minute, and what they say then is no
	// help; the container boots on.
	bootPatience = 45 * time.Second
	// healthPatience is how long a container that runs may take until its tool answers.
	healthPatience = 2 * time.Minute
	// callPatience is how long a call may take: no tool of ours takes longer.
	callPatience = 10 * time.Minute
	// tick is the interval of progress notifications while the container boots.
	tick = 2 * time.Second
	// endPatience is how long a call that failed waits to learn why its container has ended, when it seems to have.
	endPatience = 15 * time.Second
)

// Container is a running image. *sandbox.Sandbox is one.
type Container interface {
	// Dial connects to the public port of the image.
	Dial(ctx context.Context) (net.Conn, error)
	// Wait waits for the end of the container.
	Wait(ctx context.Context) (sandbox.Status, error)
	// Stop ends it and waits.
	Stop(ctx context.Context) (sandbox.Status, error)
	// Record adds an event to its evidence.
	Record(e sandbox.Event) error
	// Logs are what it has printed.
	Logs() []byte
	// Directory is where what it leaves is kept on this machine; empty for nowhere.
	Directory() string
}

// Config is what a Bridge is made of.
type Config struct {
	// Describe gives the tool as the image's files have it. It is called once, at the start. With an error clients see the
	// tool as it usually is until the image runs.
	Describe func(ctx context.Context) (*mcp.Tool, error)
	// Boot starts the image with the given key for its public port. The container ends with ctx.
	Boot func(ctx context.Context, key string) (Container, error)
	// Idle is how long a container runs without a call; 0: until the end of input.
	Idle time.Duration
	// Version is slimctl's own.
	Version string
	// Say takes words for a person, one line at a time.
	Say func(format string, args ...any)

	// health and call are healthPatience and callPatience, but in tests.
	health, call time.Duration
}

// Bridge is the server of one client.
type Bridge struct {
	conf Config
	mcp  *mcp.Server

	ctx       context.Context // ends with Serve
	described chan struct{}   // closed when the tool is known
	news      atomic.Bool     // whether an image that runs has other tools than were shown before

	mu    sync.Mutex
	box   *box // nil: none runs
	boxes sync.WaitGroup
	tools map[string]*mcp.Tool
}

// New makes a Bridge.
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

// Serve answers MCP on in and out until the end of input or of ctx, then ends the container and waits until nothing of it
// is left.
func (b *Bridge) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
	go b.describe()
	err := protocol.Serve(ctx, b.mcp, in, out)
	cancel()
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
	b.offer([]*mcp.Tool{t})
}

// offer makes tools the ones that clients see, and reports whether they saw others before.
func (b *Bridge) offer(tools []*mcp.Tool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := map[string]*mcp.Tool{}
	for _, t := range tools {
		next[t.Name] = t
		if same(b.tools[t.Name], t) {
			continue
		}
		if len(b.tools) > 0 {
			b.news.Store(true)
		}
		if err := b.add(t); err != nil {
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

// add gives a tool to go-sdk, which panics over one with a schema that is none.
func (b *Bridge) add(t *mcp.Tool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%.200v", p)
		}
	}()
	b.mcp.AddTool(t, nil) // calls don't get that far: see receive
	return nil
}

// same compares tools as clients see them.
func same(a, b *mcp.Tool) bool {
	return a != nil && reflect.DeepEqual(plain(a), plain(b))
}

func plain(v any) (out any) {
	text, err := json.Marshal(v)
	if err == nil {
		_ = json.Unmarshal(text, &out) // it is JSON
	}
	return out
}

// receive is put before go-sdk's own handling of each request.
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

// send drops go-sdk's news of the first list, which may come late: who asks for that list waits for it.
func (b *Bridge) send(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "notifications/tools/list_changed" && !b.news.Load() {
			return nil, nil
		}
		return next(ctx, method, req)
	}
}
