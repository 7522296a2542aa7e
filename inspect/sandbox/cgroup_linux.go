package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups are the hierarchies of this machine: of version 1 by controller, of version 2 under "".
type cgroups map[string]string

func findCgroups() (cgroups, error) {
	c := cgroups{}
	err := mounts(func(point, fstype, options string) {
		switch fstype {
		case "cgroup2":
			c[""] = point
		case "cgroup":
			for o := range strings.SplitSeq(options, ",") {
				if slices.Contains([]string{"memory", "cpu", "pids"}, o) {
					c[o] = point
				} else if strings.HasPrefix(o, "name=") || !slices.Contains([]string{"rw", "ro", "xattr"}, o) {
					c["other:"+o] = point
				}
			}
		}
	})
	return c, err
}

// has tells whether the limits of a controller (memory, cpu, pids) can be set.
func (c cgroups) has(controller string) bool {
	if _, ok := c[controller]; ok {
		return true
	}
	text, _ := os.ReadFile(filepath.Join(c[""], "cgroup.controllers"))
	return c[""] != "" && slices.Contains(strings.Fields(string(text)), controller)
}

// dir is a container's cgroup that has the controller.
func (c cgroups) dir(controller, name string) (dir string, v2 bool) {
	if point, ok := c[controller]; ok {
		return filepath.Join(point, name), false
	}
	return filepath.Join(c[""], name), true
}

// number reads a file of a cgroup that holds a number; "max" is 0 and so is a file that isn't there.
func number(dir, file string) int64 {
	text, _ := os.ReadFile(filepath.Join(dir, file))
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, _ := strconv.ParseInt(first, 10, 64)
	return n
}

// field reads one line of a flat-keyed file.
func field(dir, file, key string) int64 {
	text, _ := os.ReadFile(filepath.Join(dir, file))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, key+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

func (c cgroups) memory(name string) Memory {
	dir, v2 := c.dir("memory", name)
	pids, _ := c.dir("pids", name)
	refused := field(pids, "pids.events", "max")
	if v2 {
		return Memory{
			PIDsRefused: refused,
			Current:     number(dir, "memory.current"), RSS: field(dir, "memory.stat", "anon"),
			Peak: number(dir, "memory.peak"), OOMKills: field(dir, "memory.events", "oom_kill"),
		}
	}
	return Memory{
		PIDsRefused: refused,
		Current:     number(dir, "memory.usage_in_bytes"), RSS: field(dir, "memory.stat", "total_rss"),
		Peak: number(dir, "memory.max_usage_in_bytes"), OOMKills: field(dir, "memory.oom_control", "oom_kill"),
	}
}

// verify says which of the limits that were asked for do not hold.
func (c cgroups) verify(name string, s Settings) (missing []string) {
	say := func(what string, want, got any) {
		missing = append(missing, fmt.Sprintf("%s: asked for %v, the kernel has %v", what, want, got))
	}
	memory, v2 := c.dir("memory", name)
	file := map[bool]string{true: "memory.max", false: "memory.limit_in_bytes"}[v2]
	// The kernel counts whole pages.
	if got, want := number(memory, file), s.Memory-s.Memory%int64(os.Getpagesize()); want > 0 && got != want {
		say("memory", s.Memory, got)
	}
	pids, _ := c.dir("pids", name)
	if got := number(pids, "pids.max"); s.PIDs > 0 && got != s.PIDs {
		say("pids", s.PIDs, got)
	}
	cpu, v2 := c.dir("cpu", name)
	file = map[bool]string{true: "cpu.max", false: "cpu.cfs_quota_us"}[v2]
	if got, want := number(cpu, file), quota(s.CPUs); want > 0 && got != want {
		say("cpus", s.CPUs, float64(got)/cpuPeriod)
	}
	return missing
}

const cpuPeriod = 100_000 // microseconds, the kernel's default

func quota(cpus float64) int64 { return int64(cpus * cpuPeriod) }

// pids lists the processes of a container, as this machine numbers them.
func (c cgroups) pids(name string) ([]int, error) {
	var out []int
	for _, point := range c {
		err := filepath.WalkDir(filepath.Join(point, name), func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // not there, or gone meanwhile
			}
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for line := range strings.Lines(string(text)) {
				// 0 is a process of another PID namespace.
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 && pid != os.Getpid() {
					out = append(out, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// end kills every process of a container and removes its cgroups.
func (c cgroups) end(name string) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		pids, err := c.pids(name)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // fails when it has ended
		}
		err = c.remove(name)
		if len(pids) == 0 && err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("processes %v of %s don't end", pids, name), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// remove removes a container's cgroups, those that it made itself first.
func (c cgroups) remove(name string) error {
	var errs []error
	for _, point := range c {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(point, name), func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, &fs.PathError{Op: "remove cgroup", Path: dir, Err: err})
			}
		}
	}
	return errors.Join(errs...)
}
