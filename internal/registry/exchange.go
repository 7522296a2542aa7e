package registry

import (
	"io"
	"net/http"
	"strconv"
	"time"
)

// Fault is a failure to play for one request. The zero value is none.
type Fault struct {
	// Status, if not 0, is the status of the answer instead of serving the request, with Body.
	Status int
	Body   string
	// Header is added to the answer, even to a successful one.
	Header http.Header
	// Hang reads the request's body and then answers nothing until the client disconnects or the server is closed.
	Hang bool
	// CutAfter closes the connection after that many bytes of the body of a GET's answer or of an upload. A negative
	// value closes it before the answer's first byte, after executing the request; 0 never.
	CutAfter int64
	// Corrupt flips one bit in the middle of the body of a successful answer.
	Corrupt bool
}

// Fault sets the function that is called for each request, before authorization. If f or its result is nil, no fault is
// played. f is called concurrently and must not read the request's body.
func (r *Registry) Fault(f func(*http.Request) *Fault) {
	r.config.Lock()
	defer r.config.Unlock()
	r.config.fault = f
}

// exchange is a request with its answer.
type exchange struct {
	http.ResponseWriter
	req     *http.Request
	latency time.Duration
	fault   Fault
	entry   *entry
	wrote   bool
	sent    int64 // bytes of the answer
	flip    int64 // offset of the byte to corrupt, or -1
}

func (r *Registry) begin(w http.ResponseWriter, req *http.Request) *exchange {
	r.config.Lock()
	latency, fault := r.config.latency, r.config.fault
	r.config.Unlock()
	x := &exchange{ResponseWriter: w, latency: latency, flip: -1, entry: r.stats.start(req)}
	if fault != nil {
		if f := fault(req); f != nil {
			x.fault = *f
		}
	}
	// Copy it, because handlers must not change their request.
	clone := *req
	clone.Body = &requestBody{ReadCloser: req.Body, x: x}
	x.req = &clone
	return x
}

// finish runs even if a fault aborts the handler.
func (r *Registry) finish(x *exchange) {
	rec := x.entry.end()
	if r.o.Log == nil {
		return
	}
	r.logMu.Lock()
	defer r.logMu.Unlock()
	r.o.Log(rec)
}

// playFault reports whether the fault replaced the answer.
func (x *exchange) playFault() bool {
	switch f := x.fault; {
	case f.Hang:
		x.setKind("fault")
		// net/http notices a disconnected client only after reading the body.
		_, _ = io.Copy(io.Discard, x.req.Body)
		<-x.req.Context().Done()
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		x.setKind("fault")
		writeBody(x, f.Status, []byte(f.Body))
		return true
	}
	return false
}

func (x *exchange) setKind(kind string) { x.entry.update(func(rec *Record) { rec.Kind = kind }) }

// WriteHeader plays faults, once.
func (x *exchange) WriteHeader(status int) {
	if x.wrote {
		return
	}
	x.wrote = true
	if x.fault.CutAfter < 0 {
		panic(http.ErrAbortHandler)
	}
	for k, vs := range x.fault.Header {
		x.Header()[http.CanonicalHeaderKey(k)] = vs
	}
	if x.fault.Corrupt && status < 300 {
		if n, err := strconv.ParseInt(x.Header().Get("Content-Length"), 10, 64); err == nil {
			x.flip = n / 2
		}
	}
	x.entry.update(func(rec *Record) { rec.Status, rec.End = status, time.Now() })
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) wait() {
	if x.latency <= 0 {
		return
	}
	t := time.NewTimer(x.latency)
	defer t.Stop()
	select {
	case <-t.C:
	case <-x.req.Context().Done():
	}
}

// Write counts before it sends, so that the statistics include everything that a client has received.
func (x *exchange) Write(p []byte) (int, error) {
	x.WriteHeader(http.StatusOK)
	p, cut := x.spoil(p)
	x.entry.update(func(rec *Record) {
		rec.BytesOut += int64(len(p))
		rec.End = time.Now()
	})
	n, err := x.ResponseWriter.Write(p)
	x.sent += int64(n)
	if n < len(p) {
		x.entry.update(func(rec *Record) { rec.BytesOut -= int64(len(p) - n) })
	}
	if cut {
		_ = http.NewResponseController(x.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// spoil applies Corrupt and CutAfter to the next bytes of the answer. cut reports that they are the last.
func (x *exchange) spoil(p []byte) (out []byte, cut bool) {
	if i := x.flip - x.sent; x.flip >= 0 && i >= 0 && i < int64(len(p)) {
		p = append([]byte(nil), p...) // p may be the stored blob itself
		p[i] ^= 1
	}
	if left := x.fault.CutAfter - x.sent; x.fault.CutAfter > 0 && int64(len(p)) >= left {
		return p[:left], true
	}
	return p, false
}

// requestBody counts the bytes of a request's body and cuts it.
type requestBody struct {
	io.ReadCloser
	x    *exchange
	read int64
}

func (b *requestBody) Read(p []byte) (int, error) {
	if limit := b.x.fault.CutAfter; limit > 0 {
		if b.read >= limit {
			panic(http.ErrAbortHandler)
		}
		if left := limit - b.read; int64(len(p)) > left {
			p = p[:left]
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	b.x.entry.update(func(rec *Record) { rec.BytesIn += int64(n) })
	return n, err
}
