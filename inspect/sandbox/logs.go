package sandbox

import (
	"io"
	"sync"
)

const maxLogs = 4 << 20

// ring keeps the end of what is written to it: maxLogs bytes, and for a while up to twice as many.
type ring struct {
	mu   sync.Mutex
	data []byte
}

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data = append(r.data, p[max(0, len(p)-maxLogs):]...)
	if len(r.data) > 2*maxLogs {
		r.data = append(r.data[:0], r.data[len(r.data)-maxLogs:]...)
	}
	return len(p), nil
}

func (r *ring) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]byte{}, r.data[max(0, len(r.data)-maxLogs):]...)
}

// head keeps the beginning of what is written to it.
type head struct {
	mu   sync.Mutex
	data []byte
	room int
	full bool
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keep := p[:min(len(p), h.room)]
	h.full = h.full || len(keep) < len(p)
	h.data = append(h.data, keep...)
	h.room -= len(keep)
	return len(p), nil
}

func (h *head) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]byte{}, h.data...)
}

func (h *head) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.full
}

// tee writes to the logs, and to w as long as w takes it: a reader that went away doesn't end the container.
func (r *ring) tee(w io.Writer) io.Writer {
	if w == nil {
		return r
	}
	return &tee{r, w}
}

type tee struct {
	logs io.Writer
	w    io.Writer
}

func (t *tee) Write(p []byte) (int, error) {
	if t.w != nil {
		if _, err := t.w.Write(p); err != nil {
			t.w = nil
		}
	}
	return t.logs.Write(p)
}
