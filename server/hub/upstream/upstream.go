// Package upstream runs one MCP server behind the hub: its process or its connection, from start to end and through
// restarts.
package upstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/capture"
)

// State is the state of a server.
type State string

const (
	Stopped  State = "stopped"  // by Stop; no attempt is made
	Starting State = "starting" // being started, or being connected to
	Running  State = "running"  // answered initialize or server/discover
	Error    State = "error"    // ended or unreachable; restarted at NextRetry
)

// Config is one entry of mcpServers in mcp-hub.json.
type Config struct {
	Name string

	// A program that speaks MCP on stdio.
	Command string   // absolute path, or a name to look up in Path
	Path    []string // absolute directories; also the program's PATH, unless Env has one
	Args    []string
	Env     map[string]string // the complete environment except PATH, HOME, LANG
	Cwd     string

	// Or an address. Transport is "streamable-http" (also when empty) or "sse".
	URL       string
	Transport string
	Headers   map[string]Source // of each request

	// NoRestart leaves the server in state error after its end, until Start.
	NoRestart bool

	// CallTimeout limits one call; 0 is the guard's default.
	CallTimeout time.Duration
	// Shell marks a server whose arguments reach a shell: the guard looks for injection.
	Shell bool
}

// Source is the source of a header's value: a file, or a variable of the hub's own environment. It is read at each
// connection and never logged.
type Source struct{ File, Env string }

// Status is a server's state in the management API.
type Status struct {
	Name      string    `json:"name"`
	State     State     `json:"state"`
	Transport string    `json:"transport"` // stdio, streamable-http or sse
	PID       int       `json:"pid,omitempty"`
	Since     time.Time `json:"since"`   // of State
	Attempt   int       `json:"attempt"` // starts since the last lasting one; 0 while it lasts
	NextRetry time.Time `json:"next_retry,omitzero"`
	LastError string    `json:"last_error,omitempty"`
	Restarts  int       `json:"restarts"` // starts after the first, since the hub started
	Protocol  string    `json:"protocol,omitempty"`
	Server    string    `json:"server,omitempty"` // its own name and version
	Tools     int       `json:"tools"`            // by SetTools; 0 while it isn't running
}

// Options configures all servers of a hub.
type Options struct {
	// Client configures the session with the server: capabilities and handlers of the hub.
	Client *mcp.ClientOptions
	// Middleware is added to the client of the server, in both directions.
	Sending, Receiving []mcp.Middleware
	// OnState is called after each change, in order and never concurrently for one server. It must not block. No method
	// of Server calls it, so callers may hold locks; Stop may return before the last call.
	OnState func(Status)
	// Info is the hub's name for servers; nil is browser-shell.
	Info *mcp.Implementation
	// Hub is the hub's unique name for the programs that it starts, for Sweep; may be empty.
	Hub string
}

// DownError reports a call while the server isn't running.
type DownError struct {
	Name    string
	State   State
	RetryIn time.Duration // 0: no automatic restart
	Cause   string
}

func (e *DownError) Error() string {
	if e.RetryIn > 0 {
		return fmt.Sprintf("server %s is down (%s), the next attempt is in %d ms", e.Name, e.State, e.RetryIn.Milliseconds())
	}
	return fmt.Sprintf("server %s is %s", e.Name, e.State)
}

// Server is one server. Its methods are safe for concurrent use; Start and Stop are idempotent.
type Server struct {
	config  Config
	options Options
	times   *times
	mark    string // in the environment of all its programs, and no others
	log     capture.Tail

	mu      sync.Mutex
	life    *life // nil: stopped
	last    *life // life, or the previous one
	status  Status
	starts  int
	session *mcp.ClientSession
	fuse    *fuse         // of the last attempt
	changed chan struct{} // closed at the next change
	news    []Status      // not yet passed to OnState
	telling bool
}

// logSize limits a server's kept log, in bytes: its end.
const logSize = 64 << 10

// New returns a stopped server.
func New(c Config, o Options) *Server {
	transport := "stdio"
	if c.URL != "" {
		transport = cmp.Or(c.Transport, streamable)
	}
	return &Server{
		config: c, options: o, times: &normal, mark: serverVar + "=" + rand.Text(),
		status:  Status{Name: c.Name, State: Stopped, Transport: transport, Since: time.Now()},
		log:     capture.Tail{Max: logSize},
		changed: make(chan struct{}),
	}
}

// Start starts the server and returns immediately.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil && !s.hasEnded() {
		return
	}
	if s.life != nil {
		s.life.cancel()
	}
	l := newLife(s, s.last)
	s.life, s.last = l, l
	s.changeStatus(func(st *Status) { st.State, st.Attempt, st.LastError = Starting, 1, "" })
	go l.run()
}

// hasEnded reports whether the server has failed and isn't restarted automatically. The caller holds s.mu.
func (s *Server) hasEnded() bool { return s.config.NoRestart && s.status.State == Error }

// Stop ends the server with everything that it has started, and returns when nothing remains. If ctx ends first, Stop
// returns an error, and the ending continues.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	last := s.last
	if s.life != nil {
		s.life.cancel()
		s.life, s.session = nil, nil
		s.changeStatus(func(st *Status) { st.clearRunning(Stopped) })
	}
	s.mu.Unlock()
	if last == nil {
		return nil
	}
	select {
	case <-last.ended:
		return last.err
	case <-ctx.Done():
		return fmt.Errorf("server %s has not ended yet: %w", s.config.Name, ctx.Err())
	}
}

// Restart is Stop and Start, with the count of attempts at 0. If Stop returns an error, the server still starts as soon
// as it has ended.
func (s *Server) Restart(ctx context.Context) error {
	err := s.Stop(ctx)
	s.Start()
	return err
}

// Session returns the live session, or immediately a *DownError.
func (s *Server) Session() (*mcp.ClientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessionLocked()
}

func (s *Server) sessionLocked() (*mcp.ClientSession, error) {
	if s.session != nil {
		return s.session, nil
	}
	e := &DownError{Name: s.config.Name, State: s.status.State, Cause: s.status.LastError}
	if e.State == Error && !s.status.NextRetry.IsZero() {
		e.RetryIn = max(time.Millisecond, time.Until(s.status.NextRetry))
	}
	return nil, e
}

// Await waits while the server is starting. It returns a *DownError if it is stopped, if the attempt has failed, or
// when ctx ends.
func (s *Server) Await(ctx context.Context) (*mcp.ClientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.status.State == Starting && ctx.Err() == nil {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	return s.sessionLocked()
}

// Status returns its state.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	if st.State == Running && time.Since(st.Since) >= s.times.hold {
		st.Attempt = 0
	}
	return st
}

// SetTools sets the number in Status, if session is still the live one.
func (s *Server) SetTools(session *mcp.ClientSession, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session == s.session && session != nil {
		s.status.Tools = n
	}
}

// Log returns the last 64 KiB of its stderr, and of other output than MCP on its stdout.
func (s *Server) Log() []byte { return s.log.Bytes() }

// Config returns its configuration.
func (s *Server) Config() Config { return s.config }

// clearRunning clears the fields that only a running server has.
func (st *Status) clearRunning(to State) {
	st.State, st.PID, st.NextRetry, st.Protocol, st.Server, st.Tools = to, 0, time.Time{}, "", "", 0
}

// changeStatus changes the status and notifies waiters. The caller holds s.mu.
func (s *Server) changeStatus(f func(*Status)) {
	before := s.status
	f(&s.status)
	if s.status.State != before.State {
		s.status.Since = time.Now()
	}
	if s.status == before {
		return
	}
	close(s.changed)
	s.changed = make(chan struct{})
	if s.options.OnState == nil {
		return
	}
	s.news = append(s.news, s.status)
	if !s.telling {
		s.telling = true
		go s.reportStates()
	}
}

func (s *Server) reportStates() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.news) > 0 {
		news := s.news
		s.news = nil
		s.mu.Unlock()
		for _, st := range news {
			s.Try("OnState", func() { s.options.OnState(st) })
		}
		s.mu.Lock()
	}
	s.telling = false
}
