package cache

import (
	"io/fs"
	"syscall"
	"time"
)

// accessTime returns the time of a file's last read, or zero if it isn't recorded.
func accessTime(info fs.FileInfo) time.Time {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(st.Atim.Unix())
	}
	return time.Time{}
}
