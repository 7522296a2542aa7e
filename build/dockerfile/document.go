package dockerfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLine is one less than the longest line that BuildKit's parser reads (bufio.MaxScanTokenSize).
const maxLine = 64*1024 - 1

const commentWidth = 110

// simple is what needs no quoting anywhere.
var simple = regexp.MustCompile(`^[a-z0-9]+$`)

// document is the Dockerfile being written. Text of others comes in by comment, exec and word only, which keep it from
// ending a line.
type document struct{ b strings.Builder }

func (d *document) blank() { d.b.WriteByte('\n') }

func (d *document) line(format string, args ...any) {
	fmt.Fprintf(&d.b, format, args...)
	d.blank()
}

// comment writes text as comment lines of at most commentWidth, whatever is in it.
func (d *document) comment(format string, args ...any) {
	line := "#"
	for _, word := range strings.Fields(oneLine(fmt.Sprintf(format, args...))) {
		if len(line)+1+len(word) > commentWidth && line != "#" {
			d.line("%s", line)
			line = "#"
		}
		for len(word) > maxLine/2 {
			word = word[:maxLine/2] // a word of 32 KB explains nothing
		}
		line += " " + word
	}
	d.line("%s", line)
}

// oneLine gives text with a space for all that isn't seen and for what ends a line.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text)
}

// text gives the whole, or an error when the parser couldn't read it.
func (d *document) text() (string, error) {
	text := d.b.String()
	for line := range strings.Lines(text) {
		if len(line) > maxLine {
			return "", fmt.Errorf("a line is longer than the %d bytes a Dockerfile's may have; it begins %.80q", maxLine, line)
		}
	}
	return text, nil
}

// jsonString quotes s for the exec form, which BuildKit reads as JSON and in which nothing is expanded for RUN,
// ENTRYPOINT, CMD and HEALTHCHECK.
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

// execForm gives args as one JSON array.
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

// word quotes s where BuildKit expands variables: ENV, LABEL, WORKDIR.
func word(s string) (string, error) {
	if err := printable(s); err != nil {
		return "", err
	}
	return `"` + wordEscapes.Replace(s) + `"`, nil
}

// printable refuses what would end a line or be changed.
func printable(s string) error {
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
