package server

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server/policy"
)

// budget limits the number of calls: over time, at once, and in each session. It survives a reload of the policy.
type budget struct {
	sessions *sessions

	mu      sync.Mutex
	limits  policy.Limits
	running int
	clients map[string]*client // by Origin.owner
	most    int                // maximum number of clients; beyond it, idle ones are dropped
}

// client holds what one client has left of its budget. The MCP sessions of a key are separate clients.
type client struct {
	rate     *rate.Limiter       // of calls outside a session with a page
	refusing *semaphore.Weighted // serializes the refusals
	running  int
}

func newBudget(l policy.Limits, s *sessions) *budget {
	return &budget{sessions: s, limits: l, clients: map[string]*client{}}
}

func newRate(l policy.Limits) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(l.RatePerSec), l.RateBurst)
}

func (b *budget) setLimits(l policy.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = l
	maps.DeleteFunc(b.clients, func(_ string, c *client) bool { return c.running == 0 }) // created again on demand
}

// beginCall counts a starting call of its client.
func (b *budget) beginCall(o Origin) (cl *client, limits policy.Limits, running int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cl = b.clients[o.owner()]; cl == nil {
		if now := time.Now(); len(b.clients) >= b.most { // drop those that equal a new client
			maps.DeleteFunc(b.clients, func(_ string, c *client) bool {
				return c.running == 0 && c.rate.TokensAt(now) >= float64(c.rate.Burst())
			})
			b.most = max(2*len(b.clients), 64)
		}
		cl = &client{rate: newRate(b.limits), refusing: semaphore.NewWeighted(1)}
		b.clients[o.owner()] = cl
	}
	b.running++
	cl.running++
	return cl, b.limits, b.running
}

// OnBefore counts the call, whatever its result. A session with a page has a rate of its own, so that other calls can't
// keep it from its work. All other calls of a client share one rate.
func (b *budget) OnBefore(ctx context.Context, c Call) (Call, Decision) {
	cl, limits, running := b.beginCall(c.Origin)
	c.client = cl
	own := b.sessions.findRate(c)
	bucket := cl.rate
	if own != nil && !c.denied {
		bucket = own
	}
	var r *policy.Refusal
	c.closes = c.Command.Name == "close" && own != nil
	if !c.closes { // paid for when the session was opened
		if wait := reserveTokens(bucket, 1+len(c.Arguments)>>10); wait > 0 {
			r = overBudget("calls.rate", wait, "too many calls in a short time; wait before the next")
		}
	}
	// One client may run at most as many calls as are still free, so there is always room for another client's.
	if running > limits.MaxCalls || c.Origin.owner() != "" && cl.running > limits.MaxCalls-running+1 {
		r = overBudget("calls.running", 100*time.Millisecond, "too many calls are running; wait for answers before sending more")
	}
	if r == nil {
		c, r = b.sessions.admitCall(c, limits)
	}
	if r != nil {
		cl.delayRefusal(ctx)
	}
	return c, deny(r)
}

// reserveTokens takes n tokens from a bucket, or returns the time until they are available.
func reserveTokens(bucket *rate.Limiter, n int) time.Duration {
	res := bucket.ReserveN(time.Now(), min(n, bucket.Burst()))
	wait := res.Delay()
	if wait > 0 {
		res.Cancel()
	}
	return wait
}

// refusalTime is the minimum interval between the answers to a client's refused calls: a flood slows itself down.
const refusalTime = 10 * time.Millisecond

func (cl *client) delayRefusal(ctx context.Context) {
	if cl.refusing.Acquire(ctx, 1) != nil {
		return
	}
	defer cl.refusing.Release(1)
	select {
	case <-time.After(refusalTime):
	case <-ctx.Done():
	}
}

// OnAfter counts the end of the call.
func (b *budget) OnAfter(_ context.Context, c Call, r Result) Result {
	b.mu.Lock()
	b.running--
	c.client.running--
	b.mu.Unlock()
	if c.ses == nil {
		return r
	}
	bytes := 0
	if r.raw != nil {
		bytes = len(r.raw.Stdout) + len(r.raw.Stderr)
	}
	b.sessions.releaseCall(c.ses, c.opened, int64(bytes))
	return r
}

func overBudget(rule string, wait time.Duration, message string) *policy.Refusal {
	return &policy.Refusal{Code: policy.BudgetExceeded, Rule: rule, Message: message, Retryable: true, RetryAfter: wait.Round(time.Millisecond)}
}
