package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountScratch mounts what the container writes to: a tmpfs for its root file system and one for each directory that is
// kept. Each is bounded by the memory that the container may have, and gone with its mount.
func mountScratch(s *Sandbox) error {
	size := s.plan.Memory
	if size == 0 {
		size = 1 << 30
	}
	mount := func(dir, mode string, flags uintptr) error {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, fmt.Sprintf("mode=%s,size=%d", mode, size)); err != nil {
			return fmt.Errorf("tmpfs at %s: %w", dir, err)
		}
		return nil
	}
	err := mount(scratch(s.run.dir), "700", unix.MS_NODEV)
	for _, k := range s.plan.keeps {
		if err == nil {
			err = mount(k.hostDir(s.run.dir), "755", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC)
		}
	}
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

// unmountAll takes away every mount below dir, the last one first.
func unmountAll(dir string) error {
	var below []string
	if err := mounts(func(point, _, _ string) {
		if strings.HasPrefix(point, dir+"/") {
			below = append(below, point)
		}
	}); err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(below) {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// mounts reads the mount table: of each mount its point, its type and its super options (proc(5), mountinfo).
func mounts(each func(point, fstype, options string)) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for lines.Scan() {
		left, right, _ := strings.Cut(lines.Text(), " - ")
		a, b := strings.Fields(left), strings.Fields(right)
		if len(a) > 4 && len(b) > 2 {
			each(unescape.Replace(a[4]), b[0], b[2])
		}
	}
	return lines.Err()
}
