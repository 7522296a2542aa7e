package server

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"sync"

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

// sessions lets one call at a time through for each session: two at once on a
// new session make agent-browser leak daemons.
type sessions struct {
	max int
	mu  sync.Mutex
	all map[string]*session
}

type session struct {
	name  string        // for agent-browser
	gate  chan struct{} // holds one token while a call runs
	users int           // calls that run or wait
}

func newSessions(limit int) *sessions {
	return &sessions{max: limit, all: map[string]*session{}}
}

// enter waits for the session's turn.
func (s *sessions) enter(ctx context.Context, id string) (*session, *policy.Refusal) {
	s.mu.Lock()
	ses := s.all[id]
	if ses == nil {
		if len(s.all) >= s.max {
			s.mu.Unlock()
			return nil, &policy.Refusal{
				Code: policy.BudgetExceeded, Rule: "sessions.count", Retryable: true,
				Message: "too many sessions are open; send close for one that is done, or go on in one of them",
			}
		}
		ses = &session{name: daemonName(id), gate: make(chan struct{}, 1)}
		s.all[id] = ses
	}
	ses.users++
	s.mu.Unlock()

	select {
	case ses.gate <- struct{}{}:
		if ctx.Err() == nil {
			return ses, nil
		}
		<-ses.gate
	case <-ctx.Done():
	}
	s.drop(id, ses, true)
	return nil, &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.queue", Retryable: true,
		Message: "other calls of this session took all the time; nothing was done: send the call again",
	}
}

// leave lets the next call in. A session that has no daemon is forgotten.
func (s *sessions) leave(id string, ses *session, alive bool) {
	<-ses.gate
	s.drop(id, ses, alive)
}

func (s *sessions) drop(id string, ses *session, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ses.users--; ses.users == 0 && !alive {
		delete(s.all, id)
	}
}
