//go:build linux

package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a program that runs until it is ended. Its pipes belong to us alone; closing one interrupts its readers and
// writers.
type Child struct {
	PID    int
	Stdin  *os.File
	Stdout *os.File
	Stderr *os.File

	mark string
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex // held while signalling and reaping
	reaped bool
}

// Start starts a program as Run does, but with pipes, without Run's limits, and in a process group of its own. It gets
// SIGTERM when this process dies.
func Start(p Program) (*Child, error) {
	if !filepath.IsAbs(p.Path) {
		return nil, fmt.Errorf("program %q: not an absolute path", p.Path)
	}
	c := &Child{mark: p.Mark, done: make(chan struct{})}
	theirs, err := c.openPipes()
	defer closeAll(theirs)
	if err != nil {
		c.ClosePipes()
		return nil, err
	}
	c.cmd = exec.Command(p.Path, p.Argv...)
	c.cmd.Env = append([]string{}, p.Env...) // nil would mean our own
	if p.Mark != "" {
		c.cmd.Env = append(c.cmd.Env, p.Mark)
	}
	c.cmd.Dir = p.Dir
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := startForGood(c.cmd); err != nil {
		c.ClosePipes()
		return nil, err
	}
	c.PID = c.cmd.Process.Pid
	go c.reap()
	return c, nil
}

// openPipes opens the three pipes and returns the program's ends.
func (c *Child) openPipes() (theirs []*os.File, err error) {
	for i, ours := range []**os.File{&c.Stdin, &c.Stdout, &c.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, fmt.Errorf("make a pipe: %w", err)
		}
		if i == 0 {
			r, w = w, r
		}
		*ours, theirs = r, append(theirs, w)
	}
	return theirs, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// ClosePipes closes our ends of the pipes, once nothing more is read.
func (c *Child) ClosePipes() {
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// startForGood starts cmd on a thread that lives as long as this process. The kernel treats the end of the starting
// thread as the parent's death (prctl(2), PR_SET_PDEATHSIG), and Go ends threads that a goroutine has locked.
func startForGood(cmd *exec.Cmd) error {
	starter.Do(func() {
		go func() {
			runtime.LockOSThread()
			for s := range starts {
				s.err <- children.startChild(s.cmd)
			}
		}()
	})
	err := make(chan error, 1)
	starts <- starting{cmd, err}
	return <-err
}

type starting struct {
	cmd *exec.Cmd
	err chan<- error
}

var (
	starter sync.Once
	starts  = make(chan starting)
)

// reap reaps the program, after its group was killed.
func (c *Child) reap() {
	for unix.Waitid(unix.P_PID, c.PID, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	c.mu.Lock()
	_ = unix.Kill(-c.PID, unix.SIGKILL)
	_ = c.cmd.Wait() // the result is in ProcessState
	c.reaped = true
	c.mu.Unlock()
	children.forgetChild(c.PID)
	close(c.done)
}

// Done returns a channel that is closed when the program has ended and was reaped. Its last output may still be in the
// pipes.
func (c *Child) Done() <-chan struct{} { return c.done }

// Ending returns how the program ended, for instance "exit status 3" or "signal: killed". It is empty before that.
func (c *Child) Ending() string {
	select {
	case <-c.done:
		return c.cmd.ProcessState.String()
	default:
		return ""
	}
}

// End ends the program and everything it has started: it closes its stdin, sends SIGTERM to its group after one grace
// and SIGKILL after another. Processes with the mark in their environment get SIGTERM and SIGKILL, too; descendants of
// the killed program without the mark get SIGKILL. It returns the number of remaining processes with the mark: 0 unless
// one can't be killed.
//
// When the last child and the last program of Run have ended, End also kills the orphans that this process has
// inherited (see Harden). So a process whose Run leaves daemons must not use it.
//
// A process that left the group, cleared its environment and lost its parent can't be attributed while other children
// run. It lives until the last child's End, or EndChildren.
func (c *Child) End(grace time.Duration) int {
	c.Stdin.Close()
	if !c.endsWithin(grace) {
		c.signal(unix.SIGTERM)
		if !c.endsWithin(grace) {
			c.kill()
		}
	}
	left := 0
	if c.mark != "" {
		left = End(c.mark)
	}
	children.endStrays()
	return left
}

// kill kills the program, its group and its descendants.
func (c *Child) kill() {
	// Collected before the first of them loses its parent; later ones have the mark or are strays.
	var held processes
	c.mu.Lock()
	if !c.reaped {
		held = appendDescendants(c.PID, nil)
		_ = unix.Kill(-c.PID, unix.SIGKILL)
	}
	c.mu.Unlock()
	held.endAll(unix.SIGKILL, killGrace)
	<-c.done // only the kernel can delay SIGKILL
}

// appendDescendants appends a process's children and their descendants to list.
func appendDescendants(pid int, list processes) processes {
	var held processes
	for _, child := range listChildren(pid) {
		if p, err := os.FindProcess(child); err == nil {
			held = append(held, p)
		}
	}
	still := listChildren(pid) // otherwise the handle is that of another process
	for _, p := range held {
		if slices.Contains(still, p.Pid) {
			list = appendDescendants(p.Pid, append(list, p))
		} else {
			_ = p.Release()
		}
	}
	return list
}

func (c *Child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(-c.PID, sig)
	}
}

func (c *Child) endsWithin(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-c.done:
		return true
	case <-late.C:
		return false
	}
}

// endStrays kills our orphans if no program runs that may have started them.
func (f *family) endStrays() {
	if !hardened.Load() {
		return
	}
	for deadline := time.Now().Add(killGrace); time.Now().Before(deadline); time.Sleep(lookEvery) {
		if f.killStrays() == 0 {
			return
		}
	}
}

// killStrays kills our orphans and returns their number.
func (f *family) killStrays() int {
	f.mu.Lock() // nothing is started or reaped meanwhile
	defer f.mu.Unlock()
	f.pidsMu.Lock()
	defer f.pidsMu.Unlock()
	if len(f.pids) > 0 {
		return 0
	}
	strays := listChildren(os.Getpid())
	for _, pid := range strays {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return len(strays)
}
