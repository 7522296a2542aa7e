package tree

import "io"

// aheadReader reads in a goroutine of its own, ahead of whoever reads from it.
type aheadReader struct {
	full, free chan []byte
	err        error         // the source's, once full is closed
	stop       chan struct{} // closed by close
	buf, rest  []byte        // the buffer that is being read, and what is left of it
}

// aheadSize is the size of one buffer, in bytes; aheadBuffers are in use. Large ones save most of the switches between goroutines,
// and these are still in a processor's cache when they are read.
const (
	aheadSize    = 64 << 10
	aheadBuffers = 4
)

func ahead(r io.Reader) *aheadReader {
	a := &aheadReader{full: make(chan []byte, aheadBuffers), free: make(chan []byte, aheadBuffers), stop: make(chan struct{})}
	for range aheadBuffers {
		a.free <- make([]byte, aheadSize)
	}
	go func() {
		defer close(a.full)
		for a.err == nil {
			var buf []byte
			select {
			case <-a.stop:
				return
			case buf = <-a.free:
			}
			n := 0
			for n < aheadSize && a.err == nil {
				var more int
				more, a.err = r.Read(buf[n:aheadSize])
				n += more
			}
			a.full <- buf[:n] // which has room for all of them
		}
	}()
	return a
}

// Read implements io.Reader.
func (a *aheadReader) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.buf != nil {
			a.free <- a.buf
		}
		var ok bool
		if a.buf, ok = <-a.full; !ok {
			return 0, a.err
		}
		a.rest = a.buf
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// close waits until nothing is read any more.
func (a *aheadReader) close() {
	close(a.stop)
	for range a.full { // it is thrown away
	}
}
