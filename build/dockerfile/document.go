package dockerfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLine is one byte less than the longest line that BuildKit's parser reads (bufio.MaxScanTokenSize).
const maxLine = 64*1024 - 1

const commentWidth = 110

// document is a Dockerfile being written. Foreign text may enter only through comment, exec and word, which prevent it
// from ending a line.
type document struct{ b strings.Builder }

func (d *document) blank() { d.b.WriteByte('\n') }

func (d *document) line(format string, args ...any) {
	fmt.Fprintf(&d.b, format, args...)
	d.blank()
}

// comment writes text as comment lines of at most commentWidth characters.
func (d *document) comment(format string, args ...any) {
	line := "#"
	for _, word := range strings.Fields(oneLine(fmt.Sprintf(format, args...))) {
		if len(line)+1+len(word) > commentWidth && line != "#" {
			d.line("%s", line)
			line = "#"
		}
		for len(word) > maxLine/2 {
			word = word[:maxLine/2] // nobody reads a word of 32 kB
		}
		line += " " + word
	}
	d.line("%s", line)
}

// oneLine returns text with invisible characters and line breaks replaced by spaces.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text)
}

// text returns the document, or an error if a line is too long for the parser.
func (d *document) text() (string, error) {
	text := d.b.String()
	for line := range strings.Lines(text) {
		if len(line) > maxLine {
			return "", fmt.Errorf("a line is longer than the %d bytes a Dockerfile's may have; it begins %.80q", maxLine, line)
		}
	}
	return text, nil
}

// jsonString quotes s for the exec form. BuildKit reads it as JSON and expands nothing in RUN, ENTRYPOINT, CMD and
// HEALTHCHECK.
func jsonString(s string) (string, error) {
	if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
		return "", fmt.Errorf("%q isn't UTF-8 without NUL, which a Dockerfile must be", s)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// execForm returns args as one JSON array.
func execForm(args []string) (string, error) {
	quoted := make([]string, len(args))
	for i, a := range args {
		q, err := jsonString(a)
		if err != nil {
			return "", err
		}
		quoted[i] = q
	}
	return "[" + strings.Join(quoted, ", ") + "]", nil
}

var wordEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`)

// word quotes s for ENV, LABEL and WORKDIR, where BuildKit expands variables.
func word(s string) (string, error) {
	if err := checkPrintable(s); err != nil {
		return "", err
	}
	return `"` + wordEscapes.Replace(s) + `"`, nil
}

// checkPrintable refuses text with invalid UTF-8 or control characters.
func checkPrintable(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%q isn't UTF-8, which a Dockerfile must be", s)
	}
	for _, r := range s {
		if (r < ' ' && r != '\t') || r == 0x7f {
			return fmt.Errorf("%q has the control character %q, which a Dockerfile can't hold there", s, r)
		}
	}
	return nil
}
