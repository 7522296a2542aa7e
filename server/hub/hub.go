// Package hub serves several MCP servers at one endpoint. It runs the servers of mcp-hub.json, merges what they offer,
// and forwards requests to them, over streamable HTTP for both protocol eras and over HTTP+SSE for old clients.
//
// A server's answers reach the client unchanged: results, errors with code and data, progress, log messages, requests
// for input. The hub answers itself only if a call is denied, a server is down, or a name is unknown.
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

// Path is the only path served.
const Path = "/mcp"

// Options configures a hub.
type Options struct {
	Config  string // path of mcp-hub.json
	Policy  string // path of hub.policy.json
	Version string // of this program

	Audit       string       // path of the audit log
	AuditLimits audit.Limits // zero: 16 MiB a file, 7 old ones

	// Lock is a file that only one hub at a time can lock; empty means no lock.
	Lock string

	Metrics *admin.Metrics // nil: a new one
	Log     *slog.Logger   // nil: nothing is logged

	// For tests.
	policy  func() (checker, error)
	metrics meter
}

// checker is the part of guard.Policy that the hub uses.
type checker interface {
	Check(guard.Call) *guard.Denial
	CheckText(server string, marked bool, texts ...string) *guard.Denial
	Servers() []string
	ChecksArguments(server string) bool
	Visible(server, tool, alias string, readOnly bool) bool
	Timeout(server string, configured time.Duration) time.Duration
}

// meter is the part of admin.Metrics that the hub uses.
type meter interface {
	Operation(client bool, method, tool, errorType string, d time.Duration)
	Denied(server, tool, rule string)
}

// Hub is a running hub. Its methods are safe for concurrent use.
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
	watched sync.Map // *mcp.ServerSession: those with resources to free

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

// New reads the configuration and the policy. It starts no server, but holds the lock and the audit log until Close.
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
	o.Version = cmp.Or(o.Version, "(devel)") // required by clients
	h := &Hub{opts: o, log: o.Log, meter: o.metrics, catalog: &catalog{}}
	config, policy, err := h.loadFiles()
	if err != nil {
		return nil, err
	}
	if h.lock, err = lockFile(o.Lock); err != nil {
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
	if o.Lock != "" { // guarantees that no other hub of this name runs
		sum := sha256.Sum256([]byte(o.Lock))
		h.name = hex.EncodeToString(sum[:8])
		if n := upstream.Sweep(h.name); n > 0 {
			h.log.Warn("programs of an earlier hub do not end", "processes", n)
		}
	}
	h.closing = sync.OnceValue(h.endAll)
	h.mcp = newMCP(h)
	h.web = newWeb(h.mcp)
	h.policy, h.naming = policy, config.Naming
	for _, c := range config.Servers {
		h.servers = append(h.servers, h.newServer(c))
	}
	h.logProblems(h.Warnings())
	return h, nil
}

func (h *Hub) loadFiles() (*Config, checker, error) {
	c, err := LoadConfig(h.opts.Config)
	if err != nil {
		return nil, nil, err
	}
	p, err := h.opts.policy()
	return c, p, err
}

// newMCP returns the server that clients see. Middleware reports its capabilities, since they change with the servers
// behind it.
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
			CompletionHandler:  h.forwardCompletion,
			SubscribeHandler:   h.subscribe,
			UnsubscribeHandler: h.unsubscribe,
		},
	)
	s.AddReceivingMiddleware(h.receive)
	return s
}

// StartAll starts all servers and returns immediately.
func (h *Hub) StartAll() error {
	if err := h.record.recordEvent(audit.Start, "hub"); err != nil {
		return err
	}
	for _, s := range h.listServers() {
		s.up.Start()
	}
	return nil
}

// Serve serves on l until ctx ends, and then ends the running calls and the servers. The servers and the clients may
// take 2 s each, which is the limit for both together.
func (h *Hub) Serve(ctx context.Context, l net.Listener) error {
	return Serve(ctx, l, h.web.handler(), func() {
		go func() { _ = h.Close() }() // Serve's caller gets the error from its own Close
	})
}

// Close ends all servers with everything that they have started. It takes at most 4 s, even if a server can't be ended.
func (h *Hub) Close() error { return h.closing() }

func (h *Hub) endAll() error {
	h.web.end()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	h.mu.Lock()
	h.closed = true // Reload starts nothing any more
	h.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var wg sync.WaitGroup
		for ss := range h.mcp.Sessions() {
			wg.Go(func() { ss.Close() }) // waits for its calls, which end with their servers
		}
		wg.Wait()
	}()
	err := h.stopServers(ctx, h.listServers())
	h.changing.Lock() // a Reload may be stopping others
	defer h.changing.Unlock()
	select {
	case <-ended: // all have written the audit log
	case <-ctx.Done():
	}
	return errors.Join(err, h.record.recordEvent(audit.Stop, "hub"), h.record.log.Close(), h.lock.Close())
}

// stopTime limits the end of servers, within the hub's total of 5 s.
const stopTime = 4 * time.Second

// stopServers ends servers, all at once.
func (h *Hub) stopServers(ctx context.Context, servers []*server) error {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.endAll(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Reload reads both files again. Servers with an unchanged entry keep running; if a file is invalid, nothing changes.
func (h *Hub) Reload() error {
	h.changing.Lock()
	defer h.changing.Unlock()
	config, policy, err := h.loadFiles()
	if err != nil {
		return err
	}
	if err := h.record.recordEvent(audit.Reload, "hub"); err != nil {
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
	h.logProblems(h.Warnings())
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	err = h.stopServers(ctx, gone) // before the new ones, which may need the same port
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

func (h *Hub) logProblems(problems []error) {
	for _, p := range problems {
		h.log.Warn(p.Error())
	}
}

func (h *Hub) listServers() []*server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.servers)
}

func (h *Hub) findServer(name string) (*server, bool) {
	for _, s := range h.listServers() {
		if s.config.Name == name {
			return s, true
		}
	}
	return nil, false
}
