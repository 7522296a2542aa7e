//go:build linux

package process

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Harden prepares this process, once, at the start of main:
//
//   - what it writes is for this user only (umask 077);
//   - it leaves no core file, and no other process of this user may trace it
//     or read its memory and environment (PR_SET_DUMPABLE, prctl(2));
//   - processes that lost their parent become its children
//     (PR_SET_CHILD_SUBREAPER), and it reaps them when they end.
//
// From then on every process must be started by Run: another child's end
// would be taken for an orphan's and its exit code be lost.
func Harden() error {
	unix.Umask(0o077)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("set the core limit: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid tracing: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	// The os package tries pidfds out once, with a child that must not be
	// reaped under its hands.
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
	if hardened.CompareAndSwap(false, true) {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, unix.SIGCHLD)
		go children.reap(ended)
	}
	return nil
}

var hardened atomic.Bool

// EndChildren kills what this process and its programs started and did not
// end, whatever environment it has, and tells how many are left after a
// second. It is for the very end, when nothing runs any more; without Harden
// it does nothing.
func EndChildren() int {
	if !hardened.Load() {
		return 0
	}
	for deadline := time.Now().Add(killGrace); ; time.Sleep(lookEvery) {
		// Children of those that are killed become ours in turn.
		left := childrenOf(os.Getpid())
		if len(left) == 0 || time.Now().After(deadline) {
			return len(left)
		}
		children.mu.Lock() // none is reaped meanwhile: a number stays its own
		for _, pid := range childrenOf(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		children.mu.Unlock()
	}
}

// children are the programs that Run waits for.
var children = &family{pids: map[int]bool{}, kick: make(chan struct{}, 1)}

// family keeps apart the children that someone waits for and the orphans.
type family struct {
	// mu is held for reading from before a child exists until pids has it,
	// and for writing while orphans are reaped.
	mu sync.RWMutex

	pidsMu sync.Mutex
	pids   map[int]bool

	kick chan struct{} // look again
}

// start starts cmd as one of the family. no_new_privs is a thread's and what
// it starts inherits it; the thread keeps it, and we never want any.
func (f *family) start(cmd *exec.Cmd) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	f.pidsMu.Lock()
	f.pids[cmd.Process.Pid] = true
	f.pidsMu.Unlock()
	return nil
}

// forget takes out a child that was waited for. Its number may be an orphan's
// by now.
func (f *family) forget(pid int) {
	f.pidsMu.Lock()
	delete(f.pids, pid)
	f.pidsMu.Unlock()
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *family) has(pid int) bool {
	f.pidsMu.Lock()
	defer f.pidsMu.Unlock()
	return f.pids[pid]
}

func (f *family) reap(ended <-chan os.Signal) {
	for {
		select {
		case <-ended:
		case <-f.kick:
		}
		f.reapOrphans()
	}
}

// reapOrphans reaps until there is none, or a child of the family is first in
// line: then forget has it called again.
func (f *family) reapOrphans() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		pid := firstEnded()
		if pid == 0 || f.has(pid) {
			return
		}
		if _, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err != nil && err != syscall.EINTR {
			return
		}
	}
}

// firstEnded gives a child that has ended, without reaping it, or 0.
func firstEnded() int {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return 0
	}
	// si_pid is the first of the fields that x/sys leaves unnamed: after three
	// ints and, on 64 bits, padding (siginfo in linux/siginfo.h).
	const offset = 12 + unsafe.Sizeof(uintptr(0)) - 4
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset))) //nolint:gosec // x/sys has no name for it
}
