package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
)

// lineEvery is the interval of reports on a running task.
const lineEvery = 5 * time.Second

// lines writes a line for each finished task, until it is closed or a write fails.
type lines struct {
	every time.Duration

	mu     sync.Mutex
	w      io.Writer
	closed bool
	err    error
}

// Printf writes a line.
func (l *lines) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.err == nil {
		_, l.err = fmt.Fprintln(l.w, rawname.Line(fmt.Sprintf(format, args...)))
	}
}

// Close returns the first write error.
func (l *lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.err
}

func (l *lines) Task(name string, total int64) image.Task {
	now := time.Now()
	return &lineTask{lines: l, name: name, total: total, start: now, last: now}
}

type lineTask struct {
	lines *lines
	name  string
	total int64
	start time.Time

	mu    sync.Mutex
	bytes int64
	last  time.Time
	ended bool
}

func (t *lineTask) Add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes += n
	now := time.Now()
	if t.ended || now.Sub(t.last) < t.lines.every {
		return
	}
	t.last = now
	of := ""
	if t.total > 0 {
		of = " of " + humanize.Bytes(uint64(t.total))
	}
	t.lines.Printf("%s: %s%s", t.name, humanize.Bytes(uint64(max(0, t.bytes))), of)
}

func (t *lineTask) Done(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
	case err != nil:
		t.lines.Printf("%s: %v", t.name, err)
	default:
		t.lines.Printf("%s: %s in %.1fs", t.name, humanize.Bytes(uint64(max(0, t.bytes))), time.Since(t.start).Seconds())
	}
	t.ended = true
}
