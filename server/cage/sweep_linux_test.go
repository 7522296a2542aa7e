package cage

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

// TestSweep makes every system call, with arguments that point at a victim outside of the cage: a process of the same
// account and its files, sockets, queues and semaphores. Nothing of it changes. The same calls change all of it without
// a cage, or the test would show nothing.
//
// Shared memory of System V is no victim: X's MIT-SHM needs it, and nothing else in the image has any. Files that the
// program may read belong to another account, as in the image.
func TestSweep(t *testing.T) {
	needWhole(t)
	for _, tt := range []struct {
		name, role string
		changes    bool
	}{{"caged", "supervisor", false}, {"free", "inside", true}} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.changes && os.Geteuid() != 0 {
				need.Missing(t, "outside of a cage the sweep wants root, and becomes an account that has no other processes")
			}
			if os.Geteuid() == 0 { // what the calls make goes with the test
				runtime.LockOSThread()
				if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
					t.Fatal(err)
				}
			}
			l := newLab(t)
			v := startVictim(t, l)
			before := v.look(t)
			cmd := l.command(t, tt.role, "sweep")
			cmd.Env = append(cmd.Env, "CAGE_WHOLE=1", "CAGE_VICTIM="+v.about)
			if tt.changes {
				cmd.Env = append(cmd.Env, "CAGE_SPARE=yes")
			}
			cmd.SysProcAttr.Setsid = true
			out, err := cmd.Output()
			var got map[string]string
			if err != nil || json.Unmarshal(out, &got) != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Log(got["sweep"])
			made, listens := 0, 0
			if _, err := fmt.Sscanf(got["sweep"], "%d calls made, %d listen", &made, &listens); err != nil || made < 5000 {
				t.Errorf("%v: too few calls: %s", err, got["sweep"])
			}
			var changed []string
			after := v.look(t)
			after["listeners"], before["listeners"] = strconv.Itoa(listens), "0"
			after["connections"], before["connections"] = strconv.FormatInt(l.other.Load(), 10), "0"
			for key, was := range before {
				if after[key] != was {
					changed = append(changed, key)
					t.Logf("%s: %s, was %s", key, after[key], was)
				}
			}
			for key := range after {
				if _, ok := before[key]; !ok {
					changed = append(changed, key)
				}
			}
			slices.Sort(changed)
			if !tt.changes && changed != nil {
				t.Errorf("changed from inside the cage: %v", changed)
			}
			for _, key := range []string{"process", "memory", "signals", "file outside/file", "file outside/dir", "datagrams",
				"semaphore", "queue", "POSIX queue", "listeners"} {
				if tt.changes && !slices.Contains(changed, key) {
					t.Errorf("%s can't be changed without a cage either", key)
				}
			}
		})
	}
}

// command returns the command that makes attempts in the given role, as an account without rights where we may.
func (l *lab) command(t testing.TB, role string, names ...string) *exec.Cmd {
	t.Helper()
	list, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(l.dir, "cage.test"))
	cmd.Env = append(slices.Clip(l.env), "CAGE_ROLE="+role, "CAGE_TRY="+string(list))
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
	}
	return cmd
}

// victim is what the calls of a sweep point at.
type victim struct {
	about string // JSON of victimNumbers
	ask   io.Writer
	said  *bufio.Reader
	dir   string
}

// victimNumbers are by what others name the victim's things.
type victimNumbers struct {
	PID, Queue, Semaphore int
	Memory                uintptr
	POSIXQueue            string
}

func startVictim(t *testing.T, l *lab) *victim {
	t.Helper()
	dir := filepath.Join(l.dir, "outside")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := l.command(t, "victim")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // it may have been killed
	})
	v := &victim{ask: in, said: bufio.NewReader(out), dir: dir}
	if v.about, err1 = v.said.ReadString('\n'); err1 != nil {
		t.Fatal(err1)
	}
	t.Cleanup(func() { removeQueues(v.about) })
	return v
}

// look returns all of the victim's state.
func (v *victim) look(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{"process": "gone"}
	if _, err := io.WriteString(v.ask, "\n"); err == nil {
		if line, err := v.said.ReadBytes('\n'); err == nil {
			if err := json.Unmarshal(line, &state); err != nil {
				t.Fatal(err)
			}
		}
	}
	var n victimNumbers
	if err := json.Unmarshal([]byte(v.about), &n); err != nil {
		t.Fatal(err)
	}
	maps.Copy(state, lookAtQueues(n))
	err := filepath.WalkDir(v.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		text, _ := os.ReadFile(path) // some are no files
		what := fmt.Sprintf("%o %d:%d %d bytes, changed %v %q", st.Mode, st.Uid, st.Gid, st.Size, st.Ctim, text)
		state["file "+strings.TrimPrefix(path, filepath.Dir(v.dir)+"/")] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

const (
	ipcCreate, ipcNoWait = 0o1000, 0o4000
	semSetValue          = 16
	semGetValue          = 12
)

// memory is what the victim holds.
var memory = []byte("its memory")

// beVictim is the program that a sweep aims at. It says what its things are called, and their state when asked.
func beVictim() error {
	runtime.LockOSThread()
	n := victimNumbers{PID: os.Getpid(), POSIXQueue: "cage-" + strconv.Itoa(os.Getpid())}
	n.Memory = uintptr(unsafe.Pointer(&memory[0]))
	q, _, e1 := unix.Syscall(unix.SYS_MSGGET, 0, ipcCreate|0o666, 0)
	s, _, e2 := unix.Syscall(unix.SYS_SEMGET, 0, 1, ipcCreate|0o666)
	name := append([]byte(n.POSIXQueue), 0)
	_, _, e3 := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o666, 0, 0, 0)
	if e1 != 0 || e2 != 0 || e3 != 0 {
		return fmt.Errorf("queue %w, semaphore %w, POSIX queue %w", e1, e2, e3)
	}
	n.Queue, n.Semaphore = int(q), int(s)
	datagrams, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = unix.Bind(datagrams, &unix.SockaddrUnix{Name: place("outside/datagrams")})
	}
	if err == nil {
		err = os.WriteFile(place("outside/file"), []byte("x"), 0o666)
	}
	if err == nil {
		err = os.Mkdir(place("outside/dir"), 0o777)
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(n); err != nil {
		return err
	}
	got, signalled := 0, make(chan os.Signal, 1000)
	signal.Notify(signalled)  // of all that can be caught
	signal.Reset(unix.SIGURG) // the runtime's own
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		for buf := make([]byte, 100); ; got++ {
			if _, err := unix.Read(datagrams, buf); err != nil {
				break
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(map[string]string{
			"process": lookAtProcess(), "memory": string(memory), "datagrams": strconv.Itoa(got),
			"signals": strconv.Itoa(len(signalled)),
		}); err != nil {
			return err
		}
	}
	return nil
}

// lookAtProcess returns what the calling process is limited to, and how it is scheduled.
func lookAtProcess() string {
	var out strings.Builder
	for what := range unix.RLIMIT_RTTIME + 1 {
		var limit unix.Rlimit
		_ = unix.Getrlimit(what, &limit)
		fmt.Fprint(&out, limit, " ")
	}
	nice, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	attr, _ := unix.SchedGetAttr(0, 0)
	var cpus unix.CPUSet
	_ = unix.SchedGetaffinity(0, &cpus)
	io, _, _ := unix.RawSyscall(unix.SYS_IOPRIO_GET, ioprioProcess, 0, 0)
	session, _ := unix.Getsid(0)
	fmt.Fprint(&out, nice, *attr, cpus.Count(), io, unix.Getpgrp(), session)
	return out.String()
}

func lookAtQueues(n victimNumbers) map[string]string {
	value, _, e := unix.Syscall(unix.SYS_SEMCTL, uintptr(n.Semaphore), 0, semGetValue)
	var q [256]byte
	_, _, e2 := unix.Syscall(unix.SYS_MSGCTL, uintptr(n.Queue), unix.IPC_STAT, uintptr(unsafe.Pointer(&q)))
	name := append([]byte(n.POSIXQueue), 0)
	fd, _, e3 := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_RDONLY, 0, 0, 0, 0)
	if e3 == 0 {
		unix.Close(int(fd))
	}
	return map[string]string{
		"semaphore": fmt.Sprint(value, e), "queue": fmt.Sprintf("%x %v", q, e2), "POSIX queue": fmt.Sprint(e3),
	}
}

func removeQueues(about string) {
	var n victimNumbers
	_ = json.Unmarshal([]byte(about), &n) // it was read before
	name := append([]byte(n.POSIXQueue), 0)
	_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])), 0, 0) // they may be gone
	_, _, _ = unix.Syscall(unix.SYS_MSGCTL, uintptr(n.Queue), unix.IPC_RMID, 0)
	_, _, _ = unix.Syscall(unix.SYS_SEMCTL, uintptr(n.Semaphore), 0, unix.IPC_RMID)
}

// sweepCalls is more than there are: 470 in Linux 6.18.
const sweepCalls = 512

// blockTime ends a call that waits for something.
const blockTime = 200 * time.Millisecond

// waits reports whether all threads of a process sleep: the machine may only be slow.
func waits(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is good
	return !slices.ContainsFunc(files, func(file string) bool {
		text, _ := os.ReadFile(file) // it may have ended
		return bytes.Contains(text, []byte(") R "))
	})
}

// sweep makes all calls, in one worker after the other, since many of them end their process.
func sweep() string {
	made, restarts, listens := 0, 0, 0
	for next := 0; ; restarts++ {
		began := next
		worker := exec.Command("/proc/self/exe")
		worker.Env = append(os.Environ(), "CAGE_ROLE=worker", "CAGE_FROM="+strconv.Itoa(next))
		worker.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it signals its group
		out, err := worker.StdoutPipe()
		if err == nil {
			err = worker.Start()
		}
		if err != nil {
			return err.Error()
		}
		steps := make(chan string)
		go func() {
			defer close(steps)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				steps <- lines.Text()
			}
		}()
		wait, patience := time.NewTimer(time.Minute), 100 // for its start
	worker:
		for {
			select {
			case step, ok := <-steps:
				if !ok {
					break worker
				}
				if step == "listens" {
					listens++
				} else if n, err := strconv.Atoi(step); err == nil && n >= next {
					next = n + 1
					made++
				}
				wait.Reset(blockTime)
				patience = 100
			case <-wait.C:
				if patience--; patience > 0 && !waits(worker.Process.Pid) {
					wait.Reset(blockTime)
					continue
				}
				_ = worker.Process.Kill() // it may have ended
				wait.Reset(time.Minute)
			}
		}
		_ = worker.Process.Kill()
		_ = worker.Wait()
		if next == began {
			next++ // it did not come so far
		}
		if next >= sweepCalls*len(aims(victimNumbers{}, nil)) {
			return fmt.Sprintf("%d calls made, %d listen; %d workers", made, listens, restarts+1)
		}
	}
}

// kept holds what aims point to.
var kept [][]uintptr

// aims returns the arguments that each call gets: what is in some call a process, a path or another thing of the
// victim. ours are descriptors of the worker.
func aims(v victimNumbers, ours map[string]int) [][6]uintptr {
	pid, fd := uintptr(v.PID), func(name string) uintptr { return uintptr(ours[name]) }
	words := func(w ...uintptr) uintptr {
		kept = append(kept, append(w, make([]uintptr, 64)...))
		return uintptr(unsafe.Pointer(&kept[len(kept)-1][0]))
	}
	text := func(s string) uintptr {
		at := words()
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&kept[len(kept)-1][0])), 500), s)
		return at
	}
	file, dir, fresh := text(place("outside/file")), text(place("outside/dir")), text(place("outside/new"))
	to, toLen := text("\x01\x00"+place("outside/datagrams")), unsafe.Sizeof(unix.RawSockaddrUnix{}) // AF_UNIX
	here := ^uintptr(99)                                                                            // AT_FDCWD
	zeros, ones, five := words(), words(^uintptr(0)), words(5, 5)
	local := words(words(0x5858585858585858), 8)
	remote := words(v.Memory, 8)
	message := words(to, toLen, local, 1)
	idle := words(56|unix.SCHED_IDLE<<32, 0, 0) // struct sched_attr
	best := uintptr(2<<13 | 7)                  // IOPRIO_CLASS_BE, the lowest
	queue, semaphore, name := uintptr(v.Queue), uintptr(v.Semaphore), text(v.POSIXQueue)
	owner := uintptr(os.Getuid())
	out := [][6]uintptr{
		{}, {zeros, zeros, zeros, zeros}, {1, 1, 1, 1},
		// Processes.
		{pid}, {pid, 0, ones, zeros}, {pid, 8, words(1)}, {pid, unix.RLIMIT_NOFILE, five}, {pid, unix.RLIMIT_FSIZE, five},
		{pid, unix.SCHED_IDLE, zeros}, {pid, zeros}, {pid, idle}, {unix.PRIO_PROCESS, pid, 19}, {ioprioProcess, pid, best},
		{unix.PRIO_USER, owner, 19}, {3, owner, best}, {pid, pid}, {unix.PTRACE_SEIZE, pid}, {pid, local, 1, remote, 1},
		{pid, 1, remote, zeros, zeros}, {fd("pid"), remote, 1, unix.MADV_DONTNEED}, {fd("pid"), 0}, {0, pid, 19}, {pid, 0},
		// Files.
		{file}, {file, 0o600, 0}, {file, owner, owner}, {file, zeros}, {file, fresh}, {file, text("user.x"), zeros, 1, 0},
		{here, file}, {here, file, 0o600}, {here, file, owner, owner}, {here, file, zeros}, {here, file, 0, 0},
		{here, file, here, fresh}, {file, here, fresh}, {dir}, {dir, 0o700}, {here, dir, 0x200}, {here, dir, 0o700},
		{here, dir, zeros}, {fresh, 0o600}, {fresh, unix.S_IFIFO | 0o600, 0}, {fresh, unix.O_CREAT | unix.O_RDWR, 0o600},
		{here, fresh, unix.O_CREAT | unix.O_RDWR, 0o600}, {here, fresh, 0o700}, {here, fresh, unix.S_IFIFO | 0o600},
		{file, 1}, {fd("read"), 0o600}, {fd("read"), owner, owner}, {fd("read"), 0, zeros},
		// Sockets.
		{fd("datagrams"), local, 1, 0, to, toLen}, {fd("datagrams"), message}, {fd("datagrams"), words(to, toLen, local, 1), 1},
		{fd("stream"), local, 1, 0, to, toLen}, {fd("stream"), to, toLen}, {fd("tcp"), 5}, {fd("tcp"), zeros, 16},
		// Queues and semaphores.
		{queue}, {queue, 0}, {queue, words(1, 1), 8, ipcNoWait}, {queue, unix.IPC_RMID, zeros}, {semaphore, 0, semSetValue, 7},
		{semaphore, words(1 << 16), 1}, {semaphore, 0, unix.IPC_RMID}, {name}, {name, unix.O_RDWR, 0, 0},
		// Signals.
		{pid, uintptr(unix.SIGUSR1), zeros}, {pid, pid, uintptr(unix.SIGUSR1), zeros}, {fd("pid"), uintptr(unix.SIGUSR1)},
	}
	if os.Getenv("CAGE_SPARE") == "" { // it shows nothing else any more, once it is killed
		out = append(out, [6]uintptr{fd("pid"), uintptr(unix.SIGKILL)}, [6]uintptr{pid, uintptr(unix.SIGKILL)},
			[6]uintptr{pid, pid, uintptr(unix.SIGKILL)})
	}
	return out
}

// sweepOn makes the calls from the given one on, and says each before it is made. All calls get one aim after the
// other.
func sweepOn(from int) error {
	runtime.LockOSThread()
	var v victimNumbers
	if err := json.Unmarshal([]byte(os.Getenv("CAGE_VICTIM")), &v); err != nil {
		return err
	}
	ours := map[string]int{}
	open := func(name string, fd int, err error) {
		ours[name] = -1
		if err == nil {
			ours[name] = fd
		}
	}
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	open("tcp", tcp, err)
	stream, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	open("stream", stream, err)
	read, err := unix.Open(place("read/file"), unix.O_RDONLY, 0)
	open("read", read, err)
	pidfd, err := unix.PidfdOpen(v.PID, 0)
	open("pid", pidfd, err)
	datagrams, err := unix.Socket(unix.AF_UNIX, unix.SOCK_RAW, 0)
	if err != nil {
		pair, err2 := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		datagrams, err = pair[0], err2
	}
	open("datagrams", datagrams, err)
	all := aims(v, ours)
	var pristine [][]uintptr // many calls write to what they are given
	for _, words := range kept {
		pristine = append(pristine, slices.Clone(words))
	}
	self := os.Getpid()
	// The runtime and the report need most of these; the filter's own test has them.
	skip := []int{unix.SYS_SHMGET, unix.SYS_CLONE, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_RT_SIGRETURN, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE}
	skip = append(skip, forks...)
	for i := from; i < sweepCalls*len(all); i++ {
		number, args := i%sweepCalls, all[i/sweepCalls]
		fmt.Println(i)
		if slices.Contains(skip, number) {
			continue
		}
		for i, words := range pristine {
			copy(kept[i], words)
		}
		_, _, _ = unix.RawSyscall6(uintptr(number), args[0], args[1], args[2], args[3], args[4], args[5])
		if os.Getpid() != self { // an unlisted fork
			os.Exit(0)
		}
		if on, err := unix.GetsockoptInt(tcp, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && on == 1 {
			fmt.Println("listens")
			tcp2, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			if err := unix.Dup3(tcp2, tcp, 0); err != nil {
				return err
			}
			unix.Close(tcp2)
		}
	}
	return nil
}
