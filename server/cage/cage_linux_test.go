package cage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

// TestMain is four programs: the tests, the supervisor, what enters the cage and the one inside that tries to get out.
func TestMain(m *testing.M) {
	switch os.Getenv("CAGE_ROLE") {
	case "":
		os.Exit(m.Run())
	case "probe":
		takeAway(os.Getenv("CAGE_LACKS"))
		enter := exec.Command("/proc/self/exe")
		enter.Env = append(os.Environ(), "CAGE_ROLE=enter", "CAGE_PROGRAM=/dev/null")
		parts, err := Probe(enter)
		fmt.Printf("%q\n", parts.Missing())
		exitWith(err)
	case "supervisor":
		takeAway(os.Getenv("CAGE_LACKS"))
		r := testRules()
		enter := exec.Command("/proc/self/exe", os.Args[1:]...)
		enter.Env = append(os.Environ(), "CAGE_ROLE=enter")
		enter.Stdout, enter.Stderr = os.Stdout, os.Stderr
		err := Supervise(r, enter, func(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) })
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			os.Exit(ended.ExitCode())
		}
		exitWith(err)
	case "enter":
		if os.Getenv("CAGE_LACKS") == "memory" { // as under Yama's ptrace_scope 2, /proc/PID/mem is shut (prctl(2))
			if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
				exitWith(err)
			}
		}
		os.Setenv("CAGE_ROLE", "inside")
		argv := []string{cmp.Or(os.Getenv("CAGE_PROGRAM"), os.Args[0])}
		if len(os.Args) > 1 {
			argv = os.Args[1:]
		}
		exitWith(testRules().Enter(argv, os.Environ(), os.Getenv("CAGE_WHOLE") != ""))
	case "inside":
		var tried []string
		if err := json.Unmarshal([]byte(os.Getenv("CAGE_TRY")), &tried); err != nil {
			exitWith(err)
		}
		got := map[string]string{}
		for _, name := range tried {
			switch name {
			case "connects":
				got[name] = timeConnects()
			case "calls":
				got[name] = timeCalls()
			case "scores":
				got[name] = readScores()
			case "sweep":
				got[name] = sweep()
			default:
				got[name] = said(attempts[name]())
			}
		}
		exitWith(json.NewEncoder(os.Stdout).Encode(got))
	case "victim":
		exitWith(beVictim())
	case "worker":
		from, err := strconv.Atoi(os.Getenv("CAGE_FROM"))
		if err == nil {
			err = sweepOn(from)
		}
		exitWith(err)
	case "other": // a program that must not be started
		fmt.Println("started")
	}
}

// takeAway makes the kernel one that lacks a part of the cages, for this process and what it starts.
func takeAway(part string) {
	filters := map[string][]bpf.Instruction{
		"landlock": {
			bpf.LoadAbsolute{Off: offNumber, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_LANDLOCK_CREATE_RULESET, SkipTrue: 1},
			allow[0],
			errno(unix.ENOSYS)[0],
		},
		"notification": {
			bpf.LoadAbsolute{Off: offNumber, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SECCOMP, SkipTrue: 1},
			allow[0],
			bpf.LoadAbsolute{Off: offArg(1), Size: 4}, // flags
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, SkipTrue: 1},
			allow[0],
			errno(unix.EINVAL)[0],
		},
	}
	if filters[part] == nil {
		return
	}
	runtime.LockOSThread()
	prog, err := bpf.Assemble(filters[part])
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err == nil {
		_, err = installFilter(prog, false)
	}
	if err != nil {
		exitWith(err)
	}
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func said(err error) string {
	var e unix.Errno
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// place is the directory of the test, with what is allowed and what isn't.
func place(name string) string { return filepath.Join(os.Getenv("CAGE_DIR"), name) }

func port(name string) int {
	n, _ := strconv.Atoi(os.Getenv("CAGE_PORT_" + name))
	return n
}

func testRules() (r Rules) {
	if text := os.Getenv("CAGE_RULES"); text != "" {
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			exitWith(err)
		}
		return r
	}
	r = Rules{
		Read:    []string{place("read"), "/proc", "/lib", "/usr/lib", "/etc/ld.so.cache"},
		Execute: []string{place("cage.test"), loader},
		Write:   []string{place("write")},
		Devices: []string{"/dev/null"},
		Listen:  []uint16{uint16(port("LISTEN"))},
		Proxy:   uint16(port("PROXY")),
		Display: place("display/X99"),
	}
	if os.Getenv("CAGE_CONNECTS") == "no" {
		r.Proxy, r.Display = 0, ""
	}
	return r
}

// loader starts programs, ours too when it isn't a static one.
var loader = map[string]string{
	"amd64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1",
}[runtime.GOARCH]

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func dial(network, address string) error {
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "ping"); err != nil {
		return err
	}
	answer := make([]byte, 4)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "pong" {
		return fmt.Errorf("%q, %v", answer, err)
	}
	return nil
}

// blocking is what programs do that aren't Go's.
func blocking(to unix.Sockaddr, family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to)
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func run(argv ...string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CAGE_ROLE=other")
	out, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(out, []byte("started")) {
		return fmt.Errorf("%s", out)
	}
	return err
}

func raw(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, e := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return e
	}
	return nil
}

// attempts is what the program inside tries. What they must say is in TestCage.
var attempts = map[string]func() error{
	"proxy": func() error { return dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port("PROXY"))) },
	"proxy, blocking": func() error {
		return blocking(&unix.SockaddrInet4{Port: port("PROXY"), Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET)
	},
	"display":         func() error { return dial("unix", place("display/X99")) },
	"another port":    func() error { return dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port("OTHER"))) },
	"another address": func() error { return dial("tcp4", fmt.Sprintf("127.0.0.2:%d", port("PROXY"))) },
	"IPv6":            func() error { return dial("tcp6", fmt.Sprintf("[::1]:%d", port("PROXY"))) },
	"IPv4 in IPv6": func() error {
		mapped := [16]byte{10: 255, 11: 255, 12: 127, 15: 1}
		return blocking(&unix.SockaddrInet6{Port: port("OTHER"), Addr: mapped}, unix.AF_INET6)
	},
	"another socket": func() error { return dial("unix", place("other.sock")) },
	"an abstract socket": func() error {
		return blocking(&unix.SockaddrUnix{Name: "@" + place("other.sock")}, unix.AF_UNIX)
	},
	"display by a way around": func() error {
		return blocking(&unix.SockaddrUnix{Name: place("display") + "/../display/X99"}, unix.AF_UNIX)
	},
	"a bad address": func() error { return raw(unix.SYS_CONNECT, uintptr(unixSocket()), 16, 16) },
	"UDP":           func() error { return socket(unix.AF_INET, unix.SOCK_DGRAM, 0) },
	"raw":           func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
	"packets":       func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"addresses":     func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) },
	"audit socket":  func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT) },
	"fast open": func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Port: port("OTHER"), Addr: [4]byte{127, 0, 0, 1}}
		return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, to)
	},
	"listen":                func() error { return listen(inet4("LISTEN", 127), nil) },
	"listen, IPv6":          func() error { return listen(&unix.SockaddrInet6{Port: port("LISTEN"), Addr: [16]byte{15: 1}}, nil) },
	"listen to more":        func() error { return listen(inet4("MORE", 127), nil) },
	"listen to any port":    func() error { return listen(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, nil) },
	"listen to the network": func() error { return listen(inet4("LISTEN", 0), nil) },
	"listen at no address":  func() error { return listen(nil, nil) },
	"listen with a swapped socket": func() error {
		return listen(inet4("LISTEN", 127), func(fd int) error {
			other, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(other)
			return unix.Dup3(other, fd, 0)
		})
	},
	"listen twice": func() error {
		return listen(inet4("LISTEN", 127), func(fd int) error { return unix.Listen(fd, 1) })
	},
	"listen at a path": func() error {
		defer unix.Umask(unix.Umask(0o027))
		err := listen(&unix.SockaddrUnix{Name: place("write/socket")}, nil)
		var st unix.Stat_t
		if err == nil {
			err = unix.Stat(place("write/socket"), &st)
		}
		if err == nil && st.Mode != unix.S_IFSOCK|0o750 {
			return fmt.Errorf("mode %o", st.Mode)
		}
		return err
	},
	"listen at a path twice": func() error {
		if err := listen(&unix.SockaddrUnix{Name: place("write/taken")}, nil); err != nil {
			return err
		}
		return listen(&unix.SockaddrUnix{Name: place("write/taken")}, nil)
	},
	"listen elsewhere": func() error { return listen(&unix.SockaddrUnix{Name: place("display/mine")}, nil) },
	"listen by a way around": func() error {
		return listen(&unix.SockaddrUnix{Name: place("write") + "/../display/mine"}, nil)
	},
	"listen by a link": func() error {
		if err := os.Symlink(place("display"), place("write/there")); err != nil {
			return err
		}
		return listen(&unix.SockaddrUnix{Name: place("write/there/mine")}, nil)
	},
	"listen at a name": func() error { return listen(&unix.SockaddrUnix{Name: "@" + place("mine")}, nil) },
	"listen after many": func() error {
		for i := range maxBound + 1 {
			fd := unixSocket()
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: place(fmt.Sprintf("write/many%d", i))}); err != nil {
				return err
			}
		}
		return listen(&unix.SockaddrUnix{Name: place("write/last")}, nil)
	},
	"local raw":           func() error { return socket(unix.AF_UNIX, unix.SOCK_RAW, 0) },
	"a pair of streams":   func() error { return pair(unix.SOCK_STREAM | unix.SOCK_CLOEXEC) },
	"a pair of seqpacket": func() error { return pair(unix.SOCK_SEQPACKET | unix.SOCK_NONBLOCK) },
	"a pair of datagrams": func() error { return pair(unix.SOCK_DGRAM | unix.SOCK_CLOEXEC) },
	"a pair of raw":       func() error { return pair(unix.SOCK_RAW) },
	"its own limit": func() error {
		var limit unix.Rlimit
		err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit)
		if err != nil {
			return err
		}
		return unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil)
	},
	"its own priority": func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, 19) },
	"another's limit": func() error {
		return unix.Prlimit(unix.Getppid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 9, Max: 9}, nil)
	},
	"another's cores": func() error { return unix.SchedSetaffinity(unix.Getppid(), &unix.CPUSet{1}) },
	"another's class": func() error {
		return raw(unix.SYS_SCHED_SETSCHEDULER, uintptr(unix.Getppid()), unix.SCHED_IDLE, uintptr(unsafe.Pointer(new(int32))))
	},
	"another's class, by attributes": func() error {
		return unix.SchedSetAttr(unix.Getppid(), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	},
	"another's priority":     func() error { return unix.Setpriority(unix.PRIO_PROCESS, unix.Getppid(), 19) },
	"its group's priority":   func() error { return unix.Setpriority(unix.PRIO_PGRP, 0, 19) },
	"its account's priority": func() error { return unix.Setpriority(unix.PRIO_USER, 0, 19) },
	"another's disk priority": func() error {
		return raw(unix.SYS_IOPRIO_SET, ioprioProcess, uintptr(unix.Getppid()), 2<<13|7)
	},
	"a file's mode":      func() error { return unix.Chmod(place("own"), 0) },
	"a file's times":     func() error { return os.Chtimes(place("own"), time.Time{}, time.Unix(1, 0)) },
	"a file's owner":     func() error { return unix.Chown(place("own"), os.Getuid(), os.Getgid()) },
	"swapped":            swapped,
	"read":               func() error { return open(place("read/file"), unix.O_RDONLY) },
	"read a secret":      func() error { return open(place("secret"), unix.O_RDONLY) },
	"list":               func() error { return open("/etc", unix.O_RDONLY|unix.O_DIRECTORY) },
	"write":              func() error { return open(place("write/new"), unix.O_WRONLY|unix.O_CREAT) },
	"write what is read": func() error { return open(place("read/file"), unix.O_WRONLY) },
	"write elsewhere":    func() error { return open(place("new"), unix.O_WRONLY|unix.O_CREAT) },
	"a link at the display": func() error {
		return unix.Rename(place("write/link"), place("display/X99"))
	},
	"itself":                        func() error { return run("/proc/self/exe") },
	"another program":               func() error { return run("/bin/true") },
	"another program by the loader": func() error { return run(loader, "/bin/true") },
	"a copy": func() error {
		text, err := os.ReadFile(place("cage.test"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(place("write/copy"), text, 0o755); err != nil {
			return err
		}
		return run(place("write/copy"))
	},
	"a file in memory": func() error { _, err := unix.MemfdCreate("x", 0); return err },
	"signal":           func() error { return unix.Kill(unix.Getppid(), 0) },
	"supervisor's environment": func() error {
		return open(fmt.Sprintf("/proc/%d/environ", unix.Getppid()), unix.O_RDONLY)
	},
	"supervisor's memory": func() error { return open(fmt.Sprintf("/proc/%d/mem", unix.Getppid()), unix.O_RDWR) },
	"ptrace":              func() error { return raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(unix.Getppid())) },
	"user namespace":      func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"io_uring":            func() error { return raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&[120]byte{}))) },
	"a filter of its own": func() error {
		return raw(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(new(uint32))))
	},
}

// readScores returns this program's score for the OOM killer before and after it connects to the display.
func readScores() string {
	before := readScore()
	err := dial("unix", place("display/X99"))
	return fmt.Sprint(before, readScore(), err)
}

func readScore() int {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		exitWith(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		exitWith(err)
	}
	return n
}

// timeConnects returns the median time of a connect to the proxy in microseconds, for the benchmark.
func timeConnects() string {
	var took []float64
	for range 1000 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err.Error()
		}
		began := time.Now()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port("PROXY"), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err.Error()
		}
		took = append(took, float64(time.Since(began).Nanoseconds())/1000)
		unix.Close(fd)
	}
	return strconv.FormatFloat(findMedian(took), 'f', 1, 64)
}

// timeCalls returns the processor time of a system call in nanoseconds: of one that is permitted whatever its arguments, and of
// one whose arguments the filter reads.
func timeCalls() string {
	const rounds = 300_000
	measure := func(number, first uintptr) float64 {
		var from, to unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from) // it has no error for this clock
		for range rounds {
			_, _, _ = unix.RawSyscall6(number, first, 0, 0, 0, 0, 0)
		}
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
		return float64(to.Nano()-from.Nano()) / rounds
	}
	runtime.LockOSThread()
	return fmt.Sprintf("%.1f %.1f", measure(unix.SYS_GETPPID, 0), measure(unix.SYS_SENDTO, ^uintptr(0))) // EBADF
}

func unixSocket() int {
	fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0) // -1 is as good
	return fd
}

func pair(kind int) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err == nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
	}
	return err
}

func inet4(name string, first byte) *unix.SockaddrInet4 {
	at := &unix.SockaddrInet4{Port: port(name)}
	if first != 0 {
		at.Addr = [4]byte{first, 0, 0, 1}
	}
	return at
}

// listen makes a socket listen at an address, or at none. between comes after bind.
func listen(at unix.Sockaddr, between func(fd int) error) error {
	family := unix.AF_INET
	switch at.(type) {
	case *unix.SockaddrInet6:
		family = unix.AF_INET6
	case *unix.SockaddrUnix:
		family = unix.AF_UNIX
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if at != nil {
		if err := unix.Bind(fd, at); err != nil {
			return err
		}
	}
	if between != nil {
		if err := between(fd); err != nil {
			return err
		}
	}
	return unix.Listen(fd, 5)
}

// swapped exchanges the address under the supervisor's eyes: the test's other listener hears of it if it ever works.
func swapped() error {
	address := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: [4]byte{127, 0, 0, 1}}
	put := func(p int) { address.Port = uint16(p>>8&0xff | p&0xff<<8) }
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			put(port("PROXY"))
			put(port("OTHER"))
		}
	})
	for range 2000 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address)), unsafe.Sizeof(address))
		unix.Close(fd)
	}
	stop.Store(true)
	wg.Wait()
	return nil
}

// lab is what there is outside.
type lab struct {
	dir   string
	env   []string
	other atomic.Int64 // connections that should not be
}

func newLab(t testing.TB) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "cage-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &lab{dir: dir, env: []string{"CAGE_DIR=" + dir, "PATH=/usr/bin:/bin"}}
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o755, "read": 0o755, "write": 0o777, "display": 0o777} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string][]byte{"cage.test": text, "read/file": []byte("x"), "secret": []byte("x"), "own": []byte("x")} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, content, 0o755), os.Chmod(path, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "own"), 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "other.sock"), filepath.Join(dir, "write", "link")); err != nil {
		t.Fatal(err)
	}
	serve := func(network, address string, count *atomic.Int64) net.Listener {
		s, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				if count != nil {
					count.Add(1)
				}
				go func() {
					defer c.Close()
					if _, err := io.ReadFull(c, make([]byte, 4)); err == nil {
						_, _ = io.WriteString(c, "pong")
					}
				}()
			}
		}()
		return s
	}
	tcp := func(name string, count *atomic.Int64) {
		s := serve("tcp4", "127.0.0.1:0", count)
		l.env = append(l.env, fmt.Sprintf("CAGE_PORT_%s=%d", name, s.Addr().(*net.TCPAddr).Port))
	}
	tcp("PROXY", nil)
	tcp("OTHER", &l.other)
	for _, name := range []string{"LISTEN", "MORE"} {
		s, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		l.env = append(l.env, fmt.Sprintf("CAGE_PORT_%s=%d", name, s.Addr().(*net.TCPAddr).Port))
	}
	serve("unix", filepath.Join(dir, "display/X99"), nil)
	serve("unix", filepath.Join(dir, "other.sock"), &l.other)
	for _, name := range []string{"display/X99", "other.sock"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// try runs the attempts in a cage, as an account without rights where we may.
func (l *lab) try(t *testing.T, env []string, names ...string) (map[string]string, string, error) {
	t.Helper()
	role := "supervisor"
	if slices.Contains(env, "CAGE_PROBE=yes") {
		role = "probe"
	}
	cmd := l.command(t, role, names...)
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	got := map[string]string{}
	if err == nil && role != "probe" {
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
			t.Fatalf("%v: %s\n%s", err, stdout.Bytes(), stderr.Bytes())
		}
	}
	return got, stdout.String() + stderr.String(), err
}

// needWhole skips where the kernel has not all that a cage is made of.
func needWhole(t testing.TB) {
	t.Helper()
	if v := landlockABI(); v < 6 {
		need.Missing(t, "Landlock's ABI here is %d, and the test wants 6 (Linux 6.12)", v)
	}
}

func TestCage(t *testing.T) {
	needWhole(t)
	l := newLab(t)
	want := map[string]string{
		"proxy": "done", "proxy, blocking": "done", "display": "done", "addresses": "done", "listen": "done",
		"listen, IPv6": "done", "listen at a path": "done", "a pair of streams": "done", "a pair of seqpacket": "done",
		"its own limit": "done", "its own priority": "done",
		"read": "done", "write": "done", "itself": "done",
		"swapped": "done", // the other listener tells

		"another port": "EACCES", "another address": "EACCES", "IPv6": "EACCES", "IPv4 in IPv6": "EACCES",
		"another socket":     "EACCES",
		"an abstract socket": "ECONNREFUSED", "display by a way around": "EACCES", "a bad address": "EFAULT",
		"UDP": "EACCES", "raw": "EACCES", "packets": "EACCES", "audit socket": "EACCES", "fast open": "EPERM",
		"listen to more": "EACCES", "listen to any port": "EACCES", "listen to the network": "EACCES",
		"listen at no address": "EACCES", "listen with a swapped socket": "EACCES", "listen twice": "EACCES",
		"listen at a path twice": "EADDRINUSE", "listen elsewhere": "EACCES", "listen by a way around": "EACCES",
		"listen by a link": "ELOOP", "listen at a name": "EACCES", "listen after many": "done",
		"local raw": "EACCES", "a pair of datagrams": "EACCES", "a pair of raw": "EACCES",
		"another's limit": "EPERM", "another's cores": "EPERM", "another's class": "EPERM",
		"another's class, by attributes": "EPERM", "another's priority": "EPERM", "its group's priority": "EPERM",
		"its account's priority": "EPERM", "another's disk priority": "EPERM",
		"a file's mode": "EPERM", "a file's times": "EPERM", "a file's owner": "EPERM",
		"read a secret": "EACCES", "list": "EACCES", "write what is read": "EACCES", "write elsewhere": "EACCES",
		"a link at the display": "EACCES",
		"another program":       "EACCES", "another program by the loader": "exit status 127", "a copy": "EACCES",
		"a file in memory": "ENOSYS", "signal": "EPERM", "supervisor's environment": "EACCES",
		"supervisor's memory": "EACCES", "ptrace": "EPERM", "user namespace": "EPERM",
		"io_uring": "ENOSYS", "a filter of its own": "EPERM",
	}
	var names []string
	for name := range attempts {
		names = append(names, name)
		if want[name] == "" {
			t.Errorf("nothing says what %q must give", name)
		}
	}
	got, log, err := l.try(t, []string{"CAGE_WHOLE=1"}, names...)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: %s, want %s", name, got[name], w)
		}
	}
	if n := l.other.Load(); n != 0 {
		t.Errorf("%d connections got out", n)
	}
	if t.Failed() {
		t.Log(log)
	}
}

// TestProgramIsKilledLast: when memory runs out, the kernel kills what the program has started rather than the program.
func TestProgramIsKilledLast(t *testing.T) {
	needWhole(t)
	l := newLab(t)
	own := readScore()
	got, log, err := l.try(t, nil, "scores")
	if want := fmt.Sprint(min(own+300, 1000), own, nil); err != nil || got["scores"] != want {
		t.Errorf("%v: scores %s, want %s\n%s", err, got["scores"], want, log)
	}
}

// TestCageWithoutConnections: the X server connects to nothing, and listens.
func TestCageWithoutConnections(t *testing.T) {
	needWhole(t)
	l := newLab(t)
	got, log, err := l.try(t, []string{"CAGE_CONNECTS=no", "CAGE_WHOLE=1"}, "proxy", "display", "listen", "listen at a path")
	want := map[string]string{"proxy": "EACCES", "display": "EACCES", "listen": "done", "listen at a path": "done"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v\n%s", got, err, log)
	}
}

// TestMissingParts takes parts of the kernel away: what is missing is named, a program starts or doesn't as the
// policy says, and the other parts hold.
func TestMissingParts(t *testing.T) {
	needWhole(t)
	l := newLab(t)
	for _, tt := range []struct {
		lacks, missing string            // of Missing
		want           map[string]string // what the other parts still refuse
	}{
		{"", "[]", map[string]string{"another port": "EACCES"}},
		{"landlock", `["Landlock (needs Linux 5.13`, map[string]string{
			"another port": "EACCES", "UDP": "EACCES", "read a secret": "done", "proxy": "done",
		}},
		{"notification", `["supervised connections (`, map[string]string{
			"another port": "EACCES", "read a secret": "EACCES", "UDP": "EACCES", "proxy": "done",
		}},
		{"memory", `["supervised connections (`, map[string]string{"another port": "EACCES", "read a secret": "EACCES"}},
	} {
		t.Run(cmp.Or(tt.lacks, "nothing"), func(t *testing.T) {
			lacks := "CAGE_LACKS=" + tt.lacks
			_, said, err := l.try(t, []string{lacks, "CAGE_PROBE=yes"})
			if err != nil || !strings.HasPrefix(said, tt.missing) || strings.Count(said, `" "`) > 0 {
				t.Errorf("%v, %s, want %s", err, said, tt.missing)
			}
			got, said, err := l.try(t, []string{lacks}, slices.Collect(maps.Keys(tt.want))...)
			if err != nil || !maps.Equal(got, tt.want) {
				t.Errorf("%v, %v, want %v\n%s", err, got, tt.want, said)
			}
			_, said, err = l.try(t, []string{lacks, "CAGE_WHOLE=1"}, "UDP")
			why := "cage incomplete: no " + strings.Trim(tt.missing, `["`)
			if tt.lacks == "" && err != nil || tt.lacks != "" && !strings.Contains(said, why) {
				t.Errorf("required: %v, %s", err, said)
			}
		})
	}
}

// TestOlderLandlock: no kernel can be made to have an older version.
func TestOlderLandlock(t *testing.T) {
	for abi, want := range map[int]string{
		1: "truncating, TCP, control, signals", 2: "truncating, TCP, control, signals", 3: "TCP, control, signals",
		4: "control, signals", 5: "signals", 6: "", 7: "",
	} {
		p := Parts{Landlock: abi, Filter: true, Supervisor: true}
		var got []string
		for _, m := range p.Missing() {
			for _, word := range []string{"truncating", "TCP", "control", "signals"} {
				if strings.Contains(m, word) && strings.Contains(m, fmt.Sprintf("here is ABI %d", abi)) {
					got = append(got, word)
				}
			}
		}
		if strings.Join(got, ", ") != want || (p.Whole() == nil) != (want == "") {
			t.Errorf("ABI %d lacks %v, want %s; %v", abi, got, want, p.Whole())
		}
	}
}
