// Package capture keeps the beginning or the end of a stream in bounded memory. Its writers never fail, and are safe for
// concurrent use.
package capture

import "sync"

// Head keeps the first Max bytes.
type Head struct {
	Max  int
	Over func() // called for each write beyond Max, while the Head is locked; may be nil

	mu   sync.Mutex
	data []byte
	full bool
}

func (h *Head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := p[:min(len(p), h.Max-len(h.data))]
	h.data = append(h.data, kept...)
	if len(kept) < len(p) {
		h.full = true
		if h.Over != nil {
			h.Over()
		}
	}
	return len(p), nil
}

// Bytes returns a copy of the kept bytes.
func (h *Head) Bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]byte(nil), h.data...)
}

// Truncated reports whether there were more than Max bytes.
func (h *Head) Truncated() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.full
}

// Tail keeps the last Max bytes. Its memory grows as it is written to.
type Tail struct {
	Max int

	mu  sync.Mutex
	buf []byte
	at  int // the oldest byte, once buf is full
}

func (t *Tail) Write(p []byte) (int, error) {
	n := len(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	p = p[max(0, len(p)-t.Max):]
	fits := min(len(p), t.Max-len(t.buf))
	t.buf = append(t.buf, p[:fits]...)
	for p = p[fits:]; len(p) > 0; {
		k := copy(t.buf[t.at:], p)
		p, t.at = p[k:], (t.at+k)%t.Max
	}
	return n, nil
}

// Bytes returns a copy of the kept bytes, the oldest first.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(append(make([]byte, 0, len(t.buf)), t.buf[t.at:]...), t.buf[:t.at]...)
}
