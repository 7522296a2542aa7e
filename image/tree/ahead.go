package tree

import (
	"io"
	"sync"
)

// aheadReader reads in a goroutine of its own, a few buffers ahead of who reads from it.
type aheadReader struct {
	full chan block
	stop func() // may be called again

	now  block
	left []byte // of now
}

type block struct {
	buf *buffer
	n   int
	err error
}

// buffer has room for a file that is kept.
type buffer [maxKept]byte

var pool = sync.Pool{New: func() any { return new(buffer) }}

func ahead(r io.Reader) *aheadReader {
	stop := make(chan struct{})
	full := make(chan block, 2)
	go func() {
		defer close(full)
		for {
			b := fill(r)
			select {
			case full <- b:
			case <-stop:
				pool.Put(b.buf)
				return
			}
			if b.err != nil {
				return
			}
		}
	}()
	return &aheadReader{full: full, stop: sync.OnceFunc(func() { close(stop) })}
}

func fill(r io.Reader) block {
	b := block{buf: pool.Get().(*buffer)}
	for b.n < len(b.buf) && b.err == nil {
		var n int
		n, b.err = r.Read(b.buf[b.n:])
		b.n += n
	}
	return b
}

func (a *aheadReader) Read(p []byte) (int, error) {
	for len(a.left) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		a.put()
		b, ok := <-a.full
		if !ok {
			return 0, io.ErrClosedPipe
		}
		a.now, a.left = b, b.buf[:b.n]
	}
	n := copy(p, a.left)
	a.left = a.left[n:]
	return n, nil
}

func (a *aheadReader) put() {
	if a.now.buf != nil {
		pool.Put(a.now.buf)
		a.now.buf = nil
	}
}

// Close waits until nothing is read any more.
func (a *aheadReader) Close() error {
	a.stop()
	a.left, a.now.err = nil, io.ErrClosedPipe
	a.put()
	for b := range a.full {
		pool.Put(b.buf)
	}
	return nil
}
