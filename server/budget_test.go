package server

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// limits are wide but for what a test narrows.
func limits(narrow func(*policy.Limits)) policy.Limits {
	l := policy.Default().Limits
	l.RateBurst = 10000
	narrow(&l)
	return l
}

func callOf(session, command string, gen policy.Generation) Call {
	return Call{SessionID: session, Command: policy.Command{Name: command}, Generation: gen}
}

// still returns a test for which the clock stands still while it works, so that
// no rate allows more on a slow machine.
func still(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

func TestBudget(t *testing.T) {
	type step struct {
		session string
		command string
		rule    string // what the call is refused by
	}
	for _, tt := range []struct {
		name   string
		gen    policy.Generation
		limits func(*policy.Limits)
		steps  []step // none ends
	}{
		{"sessions", policy.Native, func(l *policy.Limits) { l.MaxSessions = 2 }, []step{
			{"a", "open", ""}, {"b", "open", ""}, {"c", "open", "sessions.count"}, {"a", "open", ""}, {"d", "close", ""}, {"e", "click", ""},
		}},
		{"one session with 0.8", policy.Node, func(*policy.Limits) {}, []step{{"a", "open", ""}, {"a", "click", ""}, {"b", "open", "sessions.count"}}},
		{"queue", policy.Native, func(l *policy.Limits) { l.SessionQueue = 2 }, []step{
			{"a", "open", ""}, {"a", "open", ""}, {"a", "open", "session.queue"}, {"a", "close", ""}, {"b", "open", ""},
		}},
		{"calls at once", policy.Native, func(l *policy.Limits) { l.MaxCalls = 2; l.SessionQueue = 2 }, []step{
			{"a", "open", ""}, {"b", "open", ""}, {"b", "open", "calls.running"},
		}},
		{"calls of a session", policy.Native, func(l *policy.Limits) { l.SessionCalls = 1 }, []step{
			{"a", "open", ""}, {"a", "open", "session.calls"}, {"a", "close", ""}, {"b", "open", ""},
		}},
		{"rate", policy.Native, func(l *policy.Limits) { l.RateBurst = 2; l.RatePerSec = 1 }, []step{
			{"a", "open", ""}, {"", "", ""}, {"b", "open", "calls.rate"},
		}},
	} {
		t.Run(tt.name, still(func(t *testing.T) {
			b := newBudget(limits(tt.limits), newSessions())
			for i, s := range tt.steps {
				_, d := b.OnBefore(t.Context(), callOf(s.session, s.command, tt.gen))
				rule := ""
				if d.Refusal != nil {
					rule = d.Refusal.Rule
					if d.Refusal.Code != policy.BudgetExceeded || d.Refusal.Retryable != (d.Refusal.RetryAfter > 0) {
						t.Errorf("step %d: %+v", i, d.Refusal)
					}
				}
				if rule != s.rule {
					t.Errorf("step %d: got %q, want %q", i, rule, s.rule)
				}
			}
		}))
	}
}

// TestBudgetEnds: what ends is counted out, and a session without a tab leaves
// nothing.
func TestBudgetEnds(t *testing.T) {
	all := newSessions()
	b := newBudget(limits(func(l *policy.Limits) { l.MaxCalls = 1; l.SessionQueue = 1; l.SessionBytes = 100 }), all)
	for range 1000 {
		c, d := b.OnBefore(t.Context(), callOf("a", "open", policy.Native))
		if d.Refusal != nil {
			t.Fatal(d.Refusal)
		}
		b.OnAfter(t.Context(), c, Result{})
	}
	if len(all.all) != 0 {
		t.Errorf("%d sessions are left", len(all.all))
	}
	open, _ := b.OnBefore(t.Context(), callOf("a", "open", policy.Native))
	ses := open.ses
	if r := all.enterTurn(t.Context(), ses); r != nil {
		t.Fatal(r)
	}
	all.mu.Lock()
	ses.open = true // as a tab makes it
	all.mu.Unlock()
	ses.turn.Release(1)
	b.OnAfter(t.Context(), open, Result{raw: &process.Result{Stdout: make([]byte, 100)}})
	if _, d := b.OnBefore(t.Context(), open); d.Refusal == nil || d.Refusal.Rule != "session.bytes" {
		t.Errorf("got %+v", d)
	}
}

// deny is a hook that says no.
type deny1 struct {
	pass
	r *policy.Refusal
}

func (d deny1) OnBefore(_ context.Context, c Call) (Call, Decision) { return c, Decision{d.r} }

// slow is a hook that takes its time.
type slow struct{ pass }

func (slow) OnBefore(ctx context.Context, c Call) (Call, Decision) {
	<-ctx.Done()
	return c, Decision{}
}

// TestPrecedence: TIMEOUT, BUDGET, SANDBOX, POLICY, whatever the order.
func TestPrecedence(t *testing.T) {
	hook := func(code policy.Code) Hook { return deny1{r: &policy.Refusal{Code: code}} }
	order := []policy.Code{policy.Timeout, policy.BudgetExceeded, policy.SandboxViolation, policy.PolicyBlocked, policy.InvalidParams}
	for i := range order {
		for j := range order {
			_, r := chain{hook(order[i]), pass{}, hook(order[j])}.runBefore(t.Context(), Call{})
			if want := order[min(i, j)]; r.Code != want {
				t.Errorf("%s and %s give %s", order[i].Name(), order[j].Name(), r.Code.Name())
			}
		}
	}
	if _, r := (chain{pass{}, pass{}}).runBefore(t.Context(), Call{}); r != nil {
		t.Errorf("nothing denied, got %v", r)
	}
	late := Call{Received: time.Now(), Timeout: 20 * time.Millisecond}
	if _, r := (chain{hook(policy.BudgetExceeded), slow{}}).runBefore(t.Context(), late); r.Code != policy.Timeout {
		t.Errorf("got %s", r.Code.Name())
	}
}

// TestCloseAndOthersGoOn: a flood does not keep a session from its work, nor
// anyone from closing one.
func TestCloseAndOthersGoOn(t *testing.T) { still(testCloseAndOthersGoOn)(t) }

func testCloseAndOthersGoOn(t *testing.T) {
	all := newSessions()
	b := newBudget(limits(func(l *policy.Limits) { l.RateBurst = 3; l.RatePerSec = 1 }), all)
	c := callOf("a", "open", policy.Native)
	b.OnBefore(t.Context(), c)
	all.all["a"].open = true // as a tab makes it
	for range 3 {
		junk, _ := b.OnBefore(t.Context(), Call{denied: true})
		b.OnAfter(t.Context(), junk, Result{})
	}
	if _, d := b.OnBefore(t.Context(), callOf("b", "open", policy.Native)); d.Refusal == nil {
		t.Error("the shared rate is not used up")
	}
	if _, d := b.OnBefore(t.Context(), c); d.Refusal != nil {
		t.Errorf("the session: %v", d.Refusal)
	}
	if _, d := b.OnBefore(t.Context(), callOf("a", "close", policy.Native)); d.Refusal != nil {
		t.Errorf("close: %v", d.Refusal)
	}
	if _, d := b.OnBefore(t.Context(), callOf("c", "close", policy.Native)); d.Refusal == nil {
		t.Error("a flood of closes of what isn't open")
	}
}

// TestFloodSlowsItself: refusals for a budget come one after the other.
func TestFloodSlowsItself(t *testing.T) {
	b := newBudget(limits(func(l *policy.Limits) { l.RateBurst = 1; l.RatePerSec = 1 }), newSessions())
	b.OnBefore(t.Context(), Call{})
	start := time.Now()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { b.OnBefore(t.Context(), Call{}) })
	}
	wg.Wait()
	if d := time.Since(start); d < 10*refusalTime {
		t.Errorf("10 refusals took %s", d)
	}
}

// countingResolver counts who asks it.
type countingResolver struct{ asked atomic.Int64 }

func (r *countingResolver) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	r.asked.Add(1)
	return []netip.Addr{netip.MustParseAddr("8.8.8.8")}, nil
}

// TestRefusedCallAsksNobody: a call that is refused anyway costs no lookup.
func TestRefusedCallAsksNobody(t *testing.T) {
	p := policy.Default()
	resolver := &countingResolver{}
	hooks := chain{
		validate{policy: p, generation: func(context.Context) (policy.Generation, error) { return policy.Native, nil }},
		deny1{r: &policy.Refusal{Code: policy.BudgetExceeded}},
		address{policy: p, network: policy.Network{Resolver: resolver}},
	}
	c := Call{Tool: policy.ToolName, Arguments: []byte(`{"session_id":"s","argv":["open","https://example.com"]}`), Received: time.Now()}
	if _, r := hooks.runBefore(t.Context(), c); r == nil || resolver.asked.Load() != 0 {
		t.Errorf("%v, %d lookups", r, resolver.asked.Load())
	}
	if _, r := append(hooks[:1:1], hooks[2]).runBefore(t.Context(), c); r != nil || resolver.asked.Load() != 1 {
		t.Errorf("allowed: %v, %d lookups", r, resolver.asked.Load())
	}
}
