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

// Server is a listening Registry.
type Server struct {
	*Registry
	// Host is host:port, for image references.
	Host string
	http *http.Server
}

// Serve starts a registry on addr (empty: a free port of 127.0.0.1). It runs until Stop is called or ctx ends.
func Serve(ctx context.Context, addr string, o Options) (*Server, error) {
	r, err := New(o)
	if err != nil {
		return nil, err
	}
	return r.Listen(ctx, addr, r)
}

// Listen serves h, which is r or wraps it, like Serve.
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
		ErrorLog:          log.New(io.Discard, "", 0), // tests disconnect on purpose
	}}
	go s.http.Serve(l)
	context.AfterFunc(ctx, s.Stop)
	return s, nil
}

// Stop closes the listener and all connections, including those of hanging requests. It may be called twice.
func (s *Server) Stop() { _ = s.http.Close() }
