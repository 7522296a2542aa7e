package front

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// keepAlive is the interval of signs of life on an idle stream: proxies end idle ones, often after 60 s.
const keepAlive = 25 * time.Second

// stream is a ResponseWriter with a deadline for each write; http.Server's WriteTimeout would begin with the request. If
// the answer is a stream of events, it sends comments while that is idle.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController
	most    time.Duration // for the client to read a write

	mu     sync.Mutex // go-sdk writes an event at once
	timer  *time.Timer
	begun  bool
	closed bool
}

// Unwrap supports http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stream) WriteHeader(status int) {
	defer s.beginWrite()()
	s.ResponseWriter.WriteHeader(status)
}

func (s *stream) Write(p []byte) (int, error) {
	defer s.beginWrite()()
	return s.ResponseWriter.Write(p)
}

// FlushError supports http.ResponseController.
func (s *stream) FlushError() error {
	defer s.beginWrite()()
	return s.control.Flush()
}

// beginWrite locks the stream and detects a stream of events. The returned function unlocks it.
func (s *stream) beginWrite() (end func()) {
	s.mu.Lock()
	s.extendDeadline()
	if !s.begun && strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream") {
		s.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold events back
		s.timer = time.AfterFunc(keepAlive, s.sendComments)
	}
	s.begun = true
	return s.mu.Unlock
}

func (s *stream) extendDeadline() {
	_ = s.control.SetWriteDeadline(time.Now().Add(s.most)) // connections have deadlines
}

func (s *stream) sendComments() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.extendDeadline()
	if _, err := s.ResponseWriter.Write([]byte(": still here\n\n")); err != nil || s.control.Flush() != nil {
		return // the handler hears of it by itself
	}
	s.timer.Reset(keepAlive)
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
