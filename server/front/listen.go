package front

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/slimctl/slimctl/server/listen"
	"github.com/slimctl/slimctl/server/protocol"
)

// shutdownTime limits the wait for running calls at an orderly end.
const shutdownTime = 2 * time.Second

// Limits for clients; a call's duration is limited elsewhere.
const (
	maxBody    = protocol.MaxFrame
	maxClients = 2304             // connections; further ones wait to be accepted
	headerTime = 5 * time.Second  // for a request's headers to arrive
	readTime   = 30 * time.Second // for all of it
	writeTime  = 30 * time.Second // for the client to read a write
	idleTime   = 30 * time.Second // between two requests of a connection
)

// Listen opens host:port, or a unix socket for unix:/absolute/path, which its owner and group can use (0660). Any
// address other than a literal loopback one requires remote, because the endpoint asks for no credentials.
func Listen(address string, remote bool) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		l, err := listenUnix(path, 0o660)
		if err != nil {
			return nil, fmt.Errorf("listen address %q: %w", address, err)
		}
		return l, nil
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: give an IP address and a port, for instance 127.0.0.1:8079, or unix:/absolute/path", address)
	}
	if !ap.Addr().Unmap().IsLoopback() && !remote {
		return nil, fmt.Errorf("listen address %s is not loopback and the endpoint asks for no credentials: use 127.0.0.1, or add --allow-remote where something else guards it", address)
	}
	return net.Listen("tcp", address)
}

// Serve serves on l until ctx ends. The contexts of the requests end with ctx.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return listen.Serve(ctx, newServer(h, readTime, writeTime), netutil.LimitListener(l, maxClients), shutdownTime)
}

// newServer returns a server that limits the time for a request to arrive and an answer to be read, not the duration of
// a call.
func newServer(h http.Handler, read, write time.Duration) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			out := &stream{ResponseWriter: w, control: http.NewResponseController(w), most: write}
			defer out.close()
			h.ServeHTTP(out, r)
		}),
		ReadHeaderTimeout: headerTime, ReadTimeout: read, IdleTimeout: idleTime, MaxHeaderBytes: 64 << 10,
	}
}
