package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/go-runc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/inspect/sandbox/rootfs"
)

// runcEngine runs a container with runc alone.
type runcEngine struct {
	s       *Sandbox
	runc    *runc.Runc
	cgroups cgroups
	name    string
	dir     string // the run's
	process *specs.Process
	watches []*watch // nil without Watch, or if impossible

	pid   int
	ended chan struct{} // closed when the container has ended
	code  int

	execs   sync.Mutex   // held while runc starts a program in the container
	running map[int]bool // process ids of these programs; exec waits for each
	orphans sync.Once
}

func (r Runner) runc(ctx context.Context, s *Sandbox) (engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("runc takes root: run slimctl as root, or start Docker")
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		return nil, fmt.Errorf("runc is not installed: install it (apt-get install runc), or start Docker: %w", err)
	}
	e := &runcEngine{s: s, runc: &runc.Runc{Command: path, Setpgid: true, PdeathSignal: unix.SIGKILL}, ended: make(chan struct{}), running: map[int]bool{}}
	if e.cgroups, err = findCgroups(); err != nil {
		return nil, err
	}
	// Orphans of our children become our children, including containers: nobody else could report their exit status.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become a subreaper: %w", err)
	}
	version, err := e.runc.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("runc --version: %w", err)
	}
	s.evident.Engine.Name, s.evident.Engine.Version = Runc, version.Runc
	return e, nil
}

// sweep doesn't use runc: all parts of a container have the run's name or lie in its directory.
func (e *runcEngine) sweep(_ context.Context, id, dir string) error {
	return sweepHost(id, dir)
}

func (e *runcEngine) start(ctx context.Context, s *Sandbox) (io.ReadWriteCloser, error) {
	e.name, e.dir = s.run.name(), s.run.dir
	e.runc.Root = filepath.Join(e.dir, "runc")
	e.runc.Log, e.runc.LogFormat = filepath.Join(e.dir, "runc.log"), runc.JSON
	if e.s.plan.netns == "" && e.s.plan.Network != NetworkNone && e.s.plan.Network != NetworkEgress {
		return nil, fmt.Errorf("network %q: runc has egress, none and path:FILE; a Docker network needs --runtime docker", e.s.plan.Network)
	}
	if err := mountScratch(s); err != nil {
		return nil, err
	}
	cache := rootfs.Cache{Dir: filepath.Join(s.runner.CacheDir, "unpacked")}
	if err := privateDir(cache.Dir); err != nil {
		return nil, err
	}
	if err := cache.Sweep(); err != nil {
		s.addNote("layers that a killed process left: " + err.Error())
	}
	layers, err := cache.Layers(ctx, s.image, s.runner.Progress)
	if err != nil {
		return nil, err
	}
	config, err := s.image.ConfigFile()
	if err != nil {
		return nil, err
	}
	root, err := rootfs.Mount(layers, scratch(e.dir))
	if err != nil {
		return nil, err
	}
	s.evident.Engine.RootFS = "overlayfs"
	if s.runner.Watch {
		if w, err := watchExecs(root, s); err != nil {
			s.executed.fail(err)
		} else {
			e.watches = append(e.watches, w)
		}
		if w, err := watchOpens(root, s); err != nil {
			s.opened.fail(err)
		} else {
			e.watches = append(e.watches, w)
		}
	}
	b := &bundle{name: e.name, rootfs: root, dir: e.dir, config: config.Config, plan: s.plan, cgroups: e.cgroups}
	spec, err := b.write()
	s.addNotApplied(b.missing...)
	if err != nil {
		return nil, &StartError{125, err}
	}
	e.process = spec.Process
	if s.runner.Strict && len(b.missing) > 0 {
		return nil, nil // the caller adds the error
	}
	conn, err := e.launch(ctx)
	if err != nil {
		return nil, err
	}
	s.addNotApplied(e.cgroups.findMissing(e.name, s.plan.Settings)...)
	return conn, nil
}

// launch starts the container, which becomes our child when runc ends.
func (e *runcEngine) launch(ctx context.Context) (io.ReadWriteCloser, error) {
	out, err := newStreams(e.s.tee(e.s.runner.Stdout), e.s.tee(e.s.runner.Stderr), e.s.tethered)
	if err != nil {
		return nil, err
	}
	pidFile := filepath.Join(e.dir, "pid")
	status, err := e.runc.Run(ctx, e.name, filepath.Join(e.dir, "bundle"), &runc.CreateOpts{IO: out, PidFile: pidFile, Detach: true})
	if e.pid = readPID(pidFile); err != nil || e.pid == 0 {
		out.Close()
		if e.pid != 0 { // it runs, and a later step failed
			_ = unix.Kill(e.pid, unix.SIGKILL)
			reap(e.pid)
			e.pid = 0 // nobody else must wait for it
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, e.startError(e.runc.Log, status)
	}
	out.startCopying()
	go func() {
		defer close(e.ended)
		e.code = reap(e.pid)
		out.drainAndClose()
	}()
	if !e.s.tethered {
		return nil, nil
	}
	return out.conn(), nil
}

func readPID(file string) int {
	text, _ := os.ReadFile(file)
	pid, err := strconv.Atoi(string(text))
	if err != nil || pid < 2 {
		return 0
	}
	return pid
}

// reap waits for the end of a process that became our child when runc ended.
func reap(pid int) int {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return -1
		case ws.Signaled():
			return 128 + int(ws.Signal())
		default:
			return ws.ExitStatus()
		}
	}
}

// reapOrphans reaps the remains of a program that runc could not start because the container died just then. It is our
// child, but its number is unknown, and the container's first process can't end before it is reaped
// (pid_namespaces(7)).
func (e *runcEngine) reapOrphans() {
	for {
		select {
		case <-e.ended:
			return
		case <-time.After(orphanInterval):
		}
		e.execs.Lock()
		for _, pid := range deadChildrenIn(e.pid) {
			if pid != e.pid && !e.running[pid] {
				reap(pid)
			}
		}
		e.execs.Unlock()
	}
}

// orphanInterval is the interval of looking for orphans once there may be some.
const orphanInterval = 100 * time.Millisecond

// startError returns the reason in runc's log why a program was not started.
func (e *runcEngine) startError(log string, status int) *StartError {
	text, _ := os.ReadFile(log)
	why := fmt.Sprintf("exit status %d without a message", status)
	for line := range bytes.Lines(text) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			why = entry.Msg
		}
	}
	return &StartError{startCode(why), fmt.Errorf("runc: %s", why)}
}

func (e *runcEngine) wait() (int, error) {
	<-e.ended
	return e.code, nil
}

func (e *runcEngine) signal(ctx context.Context, signal string) error {
	n := unix.SignalNum("SIG" + strings.TrimPrefix(signal, "SIG"))
	if i, err := strconv.Atoi(signal); err == nil {
		n = unix.Signal(i)
	}
	if n == 0 {
		n = unix.SIGTERM
	}
	return e.runc.Kill(ctx, e.name, int(n), nil)
}

func (e *runcEngine) pids(context.Context) ([]int, error) {
	pids, err := e.cgroups.pids(e.name)
	for i, pid := range pids {
		if pid == e.pid {
			copy(pids[1:i+1], pids[:i])
			pids[0] = pid
		}
	}
	return pids, err
}

func (e *runcEngine) memory(context.Context) (Memory, error) {
	return e.cgroups.memory(e.name), nil
}

func (e *runcEngine) exec(ctx context.Context, argv []string, o ExecOptions, stdout, stderr io.Writer) (int, error) {
	p := *e.process
	p.Args = argv
	if o.User != "" {
		var err error
		if p.User, _, err = rootfs.Account(fmt.Sprintf("/proc/%d/root", e.pid), o.User); err != nil {
			return -1, err
		}
		p.Capabilities = &specs.LinuxCapabilities{Bounding: e.s.plan.caps}
		if p.User.UID == 0 {
			p.Capabilities.Effective, p.Capabilities.Permitted = e.s.plan.caps, e.s.plan.caps
		}
	}
	dir, err := os.MkdirTemp(e.dir, "exec-")
	if err != nil {
		return -1, err
	}
	defer os.RemoveAll(dir)
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	out, err := newStreams(stdout, stderr, false)
	if err != nil {
		return -1, err
	}
	e.execs.Lock()
	err = e.runc.Exec(context.WithoutCancel(ctx), e.name, p, &runc.ExecOpts{IO: out, PidFile: pidFile, LogFile: log, Detach: true})
	pid := readPID(pidFile)
	e.running[pid] = true
	e.execs.Unlock()
	if err != nil && pid == 0 {
		out.Close()
		e.orphans.Do(func() { go e.reapOrphans() })
		return e.startError(log, 0).Code, nil
	}
	out.startCopying()
	child, err := os.FindProcess(pid) // a handle, so that a successor with its number isn't meant
	if err != nil {
		return -1, err
	}
	defer func() { _ = child.Release() }()
	stop := context.AfterFunc(ctx, func() { _ = child.Kill() })
	code := reap(pid)
	stop()
	out.drainAndClose()
	return code, nil
}

// collect reads a directory that is mounted from this machine.
func (e *runcEngine) collect(_ context.Context, _, run string, k *keep, file string, c *collector) error {
	dir, err := os.OpenRoot(k.hostDir(run))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was never started
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	below, err := filepath.Rel(k.Mount, k.From)
	if err != nil {
		return err
	}
	return c.collectBelow(dir, below, file)
}

// remove doesn't use runc, like sweep.
func (e *runcEngine) remove(ctx context.Context) error {
	for _, w := range e.watches {
		w.close()
	}
	err := e.sweep(ctx, e.s.run.id, e.s.run.dir)
	if e.pid != 0 {
		<-e.ended
	}
	return err
}
