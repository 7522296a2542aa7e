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

	"github.com/slimctl/slimctl/internal/capture"
)

// pipeDelay is the time for which a process that left the group may keep the pipes open after the program's end.
const pipeDelay = 500 * time.Millisecond

// killedCode is the exit code of a program that was killed.
const killedCode = 128 + int(unix.SIGKILL)

// Run starts a program with stdin from /dev/null, in a process group of its own and without the right to gain
// privileges (no_new_privs), and waits for its end. It kills the program when ctx ends or the output is too long. The
// group ends with the program; only a process with a session of its own (setsid), such as a daemon, survives.
//
// The error reports a program that could not be started. If ctx has ended before the start, there is no error and the
// Result is Killed.
func Run(ctx context.Context, c Command) (Result, error) {
	if !filepath.IsAbs(c.Path) {
		return Result{ExitCode: -1}, fmt.Errorf("program %q: not an absolute path", c.Path)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path, c.Argv...)
	cmd.Env = append([]string{}, c.Env...) // nil would mean our own
	cmd.Dir = c.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeDelay
	var cancelled atomic.Bool
	cmd.Cancel = func() error {
		cancelled.Store(true)
		return cmd.Process.Kill() // awaitEnd kills the rest of the group
	}
	stdout, stderr := &capture.Head{Max: int(c.MaxOutput), Over: cancel}, &capture.Head{Max: int(c.MaxOutput), Over: cancel}
	cmd.Stdout, cmd.Stderr = stdout, stderr

	if ctx.Err() != nil {
		return Result{ExitCode: -1, Killed: true}, nil
	}
	if err := children.startChild(cmd); err != nil {
		return Result{ExitCode: -1, Killed: ctx.Err() != nil}, dropIfOver(ctx, err)
	}
	defer children.forgetChild(cmd.Process.Pid)
	limits := setLimits(cmd.Process.Pid)
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
		Stdout:   stdout.Bytes(),
		Stderr:   stderr.Bytes(),
		ExitCode: exitCode(cmd.ProcessState),
		TooMuch:  stdout.Truncated() || stderr.Truncated(),
	}
	res.Killed = res.TooMuch || cancelled.Load() && res.ExitCode == killedCode
	return res, dropExitError(err)
}

// dropIfOver drops the error of a start that the end of ctx prevented.
func dropIfOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// dropExitError drops the errors that only report how a program ended.
func dropExitError(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// exitCode returns the program's exit code, or 128 plus the signal's number as in a shell.
func exitCode(st *os.ProcessState) int {
	if st == nil {
		return -1
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return st.ExitCode()
}

// awaitEnd waits for a program's end and kills the rest of its group. The group has the program's number, which isn't
// reused before it is reaped.
func awaitEnd(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
}
