package tree

import "io"

// aheadReader reads ahead of its reader, in a goroutine of its own.
type aheadReader struct {
	full, free chan []byte
	err        error         // the source's error, valid when full is closed
	stop       chan struct{} // closed by close
	buf, rest  []byte        // the buffer being read, and its unread part
}

// aheadSize is the size of one buffer, in bytes, and aheadBuffers their number. They are large to save switches between
// goroutines, but small enough to stay in a processor's cache until they are read.
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
			a.full <- buf[:n] // it has room for all buffers
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

// close waits until the goroutine has ended.
func (a *aheadReader) close() {
	close(a.stop)
	for range a.full { // discard
	}
}
