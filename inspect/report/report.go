// Package report writes surfaces and differences for people and programs: text, JSON, Markdown and one HTML file.
//
// Whatever an image holds is hostile: nothing of it reaches a terminal, a pull request or a browser other than as the
// characters that it is made of.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// Formats that every report can be written in.
const (
	Text     = "text"
	JSON     = "json"
	Markdown = "markdown"
	HTML     = "html"
)

// SchemaVersion is that of the JSON. It rises when a field goes away or changes its meaning; fields may be added without.
const SchemaVersion = 1

// Options say how a report is written.
type Options struct {
	// Depth is how many levels of a tree the text has; 0 is as many as fit on a screen, or with All every one.
	Depth int
	// Lines shows the changed lines of text files in the text, however many they are.
	Lines bool
	// Layers shows each layer's own changes, too, in text and HTML.
	Layers bool
	// Color colours the text.
	Color bool
	// All leaves nothing out of the text that it would otherwise cut short: names of which the same is told, long lists,
	// files, and where something is from.
	All bool
	// Width is how many columns the text has; 0 is 100, and fewer than 40 are 40.
	Width int
}

// Surfaces writes the surface of an image, for one or several platforms.
func Surfaces(w io.Writer, format string, surfaces []*inspect.Surface, o Options) error {
	switch format {
	case Text:
		return surfacesText(w, surfaces, o)
	case JSON:
		return writeJSON(w, surfaces)
	case Markdown:
		return surfacesMarkdown(w, surfaces)
	case HTML:
		return surfacesHTML(w, surfaces)
	}
	return fmt.Errorf("no report format %q", format)
}

// Diffs writes what differs, for one or several platforms.
func Diffs(w io.Writer, format string, diffs []*diff.Diff, o Options) error {
	switch format {
	case Text:
		return diffsText(w, diffs, o)
	case JSON:
		return writeJSON(w, diffs)
	case Markdown:
		return diffsMarkdown(w, diffs)
	case HTML:
		return diffsHTML(w, diffs, o)
	}
	return fmt.Errorf("no report format %q", format)
}

// writeJSON writes the documents as they are.
func writeJSON[T any](w io.Writer, platforms []T) error {
	if platforms == nil {
		platforms = []T{}
	}
	data, err := json.MarshalIndent(struct {
		SchemaVersion int `json:"schemaVersion"`
		Platforms     []T `json:"platforms"`
	}{SchemaVersion, platforms}, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(printableJSON(data), '\n'))
	return err
}

// printableJSON escapes what encoding/json leaves in strings although it moves a terminal's cursor or turns its writing
// direction. Outside of its strings JSON has none of these.
func printableJSON(data []byte) []byte {
	out := make([]byte, 0, len(data)+1)
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch high, low := utf16.EncodeRune(r); {
		case r < 0x7f || !hidden(r):
			out = append(out, data[i:i+n]...)
		case r > 0xffff:
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += n
	}
	return out
}
