//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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

// resident is VmRSS in bytes (proc(5)).
func resident(pid int) (int64, error) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS of process %d", pid)
}

// processor is the time that a process itself has had, in steps of 10 ms
// (utime and stime, proc(5); Linux shows it in hundredths on every machine).
func processor(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	const utime, stime = 11, 12 // after the name
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[utime])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[stime])
	return time.Duration(user+system) * 10 * time.Millisecond, err
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
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := map[int][]int{}
	for _, f := range files {
		stat, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		own, rest, _ := strings.Cut(string(stat), " ")
		fields := strings.Fields(rest[strings.LastIndexByte(rest, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		child, _ := strconv.Atoi(own) // the kernel writes numbers
		parent, _ := strconv.Atoi(fields[1])
		all[parent] = append(all[parent], child)
	}
	return all, nil
}
