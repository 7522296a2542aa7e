package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/front"
	"github.com/slimctl/slimctl/server/process"
)

// serveSettings holds the flags of `browser-shell serve`.
type serveSettings struct {
	policy, config   string
	listen           string
	remote           bool
	gate, gateListen string
	egress           bool
}

func readServeSettings(args []string, stderr io.Writer) (s serveSettings, err error) {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	file := policyFlag(flags)
	flags.StringVar(&s.config, "config", front.DefaultConfig, "`file` mcp-hub.json, which may name this server alone; only the default one may be missing")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8079", "`address` to listen on: IP:PORT, or unix:PATH")
	flags.BoolVar(&s.remote, "allow-remote", false, "allow an address that is not loopback; the endpoint asks for no credentials")
	flags.StringVar(&s.gate, "gate", "", "`file` by which to serve tickets, auth and the desktop's socket (default: don't)")
	flags.StringVar(&s.gateListen, "gate-listen", "127.0.0.1:8088", "`address` for --gate: a loopback one, or unix:PATH")
	flags.BoolVar(&s.egress, "egress", false, "be the browser's proxy too")
	err = parseFlags(flags, args, stderr)
	s.policy = *file
	return s, err
}

// runServe serves in one process everything behind nginx: MCP; with --gate also tickets, auth and the desktop's socket;
// with --egress the browser's proxy.
func runServe(ctx context.Context, args []string, std stdio) (err error) {
	set, err := readServeSettings(args, std.err)
	if err != nil {
		return err
	}
	process.LowerPriority() // Chromium does the work
	debug.SetGCPercent(50)  // with a heap of 2 MB: less memory for little work
	if err := front.CheckConfig(set.config); err != nil {
		return err
	}
	s, err := openServer(set.policy, std.err)
	if err != nil {
		return err
	}
	log := anchors{out: std.out, last: map[*audit.Log]int64{}}
	defer func() {
		s.Close()
		_ = log.printChanged() // includes the records of the shutdown
	}()
	log.logs = append(log.logs, s.AuditLog())
	all, err := openServices(set, s)
	defer all.close()
	if err != nil {
		return err
	}
	if s.egress != nil {
		log.logs = append(log.logs, s.egress.log)
	}
	defer s.watchHangups(std.err)()
	for _, s := range all[1:] {
		fmt.Fprintf(std.err, "browser-shell: %s on %s\n", s.name, s.listener.Addr())
	}
	fmt.Fprintf(std.err, "browser-shell: pages may be opened on: %s\n", s.Policy().Open.Hosts())
	fmt.Fprintf(std.err, "browser-shell: serving %s\n", describeEndpoint(all[0].listener.Addr()))
	return append(all, service{"anchors", nil, log.serve, nil}).serve(ctx)
}

// describeEndpoint returns the address in words for people.
func describeEndpoint(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String() + ", path " + front.Path
	}
	return "http://" + a.String() + front.Path
}

// openServices opens all listeners, MCP's first. With an error it also returns the services to close.
func openServices(set serveSettings, s *serving) (all services, err error) {
	l, err := front.Listen(set.listen, set.remote)
	if err != nil {
		return all, err
	}
	ready := func() error {
		if s.egress != nil {
			return errors.Join(s.Ready(), s.egress.log.Ready())
		}
		return s.Ready()
	}
	h := front.NewHandler(s.MCP(), ready, s.EndClient)
	all = append(all, service{"MCP", l, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, s.EndCalls)() // which Serve waits for
		return front.Serve(ctx, l, h)
	}, l.Close})
	if set.gate != "" {
		g, err := openGate(set, s)
		if err != nil {
			return all, err
		}
		all = append(all, g)
	}
	if set.egress {
		p := s.Policy()
		proxy, err := openEgress(p, p.Egress.Proxy, s.Calls)
		if err != nil {
			return all, err
		}
		s.egress = proxy
		all = append(all, service{"egress proxy", proxy.listener, proxy.Serve, proxy.Close})
	}
	return all, nil
}

// anchorTime is the interval between two anchors of a log that grows.
const anchorTime = time.Minute

// anchor is a line on standard output, which is the container's. Anyone who keeps these lines can detect that a log was
// cut or rewritten.
type anchor struct {
	Event string    `json:"event"` // AUDIT_ANCHOR
	Time  time.Time `json:"ts"`
	File  string    `json:"file"`
	Seq   int64     `json:"seq"`
	Head  string    `json:"head"` // for browser-shell audit verify --anchor SEQ:HEAD
}

// anchors prints the heads of the logs.
type anchors struct {
	out  io.Writer
	logs []*audit.Log
	last map[*audit.Log]int64
}

// printChanged prints the heads that have changed.
func (a *anchors) printChanged() error {
	for _, l := range a.logs {
		seq, head := l.Head()
		if seq == a.last[l] {
			continue
		}
		a.last[l] = seq
		if err := json.NewEncoder(a.out).Encode(anchor{"AUDIT_ANCHOR", time.Now().UTC(), filepath.Base(l.Name()), seq, head}); err != nil {
			return err
		}
	}
	return nil
}

// serve prints the heads immediately and then once every anchorTime until ctx ends. It ignores write errors.
func (a *anchors) serve(ctx context.Context) error {
	for {
		_ = a.printChanged()
		select {
		case <-time.After(anchorTime):
		case <-ctx.Done():
			return nil
		}
	}
}

// service is one of the servers in this process.
type service struct {
	name     string
	listener net.Listener
	serve    func(context.Context) error
	close    func() error
}

type services []service

// serve serves all until ctx ends or one fails; then it ends the others.
func (all services) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range all {
		g.Go(func() error {
			err := s.serve(ctx)
			switch stopped := ctx.Err() != nil; {
			case stopped && errors.Is(err, context.DeadlineExceeded): // a client was cut off, which is not our failure
				return nil
			case !stopped && err == nil:
				err = errors.New("the service ended unexpectedly")
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (all services) close() {
	for _, s := range all {
		_ = s.close() // a service that has served is closed already
	}
}
