//go:build linux

// Package harness holds what the benchmarks share: measuring processes' time and memory, tables, and images.
package harness

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Main runs a benchmark until it ends or is interrupted. It exits with status 1 after an error.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Command returns a program that is killed with all its children when ctx ends. Ctrl-C doesn't reach it directly.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Used is a process's use of time and memory.
type Used struct {
	Wall float64 `json:"wall"` // seconds
	CPU  float64 `json:"cpu"`  // seconds, its own and its children's
	Peak int64   `json:"peak"` // largest resident memory, in bytes
}

// Measure runs a program to its end. Its error has the end of standard error.
func Measure(cmd *exec.Cmd) (u Used, err error) {
	var said strings.Builder
	cmd.Stderr = &said
	begin := time.Now()
	err = cmd.Run()
	u.Wall = time.Since(begin).Seconds()
	if p := cmd.ProcessState; p != nil {
		u.CPU = (p.UserTime() + p.SystemTime()).Seconds()
		u.Peak = p.SysUsage().(*syscall.Rusage).Maxrss << 10
	}
	if err != nil {
		text := said.String()
		err = fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, text[max(0, len(text)-3000):])
	}
	return u, err
}

// String returns the figures for a progress line.
func (u Used) String() string {
	return fmt.Sprintf("%8.2f s %8.2f s of processor %7.1f MiB", u.Wall, u.CPU, float64(u.Peak)/(1<<20))
}

// Median returns the element with the median time, with the highest peak of all.
func Median(all []Used) Used {
	all = slices.SortedFunc(slices.Values(all), func(a, b Used) int { return cmp.Compare(a.Wall, b.Wall) })
	m := all[len(all)/2]
	for _, u := range all {
		m.Peak = max(m.Peak, u.Peak)
	}
	return m
}

// Memory returns, in bytes, a field in kB of a file in /proc/PID, such as VmRSS of status (proc(5)).
func Memory(pid int, file, field string) (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field+":" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s of process %d", field, pid)
}

// Stat holds fields of /proc/PID/stat.
type Stat struct {
	Parent int
	// Own and Children are processor times in steps of 10 ms: of the process, and of its children that have ended.
	Own, Children time.Duration
}

// ReadStat reads /proc/PID/stat (proc_pid_stat(5)). Linux reports times in hundredths of a second.
func ReadStat(pid int) (Stat, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return Stat{}, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // the fields after the name: state, parent …
	if len(fields) < 15 {
		return Stat{}, fmt.Errorf("process %d: unknown form of stat: %q", pid, text)
	}
	number := func(at int) int {
		n, _ := strconv.Atoi(fields[at]) // the kernel writes numbers
		return n
	}
	const tick = 10 * time.Millisecond
	return Stat{
		Parent: number(1), Own: time.Duration(number(11)+number(12)) * tick, Children: time.Duration(number(13)+number(14)) * tick,
	}, nil
}
