// Package hub puts MCP servers behind one endpoint: it runs those of
// mcp-hub.json, gathers what they offer, and hands requests on to them, over
// streamable HTTP for both protocol eras and over HTTP+SSE for old clients.
//
// What a server answers reaches the client as it is: results, errors with code
// and data, progress, log messages, requests for input. The hub itself says
// something only where a call is denied, a server is down, or a name is not known.
package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

// Path is the one path that is served.
const Path = "/mcp"

// Options are what a hub is made from.
type Options struct {
	Config  string // path of mcp-hub.json
	Policy  string // path of hub.policy.json
	Version string // of this program

	Audit       string       // path of the audit log
	AuditLimits audit.Limits // zero: 16 MiB a file, 7 old ones

	// Lock is a file of which one hub at a time may hold the lock. Empty: none.
	Lock string

	Metrics *admin.Metrics // nil: a new one
	Log     *slog.Logger   // nil: nothing is logged

	// For tests.
	policy  func() (checker, error)
	metrics meter
}

// checker is what the hub needs of a guard.Policy.
type checker interface {
	Check(guard.Call) *guard.Denial
	CheckText(server string, marked bool, texts ...string) *guard.Denial
	Servers() []string
	ChecksArguments(server string) bool
	Visible(server, tool, alias string, readOnly bool) bool
	Timeout(server string, configured time.Duration) time.Duration
}

// meter is what the hub needs of admin.Metrics.
type meter interface {
	Operation(client bool, method, tool, errorType string, d time.Duration)
	Denied(server, tool, rule string)
}

// Hub is a running hub. Its methods may be called from anywhere.
type Hub struct {
	opts    Options
	mcp     *mcp.Server
	record  *record
	lock    io.Closer
	name    string // for the programs it starts; empty without a lock
	log     *slog.Logger
	meter   meter
	closing func() error
	web     *web
	levels  levels
	watched sync.Map // *mcp.ServerSession: those with something to free

	running atomic.Int64 // requests
	calls   calls

	changing sync.Mutex // held by Reload and Close

	mu      sync.Mutex
	closed  bool
	naming  Naming
	policy  checker
	servers []*server // in the order of the file
	catalog *catalog

	publishing sync.Mutex
	shown      shown // what the MCP server was told
}

// New reads the configuration and the policy. Nothing is started yet, but the
// lock and the audit log are held until Close.
func New(o Options) (_ *Hub, err error) {
	if o.policy == nil {
		o.policy = func() (checker, error) { return guard.Load(o.Policy) }
	}
	if o.metrics == nil {
		if o.Metrics == nil {
			o.Metrics = admin.NewMetrics()
		}
		o.metrics = o.Metrics
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Version = cmp.Or(o.Version, "(devel)") // clients want one
	h := &Hub{opts: o, log: o.Log, meter: o.metrics, catalog: &catalog{}}
	config, policy, err := h.load()
	if err != nil {
		return nil, err
	}
	if h.lock, err = acquire(o.Lock); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.lock.Close()
		}
	}()
	if h.record, err = newRecord(o); err != nil {
		return nil, err
	}
	if o.Lock != "" { // so no other hub of this name runs
		sum := sha256.Sum256([]byte(o.Lock))
		h.name = hex.EncodeToString(sum[:8])
		if n := upstream.Sweep(h.name); n > 0 {
			h.log.Warn("programs of an earlier hub do not end", "processes", n)
		}
	}
	h.closing = sync.OnceValue(h.end)
	h.mcp = newMCP(h)
	h.web = newWeb(h.mcp)
	h.policy, h.naming = policy, config.Naming
	for _, c := range config.Servers {
		h.servers = append(h.servers, h.newServer(c))
	}
	h.warn(h.Warnings())
	return h, nil
}

func (h *Hub) load() (*Config, checker, error) {
	c, err := LoadConfig(h.opts.Config)
	if err != nil {
		return nil, nil, err
	}
	p, err := h.opts.policy()
	return c, p, err
}

// newMCP makes the server that clients see. What it can do is said in
// middleware, because that changes with the servers behind.
func newMCP(h *Hub) *mcp.Server {
	s := mcp.NewServer(
		&mcp.Implementation{Name: "browser-shell hub", Version: h.opts.Version},
		&mcp.ServerOptions{
			Capabilities: &mcp.ServerCapabilities{
				Tools:     &mcp.ToolCapabilities{ListChanged: true},
				Prompts:   &mcp.PromptCapabilities{ListChanged: true},
				Resources: &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true},
				Logging:   &mcp.LoggingCapabilities{},
			},
			CompletionHandler:  h.complete,
			SubscribeHandler:   h.subscribe,
			UnsubscribeHandler: h.unsubscribe,
		},
	)
	s.AddReceivingMiddleware(h.receive)
	return s
}

// StartAll begins to start all servers and returns at once.
func (h *Hub) StartAll() error {
	if err := h.record.note(audit.Start, "hub"); err != nil {
		return err
	}
	for _, s := range h.all() {
		s.up.Start()
	}
	return nil
}

// Serve answers on l until ctx ends; calls that run are ended then. So are the
// servers: their end and that of the clients may take 2 s each, and both together
// must not take longer.
func (h *Hub) Serve(ctx context.Context, l net.Listener) error {
	return Serve(ctx, l, h.web.handler(), func() {
		go func() { _ = h.Close() }() // the caller's own Close gives the error
	})
}

// Close ends all servers, with everything that they started. It takes 4 s at
// most, even if a server can't be ended.
func (h *Hub) Close() error { return h.closing() }

func (h *Hub) end() error {
	h.web.end()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	h.mu.Lock()
	h.closed = true // so Reload starts nothing more
	h.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var wg sync.WaitGroup
		for ss := range h.mcp.Sessions() {
			wg.Go(func() { ss.Close() }) // it waits for its calls, which end with their servers
		}
		wg.Wait()
	}()
	err := h.stop(ctx, h.all())
	h.changing.Lock() // a Reload stops others
	defer h.changing.Unlock()
	select {
	case <-ended: // and have written the audit log
	case <-ctx.Done():
	}
	return errors.Join(err, h.record.note(audit.Stop, "hub"), h.record.log.Close(), h.lock.Close())
}

// stopTime bounds the end of servers: of the 5 s that the hub has in all.
const stopTime = 4 * time.Second

// stop ends servers, all at once.
func (h *Hub) stop(ctx context.Context, servers []*server) error {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.end(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Reload reads both files again. Servers whose entry is the same run on
// untouched; of a broken file nothing is taken.
func (h *Hub) Reload() error {
	h.changing.Lock()
	defer h.changing.Unlock()
	config, policy, err := h.load()
	if err != nil {
		return err
	}
	if err := h.record.note(audit.Reload, "hub"); err != nil {
		return err
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return errors.New("the hub is closed")
	}
	old := h.servers
	var next, fresh []*server
	for _, c := range config.Servers {
		i := slices.IndexFunc(old, func(s *server) bool { return reflect.DeepEqual(s.config, c) })
		if i >= 0 {
			next = append(next, old[i])
			continue
		}
		s := h.newServer(c)
		next, fresh = append(next, s), append(fresh, s)
	}
	h.policy, h.naming, h.servers = policy, config.Naming, next
	h.mu.Unlock()
	gone := slices.DeleteFunc(slices.Clone(old), func(s *server) bool { return slices.Contains(next, s) })
	h.warn(h.Warnings())
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	err = h.stop(ctx, gone) // first, since two of one kind may want the same port
	h.mu.Lock()
	if !h.closed {
		for _, s := range fresh {
			s.up.Start()
		}
	}
	h.mu.Unlock()
	h.publish()
	return err
}

func (h *Hub) warn(problems []error) {
	for _, p := range problems {
		h.log.Warn(p.Error())
	}
}

func (h *Hub) all() []*server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.servers)
}

func (h *Hub) find(name string) (*server, bool) {
	for _, s := range h.all() {
		if s.config.Name == name {
			return s, true
		}
	}
	return nil, false
}
