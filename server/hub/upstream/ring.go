package upstream

import "sync"

// logSize is how much a server's log keeps, in bytes.
const logSize = 64 << 10

// ring keeps the last logSize bytes. It grows to that only as it is written to.
type ring struct {
	mu  sync.Mutex
	buf []byte
	at  int // the oldest byte, once buf is full
}

func (r *ring) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > logSize {
		p = p[len(p)-logSize:]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fits := min(len(p), logSize-len(r.buf))
	r.buf = append(r.buf, p[:fits]...)
	for p = p[fits:]; len(p) > 0; {
		k := copy(r.buf[r.at:], p)
		p, r.at = p[k:], (r.at+k)%logSize
	}
	return n, nil
}

// Bytes gives a copy, the oldest first.
func (r *ring) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(append(make([]byte, 0, len(r.buf)), r.buf[r.at:]...), r.buf[:r.at]...)
}
