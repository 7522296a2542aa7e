package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

const (
	listTime  = 30 * time.Second // for a server to list its offer
	listAgain = 5 * time.Second  // until the next attempt after a failure
)

// server is one server behind the hub, with its running calls.
type server struct {
	hub    *Hub
	config Server
	up     *upstream.Server
	flight flight // of the shared process

	made    time.Time
	settled chan struct{} // closed when the first start has succeeded or failed
	settle  func()
	changed chan kinds // lists to read again, and which of them the server reported as changed
	done    chan struct{}
	finish  func()

	restarting atomic.Bool  // keeps its tools listed meanwhile
	toldEnds   atomic.Int64 // number of session ends reported to its program

	mu         sync.Mutex
	ended      bool
	offer      offer
	own        map[*mcp.ServerSession]*process // of sessions; nil: the session shares the common process
	subscribed subscriptions
	following  *mcp.ClientSession // where they were made
}

// process is a process for one client's session.
type process struct {
	up      *upstream.Server
	flight  flight
	ran     bool
	running int // calls
	used    time.Time
}

// offer is everything that a server offers. It remains while the server is down, so that a call gets that reason
// instead of an unknown tool.
type offer struct {
	capabilities *mcp.ServerCapabilities // nil: not known yet
	instructions string
	tools        []*mcp.Tool
	prompts      []*mcp.Prompt
	resources    []*mcp.Resource
	templates    []*mcp.ResourceTemplate
}

func (h *Hub) newServer(c Server) *server {
	s := &server{hub: h, config: c, made: time.Now(), settled: make(chan struct{}), changed: make(chan kinds, 1), done: make(chan struct{})}
	s.settle = sync.OnceFunc(func() { close(s.settled) })
	s.finish = sync.OnceFunc(func() { close(s.done) })
	s.up = upstream.New(c.Config, s.clientOptions(&s.flight, s.onState))
	go s.followOffer()
	return s
}

// onState must not block.
func (s *server) onState(st upstream.Status) {
	switch st.State {
	case upstream.Running, upstream.Stopped:
		s.requestRefresh(0)
	case upstream.Error:
		s.settle()
	}
}

// requestRefresh requests another reading of the lists.
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

// followOffer keeps the offer up to date until the server is removed.
func (s *server) followOffer() {
	for {
		select {
		case said := <-s.changed:
			s.up.Try("its lists", func() { s.refreshOffer(said) })
		case <-s.done:
			return
		}
	}
}

func (s *server) refreshOffer(said kinds) {
	session, err := s.up.Session()
	if err != nil {
		var down *upstream.DownError
		if errors.As(err, &down) && down.State == upstream.Stopped && !s.restarting.Load() {
			s.setOffer(offer{}, 0)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTime)
	defer cancel()
	o, err := readOffer(ctx, session)
	if err != nil {
		s.hub.log.Warn("a server does not say what it offers", "server", s.config.Name, "error", err)
		s.settle()
		time.AfterFunc(listAgain, func() { s.requestRefresh(said) })
		return
	}
	s.setOffer(o, said)
	s.up.SetTools(session, len(o.tools))
	s.settle()
	s.resubscribe(ctx, session)
}

func (s *server) setOffer(o offer, said kinds) {
	s.mu.Lock()
	s.offer = o
	s.mu.Unlock()
	s.hub.forgetShown(s, said)
	s.hub.publish()
}

// maxOffer limits each list of a server.
const maxOffer = 5000

var errTooMuch = fmt.Errorf("the server offers more than %d items of one kind", maxOffer)

// readOffer reads a server's offer. It requests only lists that match the server's capabilities.
func readOffer(ctx context.Context, session *mcp.ClientSession) (offer, error) {
	init := session.InitializeResult()
	o := offer{capabilities: init.Capabilities, instructions: init.Instructions}
	if o.capabilities == nil {
		o.capabilities = &mcp.ServerCapabilities{}
	}
	var err error
	if o.capabilities.Tools != nil {
		for t, e := range session.Tools(ctx, nil) {
			if o.tools, err = add(o.tools, t, e); err != nil {
				return o, err
			}
		}
	}
	if o.capabilities.Prompts != nil {
		for p, e := range session.Prompts(ctx, nil) {
			if o.prompts, err = add(o.prompts, p, e); err != nil {
				return o, err
			}
		}
	}
	if o.capabilities.Resources != nil {
		for r, e := range session.Resources(ctx, nil) {
			if o.resources, err = add(o.resources, r, e); err != nil {
				return o, err
			}
		}
		for t, e := range session.ResourceTemplates(ctx, nil) {
			if e != nil {
				break // a server without templates may lack the method
			}
			if o.templates, err = add(o.templates, t, e); err != nil {
				return o, err
			}
		}
	}
	return o, nil
}

func add[T any](list []*T, item *T, err error) ([]*T, error) {
	switch {
	case err != nil:
		return nil, err
	case len(list) == maxOffer:
		return nil, errTooMuch
	case item == nil:
		return list, nil
	}
	return append(list, item), nil
}

// maxOwn limits the session-owned processes of one server.
const maxOwn = 8

// findSession returns the live session for a client, and a function that ends its use. It waits for a session-owned
// process, which the client's own call starts.
func (s *server) findSession(ctx context.Context, ss *mcp.ServerSession) (_ *mcp.ClientSession, _ *flight, done func(), err error) {
	if !s.needsOwn(ss) {
		return s.sharedSession()
	}
	if st := s.up.Status().State; st == upstream.Stopped {
		return nil, nil, nil, &upstream.DownError{Name: s.config.Name, State: st}
	}
	p, err := s.ownProcess(ss)
	if err != nil {
		return nil, nil, nil, err
	}
	if p == nil {
		return s.sharedSession()
	}
	session, err := p.up.Await(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ran = p.ran || err == nil
	if err != nil {
		p.running--
		if p.ran || s.config.PerSession != nil || ctx.Err() != nil {
			return nil, nil, nil, err
		}
		// The server may be a singleton, or may support the newer era only.
		if s.own[ss] == p {
			s.own[ss] = nil
			go s.endOwn(p) //nolint:gosec // must end even if this client leaves
		}
		return s.sharedSession()
	}
	return session, &p.flight, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.running--
		p.used = time.Now()
	}, nil
}

func (s *server) sharedSession() (*mcp.ClientSession, *flight, func(), error) {
	session, err := s.up.Session()
	return session, &s.flight, func() {}, err
}

// needsOwn reports whether a session needs a process of its own.
func (s *server) needsOwn(ss *mcp.ServerSession) bool {
	if s.config.Command == "" || !isStateful(ss) {
		return false
	}
	if s.config.PerSession != nil {
		return *s.config.PerSession
	}
	c := ss.InitializeParams().Capabilities
	return c.Sampling != nil || c.Elicitation != nil
}

// isStateful reports whether a client has a session of the older era, in which it can receive requests. go-sdk invents
// one for a request without a session.
func isStateful(ss *mcp.ServerSession) bool {
	p := ss.InitializeParams()
	return isOlder(ss) && p.Capabilities != nil
}

// ownProcess returns the session's own process; nil if it shares the common one.
func (s *server) ownProcess(ss *mcp.ServerSession) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, &upstream.DownError{Name: s.config.Name, State: upstream.Stopped}
	}
	p, known := s.own[ss]
	if !known {
		if s.own == nil {
			s.own = map[*mcp.ServerSession]*process{}
		}
		full := s.countProcesses() >= maxOwn
		switch {
		case full && s.config.PerSession == nil: // the decision is final: its state would be there
		case full && !s.evictIdlest():
			return nil, &failure{
				name: "SERVER_BUSY", rule: "server.sessions", retryable: true,
				text: fmt.Sprintf("%d sessions are at work at server %s, each with a process of its own", maxOwn, s.config.Name),
			}
		default:
			p = &process{}
			o := s.clientOptions(&p.flight, nil)
			o.Sending = []mcp.Middleware{noDiscover}
			p.up = upstream.New(s.config.Config, o)
			p.up.Start()
		}
		s.own[ss] = p
		s.hub.cleanUpAfter(ss)
	}
	if p != nil {
		p.running++
	}
	return p, nil
}

// countProcesses returns the number of processes; the caller holds s.mu.
func (s *server) countProcesses() (n int) {
	for _, p := range s.own {
		if p != nil {
			n++
		}
	}
	return n
}

// evictIdlest ends the longest idle session together with its process: the client's state is lost with the process, and
// the client must learn that.
func (s *server) evictIdlest() bool {
	var idle *mcp.ServerSession
	for ss, p := range s.own {
		if p != nil && p.running == 0 && (idle == nil || p.used.Before(s.own[idle].used)) {
			idle = ss
		}
	}
	if idle == nil {
		return false
	}
	p := s.own[idle]
	delete(s.own, idle)
	go func() {
		idle.Close()
		s.endOwn(p)
	}()
	return true
}

func (s *server) endOwn(p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := p.up.Stop(ctx); err != nil {
		s.hub.log.Warn("a session's process", "server", s.config.Name, "error", err)
	}
}

// noDiscover forces the older era: on an error the client assumes a server without the newer one.
func noDiscover(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "server/discover" {
			return nil, errors.New("the older era is wanted")
		}
		return next(ctx, method, req)
	}
}

// stopAll ends all processes of the server.
func (s *server) stopAll(ctx context.Context) error {
	s.mu.Lock()
	own := slices.DeleteFunc(slices.Collect(maps.Values(s.own)), func(p *process) bool { return p == nil })
	clear(s.own)
	s.mu.Unlock()
	errs := make([]error, len(own)+1)
	var wg sync.WaitGroup
	for i, p := range own {
		wg.Go(func() { errs[i] = p.up.Stop(ctx) })
	}
	errs[len(own)] = s.up.Stop(ctx)
	wg.Wait()
	return errors.Join(errs...)
}

func (s *server) restartAll(ctx context.Context) error {
	s.restarting.Store(true)
	defer s.restarting.Store(false)
	if err := s.stopAll(ctx); err != nil {
		return err
	}
	return s.up.Restart(ctx)
}

// endAll ends a server that the hub no longer has.
func (s *server) endAll(ctx context.Context) error {
	defer s.settle()
	defer s.finish()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	return s.stopAll(ctx)
}
