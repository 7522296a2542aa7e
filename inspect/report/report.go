// Package report writes surfaces and differences for people and programs: text, JSON, Markdown and one HTML file.
//
// The image's content is hostile. It reaches a terminal, a pull request or a browser only as literal characters.
package report

import (
	"fmt"
	"io"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// Formats of all reports.
const (
	Text     = "text"
	JSON     = "json"
	Markdown = "markdown"
	HTML     = "html"
)

// SchemaVersion is the version of the JSON. It rises when a field is removed or changes its meaning, not when one is
// added.
const SchemaVersion = 1

// Options configures a report.
type Options struct {
	// Depth is the number of tree levels in the text; 0 means as many as fit on a screen, or all with All.
	Depth int
	// Lines prints the changed lines of text files in the text without a limit.
	Lines bool
	// Layers prints each layer's own changes in text and HTML.
	Layers bool
	// Color colours the text.
	Color bool
	// All prints parts that the text otherwise cuts: names with equal values, long lists, files, and sources.
	All bool
	// Width is the width of the text in columns; 0 is 100, and the minimum is 40.
	Width int
	// Version is slimctl's, for the footer of HTML.
	Version string
	// Link is the http or https address of the whole report, for Markdown; may be empty.
	Link string
	// Verdict is verify's result for the slim image; nil if it wasn't run.
	Verdict *Verdict
	// Why returns the profile's line and reason for a change. It may be nil, and may return "".
	Why func(*diff.Change) string
}

// Verdict is the result of verify.
type Verdict struct {
	Profile string
	Passed  bool
	// Words is a summary: "72 rules, 0 errors, 1 warning".
	Words string
	// Findings lists the findings, gravest first, each in one line.
	Findings []string
}

// Surfaces writes the surface of an image, for one or several platforms.
func Surfaces(w io.Writer, format string, surfaces []*inspect.Surface, o Options) error {
	switch format {
	case Text:
		return surfacesText(w, surfaces, o)
	case JSON:
		if surfaces == nil {
			surfaces = []*inspect.Surface{}
		}
		return writeDocument(w, platforms[*inspect.Surface]{SchemaVersion, surfaces})
	case Markdown:
		return surfacesMarkdown(w, surfaces)
	case HTML:
		return surfacesHTML(w, surfaces)
	}
	return fmt.Errorf("no report format %q", format)
}

// Diffs writes the differences, for one or several platforms.
func Diffs(w io.Writer, format string, diffs []*diff.Diff, o Options) error {
	switch format {
	case Text:
		return diffsText(w, diffs, o)
	case JSON:
		return writeDiffs(w, diffs)
	case Markdown:
		return diffsMarkdown(w, diffs, o)
	case HTML:
		return diffsHTML(w, diffs, o)
	}
	return fmt.Errorf("no report format %q", format)
}
