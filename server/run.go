package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// maxRaw bounds what is read from agent-browser; a program that prints more is
// ended.
const maxRaw = 8 << 20

// runResult is how one run of agent-browser ended.
type runResult struct {
	stdout, stderr []byte
	exitCode       int  // -1 when it did not start
	killed         bool // the context ended or it printed too much
	tooMuch        bool // it printed more than maxRaw
}

// run starts the program without a shell, with stdin from /dev/null, in its
// own process group, which is killed as a whole when ctx ends. The error is
// for a program that could not be started.
func run(ctx context.Context, program string, argv, env []string, dir string) (runResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, argv...)
	cmd.Env, cmd.Dir = env, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 500 * time.Millisecond // a grandchild may hold the pipes
	stdout, stderr := &capped{over: cancel}, &capped{over: cancel}
	cmd.Stdout, cmd.Stderr = stdout, stderr

	err := cmd.Run()
	res := runResult{
		stdout:   stdout.buf.Bytes(),
		stderr:   stderr.buf.Bytes(),
		tooMuch:  stdout.full || stderr.full,
		exitCode: exitCode(cmd.ProcessState),
		killed:   ctx.Err() != nil,
	}
	var exit *exec.ExitError
	if res.killed || errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) {
		return res, nil
	}
	return res, err
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

// capped keeps up to maxRaw bytes and calls over when there is more. (It must
// not embed the buffer: its ReadFrom would go round Write.)
type capped struct {
	buf  bytes.Buffer
	full bool
	over func()
}

func (c *capped) Write(p []byte) (int, error) {
	room := maxRaw - c.buf.Len()
	if len(p) > room {
		c.full = true
		c.over()
		c.buf.Write(p[:room])
	} else {
		c.buf.Write(p)
	}
	return len(p), nil
}
