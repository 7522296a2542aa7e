package server

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// How long a daemon may take to end by itself, and how often to look.
const (
	termGrace = time.Second
	killGrace = time.Second
	lookEvery = 10 * time.Millisecond
)

// endProcesses ends every process of this user whose environment holds all
// the marks: SIGTERM, then SIGKILL. A daemon detaches itself and inherits the
// environment of the call that started it, so this also finds the ones that
// no pid file names (two started at once, or killed while starting).
func endProcesses(marks ...string) {
	if signalAll(syscall.SIGTERM, marks) == 0 || gone(termGrace, marks) {
		return
	}
	for deadline := time.Now().Add(killGrace); time.Now().Before(deadline); time.Sleep(lookEvery) {
		if signalAll(syscall.SIGKILL, marks) == 0 {
			return
		}
	}
}

func gone(within time.Duration, marks []string) bool {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(lookEvery) {
		if signalAll(syscall.Signal(0), marks) == 0 {
			return true
		}
	}
	return false
}

// signalAll signals the marked processes and tells how many there are.
func signalAll(sig syscall.Signal, marks []string) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	n := 0
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if !marked(dir, marks) {
			continue
		}
		p, err := os.FindProcess(pid) // a pidfd: cannot hit a successor with the same number
		if err != nil {
			continue
		}
		if marked(dir, marks) && p.Signal(sig) == nil {
			n++
		}
		_ = p.Release()
	}
	return n
}

// marked tells whether the process at dir has all the marks. A zombie has no
// environment and does not count.
func marked(dir string, marks []string) bool {
	env, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return false
	}
	words := bytes.Split(env, []byte{0})
	for _, m := range marks {
		if !slices.ContainsFunc(words, func(w []byte) bool { return string(w) == m }) {
			return false
		}
	}
	return true
}
