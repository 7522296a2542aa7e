package output

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

// TestDiskFull writes to a file system of 1 MB.
func TestDiskFull(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		need.Missing(t, "needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	srcs, _ := bothSources(t, 400_000)
	for from, src := range srcs {
		b := derive(t, src, 10, 70)
		for _, kind := range []string{OCI, OCIArchive} {
			w := &watcher{}
			o := testOptions()
			o.Progress = w
			err := (Spec{kind, filepath.Join(disk, "x")}).Write(context.Background(), b, nil, src, o)
			if kind == OCIArchive && len(w.tasks) != 0 {
				t.Errorf("%s, %s: %v before the disk was found full", from, kind, w.tasks)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%s, %s: %v", from, kind, err)
			}
			if got := files(t, disk); len(got) != 0 {
				t.Errorf("%s, %s: left behind: %v", from, kind, got)
			}
		}
	}
}
