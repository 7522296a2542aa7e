package image

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/klauspost/pgzip"
)

// Inflate returns the uncompressed content of a layer. It recognizes gzip, zstd and plain tar by the first bytes,
// because media types can be wrong. The reader inflates ahead, so it must be closed.
func Inflate(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		return pgzip.NewReaderN(b, 64<<10, 4) // it inflates in a goroutine of its own
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
