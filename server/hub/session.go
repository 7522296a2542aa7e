package hub

import (
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds on sessions of the older era.
const (
	maxSessions = 64
	sessionIdle = 30 * time.Minute // without a request; an open stream is none
)

// sessions knows which sessions there are and how long they have been idle.
// When there are too many the one that was idle longest is ended, so that
// clients which never say goodbye can't keep others out.
type sessions struct {
	delete func(id string)

	mu sync.Mutex
	by map[string]*use
}

type use struct {
	last    time.Time
	running int // requests
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
			s.by[id] = &use{last: time.Now()}
		}
	}
	next.ServeHTTP(w, r)
}

// room ends a session if there is no place for another; false if all are at work.
func (s *sessions) room() bool {
	s.mu.Lock()
	var oldest string
	for id, u := range s.by {
		if u.running == 0 && time.Since(u.last) > sessionIdle {
			delete(s.by, id) // go-sdk has ended it
			continue
		}
		if u.running == 0 && (oldest == "" || u.last.Before(s.by[oldest].last)) {
			oldest = id
		}
	}
	full := len(s.by) >= maxSessions
	if full {
		delete(s.by, oldest)
	}
	s.mu.Unlock()
	if full && oldest != "" {
		s.delete(oldest)
	}
	return !full || oldest != ""
}

// serve serves a request of a session. A stream alone keeps none alive.
func (s *sessions) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(headerSession)
	s.mu.Lock()
	u := s.by[id]
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
		u.last = time.Now()
	case http.MethodDelete:
		delete(s.by, id)
	}
}

// oldSSE is the transport of revision 2024-11-05: a stream for the answers,
// and requests that name it in the query.
type oldSSE struct {
	mu sync.Mutex
	by map[string]*mcp.SSEServerTransport
}

// open serves a stream until its client or the session ends.
func (o *oldSSE) open(server *mcp.Server, w http.ResponseWriter, r *http.Request) {
	id := rand.Text()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	t := &mcp.SSEServerTransport{Endpoint: Path + "?sessionId=" + id, Response: w, MaxRequestBodyBytes: maxBody}
	o.mu.Lock()
	if o.by == nil {
		o.by = map[string]*mcp.SSEServerTransport{}
	}
	o.by[id] = t
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
	if t == nil {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	t.ServeHTTP(w, r)
}
