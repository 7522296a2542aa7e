package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

func runEgress(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("egress", flag.ContinueOnError)
	file := policyFlag(flags)
	listen := flags.String("listen", "", "loopback `address` to listen on (default: egress.proxy of the policy)")
	if err := parse(flags, args, std.err); err != nil {
		return err
	}
	p, err := policy.Load(*file)
	if err != nil {
		return err
	}
	if err := harden(); err != nil {
		return err
	}
	if *listen == "" {
		*listen = p.Egress.Proxy
	}
	log, err := egressLog(p)
	if err != nil {
		return err
	}
	defer log.Close()
	l, err := egress.Listen(*listen)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := log.Write(audit.Record{Event: audit.Start, Note: "egress proxy on " + l.Addr().String()}); err != nil {
		return err
	}
	proxy := egress.New(p, network, func(d egress.Decision) error { return log.Write(networkRecord(d)) })
	defer onHangup(*file, std.err, func(p *policy.Policy) error {
		if err := log.Write(audit.Record{Event: audit.Reload}); err != nil {
			return err
		}
		proxy.Reload(p)
		return nil
	})()
	fmt.Fprintf(std.err, "browser-shell: egress proxy on %s\n", l.Addr())
	if err := proxy.Serve(ctx, l); err != nil {
		return err
	}
	return log.Write(audit.Record{Event: audit.Stop})
}

// egressLog opens egress.jsonl: beside the audit log if the policy names one,
// or else in the state directory.
func egressLog(p *policy.Policy) (*audit.Log, error) {
	dir := filepath.Dir(p.Audit.File)
	if p.Audit.File == "" {
		var err error
		if dir, err = policy.OpenStateDir(p.StateDir); err != nil {
			return nil, err
		}
	}
	return audit.Open(filepath.Join(dir, "egress.jsonl"), p.Audit.MaxBytes, p.Audit.Keep)
}

// networkClosed is the event of the second line about a request that was
// allowed: what became of it.
const networkClosed = "MCP_NETWORK_CLOSED"

func networkRecord(d egress.Decision) audit.Record {
	rec := audit.Record{Event: audit.NetworkBlocked, Decision: "deny", Rule: d.Rule, Host: d.Host, Port: d.Port, Note: d.Method}
	if d.Address.IsValid() {
		rec.Address = d.Address.String()
	}
	if d.Allowed {
		rec.Event, rec.Decision = audit.NetworkAllowed, "allow"
	}
	if d.Done {
		rec.Event = networkClosed
		rec.Note = fmt.Sprintf("%s: %d bytes in, %d out, %d ms", d.Method, d.BytesIn, d.BytesOut, d.Duration.Milliseconds())
	}
	return rec
}
