package egress

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/slimctl/slimctl/server/listen"
)

// Listen opens ip:port. The address must be loopback, since the proxy asks for no credentials; port 0 means any free
// port.
func Listen(address string) (net.Listener, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !ap.Addr().IsLoopback() {
		return nil, fmt.Errorf("listen address %q: give a loopback address and a port, for instance 127.0.0.1:8118", address)
	}
	return net.Listen("tcp", address)
}

// Serve serves on l until ctx ends, which also ends open requests. It can't be called again.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	if ap, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
		own := ap.Addr().Unmap()
		p.listen.Store(&own)
	}
	srv := newServer(p, p.header)
	srv.ConnState = p.limitConnections
	return listen.Serve(ctx, srv, l, endTime)
}

func newServer(h http.Handler, header time.Duration) *http.Server {
	return &http.Server{
		Handler:                      h,
		DisableGeneralOptionsHandler: true, // by default OPTIONS * is answered
		ReadHeaderTimeout:            header,
		IdleTimeout:                  keepTime,
		MaxHeaderBytes:               maxHeader,
		ErrorLog:                     log.New(io.Discard, "", 0), // would contain client data
	}
}

// limitConnections closes connections to the proxy beyond twice max_connections: an idle connection never becomes a
// counted request.
func (p *Proxy) limitConnections(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if p.clients.Add(1) > 2*int64(p.policy.Load().Egress.MaxConnections) {
			c.Close()
		}
	case http.StateClosed, http.StateHijacked:
		p.clients.Add(-1)
	}
}
