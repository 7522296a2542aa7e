//go:build linux

package need_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// TestStartEnds guards against programs that outlive their test, also when the test process is killed.
func TestStartEnds(t *testing.T) {
	if os.Getenv("NEED_ROLE") == "killed" {
		cmd := exec.Command("sh", "-c", "echo up; exec sleep 100000")
		cmd.Stdout = os.Stdout
		if err := need.Start(t, cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		return
	}
	read, write, err := os.Pipe() // all that run hold its other end
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	parent := exec.Command("/proc/self/exe", "-test.run=^TestStartEnds$")
	parent.Env, parent.Stdout = append(os.Environ(), "NEED_ROLE=killed"), write
	if err := need.Start(t, parent); err != nil {
		t.Fatal(err)
	}
	write.Close()
	said := bufio.NewReader(read)
	if line, err := said.ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, said)
		ended.Store(true)
	}()
	need.Eventually(t, ended.Load, func() string { return "the program lives" })
}
