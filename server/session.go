package server

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/policy"
)

// key is the name of a call's session among all clients' sessions: another client's session of the same id is another one.
func (c Call) key() string {
	if owner := c.Origin.owner(); owner != "" {
		return owner + "\x00" + c.SessionID
	}
	return c.SessionID
}

// daemonName maps the key of a session to the name that agent-browser knows it
// by: a hash, because the id may hold dots and be longer than a daemon's name
// may. It has 31 characters of [a-z0-9-]; two keys never share one in practice
// (140 bits of SHA-256).
func daemonName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "bs-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:28])
}

// sessions are the open ones and those that calls wait for. One call at a time
// runs in each: two at once on a new session make agent-browser leak daemons.
type sessions struct {
	end func(*session) // ends one that was taken from its owner

	mu     sync.Mutex
	all    map[string]*session // by key
	wanted time.Time           // since when a client waits for a session that others have
	asked  time.Time           // when one asked last
}

type session struct {
	key, name string // name is agent-browser's
	owner     string
	client    string // the owner's MCP session, if it has one
	turn      turn   // of one call at a time

	// Under sessions.mu.
	users   int // calls that run or wait
	opening int // of these the ones that open a page
	calls   int
	bytes   int64
	last    time.Time // when the last call ended
	open    bool      // there is a tab
	taken   bool      // it is being ended for another client
	rate    *rate.Limiter

	// Of the call whose turn it is.
	chromium *cdp.Browser
	tab      *cdp.Tab             // nil before the first command
	alone    *os.File             // 0.8 to 0.19: the lock that keeps others out
	daemon   *os.Process          // 0.34 and later: it has its port closed
	checked  map[string]time.Time // hosts that were resolved and found public
	gone     chan struct{}        // closed when it is over, if it was taken
}

func newSessions() *sessions { return &sessions{all: map[string]*session{}} }

// waitGap is how long a client that was refused a session counts as one that waits for it.
const waitGap = time.Minute

// rateOf gives the rate of a call's session if that has a page.
func (s *sessions) rateOf(c Call) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses := s.all[c.key()]; ses != nil && ses.open {
		return ses.rate
	}
	return nil
}

// admit counts a call into its session, or says which bound it breaks. A session counts as one from its first open on;
// close is always let in.
func (s *sessions) admit(c Call, l policy.Limits) (_ Call, r *policy.Refusal) {
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
		r = taken()
	case closing || ses == nil:
	case ses.users >= l.SessionQueue:
		r = overBudget("session.queue", 100*time.Millisecond, "too many calls of this session wait; send them one after the other")
	case ses.calls >= l.SessionCalls:
		r = &policy.Refusal{Code: policy.BudgetExceeded, Rule: "session.calls", Message: "this session has made all its calls; close it and go on in a new one"}
	case ses.bytes >= l.SessionBytes:
		r = &policy.Refusal{Code: policy.BudgetExceeded, Rule: "session.bytes", Message: "this session was sent all its bytes; close it and go on in a new one"}
	}
	if opening && r == nil && (ses == nil || !ses.counts()) {
		c.after, r = s.room(c, l)
	}
	if r != nil && (ses == nil || ses.taken) {
		return c, r
	}
	if ses == nil {
		ses = &session{key: key, name: daemonName(key), owner: c.Origin.owner(), client: c.Origin.Session, turn: newTurn(), rate: newRate(l), checked: map[string]time.Time{}}
		s.all[key] = ses
	}
	c.ses = ses
	ses.users++
	ses.calls++
	if opening && r == nil {
		ses.opening++
		c.opened = true
	}
	return c, r
}

func taken() *policy.Refusal {
	return overBudget("session.taken", time.Second, "the session was ended, because another client waited for one; open a page again")
}

// counts reports whether the session takes one of the places.
func (ses *session) counts() bool { return !ses.taken && (ses.open || ses.opening > 0) }

// room makes sure that there is a place for one more session. It may take another client's, which has a bound while this one
// waits: then the new session begins when the channel is closed.
func (s *sessions) room(c Call, l policy.Limits) (chan struct{}, *policy.Refusal) {
	most := l.MaxSessions
	if c.Generation == policy.Node {
		most = 1 // it drives the first tab that it finds, whoever's it is
	}
	have := map[string]int{}
	count := 0
	var ending chan struct{}
	for _, ses := range s.all {
		if ses.taken && c.Generation == policy.Node { // there must be no other tab
			ending = ses.gone
		}
		if ses.counts() {
			have[ses.owner]++
			count++
		}
	}
	if count < most {
		return ending, nil
	}
	full := overBudget("sessions.count", time.Second, "too many sessions are open; send close for one that is done, or go on in one of them")
	victim := s.longestOf(have, c.Origin.owner())
	if victim == nil {
		return nil, full
	}
	now := time.Now()
	if now.Sub(s.asked) > waitGap {
		s.wanted = now
	}
	s.asked = now
	hold := time.Duration(l.SessionHoldSec) * time.Second
	held, idle := hold-now.Sub(s.wanted), hold
	if victim.users == 0 {
		idle = hold/5 - now.Sub(victim.last)
	}
	if wait := min(held, idle); wait > 0 {
		full.RetryAfter = min(wait, waitGap/2).Round(time.Millisecond)
		full.Message = "other clients have all sessions; one of them ends when it is not used, or after a time; try again"
		return nil, full
	}
	s.asked = time.Time{}
	s.take(victim)
	return victim.gone, nil
}

// longestOf gives the session that another client loses first: of the one with the most, the one that was used least lately.
func (s *sessions) longestOf(have map[string]int, owner string) (victim *session) {
	for _, ses := range s.all {
		switch {
		case !ses.counts() || ses.owner == owner:
		case victim == nil, have[ses.owner] > have[victim.owner],
			have[ses.owner] == have[victim.owner] && ses.last.Before(victim.last):
			victim = ses
		}
	}
	return victim
}

// take ends a session for another client.
func (s *sessions) take(ses *session) {
	ses.taken, ses.gone = true, make(chan struct{})
	ses.users++
	go s.end(ses)
}

// drop ends the sessions of clients whose MCP session is over. The hub tells of each once, by whatever call comes next.
func (s *sessions) drop(ended []string) {
	if len(ended) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.all {
		if ses.client != "" && ses.counts() && slices.Contains(ended, ses.client) {
			s.take(ses)
		}
	}
}

// release counts a call out. A session without a tab is forgotten.
func (s *sessions) release(ses *session, opened bool, bytes int64) {
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

// enter waits for the turn of an admitted call; leave ends it.
func (s *sessions) enter(ctx context.Context, ses *session) *policy.Refusal {
	if ses.turn.take(ctx) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !ses.taken {
			return nil
		}
		ses.turn.give()
		return taken()
	}
	r := late()
	r.Message = "other calls of this session took all the time; nothing was done: send the call again"
	return r
}

func (s *sessions) leave(ses *session) {
	s.mu.Lock()
	ses.open = ses.tab != nil
	s.mu.Unlock()
	ses.turn.give()
}

// idle takes the sessions that nobody has used since a time, one turn each.
// The caller leaves and forgets them.
func (s *sessions) idle(since time.Time) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*session
	for _, ses := range s.all {
		if ses.users == 0 && ses.last.Before(since) {
			ses.users++
			ses.turn <- struct{}{} // free: there are no users
			out = append(out, ses)
		}
	}
	return out
}
