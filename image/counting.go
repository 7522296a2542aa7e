package image

import (
	"context"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Short returns the first 12 hex digits of a digest.
func Short(h v1.Hash) string { return h.Hex[:min(12, len(h.Hex))] }

// Counting returns a reader of r that fails when ctx ends and passes the number of bytes read to add.
func Counting(ctx context.Context, r io.Reader, add func(int64)) io.Reader {
	return &countingReader{ctx: ctx, r: r, add: add}
}

type countingReader struct {
	ctx context.Context
	r   io.Reader
	add func(int64)
}

func (c *countingReader) Read(b []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b)
	c.add(int64(n))
	return n, err
}
