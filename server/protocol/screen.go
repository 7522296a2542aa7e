package protocol

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
)

// screen is a ResponseWriter on which go-sdk's errors get our words. It holds
// a response back until finish, but not a stream of events, which go-sdk begins
// only when there is no error.
type screen struct {
	http.ResponseWriter
	status int
	stream bool
	body   bytes.Buffer
}

// Unwrap is for http.ResponseController.
func (s *screen) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *screen) WriteHeader(status int) {
	if s.status != 0 {
		return
	}
	s.status = status
	if s.stream = strings.HasPrefix(s.Header().Get("Content-Type"), "text/event-stream"); s.stream {
		s.ResponseWriter.WriteHeader(status)
	}
}

func (s *screen) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.stream {
		return s.ResponseWriter.Write(p)
	}
	return s.body.Write(p)
}

// FlushError is for http.ResponseController.
func (s *screen) FlushError() error {
	s.WriteHeader(http.StatusOK)
	if !s.stream {
		return nil
	}
	return http.NewResponseController(s.ResponseWriter).Flush()
}

// fixed are the beginnings of go-sdk's plain texts that repeat nothing.
var fixed = []string{"Accept must ", "Content-Type must ", "Method Not Allowed", "Bad Request: Unsupported protocol version (supported"}

func (s *screen) finish() {
	if s.stream || s.status == 0 {
		return
	}
	body := s.body.Bytes()
	isFixed := func(begin string) bool { return bytes.HasPrefix(body, []byte(begin)) }
	switch kind := s.Header().Get("Content-Type"); {
	case strings.HasPrefix(kind, "application/json"):
		body = plainText(body)
	case s.status >= 400 && !slices.ContainsFunc(fixed, isFixed):
		body = []byte(http.StatusText(s.status) + "\n")
	}
	s.Header().Del("Content-Length")
	s.ResponseWriter.WriteHeader(s.status)
	_, _ = s.ResponseWriter.Write(body) // who has gone needs no answer
}
