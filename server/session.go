package server

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/policy"
)

// daemonName maps a session id to the name that agent-browser knows it by: a
// hash, because the id may hold dots and be longer than a daemon's name may.
// It has 31 characters of [a-z0-9-]; two ids never share one in practice (140
// bits of SHA-256).
func daemonName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "bs-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:28])
}

// sessions are the open ones and those that calls wait for. One call at a time
// runs in each: two at once on a new session make agent-browser leak daemons.
type sessions struct {
	mu  sync.Mutex
	all map[string]*session
}

type session struct {
	id, name string // name is agent-browser's
	turn     turn   // of one call at a time

	// Under sessions.mu.
	users int // calls that run or wait
	calls int
	bytes int64
	last  time.Time // when the last call ended
	open  bool      // there is a tab
	rate  *rate.Limiter

	// Of the call whose turn it is.
	chromium *cdp.Browser
	tab      *cdp.Tab             // nil before the first command
	alone    *os.File             // 0.8 to 0.19: the lock that keeps others out
	daemon   *os.Process          // 0.34 and later: it has its port closed
	checked  map[string]time.Time // hosts that were resolved and found public
}

func newSessions() *sessions { return &sessions{all: map[string]*session{}} }

// admit counts a call into its session, or says which bound it breaks. close
// is always let in.
// It gives the session's own rate if it has a page.
func (s *sessions) admit(c Call, l policy.Limits) (*rate.Limiter, *policy.Refusal) {
	if c.SessionID == "" {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.all[c.SessionID]
	most := l.MaxSessions
	if c.Generation == policy.Node {
		most = 1 // it drives the first tab that it finds, whoever's it is
	}
	var r *policy.Refusal
	switch closing := c.Command.Name == "close"; {
	case closing:
	case ses == nil && len(s.all) >= most:
		r = overBudget("sessions.count", time.Second, "too many sessions are open; send close for one that is done, or go on in one of them")
	case ses == nil:
	case ses.users >= l.SessionQueue:
		r = overBudget("session.queue", 100*time.Millisecond, "too many calls of this session wait; send them one after the other")
	case ses.calls >= l.SessionCalls:
		r = &policy.Refusal{Code: policy.BudgetExceeded, Rule: "session.calls", Message: "this session has made all its calls; close it and go on in a new one"}
	case ses.bytes >= l.SessionBytes:
		r = &policy.Refusal{Code: policy.BudgetExceeded, Rule: "session.bytes", Message: "this session was sent all its bytes; close it and go on in a new one"}
	}
	if ses == nil {
		ses = &session{id: c.SessionID, name: daemonName(c.SessionID), turn: newTurn(), rate: newRate(l), checked: map[string]time.Time{}}
		s.all[c.SessionID] = ses
	}
	ses.users++
	ses.calls++
	if !ses.open {
		return nil, r
	}
	return ses.rate, r
}

// release counts a call out. A session without a tab is forgotten.
func (s *sessions) release(c Call, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.all[c.SessionID]
	if ses == nil {
		return
	}
	ses.users--
	ses.bytes += bytes
	ses.last = time.Now()
	if ses.users == 0 && !ses.open {
		delete(s.all, c.SessionID)
	}
}

// enter waits for the turn of an admitted call; leave ends it.
func (s *sessions) enter(ctx context.Context, id string) (*session, *policy.Refusal) {
	s.mu.Lock()
	ses := s.all[id]
	s.mu.Unlock()
	if ses.turn.take(ctx) == nil {
		return ses, nil
	}
	r := late()
	r.Message = "other calls of this session took all the time; nothing was done: send the call again"
	return nil, r
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
