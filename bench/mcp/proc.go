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

// state is what a server holds.
type state struct {
	files     int // open; -1 when we may not see it
	processes int // its descendants, zombies too
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

// resident returns what memory a process has now, in bytes.
func resident(pid int) (int64, error) { return harness.Memory(pid, "status", "VmRSS") }

// processor returns the time that a process itself has had.
func processor(pid int) (time.Duration, error) {
	s, err := harness.ReadStat(pid)
	return s.Own, err
}

// descendants counts the processes below one.
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

// children lists the processes right below one.
func children(pid int) ([]int, error) {
	all, err := parents()
	return all[pid], err
}

// parents gives the children of each process.
func parents() (map[int][]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int][]int{}
	for _, dir := range dirs {
		child, _ := strconv.Atoi(filepath.Base(dir))       // the pattern has digits
		if s, err := harness.ReadStat(child); err == nil { // otherwise it has ended
			all[s.Parent] = append(all[s.Parent], child)
		}
	}
	return all, nil
}
