// Package hub serves browser-shell over streamable HTTP.
package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Path is the one path that is served.
const Path = "/mcp"

// shutdownTime bounds how long running calls may hold up an orderly end.
const shutdownTime = 5 * time.Second

// Bounds on a request; argv holds at most 256 KiB.
const (
	maxBody  = 1 << 20
	readTime = 30 * time.Second
)

// Listen opens host:port. Anything but a literal loopback address needs
// remote, because the endpoint asks for no credentials.
func Listen(address string, remote bool) (net.Listener, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: give an IP address and a port, for instance 127.0.0.1:8079", address)
	}
	if !ap.Addr().Unmap().IsLoopback() && !remote {
		return nil, fmt.Errorf("listen address %s is not loopback and the endpoint asks for no credentials: use 127.0.0.1, or add --allow-remote where something else guards it", address)
	}
	return net.Listen("tcp", address)
}

// Handler serves the MCP server at Path and nothing else. It keeps no
// sessions, which lets clients of both protocol eras in, and refuses requests
// that a web page made (by Origin and Host).
func Handler(server *mcp.Server) http.Handler {
	h := mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true},
	)
	mux := http.NewServeMux()
	mux.Handle(Path, http.NewCrossOriginProtection().Handler(h))
	return mux
}

// Serve answers on l until ctx ends. end is called first then, to end the
// calls that still run.
func Serve(ctx context.Context, l net.Listener, h http.Handler, end func()) error {
	srv := newServer(h, readTime)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return errors.Join(err, srv.Close())
	}
	return nil
}

// newServer bounds how long a request may take to arrive, not how long a call
// may take to run.
func newServer(h http.Handler, read time.Duration) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: read, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
}
