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
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds on what is collected of a directory. What is beyond is left out, and the evidence says so.
const (
	maxOutputBytes = 256 << 20
	maxOutputFiles = 10_000
	maxOutputDepth = 32
	maxSkipped     = 100     // that are named
	maxPassed      = 1 << 30 // bytes of an archive that are read without being kept
)

// Output tells what was collected of /output.
type Output struct {
	Files []File `json:"files"`
	Bytes int64  `json:"bytes"`
	// Skipped are what was not, and why; of many the first hundred.
	Skipped []string `json:"skipped,omitempty"`
	Left    int      `json:"left_out,omitempty"` // how many all in all
}

// File is a regular file that was collected.
type File struct {
	Path   string `json:"path"` // below the directory
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Type   string `json:"type"` // a media type, by the content's first 512 bytes
}

// collector copies regular files and directories that a container wrote into dst, an empty directory. It follows no
// symlink, opens nothing that isn't a regular file, and drops modes and owners. It runs when the container has no process
// any more.
type collector struct {
	dst   *os.Root
	mode  fs.FileMode // of files
	out   Output
	count int // files and directories
}

// collectInto makes a collector for an empty directory, which it makes.
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

// collectTree copies what lies below a directory of this machine.
func (c *collector) collectTree(dir string) error {
	src, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	return c.collectBelow(src, ".")
}

// collectBelow copies what lies below a directory of src; nothing, if it isn't there. A link in its place is none.
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
		c.skip(name, "it can't be read")
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

// collectArchive copies what a tar archive has below its first directory: what an engine gives of a container's path.
// Names that lead out of it, or to another place than they say, are left out.
func (c *collector) collectArchive(r io.Reader) error {
	archive := tar.NewReader(r)
	passed := int64(0)
	for read := 0; ; read++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("archive of the container: %w", err)
		case read > 2*maxOutputFiles:
			c.skip("the rest", fmt.Sprintf("there are more than %d files", maxOutputFiles))
			return nil
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		if name == "" || strings.Count(name, "/") > maxOutputDepth {
			continue // the directory itself; what lies below one that was skipped
		}
		if h.Size > maxOutputBytes-c.out.Bytes {
			passed += h.Size
		}
		if passed > maxPassed { // a sparse file of any size costs its maker nothing
			c.skip(name, "it is too large to be passed over; nothing after it is read")
			return nil
		}
		if path.Clean("/"+name) != "/"+name {
			c.skip(name, "its name leads elsewhere")
			continue
		}
		info := h.FileInfo()
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir { // FileInfo takes a hard link for a file
			c.skip(name, "it is no regular file: "+strings.TrimSpace(info.Mode().Type().String()+" link"))
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

// admits reports whether a file or directory is to be copied, and skips it otherwise.
func (c *collector) admits(name string, info fs.FileInfo) bool {
	switch {
	case !utf8.ValidString(name):
		c.skip(name, "its name is no UTF-8 text")
	case c.count >= maxOutputFiles:
		c.skip(name, fmt.Sprintf("there are more than %d files", maxOutputFiles))
	case info.IsDir() && strings.Count(name, "/") >= maxOutputDepth:
		c.skip(name, fmt.Sprintf("it is more than %d directories deep", maxOutputDepth))
	case !info.IsDir() && !info.Mode().IsRegular():
		c.skip(name, "it is no regular file: "+info.Mode().Type().String())
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
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // an archive names things twice, or without their directory
		c.skip(name, "the archive is out of order")
		return nil
	}
	return err
}

func (c *collector) copyFile(src *os.Root, name string, size int64) error {
	in, err := src.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		c.skip(name, "it can't be read")
		return nil
	}
	defer in.Close()
	return c.writeFile(name, size, in)
}

// writeFile copies a file of at most size bytes, and describes it.
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
	begin, _ := buffered.Peek(512) // fewer bytes are no error here
	kind := http.DetectContentType(begin)
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), buffered)
	c.count++
	c.out.Bytes += n
	c.out.Files = append(c.out.Files, File{name, hex.EncodeToString(sum.Sum(nil)), n, kind})
	return err
}
