package output

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// reserve gives f its size and its place on the disk: writers side by side then don't wait for each other's blocks, and
// a disk that is too full tells before anything is downloaded. Where the file system can't, it only gives the size.
func reserve(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &fs.PathError{Op: "reserve", Path: f.Name(), Err: err}
	}
	return f.Truncate(size)
}
