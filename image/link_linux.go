package image

import (
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

// reflink makes dst share src's content (FICLONE, ioctl_ficlone(2)), which btrfs and XFS support.
func reflink(dst, src *os.File) error {
	return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
}
