package server

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server/policy"
)

// budget bounds how many calls there are: over time, at once, and in each
// session. It outlives a reload of the policy.
type budget struct {
	sessions *sessions

	mu      sync.Mutex
	limits  policy.Limits
	running int
	clients map[string]*client       // by Origin.owner
	most    int                      // clients; with more, idle ones are forgotten
	logs    map[string]*rate.Limiter // by Origin.Subject: bytes of the audit log
}

// client is what one client has left. A key's MCP sessions are clients of their own, which share what the key may log.
type client struct {
	rate     *rate.Limiter // of calls that have no session with a page
	refusing turn          // of one refusal at a time
	running  int
}

func newBudget(l policy.Limits, s *sessions) *budget {
	return &budget{sessions: s, limits: l, clients: map[string]*client{}, logs: map[string]*rate.Limiter{}}
}

func newRate(l policy.Limits) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(l.RatePerSec), l.RateBurst)
}

// What the calls of a key may log for each call that the rate allows, in bytes: over time, and at once.
const (
	logPerCall  = 1 << 10
	logPerBurst = 32 << 10
)

func newLogRate(l policy.Limits) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(l.RatePerSec*logPerCall), l.RateBurst*logPerBurst)
}

func (b *budget) setLimits(l policy.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = l
	clear(b.logs) // they are made anew; so are the clients that nothing runs of
	maps.DeleteFunc(b.clients, func(_ string, c *client) bool { return c.running == 0 })
}

// begin counts a call in for its client.
func (b *budget) begin(o Origin) (cl *client, log *rate.Limiter, limits policy.Limits, running int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	whole := func(l *rate.Limiter) bool { return l.TokensAt(now) >= float64(l.Burst()) }
	if cl = b.clients[o.owner()]; cl == nil {
		if len(b.clients) >= b.most { // those that a new one would be like
			maps.DeleteFunc(b.clients, func(_ string, c *client) bool { return c.running == 0 && whole(c.rate) })
			b.most = max(2*len(b.clients), 64)
		}
		cl = &client{rate: newRate(b.limits), refusing: newTurn()}
		b.clients[o.owner()] = cl
	}
	if log = b.logs[o.Subject]; log == nil {
		maps.DeleteFunc(b.logs, func(_ string, l *rate.Limiter) bool { return whole(l) })
		log = newLogRate(b.limits)
		b.logs[o.Subject] = log
	}
	b.running++
	cl.running++
	return cl, log, b.limits, b.running
}

// OnBefore counts the call in, whatever comes of it. A session with a page has
// a rate of its own, so that nobody else's calls keep it from its work; all
// other calls of a client share one.
func (b *budget) OnBefore(ctx context.Context, c Call) (Call, Decision) {
	b.sessions.drop(c.Origin.ended)
	cl, log, limits, running := b.begin(c.Origin)
	c.client = cl
	own := b.sessions.rateOf(c)
	bucket := cl.rate
	if own != nil && !c.denied {
		bucket = own
	}
	var r *policy.Refusal
	if closes := c.Command.Name == "close" && own != nil; !closes { // which was paid for when it was opened
		if wait := reserve(bucket, 1+len(c.Arguments)>>10); wait > 0 {
			r = overBudget("calls.rate", wait, "too many calls in a short time; wait before the next")
		} else if tokens := log.Tokens(); tokens < 0 {
			wait := time.Duration(-tokens / float64(log.Limit()) * float64(time.Second))
			r = overBudget("calls.log", wait, "the calls of this key fill the audit log too fast; wait before the next")
		}
	}
	// One client may have as many calls at once as are free besides, so there is always room for another's.
	if running > limits.MaxCalls || c.Origin.owner() != "" && cl.running > limits.MaxCalls-running+1 {
		r = overBudget("calls.running", 100*time.Millisecond, "too many calls are running; wait for answers before sending more")
	}
	if r == nil {
		c, r = b.sessions.admit(c, limits)
	}
	if r != nil {
		cl.slow(ctx)
	}
	return c, deny(r)
}

// reserve takes n calls from a bucket, or says when there will be so many.
func reserve(bucket *rate.Limiter, n int) time.Duration {
	res := bucket.ReserveN(time.Now(), min(n, bucket.Burst()))
	wait := res.Delay()
	if wait > 0 {
		res.Cancel()
	}
	return wait
}

// refusalTime is how far apart a client's refusals for a budget are answered,
// one after the other: a flood slows itself.
const refusalTime = 10 * time.Millisecond

func (cl *client) slow(ctx context.Context) {
	if cl.refusing.take(ctx) != nil {
		return
	}
	defer cl.refusing.give()
	select {
	case <-time.After(refusalTime):
	case <-ctx.Done():
	}
}

// logged is about how much the hub's line and the tool's have of a call besides its words, in bytes.
const logged = 1400

// OnAfter counts the call out.
func (b *budget) OnAfter(_ context.Context, c Call, r Result) Result {
	b.mu.Lock()
	b.running--
	c.client.running--
	if log := b.logs[c.Origin.Subject]; log != nil && (r.Refusal == nil || r.ran) { // others are counted by the log
		log.ReserveN(time.Now(), min(logged+len(c.Arguments), logged+4096, log.Burst()))
	}
	b.mu.Unlock()
	if c.ses == nil {
		return r
	}
	bytes := 0
	if r.raw != nil {
		bytes = len(r.raw.Stdout) + len(r.raw.Stderr)
	}
	b.sessions.release(c.ses, c.opened, int64(bytes))
	return r
}

func overBudget(rule string, wait time.Duration, message string) *policy.Refusal {
	return &policy.Refusal{Code: policy.BudgetExceeded, Rule: rule, Message: message, Retryable: true, RetryAfter: wait.Round(time.Millisecond)}
}
