package server

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server/policy"
)

// budget bounds how many calls there are: over time, at once, and in each
// session. It outlives a reload of the policy.
type budget struct {
	sessions *sessions
	rate     *rate.Limiter // of calls that have no session with a page
	refusing turn          // of one refusal at a time

	mu      sync.Mutex
	limits  policy.Limits
	running int
}

func newBudget(l policy.Limits, s *sessions) *budget {
	return &budget{sessions: s, limits: l, rate: newRate(l), refusing: newTurn()}
}

func newRate(l policy.Limits) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(l.RatePerSec), l.RateBurst)
}

func (b *budget) setLimits(l policy.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = l
	b.rate.SetLimit(rate.Limit(l.RatePerSec))
	b.rate.SetBurst(l.RateBurst)
}

// OnBefore counts the call in, whatever comes of it. A session with a page has
// a rate of its own, so that nobody else's calls keep it from its work; all
// other calls share one.
func (b *budget) OnBefore(ctx context.Context, c Call) (Call, Decision) {
	b.mu.Lock()
	b.running++
	limits, running := b.limits, b.running
	b.mu.Unlock()
	own, r := b.sessions.admit(c, limits)
	if running > limits.MaxCalls {
		r = overBudget("calls.running", 100*time.Millisecond, "too many calls are running; wait for answers before sending more")
	}
	bucket := b.rate
	if own != nil && !c.denied {
		bucket = own
	}
	if wait := reserve(bucket); wait > 0 && c.Command.Name != "close" {
		r = overBudget("calls.rate", wait, "too many calls in a short time; wait before the next")
	}
	if r != nil {
		b.slow(ctx)
	}
	return c, deny(r)
}

// reserve takes one call from a bucket, or says when there will be one.
func reserve(bucket *rate.Limiter) time.Duration {
	res := bucket.Reserve()
	wait := res.Delay()
	if wait > 0 {
		res.Cancel()
	}
	return wait
}

// refusalTime is how far apart refusals for a budget are answered, one after
// the other: a flood slows itself and cannot fill the audit log.
const refusalTime = 10 * time.Millisecond

func (b *budget) slow(ctx context.Context) {
	if b.refusing.take(ctx) != nil {
		return
	}
	defer b.refusing.give()
	select {
	case <-time.After(refusalTime):
	case <-ctx.Done():
	}
}

// OnAfter counts the call out.
func (b *budget) OnAfter(_ context.Context, c Call, r Result) Result {
	b.mu.Lock()
	b.running--
	b.mu.Unlock()
	bytes := 0
	if r.raw != nil {
		bytes = len(r.raw.Stdout) + len(r.raw.Stderr)
	}
	b.sessions.release(c, int64(bytes))
	return r
}

func overBudget(rule string, wait time.Duration, message string) *policy.Refusal {
	return &policy.Refusal{Code: policy.BudgetExceeded, Rule: rule, Message: message, Retryable: true, RetryAfter: wait.Round(time.Millisecond)}
}
