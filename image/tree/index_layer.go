package tree

import (
	"bufio"
	"context"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image/elf"
)

// IndexLayer caches the index of a layer while it is being written, as Open would after reading it. write also writes
// the layer's archive to w and returns the layer, whose blob must be compressed in one member. known returns the digest
// of a file that base has, too, so that its content isn't hashed again, or the zero Digest. Failing to make or store
// the index is no error, since Open then reads the layer.
func (c Cache) IndexLayer(ctx context.Context, base *Image, known func(path string) Digest, write func(w io.Writer) (v1.Layer, error)) (v1.Layer, error) {
	if c.Dir == "" {
		return write(io.Discard)
	}
	elfs, err := base.ELF()
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	var x *index
	var unread error
	done := make(chan struct{})
	go func() {
		defer close(done)
		x, unread = readTar(ctx, bufio.NewReaderSize(pr, aheadSize), newLimits(), nil, &knownFiles{known, elfs})
		_, _ = io.Copy(io.Discard, pr) // so that write ends
	}()
	w := bufio.NewWriterSize(pw, aheadSize)
	l, err := write(w)
	pw.CloseWithError(w.Flush()) // nil marks the end of the archive
	<-done
	if err != nil {
		return nil, err
	}
	if unread == nil {
		_ = c.keepIndex(x, l) // a cache that can't be written only costs time
	}
	return l, nil
}

// knownFiles describes files before they are read: their digests by path, or zero, and the ELF files.
type knownFiles struct {
	digest func(path string) Digest
	elfs   map[Digest]*elf.File
}

// keepIndex stores the index of a layer's archive.
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
