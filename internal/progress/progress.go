// Package progress reports long work on standard error: as bars on a terminal, as lines elsewhere, as JSON for
// programs.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/slimctl/slimctl/image"
	"golang.org/x/term"
)

// The modes of reporting.
const (
	Auto  = "auto"  // tty on a terminal, plain elsewhere
	TTY   = "tty"   // bars
	Plain = "plain" // a line at the end of a task, and sometimes before
	JSON  = "json"  // one object per line
	Quiet = "quiet" // nothing
)

// Modes lists the modes in the order of help texts.
var Modes = []string{Auto, TTY, Plain, JSON, Quiet}

// Reporter is an image.Progress that writes. It is safe for concurrent use.
type Reporter interface {
	image.Progress
	// Printf writes one line.
	Printf(format string, args ...any)
	// Close finishes the display and flushes. Tasks that end or start later write nothing.
	Close() error
}

// New returns a reporter that writes to w. Auto selects bars if w is a terminal that can move its cursor (TERM is not
// "dumb"). No mode writes colours, so NO_COLOR has no effect.
func New(mode string, w io.Writer) (Reporter, error) {
	switch mode {
	case Auto, "":
		if isTerminal(w) && os.Getenv("TERM") != "dumb" {
			return newBars(w), nil
		}
		return newLines(w), nil
	case TTY:
		return newBars(w), nil
	case Plain:
		return newLines(w), nil
	case JSON:
		return newObjects(w), nil
	case Quiet:
		return quiet{image.NoProgress}, nil
	}
	return nil, fmt.Errorf("unknown progress mode %q: one of %s", mode, strings.Join(Modes, ", "))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

type quiet struct{ image.Progress }

func (quiet) Close() error { return nil }

// sink writes whole lines until it is closed.
type sink struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
	err    error
}

func (s *sink) line(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	_, s.err = s.w.Write(append(text, '\n'))
}

// Close returns the first write error.
func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.err
}

// clean replaces control characters and line breaks, which would change the display.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}
