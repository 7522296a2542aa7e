package strip

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/pgzip"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// The bytes of a layer, and its digest, depend on the compressor. pgzip compresses
// blocks of a fixed size concurrently to one gzip member, so the bytes are the same with any number of processors.
const (
	Compression = 7
	BlockSize   = 1 << 20
)

// Limits on memory: the layers written concurrently, and the blocks of each that are compressed concurrently.
const (
	maxWriters = 2
	maxBlocks  = 6
)

// layer is a layer in a file.
type layer struct {
	Hash     v1.Hash `json:"digest"`
	Unpacked v1.Hash `json:"diffID"`
	Bytes    int64   `json:"size"`
	// Edited is Layer.Edited.
	Edited map[string]tree.Digest `json:"edited,omitempty"`
	file   string
}

// write writes the layer to blob.
func (l *layer) write(ctx context.Context, blob io.Writer, files []image.File) error {
	packed, unpacked := sha256.New(), sha256.New()
	out := &countingWriter{w: io.MultiWriter(blob, packed)}
	zw, err := pgzip.NewWriterLevel(out, Compression)
	if err != nil {
		return err
	}
	zw.OS = 255 // unknown, as in image.LayerCache
	if err := zw.SetConcurrency(BlockSize, min(max(2, runtime.GOMAXPROCS(0)), maxBlocks)); err != nil {
		return err
	}
	if err := image.WriteTar(&stoppable{ctx, io.MultiWriter(zw, unpacked)}, files); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	l.Hash, l.Unpacked, l.Bytes = hashOf(packed), hashOf(unpacked), out.n
	return nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// stoppable is a writer that fails when its context ends.
type stoppable struct {
	ctx context.Context //nolint:containedctx // of one call
	w   io.Writer
}

func (s *stoppable) Write(b []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.w.Write(b)
}

func (l *layer) Digest() (v1.Hash, error)            { return l.Hash, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.Unpacked, nil }
func (l *layer) Size() (int64, error)                { return l.Bytes, nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

// Compressed implements v1.Layer. The reader fails at its end if the file was changed.
func (l *layer) Compressed() (io.ReadCloser, error) {
	f, err := os.Open(l.file)
	if err != nil {
		return nil, err
	}
	return image.Verify(f, l.Hash, l.Bytes, l.file+" (remove it, or delete slimctl's cache directory)")
}

// Uncompressed implements v1.Layer.
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	f, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	r, err := image.Inflate(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &uncompressed{r, f}, nil
}

// uncompressed is the content of a layer, with its file.
type uncompressed struct {
	io.ReadCloser
	file io.Closer
}

func (u *uncompressed) Close() error { return errors.Join(u.ReadCloser.Close(), u.file.Close()) }
