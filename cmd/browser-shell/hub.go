package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub"
	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// hubSettings holds the flags of `browser-shell hub`.
type hubSettings struct {
	policy, config, tools string
	listen                string
	remote                bool
	socket, audit         string
	manage, manageToken   string
	gate, gateListen      string
	egress                bool
}

func readHubSettings(args []string, stderr io.Writer) (s hubSettings, err error) {
	flags := flag.NewFlagSet("hub", flag.ContinueOnError)
	file := policyFlag(flags)
	flags.StringVar(&s.config, "config", hub.DefaultConfig, "`file` with the servers (mcpServers)")
	flags.StringVar(&s.tools, "hub-policy", guard.DefaultPath, "`file` that says which calls are let through; only the default one may be missing")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8079", "`address` to listen on: IP:PORT, or unix:PATH")
	flags.BoolVar(&s.remote, "allow-remote", false, "allow an address that is not loopback; the endpoint asks for no credentials")
	flags.StringVar(&s.socket, "socket", "", "unix `socket` of the management API (default: none)")
	flags.StringVar(&s.manage, "manage", "", "loopback `address` of the management API, for instance 127.0.0.1:8787 (default: none)")
	flags.StringVar(&s.manageToken, "manage-token", "", "`file` with the token that --manage asks for; mode 0600, at least 16 characters")
	flags.StringVar(&s.audit, "audit", "", "audit log `file` (default: that of the policy)")
	flags.StringVar(&s.gate, "gate", "", "`file` by which to serve tickets, auth and the desktop's socket (default: don't)")
	flags.StringVar(&s.gateListen, "gate-listen", "127.0.0.1:8088", "`address` for --gate: a loopback one, or unix:PATH")
	flags.BoolVar(&s.egress, "egress", false, "be the browser's proxy too")
	err = parseFlags(flags, args, stderr)
	s.policy = *file
	return s, err
}

// runHub serves in one process everything behind nginx: MCP; with --gate also tickets, auth and the desktop's socket;
// with --egress the browser's proxy. The tool itself is an MCP server in a process of its own.
func runHub(ctx context.Context, args []string, std stdio) (err error) {
	if len(args) > 0 && args[0] == "ctl" {
		return runHubCtl(ctx, args[1:], std)
	}
	set, err := readHubSettings(args, std.err)
	if err != nil {
		return err
	}
	hangups, err := hardenProcess()
	if err != nil {
		return err
	}
	defer process.EndChildren()
	process.LowerPriority() // Chromium does the work
	debug.SetGCPercent(50)  // with a heap of 2 MB: less memory for little work
	p, err := policy.Load(set.policy)
	if err != nil {
		return err
	}
	m, err := openHub(set, p, std.err)
	if err != nil {
		return err
	}
	var shown *anchors
	defer func() {
		err = errors.Join(err, m.Close())
		if shown != nil {
			_ = shown.printChanged() // includes the records of the shutdown
		}
	}()
	all, err := m.openServices(set, p)
	defer all.close()
	if err != nil {
		return err
	}
	defer onHangup(hangups, std.err, m.Reload)()
	if err := m.StartAll(); err != nil {
		return err
	}
	for _, s := range all[1:] {
		fmt.Fprintf(std.err, "browser-shell: %s on %s\n", s.name, s.listener.Addr())
	}
	fmt.Fprintf(std.err, "browser-shell: pages may be opened on: %s\n", p.Open.Hosts())
	fmt.Fprintf(std.err, "browser-shell: serving %s\n", describeEndpoint(all[0].listener.Addr()))
	shown = m.newAnchors(std.out)
	return append(all, service{"anchors", nil, shown.serve, nil}).serve(ctx)
}

// describeEndpoint returns the hub's address in words for people.
func describeEndpoint(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String() + ", path " + hub.Path
	}
	return "http://" + a.String() + hub.Path
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

func (m *managed) newAnchors(out io.Writer) *anchors {
	a := &anchors{out, []*audit.Log{m.AuditLog()}, map[*audit.Log]int64{}}
	if m.egress != nil {
		a.logs = append(a.logs, m.egress.log)
	}
	return a
}

// printChanged prints the heads that have changed.
func (a *anchors) printChanged() error {
	for _, l := range a.logs {
		_ = l.Ready() // reads lines of other processes; its error is reported elsewhere
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

// Ready returns nil if the image can serve. Otherwise it returns the cause: a server of the hub, or a log that is full
// or not writable.
func (m *managed) Ready() error {
	err := m.Hub.Ready()
	if m.egress != nil {
		err = errors.Join(err, m.egress.log.Ready())
	}
	return err
}

// managed is the hub together with everything else that Reload reads again.
type managed struct {
	*hub.Hub
	metrics *admin.Metrics
	policy  string // path of the policy file
	egress  *egressProxy

	reloading sync.Mutex // held during Reload, from a signal or the API
}

func openHub(set hubSettings, p *policy.Policy, stderr io.Writer) (*managed, error) {
	log, err := chooseAuditFile(set, p)
	if err != nil {
		return nil, err
	}
	lock, err := chooseLockFile(p, set.config)
	if err != nil {
		return nil, err
	}
	metrics := admin.NewMetrics()
	h, err := hub.New(hub.Options{
		Config: set.config, Policy: set.tools, Version: ownVersion(), Lock: lock, Metrics: metrics,
		Audit: log, AuditLimits: server.AuditLimits(p),
		Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	return &managed{Hub: h, metrics: metrics, policy: set.policy}, nil
}

// chooseAuditFile returns the path of the audit log of hub and gate.
func chooseAuditFile(set hubSettings, p *policy.Policy) (string, error) {
	if set.audit != "" {
		return set.audit, nil
	}
	return chooseLogFile(p, "audit.jsonl")
}

// chooseLockFile returns the path of the lock file that prevents two hubs with one configuration.
func chooseLockFile(p *policy.Policy, config string) (string, error) {
	dir, err := policy.OpenStateDir(p.StateDir)
	if err != nil {
		return "", err
	}
	if config, err = filepath.EvalSymlinks(config); err != nil {
		return "", fmt.Errorf("hub configuration: %w", err)
	}
	if config, err = filepath.Abs(config); err != nil {
		return "", err
	}
	return filepath.Join(dir, fmt.Sprintf("hub-%.8x.lock", sha256.Sum256([]byte(config)))), nil
}

// openServices opens all listeners, the hub's first. With an error it also returns the services to close.
func (m *managed) openServices(set hubSettings, p *policy.Policy) (all services, err error) {
	l, err := hub.Listen(set.listen, set.remote)
	if err != nil {
		return all, err
	}
	all = append(all, service{"hub", l, func(ctx context.Context) error { return m.Serve(ctx, l) }, l.Close})
	if set.socket != "" {
		l, err := admin.Listen(set.socket)
		if err != nil {
			return all, err
		}
		all = append(all, service{"management API", l, func(ctx context.Context) error { return admin.Serve(ctx, l, m, m.metrics, "") }, l.Close})
	}
	if set.manage != "" {
		token, err := readToken(set.manageToken)
		if err != nil {
			return all, err
		}
		l, err := admin.ListenTCP(set.manage)
		if err != nil {
			return all, err
		}
		all = append(all, service{"management port", l, func(ctx context.Context) error { return admin.Serve(ctx, l, m, m.metrics, token) }, l.Close})
	}
	if set.gate != "" {
		s, err := openGate(set, p)
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	if set.egress {
		proxy, err := openEgress(p, p.Egress.Proxy, m.Calls)
		if err != nil {
			return all, err
		}
		m.egress = proxy
		all = append(all, service{"egress proxy", proxy.listener, proxy.Serve, proxy.Close})
	}
	return all, nil
}

// readToken reads the management token: one line of at least 16 characters, in a file that nobody else can read.
func readToken(file string) (string, error) {
	if file == "" {
		return "", errors.New("--manage needs --manage-token FILE; make one with: (umask 077; openssl rand -hex 32 >FILE)")
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("management token: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("management token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("management token %s: others may read it (mode %04o); chmod 600 %s", file, info.Mode().Perm(), file)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return "", fmt.Errorf("management token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("management token %s: not one word of at least 16 characters; make one with: openssl rand -hex 32", file)
	}
	return token, nil
}

// Reload reads the hub's two files and the policy again, and signals the tool to do the same. If a file is invalid,
// nothing changes. The management API calls it, too.
func (m *managed) Reload() error {
	m.reloading.Lock()
	defer m.reloading.Unlock()
	p, err := policy.Load(m.policy)
	if err != nil {
		return err
	}
	if err := m.Hub.Reload(); err != nil {
		return err
	}
	if m.egress != nil {
		if err := m.egress.Reload(p); err != nil {
			return err
		}
	}
	return signalChildren(syscall.SIGHUP)
}

// signalChildren signals the child processes that run this same program: they have the policy, too. SIGHUP might end
// other programs. A child that is just starting may end, too, and is restarted.
func signalChildren(sig syscall.Signal) error {
	own, err := os.ReadFile("/proc/self/comm") // exe isn't readable for a process that forbids tracing
	if err != nil {
		return err
	}
	// Fields 1 to 4 of proc_pid_stat(5): pid, name, state and parent.
	like := regexp.MustCompile(`^(\d+) \(` + regexp.QuoteMeta(strings.TrimSpace(string(own))) + `\) [A-Y] ` + strconv.Itoa(os.Getpid()) + " ")
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range stats {
		stat, _ := os.ReadFile(name) // the process may have ended
		if is := like.FindSubmatch(stat); is != nil {
			pid, _ := strconv.Atoi(string(is[1]))
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("signal process %d: %w", pid, err))
			}
		}
	}
	return errors.Join(errs...)
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
