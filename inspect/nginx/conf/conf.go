// Package conf reads the files of nginx's configuration in an image like nginx: words, blocks, includes, and the
// templates that are rendered at start. It doesn't interpret directives, except those that nginx refuses by their name,
// place or arguments.
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
	// Variant names the choice among several rendered templates, such as "/opt/gem/nginx-server-active.conf from
	// /opt/gem/nginx-server-with-auth.conf".
	Variant string
	// Files lists all files read, in nginx's order; for a rendered file its template.
	Files []string
	// Includes are all include directives.
	Includes []Include
	// Block holds the statements of the main file, with those of included files in place.
	Block []*Statement
	// Unfilled lists the unknown placeholders, in lower case like nginx's variables.
	Unfilled map[string]bool
	// Notes lists errors that prevent nginx from starting, and unread parts.
	Notes []tree.Note

	img   *tree.Image
	noted map[string]bool
}

// Include is an include directive.
type Include struct {
	// Pattern is as written; Files are the paths that nginx opens for it, in its order: for a rendered file its own
	// path, not the template's.
	Pattern string     `json:"pattern"`
	Files   []string   `json:"files,omitempty"`
	Place   tree.Place `json:"place"`
	// Glob is true for a pattern: files that appear there later are read, too.
	Glob bool `json:"glob,omitempty"`
	// Missing is true for a file that is neither in the image nor created at start: whoever can write there supplies
	// it.
	Missing bool `json:"missing,omitempty"`
}

// Options configures a reading.
type Options struct {
	// Rendered maps a file that is rendered at start to its possible templates. If one has several, Read returns a
	// Config for each. Missing templates are ignored.
	Rendered map[string][]Template
	// Made lists files that are created at start by other means, with unknown content.
	Made map[string]bool
	// Env is the environment that fills placeholders. Missing ones stay as written: ${NAME}.
	Env map[string]string
}

// Template is a file that envsubst turns into another.
type Template struct {
	// Template is a file to which envsubst is applied.
	Path string
	// Variables lists those that envsubst replaces; nil for all.
	Variables []string
	// Once is true if the template is deleted after rendering, so that no include matches it.
	Once bool
}

// Read yields each Config whose main file is at path: one for each choice of templates. A missing main file is
// fs.ErrNotExist, and the end of ctx is an error. Other problems become a Note, never an error or a panic. It yields
// nothing after an error.
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

// guarded converts a panic, which would be a bug of this package, to a Note.
func (s *source) guarded(read func()) {
	defer func() {
		if r := recover(); r != nil {
			s.Notes = append(s.Notes, tree.Note{Place: tree.Place{Path: s.main}, Text: fmt.Sprintf("the configuration can't be read: %v", r)})
		}
	}()
	read()
}

// Place returns the place of a statement.
func (c *Config) Place(st *Statement) tree.Place { return c.img.Place(st.file, st.line) }

// Note adds a note at a statement, formatted like fmt.Sprintf. It ignores duplicates, and notes beyond the limit.
func (c *Config) Note(st *Statement, format string, args ...any) {
	c.NoteAt(c.Place(st), format, args...)
}

// NoteAt is like Note for any place.
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

// Cut shortens a quotation in a note.
func Cut(s string) string {
	if len(s) > maxBrief {
		return s[:maxBrief] + "…"
	}
	return s
}
