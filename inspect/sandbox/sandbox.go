package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/capture"
	"github.com/slimctl/slimctl/internal/tether"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// Image is an image to run.
type Image struct {
	Reference string // as the user wrote it
	v1.Image
}

// From returns the image for this machine's architecture.
func From(src *image.Source) (Image, error) {
	img, err := src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	return Image{Reference: src.Reference(), Image: img}, err
}

// Status is the result of a container.
type Status struct {
	ExitCode    int         `json:"exit_code"` // 128 + n after signal n; -1 if unknown
	OOMKilled   bool        `json:"oom_killed"`
	TimedOut    bool        `json:"timed_out"`
	PIDsRefused int64       `json:"pids_refused"`   // processes refused by the limit; unknown with Docker
	Reason      string      `json:"reason"`         // running, exited, stopped, timeout, memory, pids or failed
	Code        policy.Code `json:"code,omitempty"` // -32007 after a timeout, -32006 after another limit
}

// Sandbox is a running image. Its methods are safe for concurrent use.
type Sandbox struct {
	ID string

	runner Runner
	image  Image
	plan   *plan
	run    *run
	engine engine
	logs   capture.Tail
	ports  []*forward

	executed sightings[Executed, int] // keys have no Times
	opened   sightings[string, string]

	tethered bool           // the container is connected by a tether only
	tether   *tether.Tether // while it runs

	stop    context.CancelCauseFunc
	done    chan struct{} // closed when everything is cleaned up
	status  Status
	err     error
	copying sync.Mutex // guards plan.keeps
	mu      sync.Mutex // guards the fields below
	evident Evidence
	peak    Memory
	journal *audit.Log // events.jsonl; nil without artifacts
	kept    bool       // the directory for artifacts was created
}

var (
	errStopped = errors.New("the container was stopped")
	errTimeout = errors.New("the container reached its timeout")
)

// Start runs an image. The end of ctx ends the container. However it ends, everything is cleaned up, and /output and
// the complete evidence.json are in Settings.Output/ID when Wait returns. A *StartError reports that the image itself can't be run.
func (r Runner) Start(ctx context.Context, img Image, settings Settings) (_ *Sandbox, err error) {
	p, err := settings.parse()
	if err != nil {
		return nil, err
	}
	if err := p.keepsOf(img); err != nil {
		return nil, err
	}
	if r.Progress == nil {
		r.Progress = image.NoProgress
	}
	if r.CacheDir == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		r.CacheDir = filepath.Join(dir, "slimctl")
	}
	if r.CacheDir, err = filepath.Abs(r.CacheDir); err != nil {
		return nil, err
	}
	s := &Sandbox{runner: r, image: img, plan: p, logs: capture.Tail{Max: maxLogs}, done: make(chan struct{}), status: Status{ExitCode: -1, Reason: ReasonRunning}}
	if s.engine, err = r.engine(ctx, s); err != nil {
		return nil, err
	}
	if s.evident.Engine.Name != Runc || !r.Watch {
		s.executed.fail(errNotWatched)
		s.opened.fail(errNotObserved)
	}
	var left error
	if s.run, left, err = newRun(r.CacheDir, func(id, dir string) error { return s.sweep(ctx, id, dir) }); err != nil {
		return nil, err
	}
	if left != nil {
		s.addNote("what a killed process left is still there: " + left.Error())
	}
	s.ID = s.run.id
	ctx, s.stop = context.WithCancelCause(ctx)
	if err := s.startContainer(ctx); err != nil {
		s.finishRun(ctx, s.newEnding(context.WithoutCancel(ctx)), -1, err)
		return nil, s.err
	}
	if p.Timeout > 0 { // the container's time: fetching and unpacking don't count
		timer := time.AfterFunc(p.Timeout, func() { s.stop(errTimeout) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	_ = s.writeEvidence(nil) // again, with what the start found
	go s.supervise(ctx)
	return s, nil
}

// sweep ends and removes the remains of a killed process's run, and keeps its files.
func (s *Sandbox) sweep(ctx context.Context, id, dir string) error {
	work := s.newEnding(ctx)
	defer work.giveUp()
	return work.runStep(func(ctx context.Context) error {
		return errors.Join(s.rescue(ctx, id, dir), s.engine.sweep(ctx, id, dir))
	})
}

// startContainer does everything up to a running, reachable container.
func (s *Sandbox) startContainer(ctx context.Context) error {
	if err := s.chooseNetwork(); err != nil {
		return err
	}
	if err := errors.Join(s.describe(), s.bindPolicy()); err != nil {
		return err
	}
	if err := s.openJournal(); err != nil {
		return err
	}
	if err := errors.Join(s.openKeeps(), s.recordSpawn(), s.writeEvidence(nil)); err != nil {
		return err
	}
	if s.tethered { // before minutes go by until the container runs
		for _, pub := range s.plan.publish {
			l, err := net.Listen("tcp", pub.Host.String())
			if err != nil {
				return publishError(pub, err)
			}
			l.Close()
		}
	}
	conn, err := s.engine.start(ctx, s)
	if err != nil {
		return err
	}
	if conn != nil {
		if err := s.openTether(ctx, conn); err != nil {
			return err
		}
	}
	if s.runner.Strict && len(s.Evidence().NotApplied) > 0 {
		return fmt.Errorf("limits that can't be set here: %q", s.Evidence().NotApplied)
	}
	if len(s.ports) > 0 { // the engine did it itself
		return nil
	}
	open := new(forwarded)
	for _, pub := range s.plan.publish {
		f, err := newForward(pub, open, s.Dial)
		if err != nil {
			return publishError(pub, err)
		}
		s.ports = append(s.ports, f)
	}
	return nil
}

func publishError(p Publication, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("publish: %w; choose another port: -p 9000:%d", err, p.Port)
	}
	return fmt.Errorf("publish: %w", err)
}

// supervise waits for the container's end, or causes it, and cleans up.
func (s *Sandbox) supervise(ctx context.Context) {
	type exit struct {
		code int
		err  error
	}
	ended := make(chan exit, 1)
	go func() {
		code, err := s.engine.wait()
		ended <- exit{code, err}
	}()
	var e exit
	work := s.newEnding(context.WithoutCancel(ctx))
	select {
	case e = <-ended:
	case <-ctx.Done():
		if err := work.runStep(s.keepLogs); err != nil {
			s.addNote("the programs' logs: " + err.Error())
		}
		signal := "TERM"
		if c, err := s.image.ConfigFile(); err == nil && c.Config.StopSignal != "" {
			signal = c.Config.StopSignal
		}
		_ = work.runStep(func(ctx context.Context) error { return s.engine.signal(ctx, signal) }) // fails if it just ended by itself
		timer := time.NewTimer(cmp.Or(s.runner.StopGrace, stopGrace))
		select {
		case e = <-ended:
		case <-work.Done():
			e.code = -1
		case <-timer.C:
			_ = work.runStep(func(ctx context.Context) error { return s.engine.signal(ctx, "KILL") })
			select {
			case e = <-ended:
			case <-work.Done():
				e.code = -1
			case <-time.After(stopGrace):
				e = exit{-1, errors.New("the container can't be killed")}
			}
		}
		timer.Stop()
	}
	s.finishRun(ctx, work, e.code, e.err)
}

// ending is the context of the steps that end a container. It ends when the engine takes too long for one of them, so
// that the later ones fail at once.
type ending struct {
	context.Context //nolint:containedctx // it is one

	giveUp context.CancelFunc
	time   time.Duration
}

// newEnding returns an ending that ends with ctx, too. Call giveUp to release it.
func (s *Sandbox) newEnding(ctx context.Context) *ending {
	ctx, cancel := context.WithCancel(ctx)
	return &ending{ctx, cancel, cmp.Or(s.runner.answerTime, answerTime)}
}

// runStep runs a step, and ends e if it takes longer than e.time.
func (e *ending) runStep(do func(context.Context) error) error {
	timer := time.AfterFunc(e.time, e.giveUp)
	defer timer.Stop()
	return do(e)
}

// finishRun collects the kept files, cleans up and writes the evidence.
func (s *Sandbox) finishRun(ctx context.Context, work *ending, code int, cause error) {
	defer close(s.done)
	defer s.stop(errStopped)
	defer work.giveUp()
	if s.tether != nil {
		s.tether.Close()
		cause = errors.Join(cause, s.tether.Err())
	}
	for _, f := range s.ports {
		f.close()
	}
	reason := context.Cause(ctx)
	s.status = Status{ExitCode: code, TimedOut: reason == errTimeout} //nolint:errorlint // the cause is never wrapped
	_ = work.runStep(func(ctx context.Context) error {
		_, err := s.Memory(ctx)
		return err
	})
	s.status.OOMKilled, s.status.PIDsRefused = s.peak.OOMKills > 0, s.peak.PIDsRefused
	s.status.setReason(cause, reason != nil)
	err := errors.Join(cause, s.recordEnd())
	if work.Err() == nil && (s.kept || s.plan.Audit != "") { // also after an error, when it is needed most
		err = errors.Join(err, s.collect(work))
	}
	_ = s.writeEvidence(err) // in case this process is killed while it cleans up; finish writes it again
	removed, removeRun := work.runStep(s.engine.remove), s.run.remove
	if removed != nil && work.Err() != nil {
		removed = fmt.Errorf("%s didn't answer within %s, and container %s may still run: restart it; the next `slimctl run` saves the audit log and removes the container",
			s.evident.Engine.Name, work.time, s.run.name())
		removeRun = s.run.lock.Unlock // as a killed process leaves it
	}
	s.err = s.closeEvidence(errors.Join(err, s.recordCleanup(errors.Join(removed, removeRun()))))
}

// Wait waits until the container has ended and everything is cleaned up. The error reports failures of cleaning up or
// collecting; the status has the container's result. If ctx ends first, Wait returns without an effect on the
// container.
func (s *Sandbox) Wait(ctx context.Context) (Status, error) {
	select {
	case <-s.done:
		return s.status, s.err
	case <-ctx.Done():
		return Status{ExitCode: -1}, context.Cause(ctx)
	}
}

// Stop ends the container (its stop signal, and SIGKILL ten seconds later) and waits like Wait. It is idempotent, and
// may be called after the container's end.
func (s *Sandbox) Stop(ctx context.Context) (Status, error) {
	s.stop(errStopped)
	return s.Wait(ctx)
}

// ExecOptions configures Exec.
type ExecOptions struct {
	User string // like Settings.User; "" is the container's
}

// ExecResult is the result of a program of Exec, with the first 16 MiB of its output.
type ExecResult struct {
	Stdout, Stderr []byte
	ExitCode       int // 126: not executable; 127: missing (Docker 20.10 returns 126 for that, too)
	Truncated      bool
}

const maxExecOutput = 16 << 20

// Exec runs a program in the container and waits for it. The end of ctx kills the program.
func (s *Sandbox) Exec(ctx context.Context, argv []string, o ExecOptions) (ExecResult, error) {
	if len(argv) == 0 {
		return ExecResult{}, errors.New("exec: no program was given")
	}
	select {
	case <-s.done:
		return ExecResult{ExitCode: -1}, errors.New("exec: the container has ended")
	default:
	}
	if err := s.Record(Event{Event: EventExec, Command: argv}); err != nil {
		return ExecResult{ExitCode: -1}, err
	}
	out, err := &capture.Head{Max: maxExecOutput}, &capture.Head{Max: maxExecOutput}
	code, eerr := s.engine.exec(ctx, argv, o, out, err)
	if cause := context.Cause(ctx); cause != nil {
		eerr = cause
	}
	return ExecResult{Stdout: out.Bytes(), Stderr: err.Bytes(), ExitCode: code, Truncated: out.Truncated() || err.Truncated()}, eerr
}

// Logs returns the container's output, both streams in order of arrival; the last 4 MiB if there is more.
func (s *Sandbox) Logs() []byte { return s.logs.Bytes() }

// Process is one process of a container.
type Process struct {
	PID    int      `json:"pid"`    // on this machine
	Inside int      `json:"inside"` // in the container
	Parent int      `json:"parent"`
	UID    int      `json:"uid"`
	State  string   `json:"state"` // R, S, D, Z … as in ps(1)
	Name   string   `json:"name"`
	Args   []string `json:"args"`
	RSS    int64    `json:"rss"` // bytes
}

// Processes returns the processes of the container.
func (s *Sandbox) Processes(ctx context.Context) ([]Process, error) {
	pids, err := s.engine.pids(ctx)
	if err != nil {
		return nil, err
	}
	return processesOf(pids), nil
}

// Socket is a listening socket in a container.
type Socket struct {
	Network string         `json:"network"` // tcp, tcp6, udp, udp6
	Address netip.AddrPort `json:"address"`
	PID     int            `json:"pid"` // on this machine; 0 if unknown
}

// Sockets returns the listening sockets in the container's network.
func (s *Sandbox) Sockets(ctx context.Context) ([]Socket, error) {
	pids, err := s.engine.pids(ctx)
	if err != nil {
		return nil, err
	}
	return socketsOf(pids)
}

// Memory holds the counters of the container's cgroup, in bytes.
type Memory struct {
	Current  int64 `json:"current"` // includes page cache and tmpfs
	RSS      int64 `json:"rss"`
	Peak     int64 `json:"peak"`
	OOMKills int64 `json:"oom_kills"`
	// PIDsRefused is the number of processes refused by the limit; unknown with Docker.
	PIDsRefused int64 `json:"pids_refused"`
}

// Memory reads the current counters.
func (s *Sandbox) Memory(ctx context.Context) (Memory, error) {
	m, err := s.engine.memory(ctx)
	if err == nil {
		s.notePeak(m)
	}
	return m, err
}

func (s *Sandbox) notePeak(m Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peak.Peak, s.peak.OOMKills = max(s.peak.Peak, m.Peak, m.Current), max(s.peak.OOMKills, m.OOMKills)
	s.peak.PIDsRefused = max(s.peak.PIDsRefused, m.PIDsRefused)
}

// Published returns the addresses of this machine that are forwarded into the container, in the order of
// Settings.Publish, with the chosen ports.
func (s *Sandbox) Published() []Publication {
	var out []Publication
	for _, f := range s.ports {
		out = append(out, f.Publication)
	}
	return slices.Clip(out)
}

// Evidence returns the record of the run so far.
func (s *Sandbox) Evidence() Evidence {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.evident
	e.Events, e.NotApplied, e.Notes = slices.Clone(e.Events), slices.Clone(e.NotApplied), slices.Clone(e.Notes)
	return e
}
