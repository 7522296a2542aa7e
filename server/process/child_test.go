//go:build linux

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

// grace of the children of the tests.
const grace = 200 * time.Millisecond

func start(t *testing.T, script string) *Child {
	t.Helper()
	c, err := Start(Program{
		Path: "/bin/sh", Argv: []string{"-c", script}, Env: []string{searchPath, "A=b"}, Dir: t.TempDir(),
		Mark: "PROCESS_TEST=" + t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := c.End(grace); n > 0 {
			t.Errorf("%d left", n)
		}
		c.ClosePipes()
		awaitNone(t, c.mark)
	})
	return c
}

// says waits for the program's next line.
func says(t *testing.T, c *Child) string {
	t.Helper()
	line, err := bufio.NewReaderSize(c.Stdout, 16).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestStart(t *testing.T) {
	t.Setenv("SECRET", "inherited")
	for _, tc := range []struct{ name, script, stdout, stderr, ending string }{
		{"streams and code", `read x; echo "$x $A"; echo e >&2; exit 3`, "in b\n", "e\n", "exit status 3"},
		{"killed from outside", `kill -9 $$`, "", "", "signal: killed"},
		{"nothing inherited", `echo "${SECRET-none}"`, "none\n", "", "exit status 0"},
		{"its own group", `test $(cut -d' ' -f5 /proc/$$/stat) = $$; echo $?`, "0\n", "", "exit status 0"},
		{"no privileges to gain", `grep NoNewPrivs /proc/self/status`, "NoNewPrivs:\t1\n", "", "exit status 0"},
		{"what it leaves in its group ends", `sleep 60 & echo done`, "done\n", "", "exit status 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, tc.script)
			_, _ = c.Stdin.WriteString("in\n") // one of them reads it
			stdout, _ := io.ReadAll(c.Stdout)
			stderr, _ := io.ReadAll(c.Stderr)
			<-c.Done()
			if string(stdout) != tc.stdout || string(stderr) != tc.stderr || c.Ending() != tc.ending {
				t.Errorf("got %q %q %q", stdout, stderr, c.Ending())
			}
		})
	}
}

func TestStartRefuses(t *testing.T) {
	files := openFiles()
	if _, err := Start(Program{Path: "/no/such/program"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	for _, p := range []string{"sh", "./sh", ""} {
		if _, err := Start(Program{Path: p}); err == nil || !strings.Contains(err.Error(), "absolute") {
			t.Errorf("%q: got %v", p, err)
		}
	}
	if _, err := Start(Program{Path: "/bin/sh", Argv: []string{"a\x00b"}}); err == nil {
		t.Error("a NUL in an argument was accepted")
	}
	if n := openFiles(); n != files {
		t.Errorf("%d files are open, %d before", n, files)
	}
}

// TestChildEnd: everything ends, politely first.
func TestChildEnd(t *testing.T) {
	const long = 3 * time.Second // enough for a polite one on a busy machine
	for _, tc := range []struct {
		name, script, ending string
		grace                time.Duration
	}{
		{"at the end of its input", `echo up; cat >/dev/null`, "exit status 0", long},
		{"at SIGTERM", `trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done`, "exit status 5", long},
		{"at nothing", `trap '' TERM; echo up; while :; do sleep 60; done`, "signal: killed", grace},
		{"stopped", `echo up; kill -STOP $$`, "signal: ", grace},
		{"with a helper", `sleep 60 & echo up; cat >/dev/null`, "exit status 0", long},
		{"with a daemon", `setsid sh -c 'trap "" TERM; echo up; while :; do sleep 60; done' & cat >/dev/null`, "exit status 0", long},
		{"with a daemon without environment", `trap '' TERM; env -i /usr/bin/setsid /bin/sh -c 'echo up; sleep 60' & while :; do sleep 60; done`, "signal: killed", grace},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, tc.script)
			if got := says(t, c); got != "up" {
				t.Fatalf("got %q", got)
			}
			held := appendDescendants(c.PID, nil)
			defer held.release()
			if n := c.End(tc.grace); n != 0 {
				t.Errorf("%d left", n)
			}
			if !strings.HasPrefix(c.Ending(), tc.ending) {
				t.Errorf("got %q", c.Ending())
			}
			for _, p := range held { // killed, but a busy kernel takes its time
				need.Eventually(t, func() bool { return Ended(p) }, func() string { return fmt.Sprintf("process %d is still there", p.Pid) })
			}
			if n := c.End(grace); n != 0 { // again
				t.Errorf("%d left", n)
			}
		})
	}
}

// TestThreadsEnd: the end of a thread is not ours.
func TestThreadsEnd(t *testing.T) {
	c := start(t, `echo up; cat >/dev/null`)
	says(t, c)
	for range 50 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and never unlocks it: Go ends the thread
			_ = unix.Gettid()
		}()
		<-done
	}
	select {
	case <-c.Done():
		t.Errorf("got %q", c.Ending())
	case <-time.After(grace):
	}
}
