package upstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// times are what the tests make shorter.
type times struct {
	start   time.Duration   // for a server to answer
	probe   time.Duration   // of that, for server/discover, after which it is asked to initialize
	hold    time.Duration   // of running, after which the attempts are counted anew
	backoff []time.Duration // after the first failed attempt, the second …; the last one for ever
	grace   time.Duration   // after the end of stdin, and again after SIGTERM
	drain   time.Duration   // for the last words of a program that has ended
	write   time.Duration   // for a program to take a line
	ping    time.Duration   // between two questions whether a remote server of the older era is there
}

var normal = times{
	start: 30 * time.Second, probe: 10 * time.Second, hold: time.Minute,
	backoff: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second},
	grace:   time.Second, drain: 50 * time.Millisecond, write: 10 * time.Second, ping: 30 * time.Second,
}

// wait gives how long to wait after the nth attempt in a row that did not hold:
// up to a fifth more or less than the table says, so that servers that fell
// together don't come back together.
func (t *times) wait(n int) time.Duration {
	if n == 0 {
		return 0
	}
	d := t.backoff[min(n, len(t.backoff))-1]
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter is no secret
}

// link is a program or a connection: one attempt.
type link interface {
	transport() mcp.Transport
	pid() int
	gone() <-chan struct{}     // closed when it is sure that no more comes
	cause(session error) error // why it is over, given what the session says
	end() error                // ends it and waits for that
	watch(*mcp.Client)         // before it is the client of this link
}

func (s *Server) open(f *fuse) (link, error) {
	if s.config.URL != "" {
		return dialRemote(s, f)
	}
	return startProgram(s, f)
}

// life is what is between a Start and a Stop.
type life struct {
	server *Server
	ctx    context.Context
	cancel context.CancelFunc
	before <-chan struct{} // the end of the life before
	ended  chan struct{}
	err    error // when ended: what could not be ended

	// legacy has an attempt begin with initialize: there are servers that
	// server/discover ends. Each failed attempt changes it.
	legacy bool
}

func newLife(s *Server, before *life) *life {
	l := &life{server: s, ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if before != nil {
		l.before = before.ended
	}
	return l
}

func (l *life) run() {
	defer close(l.ended)
	defer l.cancel()
	if l.before != nil {
		<-l.before
	}
	for n := 1; l.ctx.Err() == nil; n++ {
		held, next := l.attempt(n)
		if held {
			n = 0
		}
		if l.server.config.NoRestart && l.ctx.Err() == nil {
			return
		}
		wait := time.NewTimer(time.Until(next))
		select {
		case <-wait.C:
		case <-l.ctx.Done():
			wait.Stop()
		}
	}
}

// change changes the status, unless the life was ordered to end.
func (l *life) change(f func(*Status)) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.life == l {
		l.server.change(f)
	}
}

// attempt is one start and what comes of it, until nothing of it is left. It
// tells whether the server was up for long enough, and when to try again.
func (l *life) attempt(n int) (held bool, next time.Time) {
	s := l.server
	f := newFuse(s.config.Name)
	l.change(func(st *Status) {
		st.down(Starting)
		st.Attempt, st.Restarts = n, s.starts
		s.starts++
		s.fuse = f
	})
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	k, session, held, err := l.try(ctx, cancel, f)
	if held {
		n = 0
	}
	next = l.failed(n, f.cause(err))
	if k == nil {
		return held, next
	}
	if l.err = k.end(); l.err != nil {
		l.err = fmt.Errorf("server %s: %w", s.config.Name, l.err)
	}
	if session != nil {
		// It waits for handlers, which ought to heed their contexts.
		go func() { _ = session.Close() }()
	}
	return held, next
}

// try opens a link, connects and waits for the end. It returns what is to be closed also with an error.
func (l *life) try(ctx context.Context, cancel func(), f *fuse) (k link, session *mcp.ClientSession, held bool, err error) {
	defer f.rescue("its life", &err)
	opened, err := l.server.open(f)
	if err != nil {
		return nil, nil, false, err
	}
	k = opened
	l.change(func(st *Status) { st.PID = k.pid() })
	if session, err = l.connect(ctx, cancel, k, f); err == nil {
		held, err = l.follow(session, k, f)
	}
	return k, session, held, err
}

// connect makes a session. ctx is the session's, not that of the start alone:
// the SSE transport keeps it.
func (l *life) connect(ctx context.Context, cancel func(), k link, f *fuse) (*mcp.ClientSession, error) {
	s := l.server
	slow := time.AfterFunc(s.times.start, cancel)
	session, err := s.client(k, f).Connect(ctx, k.transport(), l.era())
	inTime := slow.Stop()
	if err == nil && inTime {
		return session, nil
	}
	l.legacy = !l.legacy
	switch {
	case l.ctx.Err() != nil: // it was ordered
		return session, l.ctx.Err()
	case inTime:
		return session, k.cause(err)
	default:
		return session, fmt.Errorf("it did not answer within %s", s.times.start)
	}
}

// follow shows that the server runs, and waits for its end.
func (l *life) follow(session *mcp.ClientSession, k link, f *fuse) (held bool, err error) {
	began := time.Now()
	l.change(func(st *Status) {
		l.server.session = session
		st.State = Running
		if r := session.InitializeResult(); r != nil {
			st.Protocol = r.ProtocolVersion // one that go-sdk knows
			if r.ServerInfo != nil {
				st.Server = short(r.ServerInfo.Name + " " + r.ServerInfo.Version)
			}
		}
	})
	over := make(chan error, 1)
	go func() { over <- session.Wait() }()
	select {
	case err = <-over:
	case <-k.gone():
	case <-f.blown:
	case <-l.ctx.Done():
		return false, l.ctx.Err()
	}
	return time.Since(began) >= l.server.times.hold, k.cause(err)
}

// failed shows why an attempt is over, unless that was ordered, and gives the
// time of the next.
func (l *life) failed(n int, err error) (next time.Time) {
	next = time.Now().Add(l.server.times.wait(n))
	if l.ctx.Err() != nil {
		return next
	}
	why := short(err.Error())
	fmt.Fprintf(&l.server.log, "hub: %s\n", why)
	l.change(func(st *Status) {
		l.server.session = nil
		st.down(Error)
		st.LastError = why
		if !l.server.config.NoRestart {
			st.NextRetry = next
		}
	})
	return next
}

// short makes one short line of what may be the server's own words.
func short(s string) string {
	line := func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}
	return strings.Map(line, fmt.Sprintf("%.500s", s))
}

// latestLegacy is the last revision that begins with initialize.
const latestLegacy = "2025-11-25"

func (l *life) era() *mcp.ClientSessionOptions {
	if l.legacy {
		return &mcp.ClientSessionOptions{ProtocolVersion: latestLegacy}
	}
	return nil
}

// client makes the client for one session.
func (s *Server) client(k link, f *fuse) *mcp.Client {
	var o mcp.ClientOptions
	if s.options.Client != nil {
		o = *s.options.Client
	}
	if s.config.URL != "" && o.KeepAlive == 0 {
		// The newer era has no ping; its servers keep no connection either.
		o.KeepAlive, o.KeepAliveFailureThreshold = s.times.ping, 2
	}
	info := s.options.Info
	if info == nil {
		info = &mcp.Implementation{Name: "browser-shell"}
	}
	c := mcp.NewClient(info, &o)
	c.AddSendingMiddleware(s.options.Sending...)
	c.AddReceivingMiddleware(s.options.Receiving...)
	k.watch(c)
	c.AddSendingMiddleware(f.edge) // the last is the first to be called
	c.AddReceivingMiddleware(f.edge)
	return c
}
