package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const noFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK

func owned(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// mountScratch mounts what the container writes to: a tmpfs for its root file system and one for /output. Each is bounded by
// the memory that the container may have, and gone with its mount.
func mountScratch(s *Sandbox) error {
	if os.Geteuid() != 0 {
		s.notApplied("size of /output: a limit needs root")
		return nil
	}
	size := s.plan.Memory
	if size == 0 {
		size = 1 << 30
	}
	for _, m := range []struct {
		dir, mode string
		flags     uintptr
	}{
		{scratch(s.run.dir), "700", unix.MS_NODEV},
		{outputDir(s.run.dir), "755", unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", m.dir, "tmpfs", m.flags, fmt.Sprintf("mode=%s,size=%d", m.mode, size)); err != nil {
			return fmt.Errorf("tmpfs at %s: %w", m.dir, err)
		}
	}
	return nil
}

// openNetwork opens the container's network namespace, if that can be. A container that has ended already has none.
func (s *Sandbox) openNetwork(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil
	}
	path, own := s.plan.netns, false
	if path == "" {
		path, own = s.Netns(ctx), s.plan.Network == "none"
	}
	if path == "" {
		return nil
	}
	n, err := openNetwork(path, own)
	if errors.Is(err, fs.ErrNotExist) && s.plan.netns == "" {
		return nil
	}
	s.net = n
	return err
}

// sweepHost ends and takes away what a run has on this machine: processes, cgroups, mounts.
func sweepHost(id, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	c, err := findCgroups()
	if err != nil {
		return err
	}
	return errors.Join(c.end(namePrefix+id), unmountAll(dir))
}

// belongs tells whether a process of that number on this machine is one of the container: with an engine elsewhere, or in
// a virtual machine, it would be another.
func belongs(pid int, container string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && pid > 1 && container != "" && strings.Contains(string(text), container)
}
