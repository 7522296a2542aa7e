//go:build linux

package process

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Harden prepares this process, once, at the start of main:
//
//   - its files are for this user only (umask 077);
//   - it leaves no core file, and no other process of this user can trace it
//     or read its memory and environment (PR_SET_DUMPABLE, prctl(2));
//   - processes that lost their parent become its children
//     (PR_SET_CHILD_SUBREAPER), and it reaps them when they end.
//
// From then on every process must be started by Run or Start: another child
// would be reaped like an orphan, and its exit code lost.
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
	// The os package tests pidfds once, with a child that must not be reaped by others.
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

// niceness is what LowerPriority sets: a third of the processor time of a program with the usual 0, if both want it.
const niceness = 5

// LowerPriority makes this process, and those that it starts, get less processor time than others (setpriority(2)). What
// can't be changed stays: it is no boundary.
func LowerPriority() {
	threads, _ := os.ReadDir("/proc/self/task") // a new thread has its creator's priority
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, niceness)
		}
	}
}

// EndChildren kills the remaining processes that this process and its programs have started, whatever their
// environment, and returns the number left after a second. Call it last, when nothing runs any more. Without Harden it
// does nothing.
func EndChildren() int {
	if !hardened.Load() {
		return 0
	}
	for deadline := time.Now().Add(killGrace); ; time.Sleep(lookEvery) {
		// Children of killed processes become ours in turn.
		left := listChildren(os.Getpid())
		if len(left) == 0 || time.Now().After(deadline) {
			return len(left)
		}
		children.mu.Lock() // nothing is reaped meanwhile, so numbers stay valid
		for _, pid := range listChildren(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		children.mu.Unlock()
	}
}

// children holds the programs for which Run waits.
var children = &family{pids: map[int]bool{}, kick: make(chan struct{}, 1)}

// family separates children with a waiting caller from orphans.
type family struct {
	// mu is read-locked from before a child exists until pids contains it, and locked while orphans are reaped.
	mu sync.RWMutex

	pidsMu sync.Mutex
	pids   map[int]bool

	kick chan struct{} // requests another round of reaping
}

// startChild starts cmd as one of the family. It sets no_new_privs on the thread, which the child inherits; the thread
// keeps it.
func (f *family) startChild(cmd *exec.Cmd) error {
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

// forgetChild removes a child that was waited for. Its number may belong to an orphan by now.
func (f *family) forgetChild(pid int) {
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

// reapOrphans reaps until there is none, or until a child of the family is first in line: forget triggers it again
// then.
func (f *family) reapOrphans() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		pid := findEnded()
		if pid == 0 || f.has(pid) {
			return
		}
		if _, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err != nil && err != syscall.EINTR {
			return
		}
	}
}

// findEnded returns a child that has ended, without reaping it, or 0.
func findEnded() int {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return 0
	}
	// si_pid is the first of the fields without a name in x/sys: after three ints and, on 64 bits, padding (siginfo in
	// linux/siginfo.h).
	const offset = 12 + unsafe.Sizeof(uintptr(0)) - 4
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset))) //nolint:gosec // x/sys has no name for it
}
