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

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cgroups holds this machine's hierarchies: version 1 by controller, version 2 under "".
type cgroups map[string]string

func findCgroups() (cgroups, error) {
	c := cgroups{}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			c[""] = m.Mountpoint
			continue
		}
		for o := range strings.SplitSeq(m.VFSOptions, ",") {
			if slices.Contains([]string{"memory", "cpu", "pids"}, o) {
				c[o] = m.Mountpoint
			} else if strings.HasPrefix(o, "name=") || !slices.Contains([]string{"rw", "ro", "xattr"}, o) {
				c["other:"+o] = m.Mountpoint
			}
		}
	}
	return c, err
}

// hasController reports whether the limits of a controller (memory, cpu, pids) can be set.
func (c cgroups) hasController(controller string) bool {
	if _, ok := c[controller]; ok {
		return true
	}
	text, _ := os.ReadFile(filepath.Join(c[""], "cgroup.controllers"))
	return c[""] != "" && slices.Contains(strings.Fields(string(text)), controller)
}

// dir returns a container's cgroup with the controller.
func (c cgroups) dir(controller, name string) (dir string, v2 bool) {
	if point, ok := c[controller]; ok {
		return filepath.Join(point, name), false
	}
	return filepath.Join(c[""], name), true
}

// number returns the number in a file of a cgroup; "max" and a missing file are 0.
func number(dir, file string) int64 {
	text, _ := os.ReadFile(filepath.Join(dir, file))
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, _ := strconv.ParseInt(first, 10, 64)
	return n
}

// field returns one line of a flat-keyed file.
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

// findMissing returns the requested limits that aren't in effect.
func (c cgroups) findMissing(name string, s Settings) (missing []string) {
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

// pids returns the processes of a container, with this machine's numbers.
func (c cgroups) pids(name string) ([]int, error) {
	var out []int
	for _, point := range c {
		err := filepath.WalkDir(filepath.Join(point, name), func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // missing, or removed meanwhile
			}
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for line := range strings.Lines(string(text)) {
				// 0 stands for a process of another PID namespace.
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

// killAll kills every process of a container and removes its cgroups.
func (c cgroups) killAll(name string) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		pids, err := c.pids(name)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // fails if it has ended
		}
		err = c.removeAll(name)
		if len(pids) == 0 && err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("processes %v of %s don't end", pids, name), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// removeAll removes a container's cgroups, the nested ones first.
func (c cgroups) removeAll(name string) error {
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
