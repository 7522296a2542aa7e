package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountScratch mounts the container's writable directories: a tmpfs for its root file system, which is as large as its
// memory, and one for each kept directory. Unmounting discards them.
func mountScratch(s *Sandbox) error {
	size := s.plan.Memory
	if size == 0 {
		size = 1 << 30
	}
	mount := func(dir, mode string, flags uintptr, size int64) error {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, fmt.Sprintf("mode=%s,size=%d", mode, size)); err != nil {
			return fmt.Errorf("tmpfs at %s: %w", dir, err)
		}
		return nil
	}
	err := mount(scratch(s.run.dir), "700", unix.MS_NODEV, size)
	for _, k := range s.plan.keeps {
		if err == nil {
			err = mount(k.hostDir(s.run.dir), "755", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, s.plan.TmpfsSize(k.Mount))
		}
	}
	return err
}

// sweepHost ends and removes a run's remains on this machine: processes, cgroups, mounts.
func sweepHost(id, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	c, err := findCgroups()
	if err != nil {
		return err
	}
	return errors.Join(c.killAll(namePrefix+id), unmountAll(dir))
}

// unmountAll unmounts every mount below dir, the last one first.
func unmountAll(dir string) error {
	below, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !strings.HasPrefix(m.Mountpoint, dir+"/"), false })
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(below) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}
