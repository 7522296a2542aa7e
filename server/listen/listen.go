// Package listen serves HTTP until a context ends.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Serve serves on l until ctx ends; the contexts of requests end with it. It then waits for running requests, at most for
// end. The error is a context.DeadlineExceeded if some did not end in time.
func Serve(ctx context.Context, srv *http.Server, l net.Listener, end time.Duration) error {
	var running sync.WaitGroup
	h := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		h.ServeHTTP(w, r)
	})
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), end)
	defer cancel()
	if err := srv.Shutdown(within); err != nil {
		return errors.Join(err, srv.Close())
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	select {
	case <-ended: // Shutdown doesn't wait for tunnels and WebSockets
		return nil
	case <-within.Done():
		return fmt.Errorf("serve on %s: requests did not end: %w", l.Addr(), within.Err())
	}
}
