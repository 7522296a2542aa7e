package sandbox

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Limits for the collected files of a directory. Further files are left out, and the evidence reports that.
const (
	maxOutputBytes = 256 << 20
	maxOutputFiles = 10_000
	maxOutputDepth = 32
	maxSkipped     = 100     // listed by name
	maxPassed      = 1 << 30 // bytes of an archive that are read besides the kept ones
)

// Output describes the files collected from /output.
type Output struct {
	Files []File `json:"files"`
	Bytes int64  `json:"bytes"`
	// Skipped lists files that were left out, with the reason; at most a hundred.
	Skipped []string `json:"skipped,omitempty"`
	Left    int      `json:"left_out,omitempty"` // total number
}

// File is a collected regular file.
type File struct {
	Path   string `json:"path"` // relative to the directory
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Type   string `json:"type"` // a media type, from the content's first 512 bytes
}

// collector copies a container's regular files and directories into dst, where nobody else writes, and where each file
// appears whole. It follows no symlink, opens only regular files, and drops modes and owners. The container may run.
type collector struct {
	dst   *os.Root
	mode  fs.FileMode // of files
	out   Output
	files map[string]collected
	count int // files and directories
}

type collected struct {
	File
	modified time.Time // the original
}

// partial is the name in dst of a file that is being copied.
const partial = ".slimctl-partial"

// collectInto returns a collector for a directory, which it creates if that is missing.
func collectInto(dir string, mode fs.FileMode) (*collector, error) {
	if err := os.MkdirAll(dir, mode|mode&0o444>>2); err != nil {
		return nil, err
	}
	dst, err := os.OpenRoot(dir)
	return &collector{dst: dst, mode: mode, files: map[string]collected{}}, err
}

// describe returns what was collected.
func (c *collector) describe() Output {
	c.out.Files = make([]File, 0, len(c.files))
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		c.out.Files = append(c.out.Files, c.files[name].File)
	}
	return c.out
}

func (c *collector) skip(name, why string) {
	if c.out.Left++; c.out.Left <= maxSkipped {
		c.out.Skipped = append(c.out.Skipped, fmt.Sprintf("%q: %s", name, why))
	}
}

// collectTree copies the content of a directory of this machine.
func (c *collector) collectTree(dir string) error {
	src, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	return c.collectDir(src, ".")
}

// collectBelow copies the content of a directory in src, or one file below it; a missing directory and a symlink have
// none.
func (c *collector) collectBelow(src *os.Root, name, file string) error {
	info, err := src.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	below, err := src.OpenRoot(name)
	if err != nil {
		return err
	}
	defer below.Close()
	if file == "" {
		return c.collectDir(below, ".")
	}
	if info, err := below.Lstat(file); err != nil || !c.admits(file, info) {
		return nil
	}
	return errors.Join(c.makeParents(file), c.copyFile(below, file))
}

// makeParents creates the directories above a file.
func (c *collector) makeParents(file string) error {
	if _, err := c.dst.Stat(path.Dir(file)); err == nil {
		return nil
	}
	c.count += strings.Count(file, "/")
	return c.skipClash(file, c.dst.MkdirAll(path.Dir(file), 0o755))
}

func (c *collector) collectDir(src *os.Root, name string) error {
	d, err := src.Open(name)
	if err != nil {
		c.skip(name, "can't be read")
		return nil
	}
	entries, err := d.ReadDir(maxOutputFiles + 1)
	d.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		name := filepath.Join(name, e.Name())
		if !e.IsDir() {
			err = c.copyFile(src, name)
		} else if info, ierr := src.Lstat(name); ierr == nil && c.admits(name, info) {
			err = errors.Join(c.makeDir(name), c.collectDir(src, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// collectArchive copies the content of the first directory in a tar archive, an engine's form of a container's path; or
// the one file in it, which is named file. It leaves out names that lead outside, or that aren't clean.
func (c *collector) collectArchive(r io.Reader, file string) error {
	left := &io.LimitedReader{R: r, N: maxOutputBytes + maxPassed}
	archive := tar.NewReader(left)
	for read := 0; ; read++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && left.N <= 0:
			c.skip("the rest", fmt.Sprintf("no more than %d bytes are read", int64(maxOutputBytes+maxPassed)))
			return nil
		case err != nil:
			return fmt.Errorf("archive of the container: %w", err)
		case read > 2*maxOutputFiles:
			c.skip("the rest", fmt.Sprintf("there are more than %d files", maxOutputFiles))
			return nil
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		if h.Size > left.N { // a sparse file of any size is cheap to make
			c.skip(name, fmt.Sprintf("with its %d bytes it is too large to be passed over; nothing after it is read", h.Size))
			return nil
		}
		if name += file; name == "" || len(name) > len(file) && file != "" || strings.Count(name, "/") > maxOutputDepth {
			continue // the directory itself, or content of a skipped one
		}
		if path.Clean("/"+name) != "/"+name {
			c.skip(name, "its name leads elsewhere")
			continue
		}
		info := h.FileInfo()
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir { // FileInfo treats a hard link as a file
			c.skip(name, "not a regular file: "+strings.TrimSpace(info.Mode().Type().String()+" link"))
			continue
		}
		if !c.admits(name, info) {
			continue
		}
		if info.IsDir() {
			err = c.makeDir(name)
		} else {
			err = errors.Join(c.makeParents(file), c.writeFile(name, info, archive))
		}
		if err != nil {
			return err
		}
	}
}

// admits reports whether to copy a file or directory; otherwise it records the reason.
func (c *collector) admits(name string, info fs.FileInfo) bool {
	switch {
	case !utf8.ValidString(name):
		c.skip(name, "the name is not UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }):
		c.skip(name, "its name has control characters, which a terminal would obey")
	case name == partial:
		c.skip(name, "the name is needed for copying")
	case c.count >= maxOutputFiles && c.files[name].Path == "":
		c.skip(name, fmt.Sprintf("there are more than %d files", maxOutputFiles))
	case info.IsDir() && strings.Count(name, "/") >= maxOutputDepth:
		c.skip(name, fmt.Sprintf("more than %d directories deep", maxOutputDepth))
	case !info.IsDir() && !info.Mode().IsRegular():
		c.skip(name, "not a regular file: "+info.Mode().Type().String())
	case info.Size()-c.files[name].Size > maxOutputBytes-c.out.Bytes && !info.IsDir():
		c.skip(name, fmt.Sprintf("with its %d bytes there would be more than %d", info.Size(), int64(maxOutputBytes)))
	default:
		return true
	}
	return false
}

func (c *collector) makeDir(name string) error {
	err := c.dst.Mkdir(name, 0o755)
	if err == nil {
		c.count++
	}
	if errors.Is(err, fs.ErrExist) && c.files[name].Path == "" { // a directory from before
		return nil
	}
	return c.skipClash(name, err)
}

// skipClash skips a name if err says that something else has its place, or that there is none.
func (c *collector) skipClash(name string, err error) error {
	for _, clash := range []error{fs.ErrExist, fs.ErrNotExist, unix.ENOTDIR, unix.EISDIR} {
		if errors.Is(err, clash) {
			c.skip(name, "it is out of order, or was something else before")
			return nil
		}
	}
	return err
}

// copyFile copies a regular file that has changed. A process may replace it at any time.
func (c *collector) copyFile(src *os.Root, name string) error {
	info, err := src.Lstat(name)
	if err != nil || !c.admits(name, info) {
		return nil
	}
	in, err := src.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		c.skip(name, "can't be read")
		return nil
	}
	defer in.Close()
	old := c.files[name]
	if info, err = in.Stat(); err != nil || info.IsDir() || !c.admits(name, info) || old.Size == info.Size() && old.modified.Equal(info.ModTime()) {
		return nil
	}
	return c.writeFile(name, info, in)
}

// writeFile copies a file of at most the described size, and adds its description.
func (c *collector) writeFile(name string, info fs.FileInfo, in io.Reader) error {
	out, err := c.dst.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, c.mode)
	if err != nil {
		return err
	}
	defer func() { _ = c.dst.Remove(partial) }() // unless it was renamed
	buffered := bufio.NewReaderSize(io.LimitReader(in, info.Size()), 64<<10)
	begin, _ := buffered.Peek(512) // fewer bytes are not an error here
	kind := http.DetectContentType(begin)
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), buffered)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := c.dst.Rename(partial, name); err != nil {
		return c.skipClash(name, err)
	}
	old := c.files[name]
	if old.Path == "" {
		c.count++
	}
	c.out.Bytes += n - old.Size
	c.files[name] = collected{File{name, hex.EncodeToString(sum.Sum(nil)), n, kind}, info.ModTime()}
	return nil
}
