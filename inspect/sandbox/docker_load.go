package sandbox

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Limits for the data that Docker writes when it loads one hostile image. A small layer may contain sparse files of any
// size.
const (
	maxLoadedBytes   = 64 << 30
	maxLoadedEntries = 5_000_000
)

// boundedImage is an image whose layers return an error, at their end at the latest, if they exceed the limits
// together. Docker unpacks no archive that ends with an error.
type boundedImage struct {
	v1.Image
	bytes, entries int64 // remaining
}

func (b *boundedImage) Layers() ([]v1.Layer, error) {
	layers, err := b.Image.Layers()
	for i := range layers {
		layers[i] = boundedLayer{layers[i], b}
	}
	return layers, err
}

type boundedLayer struct {
	v1.Layer
	image *boundedImage
}

// Compressed returns the blob and counts its content during reading.
func (l boundedLayer) Compressed() (io.ReadCloser, error) {
	blob, err := l.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	c := &countedBlob{ReadCloser: blob, counter: w, counted: make(chan error, 1)}
	go func() {
		err := l.image.count(r)
		if err == nil {
			_, err = io.Copy(io.Discard, r) // trailing data isn't unpacked
		}
		r.CloseWithError(err)
		c.counted <- err
	}()
	return c, nil
}

// countedBlob passes the bytes that are read to a counter.
type countedBlob struct {
	io.ReadCloser
	counter *io.PipeWriter
	counted chan error
}

func (c *countedBlob) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if n > 0 {
		if _, werr := c.counter.Write(p[:n]); werr != nil {
			return 0, werr
		}
	}
	if errors.Is(err, io.EOF) && c.counted != nil {
		c.counter.Close()
		if cerr := <-c.counted; cerr != nil {
			err = cerr
		}
		c.counted = nil
	}
	return n, err
}

func (c *countedBlob) Close() error {
	c.counter.CloseWithError(io.ErrUnexpectedEOF)
	return c.ReadCloser.Close()
}

// count reads the archive of a layer, and subtracts its content from the remaining amounts.
func (b *boundedImage) count(blob io.Reader) error {
	content, err := image.Inflate(blob)
	if err != nil {
		return err
	}
	defer content.Close()
	inflated := &io.LimitedReader{R: content, N: b.bytes + 1}
	for archive := tar.NewReader(inflated); ; {
		h, err := archive.Next()
		if h != nil {
			b.entries--
			b.bytes -= min(h.Size, b.bytes+1)
		}
		switch {
		case b.entries < 0:
			return fmt.Errorf("the image has more than %d files and directories", maxLoadedEntries)
		case b.bytes < 0 || inflated.N <= 0:
			return fmt.Errorf("the image's files have more than %d bytes, and Docker would write all of them to disk", int64(maxLoadedBytes))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
