//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slimctl/slimctl/bench/harness"
)

// state is a server's use of resources.
type state struct {
	files     int // open files; -1 if not visible
	processes int // descendants, including zombies
	resident  int64
}

func look(pid int) (s state, err error) {
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	switch {
	case errors.Is(err, fs.ErrPermission): // it forbids tracing, and we are not root
		s.files = -1
	case err != nil:
		return s, err
	default:
		s.files = len(names)
	}
	if s.processes, err = descendants(pid); err != nil {
		return s, err
	}
	s.resident, err = resident(pid)
	return s, err
}

// resident returns a process's resident memory, in bytes.
func resident(pid int) (int64, error) { return harness.Memory(pid, "status", "VmRSS") }

// processor returns a process's own processor time.
func processor(pid int) (time.Duration, error) {
	s, err := harness.ReadStat(pid)
	return s.Own, err
}

// descendants returns the number of processes below one.
func descendants(pid int) (int, error) {
	all, err := parents()
	if err != nil {
		return 0, err
	}
	n := 0
	for todo := all[pid]; len(todo) > 0; n++ {
		todo = append(todo[1:], all[todo[0]]...)
	}
	return n, nil
}

// parents maps each process to its children.
func parents() (map[int][]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int][]int{}
	for _, dir := range dirs {
		child, _ := strconv.Atoi(filepath.Base(dir))       // the pattern matches digits only
		if s, err := harness.ReadStat(child); err == nil { // otherwise it has ended
			all[s.Parent] = append(all[s.Parent], child)
		}
	}
	return all, nil
}
