package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
)

// OpenLayer returns the compressed content of a layer. If the content is corrupt, the reader fails before its last
// bytes. It reads from this machine if s has the layer here. s may be nil.
func (s *Source) OpenLayer(d v1.Descriptor, layer v1.Layer) (io.ReadCloser, error) {
	if s != nil && s.blobs != nil {
		r, err := s.blobs.open(d)
		if !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	}
	r, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	if _, ok := layer.(*remote.MountableLayer); ok {
		return r, nil // go-containerregistry verifies its downloads
	}
	if v, ok := r.(*verifyReader); ok && v.want == d.Digest && v.size == d.Size {
		return r, nil
	}
	return newVerifyReader(r, d.Digest, d.Size, "layer", nil)
}

// Link makes dst a reflink or a hard link of a blob of s. It verifies the blob first (*DigestError). done is false if
// the blob isn't a file on this machine, or if the file system supports neither. s may be nil.
func (s *Source) Link(ctx context.Context, dst string, d v1.Descriptor, p Progress) (done bool, err error) {
	if s == nil || s.blobs == nil || s.blobs.files != nil {
		return false, nil
	}
	at, err := s.blobs.blob(d)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	src, err := at.open()
	if err != nil {
		return false, err
	}
	defer src.Close()
	if err := s.blobs.verifyOnce(ctx, src, d, at.path, p); err != nil {
		return false, err
	}
	if clone(dst, src.file) {
		return true, nil
	}
	before, _ := src.identity()
	if os.Link(at.path, dst) != nil {
		return false, nil // another file system, or protected_hardlinks
	}
	// The link changed the change time, but the content, verified a moment ago, has the same modification time.
	if after, ok := src.identity(); ok && after.MTime == before.MTime && after.Size == before.Size {
		s.blobs.known.renew(d.Digest, before, after)
	}
	return true, nil
}

// CheckLayers verifies the layers of img on this machine, each once until its file changes. A missing layer and wrong
// bytes (*DigestError) are errors. It doesn't ask registries.
func (s *Source) CheckLayers(ctx context.Context, img v1.Image, p Progress) error {
	if s.blobs == nil {
		return nil
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	if p == nil {
		p = NoProgress
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, d := range m.Layers {
		g.Go(func() error {
			at, err := s.blobs.blob(d)
			if err != nil {
				return err
			}
			r, err := at.open()
			if err != nil {
				return err
			}
			defer r.Close()
			return s.blobs.verifyOnce(ctx, r, d, at.path, p)
		})
	}
	return g.Wait()
}

// verifyOnce hashes a blob unless it was verified before.
func (b *blobs) verifyOnce(ctx context.Context, src *spanReader, d v1.Descriptor, where string, p Progress) (err error) {
	before, ok := src.identity()
	if ok && b.known.has(d.Digest, before) {
		return nil
	}
	task := p.Task("verify "+Short(d.Digest), d.Size)
	defer func() { task.Done(err) }()
	r, err := newVerifyReader(io.NopCloser(src), d.Digest, d.Size, where, func() {
		if after, same := src.identity(); ok && same && after == before {
			b.known.add(d.Digest, after)
		}
	})
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, Counting(ctx, r, task.Add), make([]byte, 1<<20))
	return err
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
