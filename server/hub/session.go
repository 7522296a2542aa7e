package hub

import (
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits for sessions of the older era.
const (
	maxSessions = 1024
	sessionIdle = 30 * time.Minute // without a request; an open stream is none
)

// sessions holds the sessions with their owners and idle times. If there are too many, one that nobody misses makes
// room, so that abandoned sessions can't keep clients out.
type sessions struct {
	delete func(id string)

	mu    sync.Mutex
	by    map[string]*use
	ended []string // hashes of the maxSessions that ended last
	ends  int64    // how many have ended
}

type use struct {
	caller  string // of initialize; invisible to others
	last    time.Time
	used    bool // after initialize
	running int  // requests
}

// idleEnough is the idle time after which a used session may make room for another.
const idleEnough = 5 * time.Minute

// removeSession removes a session; the caller holds s.mu.
func (s *sessions) removeSession(id string) {
	delete(s.by, id)
	s.ends++
	if s.ended = append(s.ended, hashSession(id)); len(s.ended) > maxSessions {
		s.ended = s.ended[1:]
	}
}

// endedSince returns the sessions that have ended after the first n, and the total. The tools' state for their clients
// is abandoned.
func (s *sessions) endedSince(n int64) (list []string, ends int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ended[max(0, int64(len(s.ended))-(s.ends-n)):]), s.ends
}

// serveInitialize serves an initialize.
func (s *sessions) serveInitialize(next http.Handler, w *stream, r *http.Request) {
	if !s.makeRoom() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many sessions are at work; try again", http.StatusServiceUnavailable)
		return
	}
	w.onHeader = func(header http.Header) { // before the client can use it
		if id := header.Get(headerSession); id != "" {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.by == nil {
				s.by = map[string]*use{}
			}
			s.by[id] = &use{caller: r.Header.Get(headerCaller), last: time.Now()}
		}
	}
	next.ServeHTTP(w, r)
}

// makeRoom ends a session if there is no place for another: one without a request since its initialize, or else the
// longest idle one, if it is idle long enough. It returns false if there is none.
func (s *sessions) makeRoom() bool {
	s.mu.Lock()
	var oldest string
	for id, u := range s.by {
		idle := time.Since(u.last)
		switch {
		case u.running > 0:
		case idle > sessionIdle: // go-sdk has ended it
			s.removeSession(id)
		case u.used && idle < idleEnough:
		case oldest == "" || u.goesBefore(s.by[oldest]):
			oldest = id
		}
	}
	full := len(s.by) >= maxSessions
	if full && oldest != "" {
		s.removeSession(oldest)
	}
	s.mu.Unlock()
	if full && oldest != "" {
		s.delete(oldest)
	}
	return !full || oldest != ""
}

// goesBefore reports whether u makes room before v.
func (u *use) goesBefore(v *use) bool {
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
	next.ServeHTTP(w, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodPost:
		u.running--
		u.used = true
		u.last = time.Now()
	case http.MethodDelete:
		s.removeSession(id)
	}
}

// oldSSE is the transport of revision 2024-11-05: a stream for the answers, and requests that name it in the query.
type oldSSE struct {
	mu sync.Mutex
	by map[string]oldStream
}

type oldStream struct {
	*mcp.SSEServerTransport
	caller string // invisible to others
}

// serveStream serves a stream until its client or the session ends.
func (o *oldSSE) serveStream(server *mcp.Server, w http.ResponseWriter, r *http.Request) {
	id := rand.Text()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	t := &mcp.SSEServerTransport{Endpoint: Path + "?sessionId=" + id, Response: w, MaxRequestBodyBytes: maxBody}
	o.mu.Lock()
	if o.by == nil {
		o.by = map[string]oldStream{}
	}
	o.by[id] = oldStream{t, r.Header.Get(headerCaller)}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.by, id)
	}()
	session, err := server.Connect(r.Context(), t, nil)
	if err != nil {
		return // the client has gone
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = session.Wait() // how it ended is the client's affair
	}()
	select {
	case <-r.Context().Done():
		session.Close()
		<-ended
	case <-ended:
	}
}

// servePost serves a request of a stream.
func (o *oldSSE) servePost(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	t := o.by[r.URL.Query().Get("sessionId")]
	o.mu.Unlock()
	if t.SSEServerTransport == nil || t.caller != r.Header.Get(headerCaller) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	t.ServeHTTP(w, r)
}
