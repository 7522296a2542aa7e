package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Status holds the used fields of /proc/PID/stat (proc_pid_stat(5)).
type Status struct {
	Name  string // the first 15 bytes of the program's file name
	State byte   // R, S, D, T, Z …
	Group int
}

// ReadStatus reads the status of a process below proc, which is /proc except in tests.
func ReadStatus(proc string, pid int) (Status, bool) {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Status{}, false
	}
	_, rest, _ := bytes.Cut(stat, []byte("("))
	end := bytes.LastIndexByte(rest, ')') // a name may contain any character
	if end < 0 {
		return Status{}, false
	}
	fields := strings.Fields(string(rest[end+1:])) // state, parent, group …
	if len(fields) < 3 {
		return Status{}, false
	}
	group, err := strconv.Atoi(fields[2])
	return Status{Name: string(rest[:end]), State: fields[0][0], Group: group}, err == nil
}

// Runs reports whether the process can work: it has neither ended nor been stopped by a signal.
func (s Status) Runs() bool { return !strings.ContainsRune("ZXTt", rune(s.State)) }
