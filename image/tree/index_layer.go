package tree

import (
	"bufio"
	"context"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// IndexLayer keeps the index of a layer that is being written, as Open would after reading it. write writes the layer's archive to
// w, too, and returns the layer, whose blob is compressed in one member. An index that can't be made or kept is no error: then
// Open reads the layer.
func (c Cache) IndexLayer(ctx context.Context, write func(w io.Writer) (v1.Layer, error)) (v1.Layer, error) {
	if c.Dir == "" {
		return write(io.Discard)
	}
	pr, pw := io.Pipe()
	var x *index
	var unread error
	done := make(chan struct{})
	go func() {
		defer close(done)
		x, unread = readTar(ctx, bufio.NewReaderSize(pr, aheadSize), newLimits(), nil)
		_, _ = io.Copy(io.Discard, pr) // so that write ends
	}()
	w := bufio.NewWriterSize(pw, aheadSize)
	l, err := write(w)
	pw.CloseWithError(w.Flush()) // nil is the archive's end
	<-done
	if err != nil {
		return nil, err
	}
	if unread == nil {
		_ = c.keepIndex(x, l) // a cache that can't be written costs time, nothing else
	}
	return l, nil
}

// keepIndex writes the index of a layer's archive.
func (c Cache) keepIndex(x *index, l v1.Layer) error {
	blob, err := l.Compressed()
	if err != nil {
		return err
	}
	defer blob.Close()
	magic := make([]byte, gzipHeader)
	if _, err := io.ReadFull(blob, magic); err != nil {
		return err
	}
	x.compression = compression(magic)
	if x.foreign == "" {
		x.foreign = foreignGzip(magic, 1)
	}
	h, err := l.Digest()
	if err != nil {
		return err
	}
	digest, err := digestOf(h)
	if err != nil {
		return err
	}
	unpacked, err := l.DiffID()
	if err != nil {
		return err
	}
	diffID, err := digestOf(unpacked)
	if err != nil {
		return err
	}
	return x.write(c.indexFile("index", h), digest, diffID)
}
