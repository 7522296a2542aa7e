package need

import (
	"syscall"
	"testing"
)

// SmallDisk returns the directory of a file system of the given size, such as "2m".
func SmallDisk(t testing.TB, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		Missing(t, "mounting a small disk: %v", err)
	}
	t.Cleanup(func() {
		// A forked child of another test that hasn't called exec yet holds its parent's files, and so the disk.
		var err error
		Eventually(t, func() bool {
			err = syscall.Unmount(dir, 0)
			return err == nil
		}, func() string { return dir + ": " + err.Error() })
	})
	return dir
}
