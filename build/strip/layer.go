package strip

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// The compressor is part of what a layer's digest depends on. Compression is zstd's level, too. pgzip compresses blocks of one size
// at the same time into one gzip member, so that the bytes are the same on any number of processors.
const (
	Compression = 7
	BlockSize   = 1 << 20
)

// Bounds of memory: how many layers are written at a time, and how many blocks of each are compressed.
const (
	maxWriters = 2
	maxBlocks  = 6
)

// layer is a layer in a file.
type layer struct {
	Hash     v1.Hash `json:"digest"`
	Unpacked v1.Hash `json:"diffID"`
	Bytes    int64   `json:"size"`
	// Zstd is true for what is compressed by zstd.
	Zstd bool `json:"zstd,omitempty"`
	// Edited is Layer.Edited.
	Edited map[string]tree.Digest `json:"edited,omitempty"`
	file   string
}

// write writes the layer to blob, and what it is compressed of to archive.
func (l *layer) write(ctx context.Context, blob, archive io.Writer, files []image.File) error {
	packed, unpacked := sha256.New(), sha256.New()
	out := &countingWriter{w: io.MultiWriter(blob, packed)}
	zw, err := l.compressor(out)
	if err != nil {
		return err
	}
	if err := image.WriteTar(&stoppable{ctx, io.MultiWriter(zw, unpacked, archive)}, files); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	l.Hash, l.Unpacked, l.Bytes = hashOf(packed), hashOf(unpacked), out.n
	return nil
}

func (l *layer) compressor(w io.Writer) (io.WriteCloser, error) {
	if l.Zstd {
		return image.NewZstd(w, Compression)
	}
	zw, err := pgzip.NewWriterLevel(w, Compression)
	if err != nil {
		return nil, err
	}
	zw.OS = 255 // unknown, as image.LayerCache writes it
	return zw, zw.SetConcurrency(BlockSize, min(max(2, runtime.GOMAXPROCS(0)), maxBlocks))
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

// stoppable writes until its context ends.
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

func (l *layer) Digest() (v1.Hash, error) { return l.Hash, nil }
func (l *layer) DiffID() (v1.Hash, error) { return l.Unpacked, nil }
func (l *layer) Size() (int64, error)     { return l.Bytes, nil }
func (l *layer) MediaType() (types.MediaType, error) {
	if l.Zstd {
		return types.OCILayerZStd, nil
	}
	return types.OCILayer, nil
}

// Compressed implements v1.Layer. What isn't the layer any more is an error at its end.
func (l *layer) Compressed() (io.ReadCloser, error) {
	f, err := os.Open(l.file)
	if err != nil {
		return nil, err
	}
	return image.Verify(f, l.Hash, l.Bytes, l.file+" (remove it, or run `slimctl cache prune`)")
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
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}
