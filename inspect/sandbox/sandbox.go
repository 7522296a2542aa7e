package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/tether"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// Image is an image to run.
type Image struct {
	Reference string // as it was asked for
	v1.Image
}

// From takes the image for this machine's architecture.
func From(src *image.Source) (Image, error) {
	img, err := src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	return Image{Reference: src.Reference(), Image: img}, err
}

// Status is how a container ended.
type Status struct {
	ExitCode    int         `json:"exit_code"` // 128 + n after signal n; -1 when it is not known
	OOMKilled   bool        `json:"oom_killed"`
	TimedOut    bool        `json:"timed_out"`
	PIDsRefused int64       `json:"pids_refused"`   // processes that the limit refused; with Docker not known
	Reason      string      `json:"reason"`         // why it ended: exited, stopped, timeout, memory, pids or failed
	Code        policy.Code `json:"code,omitempty"` // -32007 after a timeout, -32006 after another limit
}

// Sandbox is an image that runs. Its methods may be called by several goroutines.
type Sandbox struct {
	ID string

	runner Runner
	image  Image
	plan   *plan
	run    *run
	engine engine
	logs   *ring
	ports  []*forward

	executed executions
	opened   openings

	tethered bool           // the container is connected by a tether alone
	tether   *tether.Tether // while it runs

	stop    context.CancelCauseFunc
	done    chan struct{} // closed when all is cleaned up
	status  Status
	err     error
	mu      sync.Mutex // guards what follows
	evident Evidence
	peak    Memory
	journal *audit.Log // events.jsonl; nil without artifacts
	kept    bool       // the directory of the artifacts was made
}

var (
	errStopped = errors.New("it was stopped")
	errTimeout = errors.New("it ran into its timeout")
)

// Start runs an image. When ctx ends, so does the container: however it ends, everything is cleaned up, and /output and
// evidence.json lie at Settings.Output/ID when Wait returns. An error is a *StartError when the image itself can't be run.
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
	s := &Sandbox{runner: r, image: img, plan: p, logs: &ring{}, done: make(chan struct{})}
	if s.engine, err = r.engine(ctx, s); err != nil {
		return nil, err
	}
	if s.evident.Engine.Name != Runc || !r.Watch {
		s.executed.fail(errNotWatched)
		s.opened.fail(errNotObserved)
	}
	var left error
	if s.run, left, err = newRun(r.CacheDir, s.sweep); err != nil {
		return nil, err
	}
	if left != nil {
		s.note("what a killed process left is still there: " + left.Error())
	}
	s.ID = s.run.id
	ctx, s.stop = context.WithCancelCause(ctx)
	if err := s.begin(ctx); err != nil {
		s.end(ctx, -1, err)
		return nil, s.err
	}
	if p.Timeout > 0 { // it is the container's: to fetch and unpack an image takes what it takes
		timer := time.AfterFunc(p.Timeout, func() { s.stop(errTimeout) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	go s.supervise(ctx)
	return s, nil
}

// sweep ends and removes what a killed process left of a run, and keeps its audit log.
func (s *Sandbox) sweep(id, dir string) error {
	return errors.Join(s.rescue(id, dir), s.engine.sweep(id, dir))
}

// begin does all up to a container that runs and can be reached.
func (s *Sandbox) begin(ctx context.Context) error {
	if err := s.chooseNetwork(); err != nil {
		return err
	}
	if err := errors.Join(s.describe(), s.bindPolicy()); err != nil {
		return err
	}
	if err := errors.Join(s.openJournal(), s.noteAuditDirs()); err != nil {
		return err
	}
	if err := s.recordSpawn(); err != nil {
		return err
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
	for _, pub := range s.plan.publish {
		f, err := newForward(pub, s.Dial)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		s.ports = append(s.ports, f)
	}
	return nil
}

// supervise waits for the container's end, or brings it about, and cleans up.
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
	select {
	case e = <-ended:
	case <-ctx.Done():
		work := context.WithoutCancel(ctx)
		s.status = Status{ExitCode: -1, TimedOut: context.Cause(ctx) == errTimeout} //nolint:errorlint // as in end
		s.status.judge(nil, true)
		_ = s.writeEvidence(nil) // for a client that kills this process before the container has stopped
		if err := s.keepLogs(work); err != nil {
			s.note("the programs' logs: " + err.Error())
		}
		signal := "TERM"
		if c, err := s.image.ConfigFile(); err == nil && c.Config.StopSignal != "" {
			signal = c.Config.StopSignal
		}
		_ = s.engine.signal(work, signal) // fails when it ends by itself just now
		timer := time.NewTimer(cmp.Or(s.runner.StopGrace, stopGrace))
		select {
		case e = <-ended:
		case <-timer.C:
			_ = s.engine.signal(work, "KILL")
			select {
			case e = <-ended:
			case <-time.After(stopGrace):
				e = exit{-1, errors.New("the container can't be killed")}
			}
		}
		timer.Stop()
	}
	s.end(ctx, e.code, e.err)
}

// end collects what is to stay, cleans up and writes the evidence.
func (s *Sandbox) end(ctx context.Context, code int, cause error) {
	defer close(s.done)
	defer s.stop(errStopped)
	work := context.WithoutCancel(ctx)
	if s.tether != nil {
		s.tether.Close()
		cause = errors.Join(cause, s.tether.Err())
	}
	for _, f := range s.ports {
		f.close()
	}
	reason := context.Cause(ctx)
	s.status = Status{ExitCode: code, TimedOut: reason == errTimeout} //nolint:errorlint // the cause is never wrapped
	if m, err := s.engine.memory(work); err == nil {
		s.notePeak(m)
	}
	s.status.OOMKilled, s.status.PIDsRefused = s.peak.OOMKills > 0, s.peak.PIDsRefused
	s.status.judge(cause, reason != nil)
	err := errors.Join(cause, s.recordEnd())
	if s.kept || s.plan.Audit != "" { // also when something went wrong: that is when it is asked for
		err = errors.Join(err, s.collect())
	}
	_ = s.writeEvidence(err) // for when this process is killed while it cleans up; finish writes it again
	removed := s.engine.remove(work)
	s.err = s.finish(errors.Join(err, s.recordCleanup(errors.Join(removed, s.run.remove()))))
}

// Wait waits until the container has ended and all is cleaned up. The error is for what could not be cleaned up or
// collected; how the container ended is in the status. When ctx ends first, Wait does, and nothing else.
func (s *Sandbox) Wait(ctx context.Context) (Status, error) {
	select {
	case <-s.done:
		return s.status, s.err
	case <-ctx.Done():
		return Status{ExitCode: -1}, context.Cause(ctx)
	}
}

// Stop ends the container (its stop signal, and SIGKILL ten seconds later) and waits as Wait does. It may be called
// again, and after the container's end.
func (s *Sandbox) Stop(ctx context.Context) (Status, error) {
	s.stop(errStopped)
	return s.Wait(ctx)
}

// ExecOptions are how Exec runs a program.
type ExecOptions struct {
	User string // as Settings.User has it; "" is the container's
}

// ExecResult is how a program ended that Exec ran. Of what it printed the first 16 MiB are kept.
type ExecResult struct {
	Stdout, Stderr []byte
	ExitCode       int // 126: it can't be run; 127: it isn't there (Docker 20.10 has 126 for that too)
	Truncated      bool
}

const maxExecOutput = 16 << 20

// Exec runs a program in the container and waits for it. When ctx ends the program is killed.
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
	out, err := &head{room: maxExecOutput}, &head{room: maxExecOutput}
	code, eerr := s.engine.exec(ctx, argv, o, out, err)
	if cause := context.Cause(ctx); cause != nil {
		eerr = cause
	}
	return ExecResult{Stdout: out.bytes(), Stderr: err.bytes(), ExitCode: code, Truncated: out.over() || err.over()}, eerr
}

// Logs is what the container has printed, both streams as they came; of much the last 4 MiB.
func (s *Sandbox) Logs() []byte { return s.logs.bytes() }

// Process is one process of a container.
type Process struct {
	PID    int      `json:"pid"`    // on this machine
	Inside int      `json:"inside"` // in the container
	Parent int      `json:"parent"`
	UID    int      `json:"uid"`
	State  string   `json:"state"` // R, S, D, Z … as ps(1) has it
	Name   string   `json:"name"`
	Args   []string `json:"args"`
	RSS    int64    `json:"rss"` // bytes
}

// Processes lists what runs in the container.
func (s *Sandbox) Processes(ctx context.Context) ([]Process, error) {
	pids, err := s.engine.pids(ctx)
	if err != nil {
		return nil, err
	}
	return processesOf(pids), nil
}

// Socket is one that listens in a container.
type Socket struct {
	Network string         `json:"network"` // tcp, tcp6, udp, udp6
	Address netip.AddrPort `json:"address"`
	PID     int            `json:"pid"` // on this machine; 0 when it isn't known
}

// Sockets lists what listens in the container's network.
func (s *Sandbox) Sockets(ctx context.Context) ([]Socket, error) {
	pids, err := s.engine.pids(ctx)
	if err != nil {
		return nil, err
	}
	return socketsOf(pids)
}

// Memory is what the container's cgroup counts, in bytes.
type Memory struct {
	Current  int64 `json:"current"` // with its files in the page cache and on tmpfs
	RSS      int64 `json:"rss"`
	Peak     int64 `json:"peak"`
	OOMKills int64 `json:"oom_kills"`
	// PIDsRefused counts processes that the limit refused; Docker doesn't tell.
	PIDsRefused int64 `json:"pids_refused"`
}

// Memory asks for it now.
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

// Published are the addresses of this machine that lead into the container, in the order of Settings.Publish, with the
// ports that were found free.
func (s *Sandbox) Published() []Publication {
	var out []Publication
	for _, f := range s.ports {
		out = append(out, f.Publication)
	}
	return slices.Clip(out)
}

// Evidence is what is known of the run by now.
func (s *Sandbox) Evidence() Evidence {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.evident
	e.Events, e.NotApplied, e.Notes = slices.Clone(e.Events), slices.Clone(e.NotApplied), slices.Clone(e.Notes)
	return e
}
