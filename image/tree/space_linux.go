package tree

import (
	"math"
	"os"
	"syscall"
)

// freeSpace returns the number of bytes that can be written to the file system of f.
func freeSpace(f *os.File) int64 {
	var s syscall.Statfs_t
	if syscall.Fstatfs(int(f.Fd()), &s) != nil {
		return math.MaxInt64
	}
	return int64(min(s.Bavail, uint64(math.MaxInt64/s.Bsize))) * s.Bsize //nolint:gosec // bounded
}
