package rootfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// copier lays an unpacked layer over a tree as overlayfs would. It never follows a symlink: a directory of the tree is
// entered only when it is one, and takes the place of whatever else is there.
type copier struct {
	links map[uint64]string // inode of the layer → its first copy
}

func copyLayer(from, to string) error {
	c := copier{links: map[uint64]string{}}
	return c.dir(from, to)
}

func (c copier) dir(from, to string) error {
	if opaque(from) {
		old, err := os.ReadDir(to)
		if err != nil {
			return err
		}
		for _, e := range old {
			if err := os.RemoveAll(filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.entry(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	return copyMeta(from, to, &st)
}

func opaque(dir string) bool {
	var v [1]byte
	n, err := unix.Lgetxattr(dir, opaqueXattr, v[:])
	return err == nil && n == 1 && v[0] == 'y'
}

func (c copier) entry(from, to string) error {
	var st, old unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	isDir := kind == unix.S_IFDIR
	err := unix.Lstat(to, &old)
	there := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if there && !(isDir && old.Mode&unix.S_IFMT == unix.S_IFDIR) {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		there = false
	}
	switch {
	case kind == unix.S_IFCHR && st.Rdev == 0:
		return nil // a whiteout
	case isDir:
		if !there {
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
		}
		return c.dir(from, to)
	}
	if st.Nlink > 1 {
		if first, ok := c.links[st.Ino]; ok {
			return os.Link(first, to)
		}
		c.links[st.Ino] = to
	}
	switch kind {
	case unix.S_IFREG:
		err = copyFile(from, to)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	default:
		err = unix.Mknod(to, kind|0o600, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	return copyMeta(from, to, &st)
}

func copyFile(from, to string) (err error) {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

func copyMeta(from, to string, st *unix.Stat_t) error {
	if err := unix.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return err
		}
	}
	if err := copyXattrs(from, to); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func copyXattrs(from, to string) error {
	names := make([]byte, 64<<10) // the most that a list may have (xattr(7))
	n, err := unix.Llistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("attributes of %s: %w", from, err)
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if keep, _ := keepXattr(name); !keep {
			continue
		}
		v, err := unix.Lgetxattr(from, name, value)
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:v], 0)
		}
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("attribute %q of %s: %w", name, from, err)
		}
	}
	return nil
}
