package e2e

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox/rootfs"
	"github.com/slimctl/slimctl/internal/need"
)

// mountImage mounts an image's files below a temporary directory.
func mountImage(t *testing.T, ref string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := rootfs.Cache{Dir: filepath.Join(cache, "slimctl", "unpacked")}.Layers(t.Context(), open(t, ref), image.NoProgress)
	if err != nil {
		t.Fatal(err)
	}
	scratch := t.TempDir()
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(scratch, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	root, err := rootfs.Mount(layers, scratch)
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(scratch, "rootfs"), unix.MNT_DETACH) })
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// debianTool runs one of Debian's tools from outside on the files of an image. Its exit status tells what it found.
func debianTool(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), need.Program(t, program), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	} else if err != nil && len(out) == 0 {
		t.Errorf("%s %q: %v", program, args, err)
	}
	return strings.TrimSpace(string(out))
}

// TestDatabases: Debian's own tools find l1's package databases whole and true, from outside: nothing is half installed, no
// dependency is unmet, and files differ from what their package says only where they do on the base.
func TestDatabases(t *testing.T) {
	t.Parallel()
	ref := build(t, "l1", "standin-live:B")
	need.Containers(t)
	root, base := mountImage(t, ref), mountImage(t, standin(t))
	if out := debianTool(t, "dpkg", "--root="+root, "--audit"); out != "" {
		t.Errorf("dpkg --audit: %s", out)
	}
	cache := t.TempDir()
	check := debianTool(t, "apt-get", "-o", "Dir="+root, "-o", "Dir::State="+cache, "-o", "Dir::State::status="+root+"/var/lib/dpkg/status",
		"-o", "Dir::Cache="+cache, "-o", "Debug::NoLocking=1", "check")
	if strings.Contains(check, "Depends") || strings.Contains(check, "E:") {
		t.Errorf("apt-get check: %s", check)
	}
	list := func(root string) map[string]bool {
		lines := map[string]bool{}
		for line := range strings.Lines(debianTool(t, "dpkg", "--root="+root, "-V")) {
			lines[strings.TrimSpace(line)] = true
		}
		return lines
	}
	known := list(base)
	for _, line := range slices.Sorted(maps.Keys(list(root))) {
		if !known[line] {
			t.Errorf("dpkg -V: %s", line)
		}
	}
}
