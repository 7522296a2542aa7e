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
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
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

// collector copies a container's regular files and directories into dst, an empty directory. It follows no symlink,
// opens only regular files, and drops modes and owners. It runs when the container has no processes any more.
type collector struct {
	dst   *os.Root
	mode  fs.FileMode // of files
	out   Output
	count int // files and directories
}

// collectInto creates a directory and returns a collector for it.
func collectInto(dir string, mode fs.FileMode) (*collector, error) {
	if err := os.Mkdir(dir, mode|mode&0o444>>2); err != nil {
		return nil, err
	}
	dst, err := os.OpenRoot(dir)
	return &collector{dst: dst, mode: mode, out: Output{Files: []File{}}}, err
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
	return c.collectBelow(src, ".")
}

// collectBelow copies the content of a directory in src; a missing directory and a symlink have none.
func (c *collector) collectBelow(src *os.Root, name string) error {
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
	return c.collectDir(below, ".")
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
		info, err := src.Lstat(name)
		if err != nil {
			return err
		}
		if !c.admits(name, info) {
			continue
		}
		if info.IsDir() {
			err = errors.Join(c.makeDir(name), c.collectDir(src, name))
		} else {
			err = c.copyFile(src, name, info.Size())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// collectArchive copies the content of the first directory in a tar archive, an engine's form of a container's path. It
// leaves out names that lead outside, or that aren't clean.
func (c *collector) collectArchive(r io.Reader) error {
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
		if name == "" || strings.Count(name, "/") > maxOutputDepth {
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
			err = c.writeFile(name, h.Size, archive)
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
	case c.count >= maxOutputFiles:
		c.skip(name, fmt.Sprintf("there are more than %d files", maxOutputFiles))
	case info.IsDir() && strings.Count(name, "/") >= maxOutputDepth:
		c.skip(name, fmt.Sprintf("more than %d directories deep", maxOutputDepth))
	case !info.IsDir() && !info.Mode().IsRegular():
		c.skip(name, "not a regular file: "+info.Mode().Type().String())
	case info.Size() > maxOutputBytes-c.out.Bytes && !info.IsDir():
		c.skip(name, fmt.Sprintf("with its %d bytes there would be more than %d", info.Size(), int64(maxOutputBytes)))
	default:
		return true
	}
	return false
}

func (c *collector) makeDir(name string) error {
	c.count++
	err := c.dst.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // an archive may repeat names, or omit directories
		c.skip(name, "the archive is out of order")
		return nil
	}
	return err
}

func (c *collector) copyFile(src *os.Root, name string, size int64) error {
	in, err := src.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		c.skip(name, "can't be read")
		return nil
	}
	defer in.Close()
	return c.writeFile(name, size, in)
}

// writeFile copies a file of at most size bytes, and adds its description.
func (c *collector) writeFile(name string, size int64, in io.Reader) (err error) {
	out, err := c.dst.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, c.mode)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		c.skip(name, "the archive is out of order")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffered := bufio.NewReaderSize(io.LimitReader(in, size), 64<<10)
	begin, _ := buffered.Peek(512) // fewer bytes are not an error here
	kind := http.DetectContentType(begin)
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), buffered)
	c.count++
	c.out.Bytes += n
	c.out.Files = append(c.out.Files, File{name, hex.EncodeToString(sum.Sum(nil)), n, kind})
	return err
}
