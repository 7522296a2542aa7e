package inspect

import (
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/packages"
)

// The effects of a Step on a path.
const (
	Adds     = "adds"
	Changes  = "changes"
	Removes  = "removes"  // by a whiteout of the path or of a directory above it
	Hides    = "hides"    // by making a directory above it opaque
	Replaces = "replaces" // a file replaces a directory above it
)

// Why is the history of one path in an image.
type Why struct {
	// Asked is the requested path; Path has the symlinks among its parents resolved.
	Asked string `json:"asked"`
	Path  string `json:"path"`
	// Entry is the path's entry in the image; nil if there is none.
	Entry *tree.Entry `json:"entry,omitempty"`
	// Target is the final target of a symlink; empty if it doesn't exist, and for other entries.
	Target string `json:"target,omitempty"`
	// Steps lists the layers' effects, lowest first.
	Steps []Step `json:"steps"`
	// Unread lists the digests of unread layers, which may have more effects.
	Unread []string `json:"unread,omitempty"`
	// Package is the package that owns the path; nil if none does.
	Package *packages.Package `json:"package,omitempty"`
}

// Step is the effect of one layer on the path.
type Step struct {
	// Layer is the layer's position, 0 is the lowest.
	Layer     int    `json:"layer"`
	Digest    string `json:"digest"`
	CreatedBy string `json:"createdBy,omitempty"`
	// Does is one of the constants; By is the path that causes it, if it isn't the path itself.
	Does string `json:"does"`
	By   string `json:"by,omitempty"`
	// Entry is the layer's entry, for Adds and Changes.
	Entry *tree.Entry `json:"entry,omitempty"`
}

// Why returns which layers added, changed and removed the path p, and which package owns it. A path in no layer has no
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
			} else if does := effectOf(e, own); exists && does != "" && step.Entry == nil {
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

// effectOf returns the effect of an entry, at the path itself (own) or above it, on lower layers.
func effectOf(e tree.Entry, own bool) string {
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
