package registry

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Server is a Registry that listens.
type Server struct {
	*Registry
	// Host is host:port, ready to be the first part of an image reference.
	Host string
	http *http.Server
}

// Serve starts a registry on addr (empty: a free port of 127.0.0.1) until Stop is called or ctx is done.
func Serve(ctx context.Context, addr string, o Options) (*Server, error) {
	r, err := New(o)
	if err != nil {
		return nil, err
	}
	return r.Listen(ctx, addr, r)
}

// Listen serves h, which is r or wraps it, as Serve does.
func (r *Registry) Listen(ctx context.Context, addr string, h http.Handler) (*Server, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	s := &Server{Registry: r, Host: l.Addr().String(), http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that go away are what tests do
	}}
	go s.http.Serve(l)
	context.AfterFunc(ctx, s.Stop)
	return s, nil
}

// Stop closes the listener and each connection, also those of requests that hang. It may be called twice.
func (s *Server) Stop() { _ = s.http.Close() }
