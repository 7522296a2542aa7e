//go:build unix

package need

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Start is cmd.Start for a program that must not outlive the test. Its process group is killed at the end of the test,
// unless cmd has been waited for. If this process ends first, by go test's -timeout, by Ctrl-C or killed, the program
// gets SIGTERM (on Linux).
func Start(t testing.TB, cmd *exec.Cmd) error {
	over := make(chan struct{})
	if err := start(cmd, over); err != nil {
		return err
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			Kill(cmd)
		}
		close(over)
	})
	return nil
}

// StartShared is Start for a program that several tests use. It may live as long as this process.
func StartShared(cmd *exec.Cmd) error { return start(cmd, nil) }

// Kill kills the process group of a started program and waits for the program's end.
func Kill(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	cmd.WaitDelay = time.Second                         // for programs that have left the group and hold its output
	_ = cmd.Wait()
}

// start keeps a thread until over is closed: the kernel takes the end of the thread that started cmd for the end of this
// process (prctl(2), PR_SET_PDEATHSIG).
func start(cmd *exec.Cmd, over <-chan struct{}) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if !cmd.SysProcAttr.Setsid { // which makes a group, too
		cmd.SysProcAttr.Setpgid = true
	}
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-over
		}
	}()
	return <-started
}
