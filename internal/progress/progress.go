// Package progress reports long work on standard error: as bars on a terminal, as lines elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/slimctl/slimctl/image"
)

// The modes of reporting.
const (
	Auto  = "auto"  // tty on a terminal, plain elsewhere
	TTY   = "tty"   // bars
	Plain = "plain" // a line at the end of a task, and sometimes before
	Quiet = "quiet" // nothing
)

// Modes lists the modes in the order of help texts.
var Modes = []string{Auto, TTY, Plain, Quiet}

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
	if f, ok := w.(*os.File); mode == Auto && ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		mode = TTY
	}
	switch mode {
	case TTY:
		return newBars(w), nil
	case Auto, Plain:
		return &lines{w: w, every: lineEvery}, nil
	case Quiet:
		return quiet{image.NoProgress}, nil
	}
	return nil, fmt.Errorf("unknown progress mode %q: one of %s", mode, strings.Join(Modes, ", "))
}

type quiet struct{ image.Progress }

func (quiet) Printf(string, ...any) {}
func (quiet) Close() error          { return nil }
