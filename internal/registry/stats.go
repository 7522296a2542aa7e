package registry

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Record describes one request.
type Record struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Query  string `json:"query,omitempty"`
	// Kind is the method and the object: "GET blob", "HEAD blob", "GET manifest", "HEAD manifest", "PUT manifest",
	// "POST upload", "PATCH upload", "PUT upload", "GET upload", "DELETE upload", "GET tags", "GET ping", "GET token",
	// "POST token"; or "mount" (done), "mount refused", "fault" (answered by a Fault), "other".
	Kind string `json:"kind"`
	// Status is the status of the answer, or 0 if there is none yet or the connection was cut.
	Status int       `json:"status"`
	Start  time.Time `json:"start"`
	// End is the time of the answer's last write, or zero. A request that the answer causes always starts after End.
	End time.Time `json:"end"`
	// BytesIn and BytesOut are the sizes of the bodies, without headers. BytesIn counts what the registry read.
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
}

// Stats sums the requests since New or the last Reset, including unfinished ones.
type Stats struct {
	Requests int            `json:"requests"`
	ByKind   map[string]int `json:"byKind"` // by Record.Kind
	// BytesIn and BytesOut sum all bodies: blobs, manifests, errors, tokens.
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
	// BlobBytesIn sums the bodies of uploads, successful or not, and BlobBytesOut those of successful GET blob
	// requests.
	BlobBytesIn  int64 `json:"blobBytesIn"`
	BlobBytesOut int64 `json:"blobBytesOut"`
	Mounts       int   `json:"mounts"` // blobs linked instead of uploaded
	// RoundTrips is the length of the longest chain of requests that each started after the end of the one before. It
	// is at least the longest chain of dependent requests. It is larger if independent requests don't overlap, so use a
	// latency well above the duration of a request (such as 20 ms) where the number matters.
	RoundTrips int `json:"roundTrips"`
}

// Stats returns the sums of the requests so far.
func (r *Registry) Stats() Stats { return summarize(r.Records(), time.Now()) }

// Records returns the requests so far, in the order of their start.
func (r *Registry) Records() []Record { return r.stats.all() }

// Reset forgets all records, including unfinished requests. The repositories stay unchanged.
func (r *Registry) Reset() { r.stats.reset() }

func summarize(recs []Record, now time.Time) Stats {
	s := Stats{Requests: len(recs), ByKind: map[string]int{}, RoundTrips: longestChain(recs, now)}
	for _, rec := range recs {
		s.ByKind[rec.Kind]++
		s.BytesIn += rec.BytesIn
		s.BytesOut += rec.BytesOut
		switch {
		case rec.Kind == "mount":
			s.Mounts++
		case rec.Kind == "GET blob" && rec.Status < 300:
			s.BlobBytesOut += rec.BytesOut
		case strings.HasSuffix(rec.Kind, " upload"):
			s.BlobBytesIn += rec.BytesIn
		}
	}
	return s
}

// longestChain returns the largest number of requests that don't overlap, by interval scheduling: it repeatedly takes
// the one that ends first. A request without an end lasts until now.
func longestChain(recs []Record, now time.Time) int {
	recs = slices.Clone(recs)
	for i := range recs {
		if recs[i].End.IsZero() {
			recs[i].End = now
		}
	}
	slices.SortFunc(recs, func(a, b Record) int { return a.End.Compare(b.End) })
	n, free := 0, time.Time{}
	for _, rec := range recs {
		if !rec.Start.Before(free) {
			n, free = n+1, rec.End
		}
	}
	return n
}

// recorder holds the records of requests, including unfinished ones.
type recorder struct {
	mu      sync.Mutex
	entries []*entry
}

type entry struct {
	mu  *sync.Mutex
	rec Record
}

func (c *recorder) start(req *http.Request) *entry {
	e := &entry{mu: &c.mu, rec: Record{
		Method: req.Method, Path: req.URL.Path, Query: req.URL.RawQuery, Kind: "other", Start: time.Now(),
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, e)
	return e
}

func (c *recorder) all() []Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Record, len(c.entries))
	for i, e := range c.entries {
		out[i] = e.rec
	}
	return out
}

func (c *recorder) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = nil
}

func (e *entry) update(f func(*Record)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.rec)
}

func (e *entry) end() Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rec.End.IsZero() {
		e.rec.End = time.Now()
	}
	return e.rec
}
