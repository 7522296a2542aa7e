package image

import (
	"context"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Short is as much of a digest as people read.
func Short(h v1.Hash) string { return h.Hex[:min(12, len(h.Hex))] }

// Counting reads r until ctx ends, and tells add how many bytes came.
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
