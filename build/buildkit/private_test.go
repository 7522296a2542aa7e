package buildkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/util/appdefaults"

	"github.com/slimctl/slimctl/internal/buildkitd"
	"github.com/slimctl/slimctl/internal/need"
)

// onlyPath makes a directory PATH that has buildkitd, and no OCI runtime.
func onlyPath(t *testing.T) {
	t.Helper()
	bin, _ := buildkitd.Ensure(t)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		need.Missing(t, "%v", err)
	}
	dir := t.TempDir()
	for _, program := range []string{bin, unshare} {
		if err := os.Symlink(program, filepath.Join(dir, filepath.Base(program))); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// TestPrivate starts two daemons from one cache directory, as two builds at once do, and looks for what they leave. The trace
// socket of the system's daemon stays as it was.
func TestPrivate(t *testing.T) {
	onlyPath(t)
	systems := appdefaults.TraceSocketPath(false)
	before, _ := os.Lstat(systems)
	t.Cleanup(func() {
		if after, _ := os.Lstat(systems); (before == nil) != (after == nil) || before != nil && !os.SameFile(before, after) {
			t.Errorf("%s was %v and is %v", systems, before, after)
		}
	})
	dir := t.TempDir()
	for range 2 {
		addr, stop, err := Private(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := stop(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Dir(strings.TrimPrefix(addr, "unix://"))); !os.IsNotExist(err) {
				t.Errorf("the directory of %s is still there: %v", addr, err)
			}
		}()
		c, err := client.New(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v, %v are left in the cache", left, err)
		}
	})
}

func TestPrivateWithoutBuildkitd(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, _, err := Private(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "--builder auto") {
		t.Errorf("error is %v, want one that names the flag", err)
	}
}

func TestPrivateThatDies(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "buildkitd"), []byte("#!/bin/sh\necho out of luck >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	dir := t.TempDir()
	_, _, err := Private(t.Context(), dir)
	if err == nil || !strings.Contains(err.Error(), "out of luck") {
		t.Errorf("error is %v, want the daemon's last words", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left in the cache", left)
	}
}
