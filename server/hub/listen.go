package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/protocol"
)

// shutdownTime bounds how long running calls may hold up an orderly end.
const shutdownTime = 2 * time.Second

// Bounds on clients; how long a call may run is not theirs.
const (
	maxBody    = protocol.MaxFrame
	maxClients = 2304             // connections; further ones wait to be accepted
	headerTime = 5 * time.Second  // for a request's headers to arrive
	readTime   = 30 * time.Second // for all of it
	writeTime  = 30 * time.Second // for the client to take what was written to it
	idleTime   = 30 * time.Second // between two requests of a connection
)

// Listen opens host:port, or a unix socket for unix:/absolute/path, which its
// owner and group may use (0660). Any other address but a literal loopback one
// needs remote, because the endpoint asks for no credentials.
func Listen(address string, remote bool) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		l, err := admin.ListenUnix(path, 0o660)
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

// Serve answers on l until ctx ends. end is called first then, to end the
// calls that still run.
func Serve(ctx context.Context, l net.Listener, h http.Handler, end func()) error {
	srv := newServer(h, readTime, writeTime)
	l = netutil.LimitListener(l, maxClients)
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

// newServer bounds how long a request may take to arrive and an answer to be
// taken, not how long a call may run.
func newServer(h http.Handler, read, write time.Duration) *http.Server {
	timely := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&timed{w, http.NewResponseController(w), write}, r)
	})
	return &http.Server{Handler: timely, ReadHeaderTimeout: headerTime, ReadTimeout: read, IdleTimeout: idleTime, MaxHeaderBytes: 64 << 10}
}

// timed is a ResponseWriter that gives each write a deadline of its own.
// http.Server's WriteTimeout would begin with the request.
type timed struct {
	http.ResponseWriter
	control *http.ResponseController
	most    time.Duration
}

// Unwrap is for http.ResponseController.
func (t *timed) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *timed) WriteHeader(status int) {
	t.extend()
	t.ResponseWriter.WriteHeader(status)
}

func (t *timed) Write(p []byte) (int, error) {
	t.extend()
	return t.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (t *timed) FlushError() error {
	t.extend()
	return t.control.Flush()
}

func (t *timed) extend() {
	_ = t.control.SetWriteDeadline(time.Now().Add(t.most)) // TCP connections have deadlines
}
