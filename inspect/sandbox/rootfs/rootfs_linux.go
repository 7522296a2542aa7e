package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLayers keeps the mount's options within the page that the kernel reads. Docker's limit is 127.
const maxLayers = 150

// Mount mounts the layers as an overlayfs, lowest first, and returns the directory. Writes go to scratch, an empty
// directory, preferably a tmpfs of its own. The caller must unmount dir, also after an error.
func Mount(layers []Layer, scratch string) (dir string, err error) {
	dir = filepath.Join(scratch, "rootfs")
	if err := overlay(layers, scratch, dir); err != nil {
		return "", fmt.Errorf("root file system of %d layers by overlayfs: %w", len(layers), err)
	}
	return dir, inherit(dir, layers)
}

func overlay(layers []Layer, scratch, dir string) error {
	if len(layers) == 0 || len(layers) > maxLayers {
		return fmt.Errorf("want 1 to %d", maxLayers)
	}
	for _, d := range []string{filepath.Join(scratch, "upper"), filepath.Join(scratch, "work"), dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	var lowers []string
	for _, l := range slices.Backward(layers) {
		// A path through a file descriptor is short, and has none of the characters that separate options.
		f, err := os.OpenFile(l.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		lowers = append(lowers, fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	}
	up, err := os.OpenFile(scratch, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer up.Close()
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(lowers, ":"), at(up, "upper"), at(up, "work"))
	// An image's device files aren't needed: a container has its own /dev.
	return unix.Mount("overlay", dir, "overlay", unix.MS_NODEV, options)
}

// inherit sets the owner and mode of the root, and of each directory in which a layer has content without naming it, to
// those in the layers. Overlayfs uses the uppermost layer with the directory, and none for the root.
func inherit(dir string, layers []Layer) error {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	done := map[string]bool{}
	for _, l := range append([]Layer{{unpacked: unpacked{Implicit: []string{"/"}}}}, layers...) {
		for _, p := range l.Implicit {
			if done[p] {
				continue
			}
			done[p] = true
			st, err := named(p, layers)
			if err == nil && st != nil {
				err = inheritDir(root, p, st)
			}
			if err != nil {
				return fmt.Errorf("owner of %s: %w", p, err)
			}
		}
	}
	return nil
}

// named returns the uppermost layer that names the directory; nil if no relevant layer does.
func named(p string, layers []Layer) (*unix.Stat_t, error) {
	for _, l := range slices.Backward(layers) {
		st, more, err := statDir(l.dir, p)
		if err != nil {
			return nil, err
		}
		if st != nil && !slices.Contains(l.Implicit, p) {
			return st, nil
		}
		if !more {
			return nil, nil
		}
	}
	return nil, nil
}

// statDir examines a directory of a layer without following symlinks. more reports that lower layers are relevant, too.
func statDir(root, p string) (st *unix.Stat_t, more bool, err error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, false, err
	}
	defer func() { dir.Close() }()
	more = true
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if name == "" {
			break
		}
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil, more, nil
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return nil, false, nil // a file, a symlink or a whiteout
		case err != nil:
			return nil, false, err
		}
		dir.Close()
		dir = os.NewFile(uintptr(fd), name)
		more = more && !opaque(at(dir, "."))
	}
	st = new(unix.Stat_t)
	return st, more, unix.Fstatat(int(dir.Fd()), "", st, unix.AT_EMPTY_PATH)
}

func opaque(dir string) bool {
	var v [1]byte
	n, err := unix.Lgetxattr(dir, opaqueXattr, v[:])
	return err == nil && n == 1 && v[0] == 'y'
}

func inheritDir(root *os.File, p string, st *unix.Stat_t) error {
	dir, err := openIn(root, p, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil // invisible: an upper layer hides it
	}
	defer dir.Close()
	if err := unix.Fchownat(int(dir.Fd()), "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Fchmodat(int(dir.Fd()), ".", st.Mode&0o7777, 0)
}
