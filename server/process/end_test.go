//go:build linux

package process

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// daemon starts a script in a session of its own, with the environment.
func daemon(t *testing.T, script string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Env = append(env, searchPath)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil { // its first word: it is up
		t.Fatal(err)
	}
	return cmd
}

func alive(cmd *exec.Cmd) bool {
	return cmd.Process.Signal(syscall.Signal(0)) == nil && !isZombie(cmd.Process.Pid)
}

// awaitDead waits for the end of a process that was killed: its environment is gone a moment before it is.
func awaitDead(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	need.Eventually(t, func() bool { return !alive(cmd) }, func() string { return fmt.Sprintf("process %d lives", cmd.Process.Pid) })
}

func TestEndOnlyTheMarked(t *testing.T) {
	mark := "PROCESS_TEST=" + t.TempDir()
	const script = `echo up; sleep 60`
	both := daemon(t, script, mark, "SESSION=a")
	other := daemon(t, script, mark, "SESSION=b")
	longer := daemon(t, script, mark+"x", "SESSION=a")
	inValue := daemon(t, script, "X="+mark, "SESSION=a")
	for _, marks := range [][]string{nil, {""}, {"=x"}, {mark, ""}, {"PROCESS_TEST"}} {
		if End(marks...); !alive(both) {
			t.Fatalf("End(%q) ended something", marks)
		}
	}
	if n := End(mark, "SESSION=a"); n != 0 {
		t.Errorf("%d left", n)
	}
	awaitDead(t, both)
	for name, cmd := range map[string]*exec.Cmd{"of another session": other, "with a longer value": longer, "with the mark in a value": inValue} {
		if !alive(cmd) {
			t.Errorf("the process %s was ended", name)
		}
	}
	End(mark)
	awaitDead(t, other)
}

func TestEndStubborn(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		max          time.Duration
	}{
		{"polite", `echo up; exec sleep 60`, 200 * time.Millisecond},
		{"ignores SIGTERM", `trap '' TERM; echo up; while :; do sleep 60; done`, termGrace + 500*time.Millisecond},
		{"stopped", `echo up; kill -STOP $$`, termGrace + 500*time.Millisecond},
		{"starts another at SIGTERM", `trap 'sh -c "trap \"\" TERM; while :; do sleep 60; done" &' TERM; echo up; while :; do sleep 0.1; done`, termGrace + 500*time.Millisecond},
		{"starts many", `trap '' TERM; echo up; for i in $(seq 200); do sleep 60 & done; while :; do sleep 60 & sleep 0.01; done`, termGrace + killGrace},
	} {
		t.Run(tc.name, func(t *testing.T) {
			need.Within(t, tc.max, func() time.Duration {
				mark := "PROCESS_TEST=" + t.TempDir()
				cmd := daemon(t, tc.script, mark)
				begin := time.Now()
				n := End(mark)
				took := time.Since(begin)
				if n > 0 { // too slow: it says so
					awaitNone(t, mark)
					return need.Patience
				}
				awaitDead(t, cmd)
				awaitNone(t, mark)
				return took
			})
		})
	}
}

// BenchmarkEndNothing is what End costs when there is nothing to end, with 300
// processes more than the machine has.
func BenchmarkEndNothing(b *testing.B) {
	for range 300 {
		cmd := exec.Command("/bin/sleep", "60")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	for b.Loop() {
		End("PROCESS_TEST=" + b.TempDir())
	}
}

// BenchmarkRun is what Run takes for a program that does nothing.
func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		if _, err := Run(b.Context(), Command{Path: "/bin/true", MaxOutput: 1 << 10}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec is the same by os/exec alone.
func BenchmarkExec(b *testing.B) {
	for b.Loop() {
		if _, err := exec.Command("/bin/true").Output(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestEndAtStart: a process is found also while it is being executed, when it has no environment yet.
func TestEndAtStart(t *testing.T) {
	mark := "PROCESS_TEST=" + t.TempDir()
	for i := range 100 {
		cmd := exec.Command("/bin/sleep", "60")
		cmd.Env = []string{mark}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n := End(mark)
		awaitDead(t, cmd)
		_ = cmd.Wait()
		if n != 0 {
			t.Fatalf("process %d: %d left", i, n)
		}
	}
}
