package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slimctl/slimctl/image"
)

// The intervals of reports on a running task.
const (
	lineEvery   = 5 * time.Second
	objectEvery = 200 * time.Millisecond
)

// event is one line of JSON, and the source of a plain line.
type event struct {
	Event string `json:"event"` // "start", "progress" or "done"
	ID    int64  `json:"id"`
	Task  string `json:"task"`
	// Bytes is the number of bytes done, and Total of all; Total is omitted if unknown.
	Bytes   int64   `json:"bytes"`
	Total   int64   `json:"total,omitempty"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// eventual reports tasks as events.
type eventual struct {
	sink
	every   time.Duration
	format  func(event) []byte // returns nil for an event to hide
	ids     atomic.Int64
	objects bool // JSON instead of words
}

func newLines(w io.Writer) Reporter {
	return &eventual{sink: sink{w: w}, every: lineEvery, format: plainLine}
}

func newObjects(w io.Writer) Reporter {
	return &eventual{sink: sink{w: w}, every: objectEvery, objects: true, format: func(e event) []byte {
		b, err := json.Marshal(e)
		if err != nil {
			return nil
		}
		return b
	}}
}

func plainLine(e event) []byte {
	switch {
	case e.Event == "start":
		return nil
	case e.Error != "":
		return []byte(clean(fmt.Sprintf("%s: %s", e.Task, e.Error)))
	case e.Event == "done":
		return fmt.Appendf(nil, "%s: %s in %.1fs", clean(e.Task), size(e.Bytes), e.Seconds)
	case e.Total > 0:
		return fmt.Appendf(nil, "%s: %s of %s", clean(e.Task), size(e.Bytes), size(e.Total))
	}
	return fmt.Appendf(nil, "%s: %s", clean(e.Task), size(e.Bytes))
}

// size formats a number of bytes in powers of 1000, like registries and docker.
func size(n int64) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB"} {
		if f < 1000 {
			break
		}
		f, unit = f/1000, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

func (r *eventual) Task(name string, total int64) image.Task {
	now := time.Now()
	t := &eventTask{r: r, id: r.ids.Add(1), name: name, total: max(total, 0), start: now, last: now}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.say("start", nil)
	return t
}

type eventTask struct {
	r     *eventual
	id    int64
	name  string
	total int64
	start time.Time

	mu    sync.Mutex
	bytes int64
	last  time.Time
	ended bool
}

func (t *eventTask) Add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += n
	if now := time.Now(); !t.ended && now.Sub(t.last) >= t.r.every {
		t.last = now
		t.say("progress", nil)
	}
}

func (t *eventTask) Done(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended = true
		t.say("done", err)
	}
}

func (t *eventTask) say(what string, err error) {
	e := event{Event: what, ID: t.id, Task: t.name, Bytes: t.bytes, Total: t.total, Seconds: time.Since(t.start).Seconds()}
	if err != nil {
		e.Error = err.Error()
	}
	if b := t.r.format(e); b != nil {
		t.r.line(b)
	}
}
