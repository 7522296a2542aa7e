package output

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// reserve sets f's size and allocates its blocks. Concurrent writers then don't wait for each other, and a full disk is
// noticed before the download. If the file system can't allocate, it only sets the size.
func reserve(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &fs.PathError{Op: "reserve", Path: f.Name(), Err: err}
	}
	return f.Truncate(size)
}
