package main

import (
	"io"
	"os"
	"regexp"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// filterForTerminal returns a writer for a container's output. If w is a terminal, it replaces control characters
// except tabs, line ends and colours. A container must not move the cursor, set the title, fill the clipboard or make
// the terminal type answers. Any other w gets every byte unchanged.
func filterForTerminal(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &terminalWriter{out: w}
	}
	return w
}

type terminalWriter struct {
	out  io.Writer
	rest []byte // an incomplete character or colour at the end of the last write
}

var (
	color      = regexp.MustCompile("^\x1b\\[[0-9;:]{0,40}m")
	colorBegun = regexp.MustCompile("^\x1b(\\[[0-9;:]{0,40})?$")
)

func (t *terminalWriter) Write(p []byte) (int, error) {
	in := append(t.rest, p...)
	var out []byte
	for len(in) > 0 && utf8.FullRune(in) {
		var colors []byte
		if in[0] == '\x1b' {
			if colorBegun.Match(in) {
				break
			}
			colors = color.Find(in)
		}
		r, n := utf8.DecodeRune(in)
		switch {
		case colors != nil:
			n = len(colors)
			out = append(out, colors...)
		case unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' || unicode.Is(unicode.Bidi_Control, r):
			out = utf8.AppendRune(out, utf8.RuneError)
		default:
			out = utf8.AppendRune(out, r)
		}
		in = in[n:]
	}
	t.rest = append([]byte(nil), in...)
	if _, err := t.out.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
