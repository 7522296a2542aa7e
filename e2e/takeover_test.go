package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
)

// attempts tries each argument, a kind and a path, and prints what came of it.
const attempts = `
import os, sys
do = {"list": os.listdir, "read": lambda p: open(p).read(), "create": lambda p: open(p, "x")}
for arg in sys.argv[1:]:
    kind, path = arg.split(":", 1)
    try:
        do[kind](path)
        print(arg, "done", sep="\t")
    except OSError as e:
        print(arg, os.strerror(e.errno), sep="\t")
`

// testTakeover does what a taken-over Chromium would: it runs as the desktop's account inside.
func testTakeover(t *testing.T, b *box) {
	// What decides is out of its reach: the hub's and the gate's sockets, which it could otherwise take over, the key's hash,
	// the logs, supervisor, other accounts' processes and files.
	wanted := map[string]string{} // what is tried, and whose it is
	for _, p := range []string{"/run/browser-shell-front", "/run/browser-shell", "/var/log/gem", "/var/log/browser-shell/audit", "/var/lib/browser-shell/state", "/run/supervisor"} {
		wanted["list:"+p] = "a directory"
	}
	for _, p := range b.processes(t) {
		if p.UID != 1000 {
			wanted[fmt.Sprintf("read:/proc/%d/environ", p.Inside)] = "the environment of " + p.Name
		}
	}
	// What it can write is its own and nobody else's.
	for _, p := range []string{"/", "/etc", "/opt/gem", "/run", "/usr/local/bin", "/output", "/var/lib/browser-shell", "/var/log/browser-shell"} {
		wanted["create:"+p+"/x"] = "a file"
	}
	argv := append([]string{"/usr/bin/python3", "-c", attempts}, slices.Sorted(maps.Keys(wanted))...)
	r, err := b.Exec(t.Context(), argv, sandbox.ExecOptions{User: "1000:1000"})
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for line := range strings.Lines(string(r.Stdout)) {
		what, came, _ := strings.Cut(strings.TrimSpace(line), "\t")
		tried++
		refused := []string{"Permission denied", "No such file or directory"}
		if strings.HasPrefix(what, "create:") {
			refused[1] = "Read-only file system"
		}
		if !slices.Contains(refused, came) {
			t.Errorf("%s, %s: %s", what, wanted[what], came)
		}
	}
	if tried != len(wanted) || tried < 15 {
		t.Errorf("%d of %d were tried: %s%s", tried, len(wanted), r.Stdout, r.Stderr)
	}
	for _, p := range b.find(t, func(p string, info fs.FileInfo) bool {
		return info.Mode().IsRegular() && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0
	}) {
		t.Errorf("%s has setuid or setgid", p)
	}
}

// waysOut tries what a Chromium that runs an attacker's code would: each line is a way and what came of it.
const waysOut = `
import os, resource, socket, sys
host = sys.argv[1]
def way(name, do):
    try:
        do()
        print(name, "done", flush=True)
    except OSError as e:
        print(name, os.strerror(e.errno) if e.errno else e, flush=True)
def connect(family, kind, to):
    def do():
        s = socket.socket(family, kind)
        s.settimeout(5)
        s.connect(to)
        if kind == socket.SOCK_DGRAM: s.send(b"x")
    return do
def read(path): return lambda: os.close(os.open(path, os.O_RDONLY))
I4, I6, U, TCP, UDP = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM
way("proxy", connect(I4, TCP, ("127.0.0.1", 8118)))
way("display", connect(U, TCP, "/tmp/.X11-unix/X99"))
way("tcp", connect(I4, TCP, (host, 80)))
way("udp", connect(I4, UDP, (host, 80)))
way("tcp6", connect(I6, TCP, ("::ffff:" + host, 80)))
way("public port", connect(I4, TCP, ("127.0.0.1", 8080)))
way("VNC past the gate", connect(I4, TCP, ("127.0.0.1", 5900)))
way("hub", connect(U, TCP, "/run/browser-shell-front/mcp.sock"))
way("supervisor", connect(U, TCP, "/run/supervisor/sock"))
way("raw", lambda: socket.socket(I4, socket.SOCK_RAW, 1))
way("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
way("local raw", lambda: socket.socket(U, socket.SOCK_RAW))
way("pair of datagrams", lambda: socket.socketpair(U, UDP))
way("listen at no address", lambda: socket.socket(I4, TCP).listen())
way("another's limit", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (9, 9)))
way("another's priority", lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19))
way("policy", read("/etc/agent-browser/browser-shell.policy.json"))
way("audit log", read("/var/log/browser-shell/audit/audit.jsonl"))
way("state", read("/var/lib/browser-shell"))
way("times of its starts", lambda: os.close(os.open("/run/desktop/starts", os.O_WRONLY)))
way("environment of the first process", read("/proc/1/environ"))
if len(sys.argv) > 2: way("program", lambda: os.execv("/usr/sbin/nginx", ["nginx", "-v"])) # else the watch would tell of it
`

// withoutLandlock runs browser-shell on a kernel that has no Landlock: landlock_create_ruleset (444) gives ENOSYS.
const withoutLandlock = `
import ctypes, os, struct, sys
class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
code = b"".join(struct.pack("HBBI", *i) for i in [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7fff0000)])
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.byref(Program(4, code)), 0, 0): sys.exit(os.strerror(ctypes.get_errno()))
os.execv("/usr/local/bin/browser-shell", ["browser-shell"] + sys.argv[1:])
`

// testHealth: the image's health says which parts of the cages the kernel lacks.
func testHealth(t *testing.T, b *box) {
	for want, argv := range map[string][]string{
		"healthy\n": {"/usr/local/bin/browser-shell", "health"},
		"healthy; cages: no Landlock (needs Linux 5.13, and a seccomp profile of the container that allows it)\n": {"/usr/bin/python3", "-c", withoutLandlock, "health"},
	} {
		r, err := b.Exec(t.Context(), argv, sandbox.ExecOptions{})
		if err != nil || string(r.Stdout) != want {
			t.Errorf("%v, %s%s, want %s", err, r.Stdout, r.Stderr, want)
		}
	}
}

// testCage tries the same ways in and out of the browser's cage: all but two are shut there.
func testCage(t *testing.T, b *box) {
	site := b.w.listen(t, siteIP+":80")
	var reached atomic.Int64
	go func() {
		for {
			c, err := site.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			c.Close()
		}
	}()
	try := func(argv ...string) map[string]string {
		t.Helper()
		argv = append(argv, "/usr/bin/python3", "-c", waysOut, siteIP)
		if argv[0] != "/usr/bin/python3" {
			argv = append(argv, "program")
		}
		r, err := b.Exec(t.Context(), argv, sandbox.ExecOptions{User: "1000:1000"})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for line := range strings.Lines(string(r.Stdout)) {
			for _, what := range []string{"done", "Permission denied", "Operation not permitted", "Connection refused"} {
				if name, ok := strings.CutSuffix(strings.TrimSpace(line), " "+what); ok {
					out[name] = what
				}
			}
		}
		if len(out) < 10 {
			t.Fatalf("%s\n%s", r.Stdout, r.Stderr)
		}
		return out
	}
	free, came := try(), int64(0)
	for _, name := range []string{"tcp", "tcp6"} {
		if free[name] == "done" {
			came++
		}
	}
	if free["tcp"] != "done" || free["udp"] != "done" {
		t.Errorf("without a cage the test's site is reached, or the test shows nothing: %v", free)
	}
	await(t, need.Patience, "who isn't caged", func() error {
		if n := reached.Load(); n < came {
			return fmt.Errorf("%d of %d", n, came)
		}
		return nil
	})
	reached.Store(0)
	caged := try("/usr/local/bin/browser-shell", "start", "--cage", "browser")
	for name, what := range caged {
		if open := name == "proxy" || name == "display"; open != (what == "done") {
			t.Errorf("%s: %s", name, what)
		}
	}
	if n := reached.Load(); n > 0 || len(caged) < 22 {
		t.Errorf("the site was reached %d times; %v", n, caged)
	}
	if browser, renderer := b.readScores(t); len(browser) != 1 || len(renderer) == 0 || slices.Min(renderer) <= browser[0] {
		t.Errorf("a page's memory can end the browser: OOM scores %v, of renderers %v", browser, renderer)
	}
}

// testRefusals: what the browser and the desktop do by themselves needs no system call that their cages refuse.
func testRefusals(t *testing.T, b *box) {
	for _, name := range []string{"browser", "tigervnc", "openbox"} {
		argv := []string{"/usr/bin/python3", "-c", "print(open('/var/log/gem/" + name + ".log').read())"}
		r, err := b.Exec(t.Context(), argv, sandbox.ExecOptions{})
		if err != nil || !strings.Contains(string(r.Stdout), "seccomp filter yes") {
			t.Errorf("%v, %s%s", err, r.Stdout, r.Stderr)
		}
		for line := range strings.Lines(string(r.Stdout)) {
			switch {
			// fontconfig tries whether it can make the system's cache writable.
			case strings.HasSuffix(line, fmt.Sprintf(" %d\n", map[string]int{"amd64": 90, "arm64": 53}[runtime.GOARCH])):
			case strings.Contains(line, " may not make "), strings.Contains(line, " may not bind "), strings.Contains(line, " may not listen "):
				t.Errorf("%s: %s", name, line)
			case strings.Contains(line, "cage of"):
				t.Logf("%s: %s", name, line)
			}
		}
	}
}

// readScores returns the OOM scores of the browser's first process and of its renderers.
func (b *box) readScores(t *testing.T) (browser, renderers []int) {
	t.Helper()
	procs, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		args := strings.Join(p.Args, " ")
		list := &browser
		if strings.Contains(args, "--type=renderer") {
			list = &renderers
		} else if strings.Contains(args, "--type=") || strings.Contains(args, "--cage") || !strings.Contains(args, "--remote-debugging-port") {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID))
		if err != nil {
			continue // it has ended
		}
		score, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		*list = append(*list, score)
	}
	return browser, renderers
}

// testCrowd holds connections open without a key: the owner must get through all the same.
func testCrowd(t *testing.T, w *world) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 300 {
		c, err := w.dial(ctx, "tcp", public)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		go func() {
			for ctx.Err() == nil {
				if _, err := c.Write([]byte(" ")); err != nil {
					return
				}
				time.Sleep(500 * time.Millisecond)
			}
		}()
	}
	for range 5 {
		if _, status := ticket(t, w, "X-AIO-API-Key", key); status != http.StatusOK {
			t.Errorf("the owner is shut out: %d", status)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// testTicketHolder does the worst that a person who may only look on can do to the desktop.
func testTicketHolder(t *testing.T, b *box) {
	screen := desktop(t, b.w, "/websockify")
	// SetDesktopSize (RFB extension, message 251) to what would take a gigabyte.
	size := []byte{251, 0}
	size = binary.BigEndian.AppendUint16(size, 16000)
	size = binary.BigEndian.AppendUint16(size, 16000)
	size = append(size, 1, 0)
	size = binary.BigEndian.AppendUint32(size, 1)
	size = append(size, 0, 0, 0, 0)
	size = binary.BigEndian.AppendUint16(size, 16000)
	size = binary.BigEndian.AppendUint16(size, 16000)
	size = append(size, 0, 0, 0, 0)
	if _, err := screen.conn.Write(size); err != nil {
		t.Fatal(err)
	}
	// Connections that end before the handshake, which a VNC server may hold against everybody.
	for range 12 {
		c := dialDesktop(t, b.w, "/websockify")
		_, _ = io.ReadFull(c, make([]byte, 12))
		c.Close()
	}
	if now := desktop(t, b.w, "/websockify"); now.Width != screen.Width {
		t.Errorf("the screen is %d pixels wide now, it was %d", now.Width, screen.Width)
	}
	b.healthy(t)
}
