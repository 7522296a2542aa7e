package tree

import (
	"bufio"
	"io"
)

// aheadReader reads in a goroutine of its own, a buffer ahead of who reads from it.
type aheadReader struct {
	*bufio.Reader
	pipe *io.PipeReader
	done chan struct{}
}

// aheadSize is how much of it, in bytes, twice.
const aheadSize = 256 << 10

func ahead(r io.Reader) *aheadReader {
	pr, pw := io.Pipe()
	a := &aheadReader{Reader: bufio.NewReaderSize(pr, aheadSize), pipe: pr, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		_, err := io.CopyBuffer(struct{ io.Writer }{pw}, struct{ io.Reader }{r}, make([]byte, aheadSize)) // whole buffers
		pw.CloseWithError(err)
	}()
	return a
}

// Close waits until nothing is read any more.
func (a *aheadReader) Close() error {
	err := a.pipe.Close()
	<-a.done
	return err
}
