package tree

import "fmt"

// Place is a place in an image, as evidence.
type Place struct {
	Path string `json:"path"`
	// Line counts from 1; 0 means the whole file.
	Line int `json:"line,omitempty"`
	// Layer is the digest of the path's layer.
	Layer string `json:"layer,omitempty"`
}

// String returns path:line.
func (p Place) String() string {
	if p.Line == 0 {
		return p.Path
	}
	return fmt.Sprintf("%s:%d", p.Path, p.Line)
}

// Place returns the place of a line in the file at p; line 0 means the whole file.
func (im *Image) Place(p string, line int) Place {
	at := Place{Path: p, Line: line}
	if e, ok := im.Lookup(p); ok && e.Layer >= 0 && e.Layer < len(im.Layers) {
		at.Layer = im.Layers[e.Layer].Digest.String()
	}
	return at
}

// Note is a part of an image that a reader doesn't understand or that wouldn't work. Readers report every such part,
// because an image with an unknown part can't be called closed.
type Note struct {
	Place Place  `json:"place"`
	Text  string `json:"text"`
}

// String returns path:line: text.
func (n Note) String() string { return n.Place.String() + ": " + n.Text }
