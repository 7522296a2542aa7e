package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

func runEgress(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("egress", flag.ContinueOnError)
	file := policyFlag(flags)
	listen := flags.String("listen", "", "loopback `address` to listen on (default: egress.proxy of the policy)")
	if err := parseFlags(flags, args, std.err); err != nil {
		return err
	}
	hangups, err := hardenProcess()
	if err != nil {
		return err
	}
	p, err := policy.Load(*file)
	if err != nil {
		return err
	}
	if *listen == "" {
		*listen = p.Egress.Proxy
	}
	proxy, err := openEgress(p, *listen, func() []string { return nil })
	if err != nil {
		return err
	}
	defer proxy.Close()
	defer onHangup(hangups, std.err, reloadPolicy(*file, proxy.Reload))()
	fmt.Fprintf(std.err, "browser-shell: egress proxy on %s\n", proxy.listener.Addr())
	return proxy.Serve(ctx)
}

// egressProxy is the proxy with its log, egress.jsonl.
type egressProxy struct {
	proxy    *egress.Proxy
	log      *audit.Log
	listener net.Listener
}

// Limits on a page's requests, per second and at once. Further requests wait, so that a page needs hours to fill the
// log.
const (
	pageRate  = 25
	pageBurst = 2000
)

// openEgress opens the proxy. calls returns the request ids of the running calls, for the log.
func openEgress(p *policy.Policy, listen string, calls func() []string) (_ *egressProxy, err error) {
	outgoing, err := egress.LoadOutgoing(outgoingFile)
	if err != nil {
		return nil, err
	}
	file, err := chooseLogFile(p, "egress.jsonl")
	if err != nil {
		return nil, err
	}
	log, err := audit.Open(file, server.AuditLimits(p))
	if err != nil {
		return nil, err
	}
	l, err := egress.Listen(listen)
	if err != nil {
		log.Close()
		return nil, err
	}
	proxy := egress.New(p, network, outgoing, func(d egress.Decision) error {
		if d.Done {
			return log.Finish(networkRecord(d, calls()))
		}
		return log.Write(networkRecord(d, calls()))
	})
	proxy.Pace = rate.NewLimiter(pageRate, pageBurst)
	return &egressProxy{proxy, log, l}, nil
}

// Serve serves until ctx ends.
func (e *egressProxy) Serve(ctx context.Context) error {
	if err := e.log.Finish(audit.Record{Event: audit.Start, Note: "egress proxy on " + e.listener.Addr().String()}); err != nil {
		return err
	}
	err := e.proxy.Serve(ctx, e.listener)
	return errors.Join(err, e.log.Finish(audit.Record{Event: audit.Stop}))
}

// Reload replaces the policy.
func (e *egressProxy) Reload(p *policy.Policy) error {
	if err := e.log.Finish(audit.Record{Event: audit.Reload}); err != nil {
		return err
	}
	e.proxy.Reload(p)
	return nil
}

// Close closes the listener and the log.
func (e *egressProxy) Close() error {
	e.listener.Close() // Serve may have closed it already
	return e.log.Close()
}

// chooseLogFile returns the path of a log: beside the policy's audit log, or else in the state directory.
func chooseLogFile(p *policy.Policy, name string) (string, error) {
	if p.Audit.File != "" {
		if name == "audit.jsonl" {
			return p.Audit.File, nil
		}
		return filepath.Join(filepath.Dir(p.Audit.File), name), nil
	}
	dir, err := policy.OpenStateDir(p.StateDir)
	return filepath.Join(dir, name), err
}

// networkClosed is the event of the second line about an allowed request; it has the outcome.
const networkClosed = "MCP_NETWORK_CLOSED"

// networkRecord returns the record of a request of the browser. A request doesn't identify its call, so the record
// names every call that is running.
func networkRecord(d egress.Decision, calls []string) audit.Record {
	rec := audit.Record{Event: audit.NetworkBlocked, Decision: "deny", Refused: !d.Allowed, Rule: d.Rule, Host: d.Host, Port: d.Port, Note: d.Method}
	if rec.Requests = calls; len(calls) == 1 {
		rec.RequestID, rec.Requests = calls[0], nil
	}
	if d.Address.IsValid() {
		rec.Address = d.Address.String()
	}
	if d.Allowed {
		rec.Event, rec.Decision = audit.NetworkAllowed, "allow"
		if d.Private {
			rec.Rule = cmp.Or(d.Rule, "egress.private_hosts")
		}
	}
	if d.Done {
		rec.Event = networkClosed
		rec.Note = fmt.Sprintf("%s: %d bytes in, %d out, %d ms", d.Method, d.BytesIn, d.BytesOut, d.Duration.Milliseconds())
	}
	return rec
}
