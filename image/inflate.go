package image

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Inflate returns the uncompressed content of a layer. It recognizes gzip, zstd and plain tar by the first bytes,
// because media types can be wrong.
func Inflate(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return &Gunzip{z: z, in: b, Members: 1}, nil
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// Gunzip is the reader that Inflate returns for gzip.
type Gunzip struct {
	// Members is the number of gzip members read so far, including the current one. Some programs read the first one
	// only.
	Members int

	z  *gzip.Reader
	in *bufio.Reader
}

// Read reads the members one after the other (RFC 1952, section 2.2).
func (g *Gunzip) Read(p []byte) (int, error) {
	for {
		n, err := g.z.Read(p)
		if n > 0 && errors.Is(err, io.EOF) {
			return n, nil
		}
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		if _, err := g.in.Peek(1); err != nil {
			return 0, err
		}
		g.Members++
		if err := g.z.Reset(g.in); err != nil {
			return 0, err
		}
		g.z.Multistream(false)
	}
}

// Close closes the reader of the current member.
func (g *Gunzip) Close() error { return g.z.Close() }
