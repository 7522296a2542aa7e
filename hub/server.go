package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/capture"
)

// State is the state of a server.
type State string

const (
	Stopped  State = "stopped"  // by order; nothing is tried
	Starting State = "starting" // being started or connected to
	Running  State = "running"  // it has said what it offers
	Failed   State = "error"    // it ended or can't be reached; it is tried again at NextRetry
)

// Status describes a server to its operator.
type Status struct {
	Name      string     `json:"name"`
	Transport string     `json:"transport"` // stdio, http or sse
	State     State      `json:"state"`
	PID       int        `json:"pid,omitempty"`
	Protocol  string     `json:"protocol,omitempty"`   // MCP revision
	Server    string     `json:"server,omitempty"`     // its own name and version
	Tools     int        `json:"tools"`                // number of tools, blocked ones too
	Attempt   int        `json:"attempt,omitempty"`    // in a row; of state error
	Restarts  int        `json:"restarts"`             // by itself, since the hub runs
	NextRetry *time.Time `json:"next_retry,omitempty"` // of state error; none: POST …/start
	LastError string     `json:"last_error,omitempty"`
}

// Durations that tests shorten.
var (
	backoff   = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second}
	heldTime  = time.Minute      // running time after which attempts are counted from 0
	listTime  = 30 * time.Second // for a server to list its offer
	firstTime = 10 * time.Second // for which clients wait for servers that were never up
)

// server is one server behind the hub.
type server struct {
	hub *Hub
	Server
	log       capture.Tail // of stderr
	changed   chan kinds   // lists to read again
	settled   chan struct{}
	isSettled func() // closes settled, when the first start has succeeded or failed

	ordering sync.Mutex // held by start and stop

	mu       sync.Mutex
	status   Status
	life     context.CancelFunc // nil: stopped
	ended    chan struct{}      // closed at the end of life
	link     *link              // nil: not running
	offer    offer              // remains while the server is down, so that a call gets that reason instead of an unknown tool
	followed map[string]bool    // resources that clients subscribed to

	asking sync.Mutex // guards second, which clients of the older era share if they can be asked and link is of the newer
	second *link
	noMore bool // a second link can't be opened
}

func (h *Hub) newServer(c Server) *server {
	s := &server{hub: h, Server: c, log: capture.Tail{Max: 16 << 10}, changed: make(chan kinds, 1), settled: make(chan struct{}), followed: map[string]bool{}}
	s.isSettled = sync.OnceFunc(func() { close(s.settled) })
	s.status = Status{Name: c.Name, Transport: c.Transport, State: Stopped}
	return s
}

// start begins a life, unless there is one. A server that waits for its next attempt is started at once.
func (s *server) start() {
	s.ordering.Lock()
	defer s.ordering.Unlock()
	s.mu.Lock()
	waiting := s.status.State == Failed
	s.mu.Unlock()
	if waiting {
		s.endLife()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.life, s.ended = cancel, make(chan struct{})
	s.status.State, s.status.LastError = Starting, ""
	go s.live(ctx, s.ended)
}

// stop ends the life and returns when the server has ended.
func (s *server) stop() {
	s.ordering.Lock()
	defer s.ordering.Unlock()
	s.endLife()
}

func (s *server) restart() {
	s.stop()
	s.start()
}

// endLife ends the life; the caller holds s.ordering.
func (s *server) endLife() {
	s.mu.Lock()
	cancel, ended := s.life, s.ended
	s.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-ended
	s.mu.Lock()
	s.life, s.offer = nil, offer{}
	s.status = Status{Name: s.Name, Transport: s.Transport, State: Stopped, Restarts: s.status.Restarts}
	s.mu.Unlock()
	s.isSettled()
	s.hub.publish(s, 0)
	s.hub.record.writeState(s.Name, Stopped, nil)
}

// retryDelay returns the delay after the nth failed attempt in a row. It varies by up to a fifth, so that servers that
// failed together don't restart together.
func retryDelay(n int) time.Duration {
	d := backoff[min(n, len(backoff))-1]
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter is no secret
}

// live starts the server again and again until ctx ends.
func (s *server) live(ctx context.Context, ended chan struct{}) {
	defer close(ended)
	legacy := false // each failed start toggles it: server/discover ends some servers
	for n := 1; ; n++ {
		up, err := s.run(ctx, legacy)
		if ctx.Err() != nil {
			return
		}
		if up == 0 {
			legacy = !legacy
		} else if up >= heldTime {
			n = 1
		}
		next := time.Now().Add(retryDelay(n))
		s.hub.record.writeState(s.Name, Failed, err)
		s.hub.log.Warn("a server is down", "server", s.Name, "error", err)
		s.mu.Lock()
		s.status.State, s.status.LastError, s.status.Attempt, s.status.PID = Failed, oneLine(err.Error()), n, 0
		if !s.NoRestart {
			s.status.NextRetry = &next
		}
		s.mu.Unlock()
		s.isSettled()
		wait := time.NewTimer(time.Until(next))
		if s.NoRestart {
			wait.Stop()
		}
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		s.status.State, s.status.NextRetry = Starting, nil
		s.status.Restarts++
		s.mu.Unlock()
	}
}

// run is one start until its complete end. It returns for how long the server was up; 0: it didn't start.
func (s *server) run(ctx context.Context, legacy bool) (up time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	l, err := s.openLink(ctx, legacy, true)
	if err != nil {
		cancel()
		return 0, err
	}
	defer func() {
		s.mu.Lock()
		s.link = nil
		s.mu.Unlock()
		cancel() // also of a second link that is being opened
		l.close()
		s.closeSecond()
		err = l.describe(err)
	}()
	if err := s.readOffer(ctx, l); err != nil {
		return 0, fmt.Errorf("it does not say what it offers: %w", err)
	}
	begun := time.Now()
	s.setRunning(l)
	s.hub.publish(s, 0)
	s.isSettled()
	s.hub.record.writeState(s.Name, Running, nil)
	s.followAgain(ctx, l)
	for {
		select {
		case <-l.gone:
			return time.Since(begun), l.err
		case <-ctx.Done():
			return time.Since(begun), ctx.Err()
		case said := <-s.changed:
			if err := s.readOffer(ctx, l); err != nil {
				return time.Since(begun), fmt.Errorf("it does not say what it offers: %w", err)
			}
			s.hub.publish(s, said)
		}
	}
}

func (s *server) setRunning(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	s.status.State, s.status.Attempt, s.status.LastError, s.status.Protocol = Running, 0, "", l.session.InitializeResult().ProtocolVersion
	if info := l.session.InitializeResult().ServerInfo; info != nil {
		s.status.Server = oneLine(info.Name + " " + info.Version)
	}
	if l.cmd != nil {
		s.status.PID = l.cmd.Process.Pid
	}
}

// requestRefresh requests another reading of the lists. It never blocks.
func (s *server) requestRefresh(said kinds) {
	for {
		select {
		case s.changed <- said:
			return
		case earlier := <-s.changed:
			said |= earlier
		}
	}
}

// Status returns the status.
func (s *server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Tools = len(s.offer.tools)
	return st
}

// linkFor returns the link for a client's request, or a *failure. ctx limits the start of a second one.
func (s *server) linkFor(ctx context.Context, client *mcp.ServerSession) (*link, error) {
	s.mu.Lock()
	l, st := s.link, s.status
	s.mu.Unlock()
	if l == nil {
		return nil, s.down(st)
	}
	if !l.isNewer() || !canBeAsked(client) {
		return l, nil
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	if s.second != nil && s.second.isGone() {
		s.second.close()
		s.second = nil
	}
	if s.second != nil {
		return s.second, nil
	} else if s.noMore {
		return l, nil
	}
	scope, cancel := context.WithCancel(l.scope)
	defer context.AfterFunc(ctx, cancel)()
	second, err := s.openLink(scope, true, false)
	if ctx.Err() != nil {
		if err == nil {
			second.close()
		}
		return nil, s.timedOut()
	} else if err != nil { // the server may be the only one of its kind, or may know the newer era only
		s.hub.log.Warn("no second connection, for clients that can be asked", "server", s.Name, "error", err)
		s.noMore = true
		return l, nil
	}
	s.second = second
	return second, nil
}

func (s *server) closeSecond() {
	s.asking.Lock()
	defer s.asking.Unlock()
	if s.second != nil {
		s.second.close()
	}
	s.second, s.noMore = nil, false
}

// down returns the failure for a call to a server that doesn't run.
func (s *server) down(st Status) *failure {
	f := &failure{name: "SERVER_DOWN", rule: "server.down", text: fmt.Sprintf("server %s is in state %s", s.Name, st.State)}
	if st.LastError != "" {
		f.text += ": " + st.LastError
	}
	switch {
	case st.State == Starting:
		f.retryable, f.after = true, time.Second
	case st.NextRetry != nil:
		f.retryable, f.after = true, max(time.Until(*st.NextRetry), 0)
		f.text += fmt.Sprintf("; it is tried again in %s", f.after.Round(time.Second))
	default:
		f.text += "; its operator can start it: POST /v1/mcp/servers/" + s.Name + "/start"
	}
	return f
}

// canBeAsked reports whether a client has a session of the older era, in which it can be asked.
func canBeAsked(client *mcp.ServerSession) bool {
	p := client.InitializeParams()
	return isOlder(client) && p.Capabilities != nil && (p.Capabilities.Sampling != nil || p.Capabilities.Elicitation != nil)
}

func isOlder(client *mcp.ServerSession) bool {
	p := client.InitializeParams()
	return p != nil && p.ProtocolVersion < newEra
}

// maxFollowed limits the resources that clients follow at one server.
const maxFollowed = 1024

// follow subscribes to a resource for a client. The subscription stays as long as the server's link.
func (s *server) follow(ctx context.Context, uri string) error {
	s.mu.Lock()
	l, st, known, full := s.link, s.status, s.followed[uri], len(s.followed) >= maxFollowed
	s.mu.Unlock()
	switch {
	case l == nil:
		return s.down(st)
	case known:
		return nil
	case full:
		return fmt.Errorf("clients follow %d resources of server %s already; restart it", maxFollowed, s.Name)
	}
	if err := l.session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
		return s.clientError(ctx, l, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followed[uri] = true
	return nil
}

// followAgain subscribes at a restarted server.
func (s *server) followAgain(ctx context.Context, l *link) {
	s.mu.Lock()
	uris := slices.Collect(maps.Keys(s.followed))
	s.mu.Unlock()
	var errs []error
	for _, uri := range uris {
		errs = append(errs, l.session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}))
	}
	if err := errors.Join(errs...); err != nil {
		s.hub.log.Warn("subscribing again", "server", s.Name, "error", err)
	}
}

// forwardUpdate must not block: the server's reader calls it.
func (s *server) forwardUpdate(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
	params := *req.Params
	delete(params.Meta, mcp.MetaKeySubscriptionID)                               // the id is the server's, not the client's
	go func() { _ = s.hub.mcp.ResourceUpdated(context.Background(), &params) }() //nolint:gosec // to all clients, not for one request
}
