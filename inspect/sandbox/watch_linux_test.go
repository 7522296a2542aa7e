package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

// TestWatchToTheEnd guards that the events before the end of a watch are processed, however many the kernel still has.
func TestWatchToTheEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		need.Missing(t, "mounting a file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	const files = 1000
	busy, seen := make(chan struct{}), 0
	w, err := startWatch(dir, unix.FAN_CLASS_NOTIF, unix.FAN_OPEN, func(*os.File, unix.FanotifyEventMetadata) {
		<-busy
		seen++
	}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	time.AfterFunc(100*time.Millisecond, func() { close(busy) }) // any time later than the end of the watch
	w.close()
	if seen != files {
		t.Errorf("%d of %d events", seen, files)
	}
}
