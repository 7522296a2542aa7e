// Package conf reads the files of nginx's configuration out of an image as nginx reads them: words, blocks, includes, and
// the templates that they are made from at start. What the directives mean is not its matter, but for what nginx refuses of
// any of them by its name, its place and its arguments.
package conf

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"maps"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Config is one main file with everything that it includes.
type Config struct {
	// Path is the main file.
	Path string
	// Variant names the choice of rendered templates where there are several, such as
	// "/opt/gem/nginx-server-active.conf from /opt/gem/nginx-server-with-auth.conf".
	Variant string
	// Files are all files read, in the order that nginx reads them; of a rendered file the template.
	Files []string
	// Includes are all include directives.
	Includes []Include
	// Block has the statements of the main file; those of the files that it includes stand in their places.
	Block []*Statement
	// Unfilled are the placeholders that nothing is known of, in lower case as nginx would look for them.
	Unfilled map[string]bool
	// Notes tell of what nginx would not start with, and of what is not read.
	Notes []tree.Note

	img   *tree.Image
	noted map[string]bool
}

// Include is an include directive.
type Include struct {
	// Pattern is as written; Files are the paths that nginx opens for it, in its order: of a rendered file the one that is
	// made, not the template.
	Pattern string     `json:"pattern"`
	Files   []string   `json:"files,omitempty"`
	Place   tree.Place `json:"place"`
	// Glob is true for a pattern: whatever file appears there later is read too.
	Glob bool `json:"glob,omitempty"`
	// Missing is true for a file that is neither in the image nor made at start: whoever may write there brings it.
	Missing bool `json:"missing,omitempty"`
}

// Options say what is known of a run.
type Options struct {
	// Rendered maps a file that is made at start to the templates it can be made from. Where one has several, Read gives
	// a Config for each. Templates that are not in the image make nothing.
	Rendered map[string][]Template
	// Made are the paths of files that are made at start by other means, so that what will be in them is not known.
	Made map[string]bool
	// Env is the environment that placeholders are filled from. What it lacks stays as written: ${NAME}.
	Env map[string]string
}

// Template is a file that envsubst turns into another.
type Template struct {
	// Path is the template; empty for the choice that the file is not made.
	Path string
	// Variables are those that envsubst replaces; nil for all.
	Variables []string
	// Once is true when the template is deleted after it was rendered, so that no include meets it.
	Once bool
}

// Read gives each Config whose main file is at path: one for each choice of templates. A main file that isn't there is
// fs.ErrNotExist; whatever else is wrong is a Note, and never an error or a panic, but for a ctx that ends. An error is the
// last that it gives.
func Read(ctx context.Context, img *tree.Image, path string, o Options) iter.Seq2[*Config, error] {
	return func(yield func(*Config, error) bool) {
		s := newSource(ctx, img, path, o)
		if e, ok := img.Stat(s.main); s.outputs[s.resolve(s.main)] == nil && (!ok || e.Type != image.TypeFile && e.Type != image.TypeLink) {
			yield(nil, &fs.PathError{Op: "read", Path: s.main, Err: fs.ErrNotExist})
			return
		}
		given := 0
		pending := []map[string]int{{}}
		for len(pending) > 0 {
			v := s.variant(pending[0])
			pending = pending[1:]
			v.firstOnly = s.firstOnly
			v.guarded(func() { v.Block = v.parse(s.main, nil) })
			if err := context.Cause(ctx); err != nil {
				yield(nil, err)
				return
			}
			if v.open != "" {
				n := len(s.outputs[v.open])
				if s.firstOnly = given+len(pending)+n > maxVariants; s.firstOnly {
					n = 1
				}
				var more []map[string]int
				for i := range n {
					choice := maps.Clone(v.choice)
					choice[v.open] = i
					more = append(more, choice)
				}
				pending = append(more, pending...)
				continue
			}
			if v.firstOnly {
				v.NoteAt(tree.Place{Path: s.main}, "there are more choices of templates than the %d that are read", maxVariants)
			}
			v.guarded(func() {
				v.noteUnknown(v.Block)
				v.lint()
			})
			if given++; !yield(v.Config, nil) {
				return
			}
		}
	}
}

// guarded makes a Note of a panic, which would be a fault of this package.
func (s *source) guarded(read func()) {
	defer func() {
		if r := recover(); r != nil {
			s.Notes = append(s.Notes, tree.Note{Place: tree.Place{Path: s.main}, Text: fmt.Sprintf("the configuration can't be read: %v", r)})
		}
	}()
	read()
}

// Place is where a statement stands.
func (c *Config) Place(st *Statement) tree.Place { return c.img.Place(st.file, st.line) }

// Note adds a note at a statement, in the way of fmt.Sprintf. One that is there already, or is too many, is not added.
func (c *Config) Note(st *Statement, format string, args ...any) {
	c.NoteAt(c.Place(st), format, args...)
}

// NoteAt is Note for any place.
func (c *Config) NoteAt(at tree.Place, format string, args ...any) {
	n := tree.Note{Place: at, Text: fmt.Sprintf(format, args...)}
	key := n.String()
	if c.noted[key] || len(c.Notes) > maxNotes {
		return
	}
	c.noted[key] = true
	if len(c.Notes) == maxNotes {
		n = tree.Note{Place: tree.Place{Path: c.Path}, Text: fmt.Sprintf("there are more than %d notes", maxNotes)}
	}
	c.Notes = append(c.Notes, n)
}

// Cut shortens what a note quotes.
func Cut(s string) string {
	if len(s) > maxBrief {
		return s[:maxBrief] + "…"
	}
	return s
}
