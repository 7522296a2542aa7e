package image

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func identify(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{
		Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano(), //nolint:unconvert // differs by architecture
	}, true
}

// reflink makes dst share src's content on file systems that can (btrfs, XFS): FICLONE, ioctl_ficlone(2).
func reflink(dst, src *os.File) error {
	return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
}

// reserve gives f its size and its place on the disk: writers side by side then don't wait for each other's blocks, and
// a disk that is too full tells before anything is downloaded. Where the file system can't, it only gives the size.
func reserve(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &fs.PathError{Op: "reserve", Path: f.Name(), Err: err}
	}
	return f.Truncate(size)
}
