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

// Child is a program that stays until it is ended. Its pipes are ours alone;
// closing one interrupts whoever reads or writes it.
type Child struct {
	PID    int
	Stdin  *os.File
	Stdout *os.File
	Stderr *os.File

	mark string
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex // held while a signal is sent and while it is reaped
	reaped bool
}

// Start starts a program as Run does, but with pipes and none of Run's limits,
// in a process group of its own. It gets SIGTERM when this process dies.
func Start(p Program) (*Child, error) {
	if !filepath.IsAbs(p.Path) {
		return nil, fmt.Errorf("program %q: not an absolute path", p.Path)
	}
	c := &Child{mark: p.Mark, done: make(chan struct{})}
	theirs, err := c.pipes()
	defer closeAll(theirs)
	if err != nil {
		c.ClosePipes()
		return nil, err
	}
	c.cmd = exec.Command(p.Path, p.Argv...)
	c.cmd.Env = append([]string{}, p.Env...) // nil would mean ours
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
	go c.wait()
	return c, nil
}

// pipes opens the three and gives the program's ends.
func (c *Child) pipes() (theirs []*os.File, err error) {
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

// ClosePipes closes our ends, for when nothing more is read.
func (c *Child) ClosePipes() {
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// startForGood starts cmd on a thread that lives as long as this process: the
// kernel takes the end of the starting thread for the parent's death (prctl(2),
// PR_SET_PDEATHSIG), and Go ends threads that a goroutine has locked.
func startForGood(cmd *exec.Cmd) error {
	starter.Do(func() {
		go func() {
			runtime.LockOSThread()
			for s := range starts {
				s.err <- children.start(s.cmd)
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

// wait reaps the program, after its group was killed.
func (c *Child) wait() {
	for unix.Waitid(unix.P_PID, c.PID, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	c.mu.Lock()
	_ = unix.Kill(-c.PID, unix.SIGKILL)
	_ = c.cmd.Wait() // how it ended is in ProcessState
	c.reaped = true
	c.mu.Unlock()
	children.forget(c.PID)
	close(c.done)
}

// Done is closed when the program has ended and was reaped. What it printed
// last may still be in the pipes.
func (c *Child) Done() <-chan struct{} { return c.done }

// Ending says how the program ended, once it has: "exit status 3" or
// "signal: killed".
func (c *Child) Ending() string {
	select {
	case <-c.done:
		return c.cmd.ProcessState.String()
	default:
		return ""
	}
}

// End ends the program and all that it has started: the end of its stdin,
// SIGTERM to its group a grace later, SIGKILL another grace later; then, with
// SIGTERM and SIGKILL too, what has the mark in its environment, and with
// SIGKILL what has not but descended from the program when it was killed. It
// tells how many with the mark are left: 0 unless one can't be killed.
//
// Where the last child and the last program of Run have ended, End also kills
// what was handed to this process as an orphan (see Harden). So a process that
// lets Run leave daemons must not use it.
//
// By nothing can be told whose it is what left the group, cleared its
// environment and lost its parent while other children run. It lives until the
// last one's End or EndChildren.
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
	// Held before the first of them loses its parent; those that come
	// meanwhile have the mark or are strays.
	var held processes
	c.mu.Lock()
	if !c.reaped {
		held = descendants(c.PID, nil)
		_ = unix.Kill(-c.PID, unix.SIGKILL)
	}
	c.mu.Unlock()
	held.end(unix.SIGKILL, killGrace)
	<-c.done // nothing refuses SIGKILL but the kernel itself
}

// descendants adds to list a process's children, theirs and so on.
func descendants(pid int, list processes) processes {
	var held processes
	for _, child := range childrenOf(pid) {
		if p, err := os.FindProcess(child); err == nil {
			held = append(held, p)
		}
	}
	still := childrenOf(pid) // or the one that is held is another
	for _, p := range held {
		if slices.Contains(still, p.Pid) {
			list = descendants(p.Pid, append(list, p))
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

// killStrays tells how many it found.
func (f *family) killStrays() int {
	f.mu.Lock() // nothing is started or reaped meanwhile
	defer f.mu.Unlock()
	f.pidsMu.Lock()
	defer f.pidsMu.Unlock()
	if len(f.pids) > 0 {
		return 0
	}
	strays := childrenOf(os.Getpid())
	for _, pid := range strays {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return len(strays)
}
