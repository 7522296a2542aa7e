package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

const (
	maxSize = 1 << 20 // bytes of one profile file
	// maxNodes limits the values of a file with its aliases expanded, against alias bombs.
	maxNodes = 100_000
	// maxReread limits, in bytes, the search for the line of a syntax error.
	maxReread = 1 << 20
)

// parse parses data, which must be one YAML document.
func parse(file string, data []byte) (*yaml.Node, *Error) {
	if len(data) > maxSize {
		return nil, &Error{Position: Position{File: file}, Msg: "the file is larger than 1 MiB"}
	}
	if at, ok := invalidUTF8(data); ok {
		return nil, &Error{Position: position(file, data, at), Msg: "not UTF-8 text"}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	doc, err := next(dec)
	if errors.Is(err, io.EOF) || err == nil && isNull(doc.Content[0]) {
		return nil, &Error{
			Position: Position{file, 1, 1}, Msg: "the file is empty",
			Hint: "a profile starts with \"version: 1\" and \"name:\"",
		}
	}
	if err != nil {
		return nil, syntaxError(file, data, err)
	}
	switch second, err := next(dec); {
	case errors.Is(err, io.EOF):
		return doc.Content[0], nil
	case err != nil:
		return nil, syntaxError(file, data, err)
	default:
		return nil, &Error{
			Position: Position{file, second.Line, second.Column}, Msg: "a second YAML document",
			Hint: "keep one document in a file",
		}
	}
}

// next returns the next document node with its one child. It turns the YAML library's panics into errors.
func next(dec *yaml.Decoder) (doc *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: cannot be read: %v", r)
		}
	}()
	doc = new(yaml.Node)
	if err := dec.Decode(doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, io.EOF
	}
	return doc, nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxError returns an error of the YAML library with its position. The library's line is sometimes the one before,
// and often the start of the enclosing block. The line after the longest valid beginning of the file is usually better.
func syntaxError(file string, data []byte, err error) *Error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = strings.TrimPrefix(msg, m[0])
	}
	if strings.HasPrefix(msg, "unknown anchor") {
		msg = "unknown anchor" // without its name, since the file may not be a profile
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	line = min(max(line, firstBadLine(data, lines)), len(lines))
	text := lines[line-1]
	column := 1 + len(text) - len(bytes.TrimLeft(text, " "))
	e := &Error{Position: Position{file, line, column}, Msg: "not YAML: " + msg}
	if bytes.HasPrefix(bytes.TrimLeft(text, " "), []byte("\t")) {
		e.Hint = "indent with spaces, not with a tab"
	} else if strings.Contains(msg, "mapping values are not allowed") {
		e.Hint = `put a text that holds ": " in quotes`
	}
	return e
}

// firstBadLine returns the line, counted from 1, after the longest valid beginning of data, or 0 if the search is too
// long.
func firstBadLine(data []byte, lines [][]byte) int {
	consumed := &countingReader{data: data}
	dec := yaml.NewDecoder(consumed)
	for _, err := next(dec); err == nil; _, err = next(dec) {
	}
	end, last := 0, 0
	for ; last < len(lines) && end < consumed.n; last++ {
		end += len(lines[last])
	}
	for n, read := last, 0; n > 0 && read < maxReread; n-- {
		end -= len(lines[n-1])
		read += end
		if readable(data[:end]) {
			return n
		}
	}
	return 0
}

func readable(data []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := next(dec); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// countingReader returns one byte per call, so that n is the library's position.
type countingReader struct {
	data []byte
	n    int
}

func (r *countingReader) Read(p []byte) (int, error) {
	if r.n == len(r.data) || len(p) == 0 {
		return 0, io.EOF
	}
	p[0] = r.data[r.n]
	r.n++
	return 1, nil
}

func invalidUTF8(data []byte) (int, bool) {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i, true
		}
		i += size
	}
	return 0, false
}

// position returns the line and column of a byte offset in data.
func position(file string, data []byte, offset int) Position {
	before := data[:offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return Position{file, bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1}
}
