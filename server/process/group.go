//go:build linux

package process

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// EndGroup kills the processes named name in a process group and waits until they have ended, at most for the time given.
func EndGroup(group int, name string, within time.Duration) {
	found, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	var left processes
	for _, dir := range found {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		is := func() bool {
			s, ok := ReadStatus("/proc", pid)
			return ok && s.Group == group && s.Name == name && s.State != 'Z'
		}
		if !is() {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if !is() { // the one that is held is another
			_ = p.Release()
			continue
		}
		left = append(left, p)
	}
	left.end(syscall.SIGKILL, within)
}
