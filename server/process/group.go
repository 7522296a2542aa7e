//go:build linux

package process

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// EndGroup kills the processes named name in a process group and waits until they have ended, at most for within.
func EndGroup(group int, name string, within time.Duration) {
	found, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
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
		if !is() { // the handle is that of another process
			_ = p.Release()
			continue
		}
		left = append(left, p)
	}
	left.endAll(syscall.SIGKILL, within)
}
