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

// endingTime is how long the programs may take to end when slimctl is gone.
const endingTime = 10 * time.Second

// hold starts supervisord and carries connections over standard input and output. It returns when supervisord has ended;
// when ctx or the input ends it has supervisord end. As this is the container's first process, nothing outlives it.
func (p plan) hold(ctx context.Context) error {
	l, err := p.listenTether("/")
	if err != nil {
		return err
	}
	in, err1 := pollable(0)
	out, err2 := pollable(1)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	pid, err := start(supervisor, p.env)
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
		return statusOf(code)
	case <-ctx.Done():
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	select {
	case code := <-ended:
		return statusOf(code)
	case <-time.After(endingTime):
		return errors.New("the programs did not end in time and are killed")
	}
}

func statusOf(code int) error {
	if code == 0 {
		return nil
	}
	return exitStatus(code)
}

// listenTether opens the socket for the egress proxy, as the service account, whose directory it is in.
func (p plan) listenTether(root string) (l net.Listener, err error) {
	err = as(p.service, p.self, func() error {
		path := filepath.Join(root, tetherSocket)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of an earlier run
			return err
		}
		l, err = net.Listen("unix", path)
		return err
	})
	return l, err
}

// pollable makes a file of a standard stream that can be closed while it is read.
func pollable(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("standard stream %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), fmt.Sprintf("fd%d", fd)), nil
}

// start starts a program that gains no rights by what it starts, as replace does. It reads nothing, and prints to standard
// error.
func start(argv, env []string) (pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	out := namedOutput(2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the flag is this thread's, which ends with the goroutine, and its child's
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

// reapUntil collects every process that ends, as the first process of a container must, until pid has, and gives its
// status.
func reapUntil(pid int) int {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1 // it isn't there: somebody else reaped it
		case got != pid:
		case ws.Signaled():
			return 128 + int(ws.Signal())
		case ws.Exited():
			return ws.ExitStatus()
		}
	}
}
