//go:build linux

package process

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The time for a process to end by itself, the time to go on killing, and the interval between checks.
const (
	termGrace = time.Second
	killGrace = time.Second
	goneGrace = 5 * time.Second // on a busy machine a killed process waits for a processor to end on
	lookEvery = 5 * time.Millisecond

	execGrace = time.Second // for all processes of one search
	execEvery = 200 * time.Microsecond
)

// End ends every process of this user except ours whose environment contains all marks, each NAME=value: SIGTERM, and a
// second later SIGKILL for those that remain or appeared meanwhile. It returns the number of processes left after five
// more seconds: 0 unless one can't be killed or they multiply faster than they are killed. If a mark is not NAME=value,
// or there is none, End ends nothing.
//
// Marks find processes that neither a pid file nor the process tree names: a daemon that detached itself, two that were
// started at once, one killed during its start, and those of a killed predecessor.
func End(marks ...string) int {
	found := findMarked(marks)
	if len(found) == 0 {
		return 0
	}
	found.endAll(syscall.SIGTERM, termGrace)
	for deadline := time.Now().Add(goneGrace); ; {
		found = findMarked(marks)
		if len(found) == 0 || time.Now().After(deadline) {
			found.release()
			return len(found)
		}
		found.endAll(syscall.SIGKILL, time.Until(deadline))
	}
}

// Alive reports whether there is a process that End would end.
func Alive(marks ...string) bool {
	found := findMarked(marks)
	found.release()
	return len(found) > 0
}

// processes holds process handles, by pidfd where the kernel has it, so that a signal can't hit a successor with the
// same number.
type processes []*os.Process

// endAll signals all processes, waits until they have ended or the time is over, and releases them.
func (ps processes) endAll(sig os.Signal, within time.Duration) {
	for _, p := range ps {
		_ = p.Signal(sig) // fails if it has ended
	}
	deadline := time.Now().Add(within)
	for _, p := range ps {
		for !awaitEnded(p, time.Until(deadline)) && time.Now().Before(deadline) {
			time.Sleep(lookEvery)
		}
	}
	ps.release()
}

func (ps processes) release() {
	for _, p := range ps {
		_ = p.Release()
	}
}

// Ended reports whether a process has ended, also if nobody has reaped it yet.
func Ended(p *os.Process) bool { return awaitEnded(p, 0) }

// awaitEnded waits for a process to end; without a pidfd it checks only once.
func awaitEnded(p *os.Process, within time.Duration) bool {
	var n int
	err := p.WithHandle(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(within.Milliseconds())))
	})
	if err != nil {
		return isZombie(p.Pid) || p.Signal(syscall.Signal(0)) != nil
	}
	return n > 0
}

// isZombie reports whether a process has ended and is not reaped yet.
func isZombie(pid int) bool {
	stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, after, ok := bytes.Cut(stat, []byte(") "))
	return ok && after[0] == 'Z'
}

// isExecuting reports whether a process is in the middle of exec: it has memory, but no bounds of an environment yet
// (env_end of proc_pid_stat(5)). An empty environment has bounds; an ended process and a kernel thread have no memory.
func isExecuting(pid int) bool {
	stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from the third field on; the name before it may contain anything
	return len(fields) > 48 && string(fields[20]) != "0" && string(fields[48]) == "0"
}

// findMarked returns the processes with all the marks.
func findMarked(marks []string) processes {
	notMark := func(m string) bool { return strings.Index(m, "=") < 1 }
	if len(marks) == 0 || slices.ContainsFunc(marks, notMark) {
		return nil
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // a partial list is used as far as it goes
	e := environ{buf: make([]byte, 64<<10), patience: execGrace}
	var found processes
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() || !e.hasMarks(pid, marks) {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if !e.hasMarks(pid, marks) { // the handle is that of another process
			_ = p.Release()
			continue
		}
		found = append(found, p)
	}
	return found
}

// environ reads environments, one after the other.
type environ struct {
	buf      []byte
	patience time.Duration // remaining time for processes in exec
}

// hasMarks reports whether a process's environment contains all the marks. A process that has ended has none.
//
// During exec a process briefly has no environment, while the program that started it may go on and end. has repeats
// the check until patience is used up: an executable on a slow file system takes long.
func (e *environ) hasMarks(pid int, marks []string) bool {
	env := e.readEnviron(pid)
	for ; len(env) == 1 && e.patience > 0 && isExecuting(pid); e.patience -= execEvery {
		time.Sleep(execEvery)
		env = e.readEnviron(pid)
	}
	for _, m := range marks {
		if !bytes.Contains(env, []byte("\x00"+m+"\x00")) {
			return false
		}
	}
	return true
}

// readEnviron returns an environment, enclosed in and separated by NULs. It avoids os.File, whose set-up costs more
// than the read.
func (e *environ) readEnviron(pid int) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/environ", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n := 1 // buf[0] stays NUL
	for {
		if n == len(e.buf) {
			e.buf = append(e.buf, make([]byte, len(e.buf))...)
		}
		got, err := unix.Read(fd, e.buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return e.buf[:n]
		}
		n += got
	}
}
