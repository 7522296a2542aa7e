package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// TestFullDisk: whatever runs out of space, the error says so and nothing half-written is left.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	cache := filepath.Join(t.TempDir(), "cache")
	if err := coldCache(cache); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string]func(disk string) []string{
		"layout":         func(d string) []string { return []string{"build", "--output", "type=oci,dest=" + d + "/x"} },
		"archive":        func(d string) []string { return []string{"build", "--output", "type=oci-archive,dest=" + d + "/x"} },
		"docker archive": func(d string) []string { return []string{"build", "--output", "type=docker-archive,dest=" + d + "/x"} },
		"lock":           func(d string) []string { return []string{"lock", "-o", d + "/x"} },
		"dockerfile":     func(d string) []string { return []string{"dockerfile", "--from", "example.com/aio:1", "-o", d + "/x"} },
		"context":        func(d string) []string { return []string{"llb", "--context", d + "/x"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := need.SmallDisk(t, "8k")
			all := append([]string{"--cache-dir", cache}, args(disk)...)
			code, stdout, stderr := slimctl(t.Context(), append(all, "--base", "standin:B", "--platform", "linux/amd64")...)
			if code != exitError || !strings.Contains(stderr, "no space left on device") {
				t.Errorf("exit code %d, want %d and no space left:\n%s", code, exitError, stderr)
			}
			if bad := badFailure(stdout, stderr); bad != "" {
				t.Error(bad)
			}
			if left := entries(disk); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
	for name, args := range map[string][]string{
		"standin": {"standin", "-o"},
		"payload": {"--cache-dir", cache, "payload", "fetch", "-o"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := need.SmallDisk(t, "64k")
			code, stdout, stderr := slimctl(t.Context(), append(args, disk+"/x")...)
			if code != exitError || !strings.Contains(stderr, "no space left on device") {
				t.Errorf("exit code %d, want %d and no space left:\n%s", code, exitError, stderr)
			}
			if bad := badFailure(stdout, stderr); bad != "" {
				t.Error(bad)
			}
			if left := entries(disk); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
	t.Run("cache", func(t *testing.T) {
		t.Parallel()
		disk := need.SmallDisk(t, "64k")
		if err := os.Mkdir(filepath.Join(disk, "out"), 0o755); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := slimctl(t.Context(), "--cache-dir", disk, "build", "--base", "standin:B", "--platform", "linux/amd64")
		if code != exitError || !strings.Contains(stderr, "no space left on device") {
			t.Errorf("exit code %d, want %d and no space left:\n%s", code, exitError, stderr)
		}
		if bad := badFailure(stdout, stderr); bad != "" {
			t.Error(bad)
		}
	})
}

// TestUnwritableDestination: a destination on a read-only file system, which stops root too.
func TestUnwritableDestination(t *testing.T) {
	t.Parallel()
	disk := need.SmallDisk(t, "64k")
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		need.Missing(t, "a read-only disk: %v", err)
	}
	cache := filepath.Join(t.TempDir(), "cache")
	if err := coldCache(cache); err != nil {
		t.Fatal(err)
	}
	for _, output := range []string{"oci", "oci-archive", "docker-archive"} {
		code, stdout, stderr := slimctl(t.Context(), "--cache-dir", cache, "build", "--base", "standin:B", "--platform", "linux/amd64",
			"--output", "type="+output+",dest="+disk+"/x")
		if code != exitError || !strings.Contains(stderr, "read-only file system") || !strings.Contains(stderr, disk) {
			t.Errorf("%s: exit code %d, want %d and the place:\n%s", output, code, exitError, stderr)
		}
		if bad := badFailure(stdout, stderr); bad != "" {
			t.Error(bad)
		}
	}
}
