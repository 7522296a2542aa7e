package rootfs

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
)

// Limits for the data written for one hostile layer.
const (
	maxLayerEntries = 5_000_000
	maxLayerBytes   = 64 << 30
)

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque" // Documentation/filesystems/overlayfs.rst
	paxXattr       = "SCHILY.xattr."
)

// unpacker unpacks one layer into a directory of its own in overlayfs's form: a whiteout is the character device 0:0,
// an opaque directory has an attribute. The layer is hostile. The kernel resolves each path with the directory as its
// root (openat2, RESOLVE_IN_ROOT), and its last element is never followed.
type unpacker struct {
	root     *os.File
	entries  int
	bytes    int64
	implicit map[string]bool // directories with content that the layer doesn't name
	dirs     []*tar.Header   // their times are set at the end
	// Whiteouts affect lower layers only, whatever their position in the archive, so they are created at the end.
	whiteouts, opaque []string
}

// unpacked is the information about a layer that its directory can't express for overlayfs.
type unpacked struct {
	// Implicit lists directories in which the layer has content without naming them: the owner and mode of lower layers
	// apply.
	Implicit []string `json:"implicit"`
}

// unpack writes the layer's content into dir, which must be empty. After an error dir contains part of the layer.
func unpack(ctx context.Context, layer io.Reader, diffID v1.Hash, dir string) (*unpacked, error) {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := &unpacker{root: root, implicit: map[string]bool{"/": true}}
	hash := sha256.New()
	content := io.TeeReader(&bounded{ctx: ctx, r: layer}, hash)
	if err := u.archive(content); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // data after the archive's end belongs to its digest
		return nil, err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != diffID.Hex {
		return nil, fmt.Errorf("the content is sha256:%s, the image config says %s", got, diffID)
	}
	return &unpacked{Implicit: slices.Sorted(maps.Keys(u.implicit))}, nil
}

// bounded is a reader that ends with ctx, or at the size limit of a layer.
type bounded struct {
	ctx  context.Context
	r    io.Reader
	read int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.read += int64(n); b.read > maxLayerBytes {
		return n, fmt.Errorf("larger than %d bytes", int64(maxLayerBytes))
	}
	return n, err
}

func (u *unpacker) archive(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if u.entries++; u.entries > maxLayerEntries {
			return fmt.Errorf("more than %d entries", maxLayerEntries)
		}
		if u.bytes += h.Size; h.Size < 0 || u.bytes > maxLayerBytes {
			return fmt.Errorf("%q: the files up to this one have more than %d bytes", h.Name, int64(maxLayerBytes))
		}
		if err := u.entry(h, tr); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
	return u.finish()
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	p := image.Clean(h.Name)
	dir, base := path.Split(p)
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		switch {
		case base == opaqueMarker:
			u.opaque = append(u.opaque, image.Clean(dir))
		case strings.HasPrefix(hidden, whiteoutPrefix): // AUFS's own records; no runtime uses them
		case hidden == "", hidden == ".", hidden == "..":
			return errors.New("whiteout without a name")
		default:
			u.whiteouts = append(u.whiteouts, path.Join(dir, hidden))
		}
		return nil
	}
	delete(u.implicit, p)
	if p == "/" {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root's entry is not a directory")
		}
		return u.dirMeta(h, u.root, ".")
	}
	parent, err := u.open(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := vacate(parent, base, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	return u.create(h, content, parent, base)
}

// vacate removes an earlier entry of the same layer; a directory stays for a directory.
func vacate(parent *os.File, base string, forDir bool) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(parent.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && forDir && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(at(parent, base))
}

// at returns a path to base in an open directory, for system calls without an at-form. base is one element.
func at(dir *os.File, base string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), base) }

func (u *unpacker) create(h *tar.Header, content io.Reader, parent *os.File, base string) error {
	fd, mode := int(parent.Fd()), uint32(h.Mode&0o7777)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return file(h, content, parent, base)
	case tar.TypeDir:
		if err := unix.Mkdirat(fd, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return u.dirMeta(h, parent, base)
	case tar.TypeLink:
		target := image.Clean(h.Linkname)
		from, err := u.lookup(path.Dir(target))
		if err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
		defer from.Close()
		if err := unix.Linkat(int(from.Fd()), path.Base(target), fd, base, 0); err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
		return nil
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, fd, base); err != nil {
			return err
		}
		return meta(h, parent, base)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
		dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
		if err := unix.Mknodat(fd, base, kind|0o600, int(dev)); err != nil {
			return err
		}
		if err := meta(h, parent, base); err != nil {
			return err
		}
		return unix.Fchmodat(fd, base, mode, 0)
	}
	return fmt.Errorf("unknown tar entry type %q", h.Typeflag)
}

func file(h *tar.Header, content io.Reader, parent *os.File, base string) (err error) {
	fd, err := unix.Openat(int(parent.Fd()), base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := f.Chown(h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode&0o7777)); err != nil { // after the owner, which clears setuid
		return err
	}
	return meta(h, parent, base) // also after the owner, which clears security.capability
}

func (u *unpacker) dirMeta(h *tar.Header, parent *os.File, base string) error {
	if err := meta(h, parent, base); err != nil {
		return err
	}
	u.dirs = append(u.dirs, h)
	return unix.Fchmodat(int(parent.Fd()), base, uint32(h.Mode&0o7777), 0)
}

// meta sets owner, attributes and time; the caller sets the mode, which a symlink lacks.
func meta(h *tar.Header, parent *os.File, base string) error {
	fd := int(parent.Fd())
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeGNUSparse {
		if err := unix.Fchownat(fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok {
			continue
		}
		keep, err := keepXattr(name)
		if err != nil {
			return err
		}
		if !keep {
			continue
		}
		if err := unix.Lsetxattr(at(parent, base), name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	return setTime(fd, base, h.ModTime)
}

func setTime(fd int, base string, t time.Time) error {
	ts := unix.NsecToTimespec(max(0, t.UnixNano()))
	if t.Year() > 2200 || t.Year() < 1970 { // outside of UnixNano's range
		ts = unix.Timespec{}
	}
	return unix.UtimesNanoAt(fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// keepXattr reports whether a layer may set an attribute. Those of overlayfs could redirect a file's content.
func keepXattr(name string) (bool, error) {
	switch {
	case strings.HasPrefix(name, "trusted.overlay."), strings.HasPrefix(name, "user.overlay."):
		return false, fmt.Errorf("attribute %q is reserved for overlayfs: build the layer without it", name)
	case name == "security.capability", strings.HasPrefix(name, "user."):
		return true, nil
	}
	return false, nil // its effect with another kernel or security module is unknown
}

// lookup opens a directory of the layer. Symlinks among its parents are resolved with the layer's directory as root.
func (u *unpacker) lookup(p string) (*os.File, error) {
	return openIn(u.root, p, unix.O_PATH|unix.O_DIRECTORY)
}

// openIn opens a path with root as its root, whatever symlinks or dots it contains.
func openIn(root *os.File, p string, flags uint64) (*os.File, error) {
	name := strings.TrimPrefix(p, "/")
	if name == "" {
		name = "."
	}
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// open opens a directory of the layer and creates missing parents.
func (u *unpacker) open(dir string) (*os.File, error) {
	dir = image.Clean(dir)
	f, err := u.lookup(dir)
	if dir == "/" || !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	parent, err := u.open(path.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err) // EEXIST: a symlink to a missing target
	}
	u.implicit[dir] = true
	return u.lookup(dir)
}

func (u *unpacker) finish() error {
	for _, p := range u.whiteouts {
		if err := u.whiteout(p); err != nil {
			return fmt.Errorf("whiteout of %q: %w", p, err)
		}
	}
	for _, p := range u.opaque {
		if err := u.makeOpaque(p); err != nil {
			return fmt.Errorf("opaque directory %q: %w", p, err)
		}
	}
	for _, h := range u.dirs {
		p := image.Clean(h.Name)
		parent, err := u.lookup(path.Dir(p))
		if err != nil {
			continue // a later entry replaced it
		}
		base := path.Base(p)
		if p == "/" {
			base = "."
		}
		err = setTime(int(parent.Fd()), base, h.ModTime)
		parent.Close()
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// whiteout hides p of the lower layers. It does nothing if the layer itself has the directory, as in containerd: there the
// directory replaces the whiteout, and isn't opaque.
func (u *unpacker) whiteout(p string) error {
	parent, err := u.open(path.Dir(p))
	if err != nil {
		return err
	}
	defer parent.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(parent.Fd()), path.Base(p), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return unix.Mknodat(int(parent.Fd()), path.Base(p), unix.S_IFCHR, 0)
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && u.implicit[p]:
		return setOpaque(parent, path.Base(p))
	}
	return err
}

func (u *unpacker) makeOpaque(p string) error {
	dir, err := u.open(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	return setOpaque(dir, ".")
}

func setOpaque(dir *os.File, base string) error {
	return unix.Lsetxattr(at(dir, base), opaqueXattr, []byte("y"), 0)
}
