package output

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// exchange swaps two directories, atomically if the file system supports it.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		return swap(a, b)
	}
	return os.NewSyscallError("renameat2", err)
}
