package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/front"
	"github.com/slimctl/slimctl/server/gate"
	"github.com/slimctl/slimctl/server/listen"
)

// vncAddress is the address of the desktop; tests replace it.
var vncAddress = "127.0.0.1:5900"

// Limits for the gate's only client, nginx. It asks about each of its up to 2000 requests and keeps a connection for 20
// s. The time that a desktop stays connected has no limit.
const (
	gateClients = 2048            // connections; further ones wait to be accepted
	gateHeader  = 5 * time.Second // for a request's head to arrive
	gateHead    = 64 << 10        // bytes of it: nginx accepts 8 KiB a line and forwards four lines
	gateIdle    = time.Minute     // longer than nginx's 20 s: nginx must not use a connection that is being closed
	gateEnd     = 3 * time.Second // for desktops to close their connections
)

// openGate opens the gate, which serves /tickets, /auth and /websockify for nginx. The gate logs the use of each ticket
// with input.
func openGate(set serveSettings, s *serving) (service, error) {
	c, err := gate.Load(set.gate)
	if err != nil {
		return service{}, err
	}
	g, err := gate.New(c, vncAddress, func(e gate.Event) error {
		switch e.Name {
		case gate.InputBegan:
			s.CountPeople(1)
		case gate.InputEnded:
			s.CountPeople(-1)
		}
		return s.AuditLog().Write(audit.Record{Event: e.Name, Subject: e.Subject, Data: e})
	})
	if err != nil {
		return service{}, err
	}
	l, err := front.Listen(set.gateListen, false)
	if err != nil {
		return service{}, fmt.Errorf("gate: %w", err)
	}
	serve := func(ctx context.Context) error {
		err := serveGate(ctx, l, g)
		g.Close()
		return err
	}
	return service{"gate", l, serve, l.Close}, nil
}

// serveGate serves on l until ctx ends and then closes the desktops.
func serveGate(ctx context.Context, l net.Listener, h http.Handler) error {
	return listen.Serve(ctx, &http.Server{
		Handler:                      h,
		DisableGeneralOptionsHandler: true, // by default OPTIONS * is answered
		ReadHeaderTimeout:            gateHeader,
		IdleTimeout:                  gateIdle,
		MaxHeaderBytes:               gateHead,
	}, netutil.LimitListener(l, gateClients), gateEnd)
}
