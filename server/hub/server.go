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
	listTime  = 30 * time.Second // for a server to tell what it offers
	listAgain = 5 * time.Second  // until it is asked again, if it doesn't
)

// server is one server behind the hub, with the calls that it runs.
type server struct {
	hub    *Hub
	config Server
	up     *upstream.Server
	flight flight // of up

	made    time.Time
	settled chan struct{} // closed when the first start has succeeded or failed
	settle  func()
	changed chan kinds // the lists are to be read again; which the server says have changed
	done    chan struct{}
	finish  func()

	restarting atomic.Bool  // so that its tools stay meanwhile
	toldEnds   atomic.Int64 // of how many sessions' ends its program was told

	mu         sync.Mutex
	ended      bool
	offer      offer
	own        map[*mcp.ServerSession]*process // of sessions; nil: it had none and shares the one of all
	subscribed subscriptions
	following  *mcp.ClientSession // where they were made
}

// process is one that a client's session has for itself.
type process struct {
	up      *upstream.Server
	flight  flight
	ran     bool
	running int // calls
	used    time.Time
}

// offer is what a server has. It stays while the server is down, so that a
// call says that it is down, and not that there is no such tool.
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
	s.up = upstream.New(c.Config, s.options(&s.flight, s.onState))
	go s.follow()
	return s
}

// onState must not block.
func (s *server) onState(st upstream.Status) {
	switch st.State {
	case upstream.Running, upstream.Stopped:
		s.again(0)
	case upstream.Error:
		s.settle()
	}
}

// again has the lists read once more.
func (s *server) again(said kinds) {
	for {
		select {
		case s.changed <- said:
			return
		case earlier := <-s.changed:
			said |= earlier
		}
	}
}

// follow keeps the offer up to date until the server is no more.
func (s *server) follow() {
	for {
		select {
		case said := <-s.changed:
			s.up.Try("its lists", func() { s.refresh(said) })
		case <-s.done:
			return
		}
	}
}

func (s *server) refresh(said kinds) {
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
	o, err := list(ctx, session)
	if err != nil {
		s.hub.log.Warn("a server does not say what it offers", "server", s.config.Name, "error", err)
		s.settle()
		time.AfterFunc(listAgain, func() { s.again(said) })
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
	s.hub.forget(s, said)
	s.hub.publish()
}

// maxOffer bounds each list of a server.
const maxOffer = 5000

var errTooMuch = errors.New("it offers more than 5000 of a kind")

// list reads what a server offers. Most that it says it can do has a list; a
// server that has none of a kind is not asked for it.
func list(ctx context.Context, session *mcp.ClientSession) (offer, error) {
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
				break // a server without templates need not know the method
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

// maxOwn bounds the processes that sessions have for themselves, of one server.
const maxOwn = 8

// session gives the live session for a client, and what ends the use of it. A
// process of its own is waited for, since the client's own call starts it.
func (s *server) session(ctx context.Context, ss *mcp.ServerSession) (_ *mcp.ClientSession, _ *flight, done func(), err error) {
	if !s.alone(ss) {
		return s.shared()
	}
	if st := s.up.Status().State; st == upstream.Stopped {
		return nil, nil, nil, &upstream.DownError{Name: s.config.Name, State: st}
	}
	p, err := s.processOf(ss)
	if err != nil {
		return nil, nil, nil, err
	}
	if p == nil {
		return s.shared()
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
		// The server may be one that there can be only one of, or that knows the newer era only.
		if s.own[ss] == p {
			s.own[ss] = nil
			go s.endOwn(p) //nolint:gosec // it ends whether or not this client waits
		}
		return s.shared()
	}
	return session, &p.flight, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.running--
		p.used = time.Now()
	}, nil
}

func (s *server) shared() (*mcp.ClientSession, *flight, func(), error) {
	session, err := s.up.Session()
	return session, &s.flight, func() {}, err
}

// alone tells whether a session is to have a process of its own.
func (s *server) alone(ss *mcp.ServerSession) bool {
	if s.config.Command == "" || !stateful(ss) {
		return false
	}
	if s.config.PerSession != nil {
		return *s.config.PerSession
	}
	c := ss.InitializeParams().Capabilities
	return c.Sampling != nil || c.Elicitation != nil
}

// stateful tells whether a client has a session of the older era, which it can
// be asked things in. go-sdk makes up one for a request without a session.
func stateful(ss *mcp.ServerSession) bool {
	p := ss.InitializeParams()
	return older(ss) && p.Capabilities != nil
}

// processOf gives nil to a session that shares the process of all.
func (s *server) processOf(ss *mcp.ServerSession) (*process, error) {
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
		full := s.processes() >= maxOwn
		switch {
		case full && s.config.PerSession == nil: // for good: it may begin something there
		case full && !s.evict():
			return nil, &failure{
				name: "SERVER_BUSY", rule: "server.sessions", retryable: true,
				text: fmt.Sprintf("%d sessions are at work at server %s, each with a process of its own", maxOwn, s.config.Name),
			}
		default:
			p = &process{}
			o := s.options(&p.flight, nil)
			o.Sending = []mcp.Middleware{noDiscover}
			p.up = upstream.New(s.config.Config, o)
			p.up.Start()
		}
		s.own[ss] = p
		s.hub.watch(ss)
	}
	if p != nil {
		p.running++
	}
	return p, nil
}

// processes counts; s.mu is held.
func (s *server) processes() (n int) {
	for _, p := range s.own {
		if p != nil {
			n++
		}
	}
	return n
}

// evict ends the session that was idle longest, with its process: without the
// process, what the client has built up in it is lost, and it must know.
func (s *server) evict() bool {
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

// noDiscover makes a session one of the older era: the client takes an error
// for a server that knows no newer one.
func noDiscover(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "server/discover" {
			return nil, errors.New("the older era is wanted")
		}
		return next(ctx, method, req)
	}
}

// stop ends all processes of the server.
func (s *server) stop(ctx context.Context) error {
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

func (s *server) restart(ctx context.Context) error {
	s.restarting.Store(true)
	defer s.restarting.Store(false)
	if err := s.stop(ctx); err != nil {
		return err
	}
	return s.up.Restart(ctx)
}

// end is for a server that the hub has no more.
func (s *server) end(ctx context.Context) error {
	defer s.settle()
	defer s.finish()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	return s.stop(ctx)
}
