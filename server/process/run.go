//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeDelay is how long a process that left the group may hold the pipes open
// after the program's end.
const pipeDelay = 500 * time.Millisecond

// killedCode is the exit code of a program that was killed.
const killedCode = 128 + int(unix.SIGKILL)

// Run starts a program with stdin from /dev/null, in a process group of its
// own and without the right to gain privileges (no_new_privs), and waits for
// its end. When ctx ends or it prints too much it is killed. Its group ends
// with it; only what made a session of its own (setsid), as a daemon does,
// lives on.
//
// The error is for a program that could not be started. A ctx that is over
// before the start is not an error but a Result that was Killed.
func Run(ctx context.Context, c Command) (Result, error) {
	if !filepath.IsAbs(c.Path) {
		return Result{ExitCode: -1}, fmt.Errorf("program %q: not an absolute path", c.Path)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path, c.Argv...)
	cmd.Env = append([]string{}, c.Env...) // nil would mean ours
	cmd.Dir = c.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeDelay
	var cancelled atomic.Bool
	cmd.Cancel = func() error {
		cancelled.Store(true)
		return cmd.Process.Kill() // awaitEnd does the rest of the group
	}
	stdout, stderr := &capped{room: c.MaxOutput, over: cancel}, &capped{room: c.MaxOutput, over: cancel}
	cmd.Stdout, cmd.Stderr = stdout, stderr

	if ctx.Err() != nil {
		return Result{ExitCode: -1, Killed: true}, nil
	}
	if err := children.start(cmd); err != nil {
		return Result{ExitCode: -1, Killed: ctx.Err() != nil}, unlessOver(ctx, err)
	}
	defer children.forget(cmd.Process.Pid)
	limits := limit(cmd.Process.Pid)
	if limits != nil {
		cancel()
	}
	awaitEnd(cmd.Process.Pid)
	err := cmd.Wait()
	if limits != nil {
		return Result{ExitCode: -1}, limits
	}
	if c.Daemon {
		limitOrphans()
	}
	res := Result{
		Stdout:   stdout.data,
		Stderr:   stderr.data,
		ExitCode: exitCode(cmd.ProcessState),
		TooMuch:  stdout.full || stderr.full,
	}
	res.Killed = res.TooMuch || cancelled.Load() && res.ExitCode == killedCode
	return res, unlessEnded(err)
}

// unlessOver drops the error of a start that ctx prevented.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// unlessEnded drops the errors that only say how a program ended.
func unlessEnded(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// exitCode is the program's, or 128 and the signal's number as a shell has it.
func exitCode(st *os.ProcessState) int {
	if st == nil {
		return -1
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return st.ExitCode()
}

// awaitEnd waits for a program's end and kills what is left of its group. The
// group's number is the program's, which is its own until it is reaped.
func awaitEnd(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// capped keeps the first bytes and calls over when there are more.
type capped struct {
	data []byte
	room int64 // for so many more
	full bool
	over func()
}

func (c *capped) Write(p []byte) (int, error) {
	keep := p
	if int64(len(p)) > c.room {
		keep = p[:c.room]
		c.full = true
		c.over()
	}
	c.data = append(c.data, keep...)
	c.room -= int64(len(keep))
	return len(p), nil
}
