package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// copyJobs bounds blobs in flight to files: enough to fill a line, few enough to keep a disk's writes long.
const copyJobs = 6

// copier brings blobs to files: by link where it may, else through memory in pieces.
type copier struct {
	opt   Options
	local *blobs // of the base; may be nil
}

// file makes a file of one blob. The caller removes it when it fails.
func (c *copier) file(ctx context.Context, dst string, it item) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if done, err := c.link(ctx, dst, it); done || err != nil {
		return err
	}
	f, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(c.at(ctx, f, 0, it), f.Close())
}

// link makes dst a reflink or a hard link of the base's blob, after the blob has been read once and found good. done
// is false when the blob is not on this machine or the file system can do neither.
func (c *copier) link(ctx context.Context, dst string, it item) (done bool, err error) {
	if c.local == nil || c.local.files != nil || it.layer == nil {
		return false, nil
	}
	s, err := c.local.blob(it.desc)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	src, err := s.open()
	if err != nil {
		return false, err
	}
	defer src.Close()
	if err := c.verifyOnce(ctx, src, it, s.path); err != nil {
		return false, err
	}
	if clone(dst, src.file) {
		return true, nil
	}
	before, _ := src.identity()
	if os.Link(s.path, dst) != nil {
		return false, nil // another file system, or a kernel that protects files of others
	}
	// The link itself changed the change time: the content was checked a moment ago and is still of the same age.
	if after, ok := src.identity(); ok && after.MTime == before.MTime && after.Size == before.Size {
		c.local.known.renew(it.desc.Digest, before, after)
	}
	return true, nil
}

// verifyOnce hashes a blob unless it is known to be good.
func (c *copier) verifyOnce(ctx context.Context, src *spanReader, it item, where string) (err error) {
	before, ok := src.identity()
	if ok && c.local.known.has(it.desc.Digest, before) {
		return nil
	}
	task := c.opt.Progress.Task("verify "+Short(it.desc.Digest), it.desc.Size)
	defer func() { task.Done(err) }()
	r, err := newVerifyReader(io.NopCloser(src), it.desc.Digest, it.desc.Size, where, func() {
		if after, same := src.identity(); ok && same && after == before {
			c.local.known.add(it.desc.Digest, after)
		}
	})
	if err != nil {
		return err
	}
	return copyAll(io.Discard, Counting(ctx, r, task.Add))
}

func clone(dst string, src *os.File) bool {
	f, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return false
	}
	err = reflink(f, src)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(dst)
	}
	return err == nil
}

// at writes one blob into f from off on. A connection that breaks in the middle is tried again from the start.
func (c *copier) at(ctx context.Context, f *os.File, off int64, it item) (err error) {
	if it.raw != nil {
		_, err := f.WriteAt(it.raw, off)
		return err
	}
	task := c.opt.Progress.Task("layer "+Short(it.desc.Digest), it.desc.Size)
	defer func() { task.Done(err) }()
	wait := c.opt.backoff
	for try := 1; ; try++ {
		if _, err = f.Seek(off, io.SeekStart); err != nil {
			return err
		}
		var n int64
		err = c.to(ctx, f, it, func(d int64) { n += d; task.Add(d) })
		if err == nil || try == 3 || !isCut(err) {
			return err
		}
		task.Add(-n)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait *= 3
	}
}

// to copies a layer to w, checked.
func (c *copier) to(ctx context.Context, w io.Writer, it item, add func(int64)) error {
	if it.raw != nil {
		_, err := io.Copy(w, bytes.NewReader(it.raw))
		return err
	}
	r, err := c.openUntil(ctx, it)
	if err != nil {
		return err
	}
	shut := sync.OnceFunc(func() { r.Close() })
	defer shut()
	defer context.AfterFunc(ctx, shut)() // another blob failed: don't wait for a slow registry
	return copyAll(w, Counting(ctx, r, add))
}

// openUntil is open, but doesn't wait any longer when ctx ends: a remote layer is bound to another context, and its
// registry may hang until the idle timeout.
func (c *copier) openUntil(ctx context.Context, it item) (io.ReadCloser, error) {
	type opened struct {
		r   io.ReadCloser
		err error
	}
	got := make(chan opened, 1)
	go func() {
		r, err := c.open(it)
		got <- opened{r, err}
	}()
	select {
	case o := <-got:
		return o.r, o.err
	case <-ctx.Done():
		go func() {
			if o := <-got; o.err == nil {
				o.r.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// open gives a layer that fails before its last bytes when it is corrupt.
func (c *copier) open(it item) (io.ReadCloser, error) {
	if c.local != nil {
		r, err := c.local.open(it.desc)
		if !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	}
	r, err := it.layer.Compressed()
	if err != nil {
		return nil, err
	}
	if _, ok := it.layer.(*remote.MountableLayer); ok {
		return r, nil // go-containerregistry hashes what it downloads
	}
	return newVerifyReader(r, it.desc.Digest, it.desc.Size, "layer", nil)
}

// copyAll copies by pieces that stay in a processor's cache between being hashed and being written, and that are large
// enough for the file system to take them in few big pages. On ext4 that is faster than copy_file_range(2), which
// copies page by page where it can't share blocks.
func copyAll(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, r, make([]byte, 1<<20))
	return err
}

// sleep waits d or until ctx ends, whose cause it then gives.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
