// Package progress shows long work on standard error: bars on a terminal, lines elsewhere, JSON for a machine.
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

// The modes.
const (
	Auto  = "auto"  // tty on a terminal, plain elsewhere
	TTY   = "tty"   // bars
	Plain = "plain" // a line when something ends, and now and then in between
	JSON  = "json"  // one object a line
	Quiet = "quiet" // nothing
)

// Modes lists the modes in the order of a help text.
var Modes = []string{Auto, TTY, Plain, JSON, Quiet}

// Reporter is an image.Progress that writes. It is safe for concurrent use.
type Reporter interface {
	image.Progress
	// Printf says something in one line.
	Printf(format string, args ...any)
	// Close ends what is still shown and flushes. Tasks that end or are opened later write nothing.
	Close() error
}

// New makes a reporter that writes to w. Auto chooses bars when w is a terminal that can move its cursor (TERM is not
// "dumb"). No mode writes colours, so NO_COLOR needs no care.
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

// sink writes whole lines, until it is closed.
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

// Close gives the first error of a write.
func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.err
}

// clean keeps names and errors on one line and control characters from the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}
