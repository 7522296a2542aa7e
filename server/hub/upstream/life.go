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

// times holds the durations that tests shorten.
type times struct {
	start   time.Duration   // for a server to answer
	probe   time.Duration   // the part of it for server/discover, before initialize
	hold    time.Duration   // running time after which attempts are counted from 0
	backoff []time.Duration // after the first failed attempt, the second …; the last one repeats
	grace   time.Duration   // after the end of stdin, and again after SIGTERM
	drain   time.Duration   // for the last output of a program that has ended
	write   time.Duration   // for a program to read a line
	ping    time.Duration   // interval of pings to a remote server of the older era
}

var normal = times{
	start: 30 * time.Second, probe: 10 * time.Second, hold: time.Minute,
	backoff: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second},
	grace:   time.Second, drain: 50 * time.Millisecond, write: 10 * time.Second, ping: 30 * time.Second,
}

// retryDelay returns the delay after the nth failed attempt in a row. It varies by up to a fifth, so that servers that
// failed together don't restart together.
func (t *times) retryDelay(n int) time.Duration {
	if n == 0 {
		return 0
	}
	d := t.backoff[min(n, len(t.backoff))-1]
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter is no secret
}

// link is one attempt: a program or a connection.
type link interface {
	transport() mcp.Transport
	pid() int
	gone() <-chan struct{}     // closed when nothing more can arrive
	cause(session error) error // the reason for the end, given the session's error
	end() error                // ends it and waits for the end
	watch(*mcp.Client)         // prepares the client of this link
}

func (s *Server) openLink(f *fuse) (link, error) {
	if s.config.URL != "" {
		return dialRemote(s, f)
	}
	return startProgram(s, f)
}

// life is the time between a Start and a Stop.
type life struct {
	server *Server
	ctx    context.Context
	cancel context.CancelFunc
	before <-chan struct{} // closed at the end of the previous life
	ended  chan struct{}
	err    error // after ended: why something could not be ended

	// legacy makes an attempt begin with initialize: server/discover ends some servers. Each failed attempt toggles it.
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
		held, next := l.attemptStart(n)
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

// changeStatus changes the status, unless the life was stopped.
func (l *life) changeStatus(f func(*Status)) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.life == l {
		l.server.changeStatus(f)
	}
}

// attemptStart is one start until its complete end. It reports whether the server was up for long enough, and when to
// try again.
func (l *life) attemptStart(n int) (held bool, next time.Time) {
	s := l.server
	f := newFuse(s.config.Name)
	l.changeStatus(func(st *Status) {
		st.clearRunning(Starting)
		st.Attempt, st.Restarts = n, s.starts
		s.starts++
		s.fuse = f
	})
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	k, session, held, err := l.tryLink(ctx, cancel, f)
	if held {
		n = 0
	}
	next = l.reportFailure(n, f.cause(err))
	if k == nil {
		return held, next
	}
	if l.err = k.end(); l.err != nil {
		l.err = fmt.Errorf("server %s: %w", s.config.Name, l.err)
	}
	if session != nil {
		// It waits for handlers, which should respect their contexts.
		go func() { _ = session.Close() }()
	}
	return held, next
}

// tryLink opens a link, connects and waits for the end. It also returns the resources to close with an error.
func (l *life) tryLink(ctx context.Context, cancel func(), f *fuse) (k link, session *mcp.ClientSession, held bool, err error) {
	defer f.rescue("its life", &err)
	opened, err := l.server.openLink(f)
	if err != nil {
		return nil, nil, false, err
	}
	k = opened
	l.changeStatus(func(st *Status) { st.PID = k.pid() })
	if session, err = l.openSession(ctx, cancel, k, f); err == nil {
		held, err = l.awaitEnd(session, k, f)
	}
	return k, session, held, err
}

// openSession opens a session. ctx is that of the session, not only of the start: the SSE transport keeps it.
func (l *life) openSession(ctx context.Context, cancel func(), k link, f *fuse) (*mcp.ClientSession, error) {
	s := l.server
	slow := time.AfterFunc(s.times.start, cancel)
	session, err := s.newClient(k, f).Connect(ctx, k.transport(), l.sessionOptions())
	inTime := slow.Stop()
	if err == nil && inTime {
		return session, nil
	}
	l.legacy = !l.legacy
	switch {
	case l.ctx.Err() != nil: // Stop was called
		return session, l.ctx.Err()
	case inTime:
		return session, k.cause(err)
	default:
		return session, fmt.Errorf("the server did not answer within %s", s.times.start)
	}
}

// awaitEnd reports that the server runs, and waits for its end.
func (l *life) awaitEnd(session *mcp.ClientSession, k link, f *fuse) (held bool, err error) {
	began := time.Now()
	l.changeStatus(func(st *Status) {
		l.server.session = session
		st.State = Running
		if r := session.InitializeResult(); r != nil {
			st.Protocol = r.ProtocolVersion // one that go-sdk knows
			if r.ServerInfo != nil {
				st.Server = shorten(r.ServerInfo.Name + " " + r.ServerInfo.Version)
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

// reportFailure reports the end of an attempt, unless Stop caused it, and returns the time of the next.
func (l *life) reportFailure(n int, err error) (next time.Time) {
	next = time.Now().Add(l.server.times.retryDelay(n))
	if l.ctx.Err() != nil {
		return next
	}
	why := shorten(err.Error())
	fmt.Fprintf(&l.server.log, "hub: %s\n", why)
	l.changeStatus(func(st *Status) {
		l.server.session = nil
		st.clearRunning(Error)
		st.LastError = why
		if !l.server.config.NoRestart {
			st.NextRetry = next
		}
	})
	return next
}

// shorten returns a server's text as one short line.
func shorten(s string) string {
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

func (l *life) sessionOptions() *mcp.ClientSessionOptions {
	if l.legacy {
		return &mcp.ClientSessionOptions{ProtocolVersion: latestLegacy}
	}
	return nil
}

// newClient returns the client for one session.
func (s *Server) newClient(k link, f *fuse) *mcp.Client {
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
	c.AddSendingMiddleware(f.edge) // the last one added is called first
	c.AddReceivingMiddleware(f.edge)
	return c
}
