package inspect

import (
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/packages"
)

// What a Step does to a path.
const (
	Adds     = "adds"
	Changes  = "changes"
	Removes  = "removes"  // by a whiteout of the path or of a directory above it
	Hides    = "hides"    // by making a directory above it opaque
	Replaces = "replaces" // something that is no directory takes the place of a directory above it
)

// Why is the story of one path in an image.
type Why struct {
	// Asked is the path as it was asked for; Path has the symlinks among its parents followed.
	Asked string `json:"asked"`
	Path  string `json:"path"`
	// Entry is what the image has there; nil when nothing is.
	Entry *tree.Entry `json:"entry,omitempty"`
	// Target is where a symlink leads in the end; empty when it leads nowhere, and for all else.
	Target string `json:"target,omitempty"`
	// Steps are what the layers do to it, lowest first.
	Steps []Step `json:"steps"`
	// Unread are the digests of layers that may do more, and were not read.
	Unread []string `json:"unread,omitempty"`
	// Package is who says that it is theirs; nil when nobody does.
	Package *packages.Package `json:"package,omitempty"`
}

// Step is what one layer does to the path.
type Step struct {
	// Layer is the layer's position, 0 is the lowest.
	Layer     int    `json:"layer"`
	Digest    string `json:"digest"`
	CreatedBy string `json:"createdBy,omitempty"`
	// Does is one of the constants; By is the path that does it, where that is not the path itself.
	Does string `json:"does"`
	By   string `json:"by,omitempty"`
	// Entry is what the layer has there, for Adds and Changes.
	Entry *tree.Entry `json:"entry,omitempty"`
}

// Why tells which layers brought, changed and took away what is at p, and whose it is. A path that no layer names has no
// Steps.
func (im *Image) Why(p string) *Why {
	w := &Why{Asked: image.Clean(p), Path: image.Clean(p), Steps: []Step{}}
	if to, err := im.Files.Resolve(w.Path); err == nil {
		w.Path = to
	}
	if e, ok := im.Files.Lookup(w.Path); ok {
		w.Entry = &e
		if target, ok := im.Files.Stat(w.Path); ok && e.Type == image.TypeSymlink {
			w.Target = target.Path
		}
	}
	exists := false
	for i, l := range im.Files.Layers {
		if l.Unread {
			w.Unread = append(w.Unread, l.Digest.String())
			continue
		}
		step := Step{Layer: i, Digest: l.Digest.String(), CreatedBy: l.CreatedBy}
		for _, e := range l.Entries {
			if !image.Within(w.Path, e.Path) {
				continue
			}
			if own := e.Path == w.Path; own && e.Type != tree.TypeWhiteout && e.Type != tree.TypeOpaque {
				step.Does, step.Entry, step.By = Adds, &e, ""
				if exists {
					step.Does = Changes
				}
			} else if does := takesAway(e, own); exists && does != "" && step.Entry == nil {
				step.Does = does
				if !own {
					step.By = e.Path
				}
			}
		}
		if step.Does != "" {
			exists = step.Entry != nil
			w.Steps = append(w.Steps, step)
		}
	}
	if im.Packages != nil {
		w.Package = im.Packages.Owner(w.Path)
	}
	return w
}

// takesAway says what an entry at the path itself (own) or above it does to what lower layers have there.
func takesAway(e tree.Entry, own bool) string {
	switch {
	case e.Type == tree.TypeWhiteout:
		return Removes
	case e.Type == tree.TypeOpaque && !own:
		return Hides
	case e.Type != tree.TypeOpaque && !e.IsDir():
		return Replaces
	}
	return ""
}
