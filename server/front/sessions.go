package front

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits for sessions of the older era.
const (
	maxSessions = 1024
	sessionIdle = 30 * time.Minute // without a request; an open stream is none
	// idleEnough is the idle time after which a used session may make room for another.
	idleEnough = 5 * time.Minute
)

// sessions holds the sessions of the older era with their owners. If there are too many, one that nobody misses makes
// room, so that abandoned sessions can't keep clients out.
type sessions struct {
	ended func(name string)

	mu sync.Mutex
	by map[string]*session
}

type session struct {
	*mcp.ServerSession
	caller  string // of initialize; invisible to others
	last    time.Time
	used    bool // after initialize
	running int  // requests
}

// addSession adds the session of an initialize until it ends.
func (s *sessions) addSession(ss *mcp.ServerSession, caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]*session{}
	}
	s.by[ss.ID()] = &session{ServerSession: ss, caller: caller, last: time.Now()}
	go func() {
		_ = ss.Wait() // how it ended is the client's affair
		s.mu.Lock()
		delete(s.by, ss.ID())
		s.mu.Unlock()
		s.ended(hashSession(ss.ID()))
	}()
}

// hashSession returns the name of an MCP session in logs; its id is a credential.
func hashSession(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// makeRoom ends a session if there is no place for another: one without a request since its initialize, or else the
// longest idle one, if it is idle long enough. It returns false if there is none.
func (s *sessions) makeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.by) < maxSessions {
		return true
	}
	id := s.findOldest()
	if id == "" {
		return false
	}
	go s.by[id].Close()
	delete(s.by, id)
	return true
}

// findOldest returns the session to end first; "" for none.
func (s *sessions) findOldest() (id string) {
	for i, u := range s.by {
		if u.running == 0 && (!u.used || time.Since(u.last) >= idleEnough) && (id == "" || u.goesBefore(s.by[id])) {
			id = i
		}
	}
	return id
}

// goesBefore reports whether u makes room before v.
func (u *session) goesBefore(v *session) bool {
	if u.used != v.used {
		return v.used
	}
	return u.last.Before(v.last)
}

// serveSession serves a request of a session. A stream alone doesn't keep a session alive.
func (s *sessions) serveSession(next http.Handler, w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(headerSession)
	s.mu.Lock()
	u := s.by[id]
	if u != nil && u.caller != r.Header.Get(headerCaller) {
		u = nil // owned by another key
	}
	if u != nil && r.Method == http.MethodPost {
		u.running++
	}
	s.mu.Unlock()
	if u == nil {
		http.Error(w, "session not found", http.StatusNotFound) // makes the client begin another
		return
	}
	r.Header.Set(headerOwn, hashSession(id))
	next.ServeHTTP(w, r)
	if r.Method == http.MethodPost {
		s.mu.Lock()
		defer s.mu.Unlock()
		u.running--
		u.used = true
		u.last = time.Now()
	}
}
