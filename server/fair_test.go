package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/cdp/cdptest"
	"github.com/slimctl/slimctl/server/policy"
)

// by is a call of a client with a key and an MCP session.
func by(key, mcp string, c Call) Call {
	c.Origin = Origin{Caller: audit.Caller{Subject: key, Session: mcp}}
	return c
}

// fairLab is a budget whose sessions have tabs as soon as open is let through.
type fairLab struct {
	*budget
	t *testing.T
}

func newFairLab(t *testing.T, change func(*policy.Limits)) fairLab {
	all := newSessions()
	all.end = func(ses *session) { // as browser.evict
		defer close(ses.gone)
		ses.turn.TryAcquire(1)
		ses.tab = nil
		all.leaveTurn(ses)
		all.releaseCall(ses, false, 0)
	}
	return fairLab{newBudget(limits(change), all), t}
}

// call makes a call and gives the rule that refuses it.
func (l fairLab) call(c Call) string {
	l.t.Helper()
	c, d := l.OnBefore(l.t.Context(), c)
	if d.Refusal == nil && c.opened {
		l.sessions.mu.Lock()
		c.ses.open = true
		l.sessions.mu.Unlock()
	}
	if d.Refusal == nil && c.Command.Name == "close" {
		l.sessions.mu.Lock()
		c.ses.open = false
		l.sessions.mu.Unlock()
	}
	res := Result{Refusal: d.Refusal}
	if c.denied {
		res.Refusal = &policy.Refusal{}
	}
	l.OnAfter(l.t.Context(), c, res)
	if d.Refusal == nil {
		return ""
	}
	return d.Refusal.Rule
}

// TestOneClientDoesNotStarveAnother: what a client does that is denied, or in sessions that don't exist, costs nobody else
// anything, whether the other one has another key or another MCP session.
func TestOneClientDoesNotStarveAnother(t *testing.T) {
	open := func(id string) Call { return callOf(id, "open", policy.Native) }
	for name, victim := range map[string]func(Call) Call{
		"another key":         func(c Call) Call { return by("key:b", "", c) },
		"another MCP session": func(c Call) Call { return by("key:a", "2", c) },
	} {
		t.Run(name, still(func(t *testing.T) {
			l := newFairLab(t, func(l *policy.Limits) { l.RateBurst, l.RatePerSec, l.MaxSessions, l.MaxCalls = 3, 1, 1, 8 })
			attacker := func(c Call) Call { return by("key:a", "1", c) }
			for i := range 100 {
				l.call(attacker(Call{SessionID: fmt.Sprint(i), Command: policy.Command{Name: "eval"}, denied: true}))
			}
			if rule := l.call(victim(open("s"))); rule != "" {
				t.Errorf("after a flood that was denied: %s", rule)
			}
			l.call(victim(callOf("s", "close", policy.Native)))
			// Calls that run in sessions that don't exist take no place.
			l = newFairLab(t, func(l *policy.Limits) { l.MaxSessions, l.MaxCalls = 1, 8 })
			for i := range 100 {
				c, d := l.OnBefore(t.Context(), attacker(callOf(fmt.Sprint(i), "snapshot", policy.Native)))
				if d.Refusal != nil { // the others don't end
					l.OnAfter(t.Context(), c, Result{Refusal: d.Refusal})
				}
			}
			if rule := l.call(victim(open("s"))); rule != "" {
				t.Errorf("while calls run: %s", rule)
			}
		}))
	}
}

// TestSessionIsItsOwners: another subject's session doesn't exist, whatever is done with its id; nor does another MCP
// session's where there is no subject, or no id.
func TestSessionIsItsOwners(t *testing.T) {
	s := callOf("s", "open", policy.Native)
	unnamed := s
	unnamed.unnamed = true
	for name, tt := range map[string]struct {
		one    Call
		others []Call
	}{
		"key":        {by("key:a", "1", s), []Call{by("key:b", "1", s), by("key:b", "", s), by("", "1", s), by("", "", s), by("key:a", "1", unnamed)}},
		"anonymous":  {by("anonymous", "1", s), []Call{by("anonymous", "2", s), by("anonymous", "", s), by("key:a", "1", s)}},
		"no subject": {by("", "1", s), []Call{by("", "2", s), by("", "", s), by("key:a", "1", s)}},
		"unnamed":    {by("key:a", "1", unnamed), []Call{by("key:a", "2", unnamed), by("key:b", "1", unnamed)}},
	} {
		l := newFairLab(t, func(*policy.Limits) {})
		if rule := l.call(tt.one); rule != "" {
			t.Fatal(rule)
		}
		for _, other := range tt.others {
			if other.key() == tt.one.key() || daemonName(other.key()) == daemonName(tt.one.key()) {
				t.Errorf("%s: %+v is the same session", name, other.Origin)
			}
			other.Command.Name = "close"
			l.call(other)
		}
		if ses := l.sessions.all[tt.one.key()]; ses == nil || !ses.open {
			t.Errorf("%s: another client closed it", name)
		}
	}
}

// TestSessionIsFoundAgain: a subject's client that has started again goes on in its session, whether the old MCP session has
// ended or not, and the end of that one doesn't take it away. With another id, it waits for seconds only.
func TestSessionIsFoundAgain(t *testing.T) {
	for _, gen := range []policy.Generation{policy.Node, policy.Native} {
		t.Run(fmt.Sprint(gen), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFairLab(t, func(l *policy.Limits) { l.MaxSessions = 1 })
				open, use := callOf("u1", "open", gen), callOf("u1", "snapshot", gen)
				l.call(by("key:a", "1", open))
				ses := l.sessions.all[by("key:a", "1", open).key()]
				if rule := l.call(by("key:a", "2", use)); rule != "" {
					t.Errorf("after a start: %s", rule)
				}
				late := by("key:a", "3", use)
				l.sessions.dropEnded("1")
				l.sessions.dropEnded("2")
				if rule := l.call(late); rule != "" || ses.taken || !ses.open {
					t.Errorf("after the end of the old ones: %q, taken %v, open %v", rule, ses.taken, ses.open)
				}
				other := by("key:a", "4", callOf("u2", "open", gen))
				if rule := l.call(other); rule != "sessions.count" {
					t.Errorf("a session in use: %q", rule)
				}
				time.Sleep(ownIdle)
				if rule := l.call(other); (rule == "") != (gen == policy.Node) { // a native one has several sessions at once
					t.Errorf("locked out by its own key: %q", rule)
				}
				synctest.Wait()
			})
		})
	}
}

// TestAnonymousIsNobody: callers without a credential have one subject in the log, but they are strangers. None takes another's
// unused session, and one that is over ends.
func TestAnonymousIsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFairLab(t, func(l *policy.Limits) { l.MaxSessions = 1 })
		one := by("anonymous", "1", callOf("s", "open", policy.Native))
		l.call(one)
		time.Sleep(ownIdle)
		other := by("anonymous", "2", callOf("s", "open", policy.Native))
		if rule := l.call(other); rule != "sessions.count" {
			t.Errorf("an unused session of a stranger: %q", rule)
		}
		l.sessions.dropEnded("1")
		l.call(other)
		synctest.Wait()
		if l.sessions.all[one.key()] != nil {
			t.Error("a session outlives its client")
		}
	})
}

// TestDeadSessionHasNoPlace: a session whose tab is gone gives its place to the next client at once.
func TestDeadSessionHasNoPlace(t *testing.T) {
	for _, gen := range []policy.Generation{policy.Node, policy.Native} {
		fake := cdptest.New(t)
		conn, err := cdp.Dial(t.Context(), fake.Port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		tab, err := conn.NewTab(t.Context(), "127.0.0.1:8118")
		if err != nil {
			t.Fatal(err)
		}
		l := newFairLab(t, func(l *policy.Limits) { l.MaxSessions = 1 })
		one := by("key:a", "1", callOf("s", "open", gen))
		l.call(one)
		l.sessions.all[one.key()].tab = tab
		two := by("key:b", "2", callOf("s", "open", gen))
		if rule := l.call(two); rule != "sessions.count" {
			t.Errorf("generation %v: alive: %q", gen, rule)
		}
		fake.Stop()
		<-conn.Done()
		if rule := l.call(two); rule != "" {
			t.Errorf("generation %v: dead: %q", gen, rule)
		}
	}
}

// TestLine: a place that gets free is for who asked first, however often others ask; who doesn't come back loses its place.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFairLab(t, func(l *policy.Limits) { l.MaxSessions = 1 })
		open := callOf("s", "open", policy.Native)
		closing := callOf("s", "close", policy.Native)
		l.call(by("key:a", "", open))
		for _, key := range []string{"key:b", "key:c", "key:d"} {
			if rule := l.call(by(key, "", open)); rule != "sessions.count" {
				t.Fatal(rule)
			}
		}
		l.call(by("key:a", "", closing))
		for _, key := range []string{"key:c", "key:e"} {
			if rule := l.call(by(key, "", open)); rule != "sessions.count" {
				t.Errorf("%s before its turn: %q", key, rule)
			}
		}
		if rule := l.call(by("key:b", "", open)); rule != "" {
			t.Errorf("whose turn it is: %s", rule)
		}
		l.call(by("key:b", "", closing))
		time.Sleep(maxLineWait)
		if rule := l.call(by("key:f", "", open)); rule != "" {
			t.Errorf("nobody else comes: %s", rule)
		}
	})
}

// TestSessionIsHeldNotForEver: who has the only session keeps it for a time while another waits, and loses it to that one
// then, and to nobody before; not used it is lost earlier, and at once when its MCP session is over.
func TestSessionIsHeldNotForEver(t *testing.T) {
	open := callOf("s", "open", policy.Native)
	use := callOf("s", "snapshot", policy.Native)
	a, b := func(c Call) Call { return by("key:a", "1", c) }, func(c Call) Call { return by("key:b", "2", c) }
	for _, tt := range []struct {
		name       string
		uses, over bool
		least, max time.Duration
	}{
		{"used", true, false, 300 * time.Second, 311 * time.Second},
		{"idle", false, false, 60 * time.Second, 71 * time.Second},
		{"over", false, true, 0, 0},
	} {
		for _, gen := range []policy.Generation{policy.Node, policy.Native} {
			t.Run(fmt.Sprint(tt.name, gen), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					open, use := open, use
					open.Generation, use.Generation = gen, gen
					l := newFairLab(t, func(l *policy.Limits) { l.MaxSessions = 1 })
					if rule := l.call(a(open)); rule != "" {
						t.Fatal(rule)
					}
					begin := time.Now()
					for {
						c := b(open)
						if tt.over {
							l.sessions.dropEnded("1")
						}
						rule := l.call(c)
						if rule == "" {
							break
						}
						if rule != "sessions.count" || time.Since(begin) > time.Hour {
							t.Fatalf("after %s: %s", time.Since(begin), rule)
						}
						if tt.uses {
							if rule := l.call(a(use)); rule != "" {
								t.Fatalf("its owner after %s: %s", time.Since(begin), rule)
							}
						}
						time.Sleep(10 * time.Second)
					}
					if d := time.Since(begin); d < tt.least || d > tt.max {
						t.Errorf("it was held for %s", d)
					}
					synctest.Wait()
					if rule := l.call(a(open)); rule != "sessions.count" {
						t.Errorf("its first owner takes it back at once: %q", rule)
					}
				})
			})
		}
	}
}
