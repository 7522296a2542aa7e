package hub

import (
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds on sessions of the older era.
const (
	maxSessions = 1024
	sessionIdle = 30 * time.Minute // without a request; an open stream is none
)

// sessions knows which sessions there are, whose they are and how long they
// have been idle. When there are too many one makes room that nobody misses,
// so that clients which never say goodbye can't keep others out.
type sessions struct {
	delete func(id string)

	mu    sync.Mutex
	by    map[string]*use
	ended []string // hashes of the maxSessions that ended last
	ends  int64    // how many have ended
}

type use struct {
	caller  string // of initialize; to others it doesn't exist
	last    time.Time
	used    bool // after initialize
	running int  // requests
}

// idleEnough is how long a session that was used must be idle to make room for another.
const idleEnough = 5 * time.Minute

// end forgets a session; s.mu is held.
func (s *sessions) end(id string) {
	delete(s.by, id)
	s.ends++
	if s.ended = append(s.ended, hashOf(id)); len(s.ended) > maxSessions {
		s.ended = s.ended[1:]
	}
}

// endedSince lists the sessions that ended after the first n, and how many have by now: what the tools have for their clients
// is nobody's any more.
func (s *sessions) endedSince(n int64) (list []string, ends int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ended[max(0, int64(len(s.ended))-(s.ends-n)):]), s.ends
}

// begin serves an initialize.
func (s *sessions) begin(next http.Handler, w *stream, r *http.Request) {
	if !s.room() {
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

// room ends a session if there is no place for another: one that nothing was asked in since its initialize, or else the one
// that was idle longest, and long enough. It is false if there is none.
func (s *sessions) room() bool {
	s.mu.Lock()
	var oldest string
	for id, u := range s.by {
		idle := time.Since(u.last)
		switch {
		case u.running > 0:
		case idle > sessionIdle: // go-sdk has ended it
			s.end(id)
		case u.used && idle < idleEnough:
		case oldest == "" || u.before(s.by[oldest]):
			oldest = id
		}
	}
	full := len(s.by) >= maxSessions
	if full && oldest != "" {
		s.end(oldest)
	}
	s.mu.Unlock()
	if full && oldest != "" {
		s.delete(oldest)
	}
	return !full || oldest != ""
}

// before reports whether u makes room rather than v.
func (u *use) before(v *use) bool {
	if u.used != v.used {
		return v.used
	}
	return u.last.Before(v.last)
}

// serve serves a request of a session. A stream alone keeps none alive.
func (s *sessions) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(headerSession)
	s.mu.Lock()
	u := s.by[id]
	if u != nil && u.caller != r.Header.Get(headerCaller) {
		u = nil // another's key
	}
	if u != nil && r.Method == http.MethodPost {
		u.running++
	}
	s.mu.Unlock()
	if u == nil {
		http.Error(w, "session not found", http.StatusNotFound) // the client begins another then
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
		s.end(id)
	}
}

// oldSSE is the transport of revision 2024-11-05: a stream for the answers,
// and requests that name it in the query.
type oldSSE struct {
	mu sync.Mutex
	by map[string]oldStream
}

type oldStream struct {
	*mcp.SSEServerTransport
	caller string // to others it doesn't exist
}

// open serves a stream until its client or the session ends.
func (o *oldSSE) open(server *mcp.Server, w http.ResponseWriter, r *http.Request) {
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

// post serves a request of a stream.
func (o *oldSSE) post(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	t := o.by[r.URL.Query().Get("sessionId")]
	o.mu.Unlock()
	if t.SSEServerTransport == nil || t.caller != r.Header.Get(headerCaller) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	t.ServeHTTP(w, r)
}
