// Package report writes surfaces and differences for people and programs: text, JSON, Markdown and one HTML file.
package report

import (
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

// Options say how a report is written.
type Options struct {
	// Depth is how many levels of a tree the text has; 0 is all.
	Depth int
	// Layers shows each layer's own changes, too.
	Layers bool
	// Color colours the text.
	Color bool
}

// Surfaces writes the surface of an image, for one or several platforms.
func Surfaces(w io.Writer, format string, surfaces []*inspect.Surface, o Options) error {
	panic("not yet")
}

// Diffs writes what differs, for one or several platforms.
func Diffs(w io.Writer, format string, diffs []*diff.Diff, o Options) error { panic("not yet") }
