package cache

import (
	"io/fs"
	"syscall"
	"time"
)

// accessTime returns when a file was last read; zero where that isn't noted.
func accessTime(info fs.FileInfo) time.Time {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(st.Atim.Unix())
	}
	return time.Time{}
}
