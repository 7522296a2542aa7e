package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"

	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/internal/rawname"
)

// replaced is encoding/json's replacement for a byte that is not UTF-8.
const replaced = `\ufffd`

// encode returns the JSON of v with that prefix and indent of lines, which may be empty, and with an escape for every
// character that a terminal or HTML interprets; JSON readers decode it.
func encode(v any, prefix, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent(prefix, indent)
	err := enc.Encode(v)
	if err == nil && bytes.Contains(b.Bytes(), []byte(replaced)) {
		b.Reset()
		err = enc.Encode(rawname.Quoted(v))
	}
	return rawname.Printable(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), err
}

// writeDocument writes one JSON document.
func writeDocument(w io.Writer, v any) error {
	data, err := encode(v, "", "  ")
	if err == nil {
		_, err = w.Write(append(data, '\n'))
	}
	return err
}

// platforms is the top of the JSON of surfaces and differences.
type platforms[T any] struct {
	SchemaVersion int `json:"schemaVersion"`
	Platforms     []T `json:"platforms"`
}

// Parts of the JSON of differences whose files are written one by one. No other line begins so: strings have no line
// feeds.
const (
	noFiles    = "\n      \"files\": null"
	fileIndent = "        "
)

// writeDiffs writes the differences in the form of one document, with the changed files one by one: an image may have a
// million, and their JSON is larger than the image's data in memory.
func writeDiffs(w io.Writer, diffs []*diff.Diff) error {
	without := make([]*diff.Diff, len(diffs))
	for i, d := range diffs {
		if d != nil {
			clone := *d
			without[i] = &clone
		}
		if d != nil && len(d.Files) > 0 {
			without[i].Files = nil
		}
	}
	data, err := encode(platforms[*diff.Diff]{SchemaVersion, without}, "", "  ")
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<16) // keeps the first error
	rest := string(data)
	for _, d := range diffs {
		if d == nil || d.Files != nil && len(d.Files) == 0 {
			continue
		}
		before, after, _ := strings.Cut(rest, noFiles)
		rest = after
		_, _ = out.WriteString(before + noFiles[:len(noFiles)-len("null")])
		if d.Files == nil {
			_, _ = out.WriteString("null")
			continue
		}
		for i := range d.Files {
			change, err := encode(d.Files[i], fileIndent, "  ")
			if err != nil {
				return err
			}
			_, _ = out.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0] + fileIndent)
			_, _ = out.Write(change)
		}
		_, _ = out.WriteString("\n      ]")
	}
	_, _ = out.WriteString(rest + "\n")
	return out.Flush()
}

// jsonWriter writes values for a script element; the first error ends it.
type jsonWriter struct {
	w   *bufio.Writer
	err error
}

// put writes the printable form of text.
func (j *jsonWriter) put(s string) {
	if j.err == nil {
		_, j.err = j.w.WriteString(s)
	}
}

// compact writes v on one line.
func (j *jsonWriter) compact(v any) {
	var data []byte
	if j.err == nil {
		data, j.err = encode(v, "", "")
	}
	j.put(string(data))
}
