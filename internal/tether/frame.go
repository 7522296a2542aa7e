package tether

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A frame of yamux (its spec.md): version, type, flags, stream and length, twelve bytes, big-endian; after a data frame as
// many bytes as length says.
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

// errFrame means that what the other end sent is no frame that a tether has.
var errFrame = errors.New("tether: the container's output is no tether")

// frameReader hands frames to yamux whole: one that stops in the middle would have it wait with a lock held, and with it
// everybody who reads that stream. It refuses what yamux answers at a cost, and a tether never sends: pings, each of which
// would start a goroutine; streams numbered as our own, or too many; bodies beyond the window.
type frameReader struct {
	from   io.Reader
	parity uint32 // of the streams that the other end opens

	open  map[uint32]bool // streams that the other end opened and has not ended
	frame []byte          // what has been read of it is not handed out yet
	buf   [frameHead + window]byte

	mu  sync.Mutex
	err error
}

// Read hands out the frame that was read last, and reads the next when it is used up.
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

// check gives the length of the body that follows a frame's head.
func (r *frameReader) check(head []byte) (int, error) {
	version, kind := head[0], head[1]
	flags, id, length := binary.BigEndian.Uint16(head[2:]), binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	switch {
	case version != 0, kind > frameAway, flags > 15:
		return 0, fmt.Errorf("%w: it begins with %.40q", errFrame, head)
	case kind == frameAway && id == 0:
		return 0, nil
	case kind != frameData && kind != frameSize:
		return 0, fmt.Errorf("%w: a frame of type %d", errFrame, kind)
	case id == 0:
		return 0, fmt.Errorf("%w: a frame of stream 0", errFrame)
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

// refused gives the reason why a frame was refused.
func (r *frameReader) refused() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
