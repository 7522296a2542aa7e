package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/tether"
)

// endingTime is the time for the programs to end after slimctl is gone.
const endingTime = 10 * time.Second

// superviseTethered starts supervisord and carries connections over standard input and output. It returns when
// supervisord has ended. The end of ctx or of the input makes it end supervisord. As this is the container's first
// process, nothing outlives it.
func (p plan) superviseTethered(ctx context.Context) error {
	l, err := p.listenTether("/")
	if err != nil {
		return err
	}
	in, err1 := openPollable(0)
	out, err2 := openPollable(1)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	pid, err := startUnprivileged(supervisor, p.env)
	if err != nil {
		return err
	}
	ended := make(chan int, 1)
	go func() { ended <- reapUntil(pid) }()
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	go func() {
		defer cut()
		if err := tether.Hold(ctx, in, out, publicPort, l); ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "browser-shell init: slimctl is gone:", err)
		}
	}()
	select {
	case code := <-ended:
		return convertStatus(code)
	case <-ctx.Done():
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	select {
	case code := <-ended:
		return convertStatus(code)
	case <-time.After(endingTime):
		return fmt.Errorf("the programs did not end within %s and are killed", endingTime)
	}
}

func convertStatus(code int) error {
	if code == 0 {
		return nil
	}
	return exitStatus{code, fmt.Sprintf("supervisord ended with status %d", code)}
}

// listenTether opens the socket for the egress proxy as the service account, which owns its directory.
func (p plan) listenTether(root string) (l net.Listener, err error) {
	err = doAs(p.service, p.self, func() error {
		path := filepath.Join(root, tetherSocket)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // left by an earlier run
			return err
		}
		l, err = net.Listen("unix", path)
		return err
	})
	return l, err
}

// openPollable returns a file for a standard stream; unlike os.Stdin it can be closed during a read.
func openPollable(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("standard stream %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), fmt.Sprintf("fd%d", fd)), nil
}

// startUnprivileged starts a program that can't gain rights, as replace does. Its standard input is empty; its output
// goes to standard error.
func startUnprivileged(argv, env []string) (pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	out := openNamedOutput(2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the flag belongs to this thread, which ends with the goroutine, and to its child
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			pid, err = syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: env, Files: []uintptr{null.Fd(), uintptr(out), 2}})
		}
	}()
	<-done
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return pid, nil
}

// reapUntil reaps every process that ends, as the first process of a container must, until pid ends. It returns the
// exit status of pid.
func reapUntil(pid int) int {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1 // not our child: somebody else reaped it
		case got != pid:
		case ws.Signaled():
			return 128 + int(ws.Signal())
		case ws.Exited():
			return ws.ExitStatus()
		}
	}
}
