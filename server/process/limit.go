//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

type rlimit struct {
	name  string
	which int
	value unix.Rlimit
}

// limits returns the limits for children. A stricter limit of our own stays, since only root can raise a hard limit.
// For CPU time there is one second between SIGXCPU and SIGKILL.
var limits = sync.OnceValues(func() ([]rlimit, error) {
	cpu := uint64(MaxCPU / time.Second)
	list := []rlimit{
		{"core", unix.RLIMIT_CORE, unix.Rlimit{}},
		{"file size", unix.RLIMIT_FSIZE, unix.Rlimit{Cur: MaxFile, Max: MaxFile}},
		{"cpu", unix.RLIMIT_CPU, unix.Rlimit{Cur: cpu, Max: cpu + 1}},
		{"open files", unix.RLIMIT_NOFILE, unix.Rlimit{Cur: MaxFiles, Max: MaxFiles}},
	}
	for i := range list {
		var ours unix.Rlimit
		if err := unix.Getrlimit(list[i].which, &ours); err != nil {
			return nil, fmt.Errorf("read the %s limit: %w", list[i].name, err)
		}
		v := &list[i].value
		v.Max = min(v.Max, ours.Max)
		v.Cur = min(v.Cur, v.Max)
		if list[i].which != unix.RLIMIT_NOFILE { // Go raises its own soft limit
			v.Cur = min(v.Cur, ours.Cur)
		}
	}
	return list, nil
})

// setLimits sets the limits of a process; its later children inherit them. (Go can't set them between fork and exec.)
func setLimits(pid int) error {
	list, err := limits()
	if err != nil {
		return err
	}
	for _, l := range list {
		if err := unix.Prlimit(pid, l.which, &l.value, nil); err != nil {
			return fmt.Errorf("set the %s limit of process %d: %w", l.name, pid, err)
		}
	}
	return nil
}

// limitOrphans sets the limits of daemons that we have inherited: a program may start one before it has limits itself.
// (It isn't looked up in /proc while it runs, since that makes the kernel take milliseconds to forget it.)
func limitOrphans() {
	if !hardened.Load() {
		return
	}
	for _, pid := range listChildren(os.Getpid()) {
		if !children.has(pid) {
			_ = setLimits(pid) // fails if it has ended
		}
	}
}

// listChildren returns a process's children. It is empty on a kernel without CONFIG_PROC_CHILDREN.
func listChildren(pid int) []int {
	var list []int
	tasks := filepath.Join("/proc", strconv.Itoa(pid), "task")
	threads, _ := os.ReadDir(tasks) // gone: no children
	for _, t := range threads {
		words, err := os.ReadFile(filepath.Join(tasks, t.Name(), "children"))
		if err != nil {
			continue
		}
		for w := range strings.FieldsSeq(string(words)) {
			if c, err := strconv.Atoi(w); err == nil {
				list = append(list, c)
			}
		}
	}
	return list
}
