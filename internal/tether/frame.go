package tether

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A yamux frame (its spec.md) has a header of twelve bytes, big-endian: version, type, flags, stream and length. A data
// frame has length further bytes.
const (
	frameHead = 12
	frameData = 0
	frameSize = 1 // window update
	frameAway = 3
	flagSYN   = 1
	flagFIN   = 4
	flagRST   = 8
	window    = 256 << 10 // yamux's initial window, the greatest body
)

// errFrame is the error for input that isn't a frame of a tether.
var errFrame = errors.New("tether: the container's output is no tether")

// frameReader passes only whole frames to yamux, because yamux would hold a lock while it waits for the rest of one,
// and block every reader of that stream. It refuses frames that a tether never sends and that cost memory or time:
// pings, which start goroutines; streams with our own numbers, or too many of them; bodies larger than the window.
type frameReader struct {
	from   io.Reader
	parity uint32 // parity of the other end's stream numbers

	open  map[uint32]bool // streams opened by the other end
	frame []byte          // the unread part of the current frame
	buf   [frameHead + window]byte

	mu  sync.Mutex
	err error
}

// Read returns the current frame, and reads the next one after its end.
func (r *frameReader) Read(p []byte) (int, error) {
	if len(r.frame) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.frame)
	r.frame = r.frame[n:]
	return n, nil
}

func (r *frameReader) next() error {
	head := r.buf[:frameHead]
	if _, err := io.ReadFull(r.from, head); err != nil {
		return err
	}
	length, err := r.check(head)
	if err != nil {
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		return err
	}
	if _, err := io.ReadFull(r.from, r.buf[frameHead:frameHead+length]); err != nil {
		return err
	}
	r.frame = r.buf[:frameHead+length]
	return nil
}

// check returns the length of the body after a frame's header.
func (r *frameReader) check(head []byte) (int, error) {
	version, kind := head[0], head[1]
	flags, id, length := binary.BigEndian.Uint16(head[2:]), binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	switch {
	case version != 0, kind > frameAway, flags > 15:
		return 0, fmt.Errorf("%w: it begins with %.40q", errFrame, head)
	case kind == frameAway && id == 0:
		return 0, nil
	case kind != frameData && kind != frameSize:
		return 0, fmt.Errorf("%w: unknown frame type %d", errFrame, kind)
	case id == 0:
		return 0, fmt.Errorf("%w: a data frame on stream 0", errFrame)
	case flags&flagSYN != 0 && id%2 != r.parity:
		return 0, fmt.Errorf("%w: it opens stream %d, which is not its own", errFrame, id)
	case kind == frameData && length > window:
		return 0, fmt.Errorf("%w: a frame of %d bytes", errFrame, length)
	}
	if flags&flagSYN != 0 {
		if len(r.open) >= maxOpen {
			return 0, fmt.Errorf("tether: %w", errFlood)
		}
		r.open[id] = true
	}
	if flags&(flagFIN|flagRST) != 0 {
		delete(r.open, id)
	}
	if kind == frameSize {
		return 0, nil
	}
	return int(length), nil
}

// refused returns the reason for refusing a frame.
func (r *frameReader) refused() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
