// Package upstream runs one MCP server behind the hub: its process or its connection, from start to end and back again.
package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// State says where a server is in its life.
type State string

const (
	Stopped  State = "stopped"  // by order; nothing is tried
	Starting State = "starting" // being started, or being connected to
	Running  State = "running"  // answered initialize or server/discover
	Error    State = "error"    // ended or unreachable; started again at NextRetry
)

// Config is one entry of mcpServers in mcp-hub.json.
type Config struct {
	Name string

	// A program that speaks MCP on stdio.
	Command string // absolute path
	Args    []string
	Env     map[string]string // the whole environment but PATH, HOME, LANG
	Cwd     string

	// Or an address. Transport is "streamable-http" (also when empty) or "sse".
	URL       string
	Transport string

	// CallTimeout bounds one call; 0 is the guard's default.
	CallTimeout time.Duration
	// Shell marks a server whose arguments reach a shell: the guard looks for injection.
	Shell bool
}

// Status is what the management API shows of a server.
type Status struct {
	Name      string    `json:"name"`
	State     State     `json:"state"`
	Transport string    `json:"transport"` // stdio, streamable-http or sse
	PID       int       `json:"pid,omitempty"`
	Since     time.Time `json:"since"`   // of State
	Attempt   int       `json:"attempt"` // starts since the last that held; 0 while it holds
	NextRetry time.Time `json:"next_retry,omitzero"`
	LastError string    `json:"last_error,omitempty"`
	Restarts  int       `json:"restarts"` // since the hub began
	Protocol  string    `json:"protocol,omitempty"`
	Server    string    `json:"server,omitempty"` // its own name and version
	Tools     int       `json:"tools"`
}

// Options are what all servers of a hub share.
type Options struct {
	// Client options for the session with the server: what the hub offers it and hears from it.
	Client *mcp.ClientOptions
	// Middleware is put on the client that speaks to the server, sending and receiving.
	Sending, Receiving []mcp.Middleware
	// OnState is called after each change, never concurrently for one server, and must not block.
	OnState func(Status)
}

// DownError is for a call while the server does not run.
type DownError struct {
	Name    string
	State   State
	RetryIn time.Duration // 0: not by itself
	Cause   string
}

func (e *DownError) Error() string {
	if e.RetryIn > 0 {
		return fmt.Sprintf("server %s is down (%s), the next attempt is in %d ms", e.Name, e.State, e.RetryIn.Milliseconds())
	}
	return fmt.Sprintf("server %s is %s", e.Name, e.State)
}

// Server is one server. Its methods may be called at any time from anywhere; Start and Stop are idempotent.
type Server struct{}

// New gives a stopped server.
func New(c Config, o Options) *Server { panic("not built") }

// Start begins to start it and returns at once.
func (s *Server) Start() { panic("not built") }

// Stop ends it, with everything it has started, and returns when nothing of it is left.
func (s *Server) Stop(ctx context.Context) error { panic("not built") }

// Restart is Stop and Start, with the count of attempts at 0.
func (s *Server) Restart(ctx context.Context) error { panic("not built") }

// Session gives the live session, or at once a *DownError.
func (s *Server) Session() (*mcp.ClientSession, error) { panic("not built") }

// Await waits until it runs, or gives a *DownError when ctx ends or its first attempt has failed.
func (s *Server) Await(ctx context.Context) (*mcp.ClientSession, error) { panic("not built") }

// Status tells its state.
func (s *Server) Status() Status { panic("not built") }

// Log gives the last 64 KiB of its stderr, and of what was no MCP on its stdout.
func (s *Server) Log() []byte { panic("not built") }

// Config gives what it was made from.
func (s *Server) Config() Config { panic("not built") }
