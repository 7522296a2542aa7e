package buildkit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/client"

	"github.com/slimctl/slimctl/internal/buildkitd"
)

// onPath puts buildkitd into PATH.
func onPath(t *testing.T) {
	t.Helper()
	bin, _ := buildkitd.Ensure(t)
	t.Setenv("PATH", filepath.Dir(bin)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// TestPrivate starts two daemons from one cache directory, as two builds at once do, and looks for what they leave.
func TestPrivate(t *testing.T) {
	onPath(t)
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
