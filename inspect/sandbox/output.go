package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// What is collected of /output at most. What is beyond is left out, and the evidence says so.
const (
	maxOutputBytes = 256 << 20
	maxOutputFiles = 10_000
	maxOutputDepth = 32
	maxSkipped     = 100 // that are named
)

// Output tells what was collected of /output.
type Output struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Skipped are what was not, and why; of many the first hundred.
	Skipped []string `json:"skipped,omitempty"`
	Left    int      `json:"left_out,omitempty"` // how many all in all
}

// collectOutput copies the regular files and directories below from, which a container wrote, into to, which is empty. It
// follows no symlink and opens nothing that isn't a regular file; modes and owners don't come along. It runs when the
// container has no process any more.
func collectOutput(from, to string) (Output, error) {
	src, err := os.OpenRoot(from)
	if err != nil {
		return Output{}, err
	}
	defer src.Close()
	dst, err := os.OpenRoot(to)
	if err != nil {
		return Output{}, err
	}
	defer dst.Close()
	c := &collector{src: src, dst: dst}
	err = c.dir(".", 0)
	return c.out, err
}

type collector struct {
	src, dst *os.Root
	out      Output
}

func (c *collector) skip(name, why string) {
	if c.out.Left++; c.out.Left <= maxSkipped {
		c.out.Skipped = append(c.out.Skipped, fmt.Sprintf("%q: %s", name, why))
	}
}

func (c *collector) dir(name string, depth int) error {
	d, err := c.src.Open(name)
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
		if err := c.entry(filepath.Join(name, e.Name()), depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) entry(name string, depth int) error {
	info, err := c.src.Lstat(name)
	if err != nil {
		return err
	}
	switch {
	case c.out.Files >= maxOutputFiles:
		c.skip(name, fmt.Sprintf("there are more than %d files", maxOutputFiles))
	case info.IsDir() && depth >= maxOutputDepth:
		c.skip(name, fmt.Sprintf("it is more than %d directories deep", maxOutputDepth))
	case info.IsDir():
		c.out.Files++
		if err := c.dst.Mkdir(name, 0o755); err != nil {
			return err
		}
		return c.dir(name, depth+1)
	case !info.Mode().IsRegular():
		c.skip(name, "it is no regular file: "+info.Mode().Type().String())
	case info.Size() > maxOutputBytes-c.out.Bytes:
		c.skip(name, fmt.Sprintf("with its %d bytes there would be more than %d", info.Size(), int64(maxOutputBytes)))
	default:
		return c.file(name, info)
	}
	return nil
}

func (c *collector) file(name string, info fs.FileInfo) (err error) {
	in, err := c.src.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		c.skip(name, "it can't be read")
		return nil
	}
	defer in.Close()
	out, err := c.dst.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	n, err := io.Copy(out, io.LimitReader(in, info.Size()))
	c.out.Files++
	c.out.Bytes += n
	return err
}
