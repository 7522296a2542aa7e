package output

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/slimctl/slimctl/image"
)

// copyJobs limits concurrent copies to files: enough for the network, few enough for long writes on a disk.
const copyJobs = 6

// copier copies blobs to files, by links if possible.
type copier struct {
	opt image.Options
	src *image.Source // the base, or nil
}

// copyFile writes one blob to the file dst. The caller removes the file after an error.
func (c *copier) copyFile(ctx context.Context, dst string, it item) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if it.layer != nil {
		if done, err := c.src.Link(ctx, dst, it.desc, c.opt.Progress); done || err != nil {
			return err
		}
	}
	f, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(c.copyAt(ctx, f, 0, it), f.Close())
}

// copyAt writes one blob to f from offset off. If a connection breaks, it starts again.
func (c *copier) copyAt(ctx context.Context, f *os.File, off int64, it item) (err error) {
	if it.raw != nil {
		_, err := f.WriteAt(it.raw, off)
		return err
	}
	task := c.opt.Progress.Task("layer "+image.Short(it.desc.Digest), it.desc.Size)
	defer func() { task.Done(err) }()
	wait := c.opt.Backoff
	for try := 1; ; try++ {
		if _, err = f.Seek(off, io.SeekStart); err != nil {
			return err
		}
		var n int64
		err = c.copyTo(ctx, f, it, func(d int64) { n += d; task.Add(d) })
		if err == nil || try == 3 || !image.IsCut(err) {
			return err
		}
		task.Add(-n)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait *= 3
	}
}

// copyTo copies a layer to w and verifies it.
func (c *copier) copyTo(ctx context.Context, w io.Writer, it item, add func(int64)) error {
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
	defer context.AfterFunc(ctx, shut)() // after another blob's failure don't wait for a slow registry
	return copyAll(w, image.Counting(ctx, r, add))
}

// openUntil is like Source.OpenLayer, but returns when ctx ends. A remote layer has another context, and its registry
// may hang until the idle timeout.
func (c *copier) openUntil(ctx context.Context, it item) (io.ReadCloser, error) {
	type opened struct {
		r   io.ReadCloser
		err error
	}
	got := make(chan opened, 1)
	go func() {
		r, err := c.src.OpenLayer(it.desc, it.layer)
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

// copyAll copies in pieces that stay in a processor's cache between hashing and writing, and that fill large pages of
// the page cache. On ext4 this is faster than copy_file_range(2), which copies page by page if it can't share blocks.
func copyAll(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, r, make([]byte, 1<<20))
	return err
}

// sleep waits for d or until ctx ends, and returns the cause of its end.
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
