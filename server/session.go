package server

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/policy"
)

// key returns the name of a call's session among all sessions. A subject finds its session by the id, also in another MCP
// session, after its client has started again. Without a subject, or without an id, each MCP session has its own.
func (c Call) key() string {
	owner := c.Origin.owner()
	if subject := c.Origin.knownSubject(); subject != "" && !c.unnamed {
		owner = subject
	}
	if owner == "" {
		return c.SessionID
	}
	return owner + "\x00" + c.SessionID
}

// daemonName returns agent-browser's name for the session with this key: a hash, since the id may contain dots and be
// longer than a daemon's name may be. It has 31 characters of [a-z0-9-], with 140 bits of SHA-256, so names don't
// collide in practice.
func daemonName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "bs-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:28])
}

// sessions holds the open sessions and those that calls wait for. Only one call at a time runs in a session: two at
// once on a new one make agent-browser leak daemons.
type sessions struct {
	end func(*session) // ends a session taken from its owner

	mu   sync.Mutex
	all  map[string]*session // by key
	line []waiter            // clients that were refused a session, in the order in which they asked first
}

// waiter is a client in the line. It delays nobody if it doesn't ask again in time.
type waiter struct {
	owner        string
	since, until time.Time
}

type session struct {
	key, name string              // name is agent-browser's
	turn      *semaphore.Weighted // held by the running call

	// Guarded by sessions.mu.
	by      Origin // of the last call
	left    bool   // the MCP session of the last call has ended
	users   int    // calls that run or wait
	opening int    // those of them that open a page
	calls   int
	bytes   int64
	last    time.Time // when the last call ended
	open    bool      // it has a tab
	taken   bool      // it is being ended for another client
	rate    *rate.Limiter

	// Used only by the call that holds turn.
	chromium *cdp.Browser
	tab      *cdp.Tab      // nil before the first command
	alone    *os.File      // 0.8 to 0.19: the lock for exclusive use
	document string        // 0.8 to 0.19: the page of the last snapshot, see cdp.Tab.Document
	daemon   *os.Process   // 0.34 and later: the daemon with the closed port
	gone     chan struct{} // closed when a taken session has ended
}

func newSessions() *sessions { return &sessions{all: map[string]*session{}} }

// findRate returns the rate of a call's session, or nil if that has no page.
func (s *sessions) findRate(c Call) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses := s.all[c.key()]; ses != nil && ses.open {
		return ses.rate
	}
	return nil
}

// admitCall counts a call into its session, or returns the limit that it exceeds. A session counts from its first open
// on; close is always admitted.
func (s *sessions) admitCall(c Call, l policy.Limits) (_ Call, r *policy.Refusal) {
	if c.SessionID == "" {
		return c, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := c.key()
	ses := s.all[key]
	if ses == nil && c.denied {
		return c, nil
	}
	closing, opening := c.Command.Name == "close", c.Command.Name == "open" && !c.denied
	switch {
	case ses != nil && ses.taken:
		r = takenRefusal()
	case closing || ses == nil:
	case ses.users >= l.SessionQueue:
		r = overBudget("session.queue", 100*time.Millisecond, "too many calls of this session wait; send them one after the other")
	case ses.calls >= l.SessionCalls:
		r = &policy.Refusal{Code: policy.BudgetExceeded, Rule: "session.calls", Message: "this session has made all its calls; close it and go on in a new one"}
	case ses.bytes >= l.SessionBytes:
		r = &policy.Refusal{Code: policy.BudgetExceeded, Rule: "session.bytes", Message: "this session was sent all its bytes; close it and go on in a new one"}
	}
	if opening && r == nil && (ses == nil || !ses.hasPlace()) {
		c.after, r = s.makeRoom(c, l)
	}
	if r != nil && (ses == nil || ses.taken) {
		return c, r
	}
	if ses == nil {
		ses = &session{key: key, name: daemonName(key), turn: semaphore.NewWeighted(1), rate: newRate(l), last: time.Now()}
		s.all[key] = ses
	}
	c.ses, ses.by, ses.left = ses, c.Origin, false
	ses.users++
	ses.calls++
	if opening && r == nil {
		ses.opening++
		c.opened = true
	}
	return c, r
}

func takenRefusal() *policy.Refusal {
	return overBudget("session.taken", time.Second, "the session was ended, because another client waited for one; open a page again")
}

// hasPlace reports whether the session occupies one of the places.
func (ses *session) hasPlace() bool { return !ses.taken && (ses.open || ses.opening > 0) }

// isDead reports whether the tab is gone. Only the running call knows, if there is one.
func (ses *session) isDead() bool {
	return ses.users == 0 && ses.open && ses.tab != nil && !ses.tab.Alive()
}

// ownIdle is the time without a call after which the one session of agent-browser 0.8 to 0.19 makes room for another one of
// its subject.
const ownIdle = 5 * time.Second

// isSpare reports whether a session may be taken at once: its client has left, or it is an unused one of the same subject.
func (ses *session) isSpare(c Call) bool {
	subject := c.Origin.knownSubject()
	own := c.Generation == policy.Node && subject != "" && subject == ses.by.Subject
	return ses.users == 0 && (ses.left || own && time.Since(ses.last) >= ownIdle)
}

// makeRoom makes room for one more session. If there is none, the client waits in a line, and its refusal says how many
// are ahead. The first in the line takes the least recently used session of another client, once that one is unused for a
// fifth of limits.SessionHoldSec, or the first has waited for all of it. The new session begins when the returned channel
// is closed; nil means immediately.
func (s *sessions) makeRoom(c Call, l policy.Limits) (chan struct{}, *policy.Refusal) {
	free := l.MaxSessions
	if c.Generation == policy.Node {
		free = 1 // it drives the first tab that it finds, whoever owns it
	}
	var ending chan struct{}
	var spare, oldest *session
	older := func(a, b *session) bool { return b == nil || a.last.Before(b.last) }
	for _, ses := range s.all {
		if ses.isDead() {
			s.takeSession(ses)
		}
		if ses.taken && c.Generation == policy.Node { // there must be no other tab
			ending = ses.gone
		}
		if !ses.hasPlace() {
			continue
		}
		free--
		if ses.isSpare(c) && older(ses, spare) {
			spare = ses
		}
		if ses.by.owner() != c.Origin.owner() && older(ses, oldest) {
			oldest = ses
		}
	}
	now, owner := time.Now(), c.Origin.owner()
	s.line = slices.DeleteFunc(s.line, func(w waiter) bool { return now.Sub(w.until) > waitGap })
	at := slices.IndexFunc(s.line, func(w waiter) bool { return w.owner == owner })
	if at < 0 {
		at = len(s.line)
		s.line = append(s.line, waiter{owner: owner, since: now})
	}
	ahead := 0
	for _, w := range s.line[:at] {
		if w.until.After(now) {
			ahead++
		}
	}
	hold := time.Duration(l.SessionHoldSec) * time.Second
	if spare == nil && ahead == 0 && oldest != nil && (now.Sub(s.line[at].since) >= hold || oldest.users == 0 && now.Sub(oldest.last) >= hold/5) {
		spare = oldest
	}
	if free > ahead || spare != nil {
		s.line = slices.Delete(s.line, at, at+1)
		if free <= ahead {
			s.takeSession(spare)
			ending = spare.gone
		}
		return ending, nil
	}
	if oldest == nil { // all are its own
		s.line = slices.Delete(s.line, at, at+1)
		return nil, overBudget("sessions.count", time.Second, "too many sessions are open; send close for one that is done, or go on in one of them")
	}
	wait := min(time.Duration(ahead+1)*time.Second, maxLineWait)
	s.line[at].until = now.Add(wait + lineGrace)
	return nil, overBudget("sessions.count", wait, fmt.Sprintf(
		"other clients have all sessions, and %d clients are ahead in the line; one of them ends when it is not used, or after a time; try again", ahead))
}

const (
	// maxLineWait is the longest time after which a client in the line should ask again.
	maxLineWait = 30 * time.Second
	// lineGrace is the time by which a client may come late and keep others behind it.
	lineGrace = 2 * time.Second
	// waitGap is the time after which a client that doesn't ask again has left the line.
	waitGap = time.Minute
)

// takeSession ends a session for another client.
func (s *sessions) takeSession(ses *session) {
	ses.taken, ses.gone = true, make(chan struct{})
	ses.users++
	go s.end(ses)
}

// dropEnded ends the sessions of a client whose MCP session has ended. A subject's session stays, for it to come back,
// until somebody needs the place.
func (s *sessions) dropEnded(ended string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.all {
		if ses.by.Session != ended || !ses.hasPlace() {
			continue
		}
		if ses.left = ses.by.knownSubject() != ""; !ses.left {
			s.takeSession(ses)
		}
	}
}

// releaseCall counts the end of a call. It forgets a session without a tab.
func (s *sessions) releaseCall(ses *session, opened bool, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses.users--
	if opened {
		ses.opening--
	}
	ses.bytes += bytes
	ses.last = time.Now()
	if ses.users == 0 && !ses.open {
		delete(s.all, ses.key)
	}
}

// enterTurn waits for the turn of an admitted call; leave ends the turn.
func (s *sessions) enterTurn(ctx context.Context, ses *session) *policy.Refusal {
	if ses.turn.Acquire(ctx, 1) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !ses.taken {
			return nil
		}
		ses.turn.Release(1)
		return takenRefusal()
	}
	r := lateRefusal()
	r.Message = "other calls of this session took all the time; nothing was done: send the call again"
	return r
}

func (s *sessions) leaveTurn(ses *session) {
	s.mu.Lock()
	ses.open = ses.tab != nil
	s.mu.Unlock()
	ses.turn.Release(1)
}

// takeIdle returns the sessions that have been unused since a time, and takes the turn of each. The caller must call
// leave and forget them.
func (s *sessions) takeIdle(since time.Time) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*session
	for _, ses := range s.all {
		if ses.users == 0 && ses.last.Before(since) {
			ses.users++
			ses.turn.TryAcquire(1) // free: the session has no users
			out = append(out, ses)
		}
	}
	return out
}
