// Package report writes surfaces and differences for people and programs: text, JSON, Markdown and one HTML file.
//
// Whatever an image holds is hostile: nothing of it reaches a terminal, a pull request or a browser other than as the
// characters that it is made of.
package report

import (
	"fmt"
	"io"

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
	// Version is slimctl's, for the footer of HTML.
	Version string
	// Link is the http or https address of the whole report, for Markdown; empty for none.
	Link string
	// Verdict is what verify says of the slim image; nil when nobody asked it.
	Verdict *Verdict
	// Why returns the profile's line and reason for a change. It may be nil, and return "".
	Why func(*diff.Change) string
}

// Verdict is the result of verify.
type Verdict struct {
	Profile string
	Passed  bool
	// Words sum it up: "72 rules, 0 errors, 1 warning".
	Words string
	// Findings are what is wrong, gravest first, each in one line.
	Findings []string
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
		return diffsMarkdown(w, diffs, o)
	case HTML:
		return diffsHTML(w, diffs, o)
	}
	return fmt.Errorf("no report format %q", format)
}
