// Package hub manages MCP servers on a host and serves them at one endpoint: it starts and watches the servers of
// mcp_server.json, merges what they offer, decides which calls reach them, and records each call.
//
// All transports are go-sdk's. A server's answers pass as far as go-sdk's types hold them. The hub answers itself only
// if a call is denied, a server is down, or a name is unknown.
package hub

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
)

// Name is the name of the program.
const Name = "mcp-hub"

// Options configures a hub.
type Options struct {
	Config  *Config
	Audit   string // path of the audit log
	Version string // of this program
	Log     *slog.Logger
}

// Hub is a running hub. Its methods are safe for concurrent use.
type Hub struct {
	config  *Config
	version string
	log     *slog.Logger
	record  *record
	mcp     *mcp.Server
	servers []*server // in the order of the file
	begun   time.Time
	levels  levels

	mu      sync.Mutex
	catalog *catalog

	publishing sync.Mutex
	shown      map[feature]digest
}

// New opens the audit log and starts all servers that aren't disabled. It returns immediately.
func New(o Options) (*Hub, error) {
	r, err := openRecord(o.Audit, o.Config.AuditAll)
	if err != nil {
		return nil, err
	}
	h := &Hub{
		config: o.Config, version: cmp.Or(o.Version, "(devel)"), // clients require one
		log: o.Log, record: r, begun: time.Now(), catalog: &catalog{},
	}
	h.mcp = mcp.NewServer(&mcp.Implementation{Name: Name, Version: h.version}, &mcp.ServerOptions{
		Capabilities:       &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}, Logging: &mcp.LoggingCapabilities{}},
		CompletionHandler:  h.complete,
		SubscribeHandler:   h.subscribe,
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil }, // go-sdk's own list suffices
	})
	h.mcp.AddReceivingMiddleware(h.receive)
	if err := r.log.Finish(audit.Record{Event: audit.Start, Note: Name}); err != nil {
		return nil, errors.Join(err, r.log.Close())
	}
	for _, c := range o.Config.Servers {
		h.servers = append(h.servers, h.newServer(c))
	}
	for _, s := range h.servers {
		if h.config.Disabled || s.Disabled {
			s.isSettled()
			continue
		}
		s.start()
	}
	return h, nil
}

// ServeStdio serves one client on standard input and output until it leaves or ctx ends.
func (h *Hub) ServeStdio(ctx context.Context) error { return h.mcp.Run(ctx, &mcp.StdioTransport{}) }

// Close ends all servers with everything that they have started.
func (h *Hub) Close() error {
	var wg sync.WaitGroup
	for _, s := range h.servers {
		wg.Go(s.stop)
	}
	wg.Wait()
	return errors.Join(h.record.log.Finish(audit.Record{Event: audit.Stop, Note: Name}), h.record.log.Close())
}

// levels holds the log levels that clients of the older era requested.
type levels struct {
	mu sync.Mutex
	by map[*mcp.ServerSession]mcp.LoggingLevel
}

// set holds a client's level until its session ends.
func (l *levels) set(client *mcp.ServerSession, level mcp.LoggingLevel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[*mcp.ServerSession]mcp.LoggingLevel{}
	}
	if _, known := l.by[client]; !known {
		go func() {
			_ = client.Wait() // how it ended is the client's affair
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.by, client)
		}()
	}
	l.by[client] = level
}

func (l *levels) get(client *mcp.ServerSession) mcp.LoggingLevel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[client]
}
