package tree

import "fmt"

// Place is a place in an image: evidence of what is said of it.
type Place struct {
	Path string `json:"path"`
	// Line counts from 1; 0 is the whole file.
	Line int `json:"line,omitempty"`
	// Layer is the digest of the layer that brought the path.
	Layer string `json:"layer,omitempty"`
}

// String is path:line.
func (p Place) String() string {
	if p.Line == 0 {
		return p.Path
	}
	return fmt.Sprintf("%s:%d", p.Path, p.Line)
}

// Place names line of the file at p; line 0 is the whole file.
func (im *Image) Place(p string, line int) Place {
	at := Place{Path: p, Line: line}
	if e, ok := im.Lookup(p); ok && e.Layer >= 0 && e.Layer < len(im.Layers) {
		at.Layer = im.Layers[e.Layer].Digest.String()
	}
	return at
}

// Note is something that a reader of an image could not make sense of, or that would not work. Nothing is passed over in
// silence: what can't be understood can't be called closed.
type Note struct {
	Place Place  `json:"place"`
	Text  string `json:"text"`
}

// String is path:line: text.
func (n Note) String() string { return n.Place.String() + ": " + n.Text }
