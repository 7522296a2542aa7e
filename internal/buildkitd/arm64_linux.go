package buildkitd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

const (
	binfmtDir   = "/proc/sys/fs/binfmt_misc"
	binfmtArm64 = binfmtDir + "/qemu-aarch64"
	// binfmtConf is from Debian's qemu-user-static, with the flags POF, which make it work inside containers.
	binfmtConf = "/usr/lib/binfmt.d/qemu-aarch64.conf"
)

// RegisterArm64 makes the kernel run linux/arm64 programs with qemu, so that a daemon started afterwards can RUN for
// that platform. It needs root and qemu-user-static; otherwise the test is skipped, or fails in CI. The last test
// process that needs the registration removes it.
func RegisterArm64(t testing.TB) {
	t.Helper()
	if runtime.GOARCH == "arm64" {
		return
	}
	dir, err := toolsDir()
	if err != nil {
		need.Missing(t, "no place for the binfmt lock: %v", err)
	}
	lock := flock.New(filepath.Join(filepath.Dir(dir), "binfmt.lock"))
	if err := lock.RLock(); err != nil {
		t.Fatal(err)
	}
	// These files record that a process of ours made the registration or the mount, and so may remove it.
	registered, mounted := lock.Path()+".registered", lock.Path()+".mounted"
	t.Cleanup(func() {
		lock.Unlock()
		if alone, err := lock.TryLock(); err != nil || !alone {
			return
		}
		defer lock.Unlock()
		if os.Remove(registered) == nil {
			os.WriteFile(binfmtArm64, []byte("-1"), 0)
		}
		if os.Remove(mounted) == nil {
			unix.Unmount(binfmtDir, 0)
		}
	})
	if _, err := os.Stat(binfmtArm64); err == nil {
		return
	}
	if os.Getuid() != 0 {
		need.Missing(t, "registering qemu for linux/arm64 needs root")
	}
	conf, err := os.ReadFile(binfmtConf)
	if err != nil {
		need.Missing(t, "no qemu for linux/arm64: apt-get install qemu-user-static: %v", err)
	}
	if _, err := os.Stat(binfmtDir + "/register"); err != nil {
		if err := unix.Mount("binfmt_misc", binfmtDir, "binfmt_misc", 0, ""); err != nil {
			need.Missing(t, "mount binfmt_misc: %v", err)
		}
		mark(t, mounted)
	}
	err = os.WriteFile(binfmtDir+"/register", conf, 0)
	switch {
	case errors.Is(err, fs.ErrExist): // another process was faster
	case err != nil:
		need.Missing(t, "register qemu for linux/arm64: %v", err)
	default:
		mark(t, registered)
	}
}

func mark(t testing.TB, name string) {
	t.Helper()
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
