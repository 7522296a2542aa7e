// Package upstream runs one MCP server behind the hub: its process or its connection, from start to end and back again.
package upstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"sync"
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
	Command string   // absolute path, or a name that is looked up in Path
	Path    []string // absolute directories; also the program's PATH, unless Env has one
	Args    []string
	Env     map[string]string // the whole environment but PATH, HOME, LANG
	Cwd     string

	// Or an address. Transport is "streamable-http" (also when empty) or "sse".
	URL       string
	Transport string
	Headers   map[string]Source // of each request

	// NoRestart leaves the server in state error when it has ended, until it is started by order.
	NoRestart bool

	// CallTimeout bounds one call; 0 is the guard's default.
	CallTimeout time.Duration
	// Shell marks a server whose arguments reach a shell: the guard looks for injection.
	Shell bool
}

// Source is where a header's value is: in a file, or in a variable of the hub's own environment. It is read at each
// connection and never logged.
type Source struct{ File, Env string }

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
	Restarts  int       `json:"restarts"` // starts after the first, since the hub began
	Protocol  string    `json:"protocol,omitempty"`
	Server    string    `json:"server,omitempty"` // its own name and version
	Tools     int       `json:"tools"`            // by SetTools; 0 while it does not run
}

// Options are what all servers of a hub share.
type Options struct {
	// Client options for the session with the server: what the hub offers it and hears from it.
	Client *mcp.ClientOptions
	// Middleware is put on the client that speaks to the server, sending and receiving.
	Sending, Receiving []mcp.Middleware
	// OnState is called after each change, in order, never concurrently for one server, and must not block. It is
	// never called by a method of Server, so locks may be held there; Stop may return before the last call.
	OnState func(Status)
	// Info is what the hub calls itself to servers; nil is browser-shell.
	Info *mcp.Implementation
	// Hub names the hub to the programs it starts, for Sweep. It is a word that no other hub has, or empty.
	Hub string
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
type Server struct {
	config  Config
	options Options
	times   *times
	mark    string // in the environment of all its programs; nobody else's
	log     ring

	mu      sync.Mutex
	life    *life // nil: ordered to stop
	last    *life // life, or the one before
	status  Status
	starts  int
	session *mcp.ClientSession
	fuse    *fuse         // of the last attempt
	changed chan struct{} // closed at the next change
	news    []Status      // not yet told to OnState
	telling bool
}

// New gives a stopped server.
func New(c Config, o Options) *Server {
	transport := "stdio"
	if c.URL != "" {
		transport = cmp.Or(c.Transport, streamable)
	}
	return &Server{
		config: c, options: o, times: &normal, mark: serverVar + "=" + rand.Text(),
		status:  Status{Name: c.Name, State: Stopped, Transport: transport, Since: time.Now()},
		changed: make(chan struct{}),
	}
}

// Start begins to start it and returns at once.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil && !s.ended() {
		return
	}
	if s.life != nil {
		s.life.cancel()
	}
	l := newLife(s, s.last)
	s.life, s.last = l, l
	s.change(func(st *Status) { st.State, st.Attempt, st.LastError = Starting, 1, "" })
	go l.run()
}

// ended reports whether the server has failed and is not started again by itself. s.mu is held.
func (s *Server) ended() bool { return s.config.NoRestart && s.status.State == Error }

// Stop ends it, with everything it has started, and returns when nothing of it is left. If ctx ends first, so does
// Stop, with an error; the ending goes on.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	last := s.last
	if s.life != nil {
		s.life.cancel()
		s.life, s.session = nil, nil
		s.change(func(st *Status) { st.down(Stopped) })
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

// Restart is Stop and Start, with the count of attempts at 0. It starts it too when Stop gives an error, as soon as it
// has ended.
func (s *Server) Restart(ctx context.Context) error {
	err := s.Stop(ctx)
	s.Start()
	return err
}

// Session gives the live session, or at once a *DownError.
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

// Await waits while it is being started. It gives a *DownError if it is stopped, if the attempt has failed, or when
// ctx ends.
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

// Status tells its state.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	if st.State == Running && time.Since(st.Since) >= s.times.hold {
		st.Attempt = 0
	}
	return st
}

// SetTools sets the number that Status shows, if session is still the live one.
func (s *Server) SetTools(session *mcp.ClientSession, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session == s.session && session != nil {
		s.status.Tools = n
	}
}

// Log gives the last 64 KiB of its stderr, and of what was no MCP on its stdout.
func (s *Server) Log() []byte { return s.log.Bytes() }

// Config gives what it was made from.
func (s *Server) Config() Config { return s.config }

// down empties what only a server that is up has.
func (st *Status) down(to State) {
	st.State, st.PID, st.NextRetry, st.Protocol, st.Server, st.Tools = to, 0, time.Time{}, "", "", 0
}

// change changes the status and tells who waits for that. s.mu is held.
func (s *Server) change(f func(*Status)) {
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
		go s.tell()
	}
}

func (s *Server) tell() {
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
