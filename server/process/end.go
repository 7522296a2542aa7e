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

// How long a process may take to end by itself, how long we go on killing,
// and how often to look.
const (
	termGrace = time.Second
	killGrace = time.Second
	goneGrace = 5 * time.Second // for the kernel of a busy machine, where what is killed waits for a processor to end on
	lookEvery = 5 * time.Millisecond

	execGrace = time.Second // for all processes of one look
	execEvery = 200 * time.Microsecond
)

// End ends every process of this user but ours whose environment holds all
// the marks, each NAME=value: SIGTERM, and SIGKILL for those that are there a
// second later or came meanwhile. It tells how many are left after five more
// seconds: 0 unless a process can't be killed or starts others faster than
// they are killed. A mark that is not NAME=value, or none, ends nothing.
//
// Marks find what a pid file or the process tree does not: a daemon that
// detached itself, two that were started at once, one that was killed while
// it started, and those of a predecessor that was killed itself.
func End(marks ...string) int {
	found := find(marks)
	if len(found) == 0 {
		return 0
	}
	found.end(syscall.SIGTERM, termGrace)
	for deadline := time.Now().Add(goneGrace); ; {
		found = find(marks)
		if len(found) == 0 || time.Now().After(deadline) {
			found.release()
			return len(found)
		}
		found.end(syscall.SIGKILL, time.Until(deadline))
	}
}

// Alive reports whether a process lives that End would end.
func Alive(marks ...string) bool {
	found := find(marks)
	found.release()
	return len(found) > 0
}

// processes are held by pidfd where the kernel has it, so that a signal can't
// hit a successor with the same number.
type processes []*os.Process

// end signals all, waits until they have ended or time is over, and releases.
func (ps processes) end(sig os.Signal, within time.Duration) {
	for _, p := range ps {
		_ = p.Signal(sig) // fails when it has ended
	}
	deadline := time.Now().Add(within)
	for _, p := range ps {
		for !ended(p, time.Until(deadline)) && time.Now().Before(deadline) {
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

// Ended tells whether a process has ended, also when nobody has reaped it yet.
func Ended(p *os.Process) bool { return ended(p, 0) }

// ended waits for a process's end, or looks once where there is no pidfd.
func ended(p *os.Process, within time.Duration) bool {
	var n int
	err := p.WithHandle(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(within.Milliseconds())))
	})
	if err != nil {
		return zombie(p.Pid) || p.Signal(syscall.Signal(0)) != nil
	}
	return n > 0
}

// zombie tells whether a process has ended and is only not reaped yet.
func zombie(pid int) bool {
	stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, after, ok := bytes.Cut(stat, []byte(") "))
	return ok && after[0] == 'Z'
}

// executing reports whether a process has memory and no bounds of an environment yet (env_end of proc_pid_stat(5)); one
// whose environment is empty has bounds. A process that has ended and a kernel thread have no memory.
func executing(pid int) bool {
	stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from the third on; the name before may hold anything
	return len(fields) > 48 && string(fields[20]) != "0" && string(fields[48]) == "0"
}

// find gives the processes with all the marks.
func find(marks []string) processes {
	notMark := func(m string) bool { return strings.Index(m, "=") < 1 }
	if len(marks) == 0 || slices.ContainsFunc(marks, notMark) {
		return nil
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // what could be read is looked at
	e := environ{buf: make([]byte, 64<<10), patience: execGrace}
	var found processes
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() || !e.has(pid, marks) {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if !e.has(pid, marks) { // the one that is held is another
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
	patience time.Duration // left for processes that are being executed
}

// has tells whether a process's environment has all the marks. A process that
// has ended has none.
//
// A process that is being executed has no environment for a moment, during which the program that started it may go on
// and end. It is looked at again until patience is used up: an executable on a slow file system takes long.
func (e *environ) has(pid int, marks []string) bool {
	env := e.read(pid)
	for ; len(env) == 1 && e.patience > 0 && executing(pid); e.patience -= execEvery {
		time.Sleep(execEvery)
		env = e.read(pid)
	}
	for _, m := range marks {
		if !bytes.Contains(env, []byte("\x00"+m+"\x00")) {
			return false
		}
	}
	return true
}

// read gives an environment between NULs. It goes round os.File, whose set-up
// costs more than the reading.
func (e *environ) read(pid int) []byte {
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
