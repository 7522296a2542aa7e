// Package diff compares two images: files, configuration, surface and size.
package diff

import (
	"context"
	"fmt"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/size"
)

// Diff holds the differences between two images of one platform. It is the JSON of slimctl diff, which docs/diff.md
// explains: fields are added, never renamed.
type Diff struct {
	Platform string `json:"platform"`
	// Missing is InBase or InSlim if only the other image has the platform: then nothing was compared, and the other
	// fields are empty.
	Missing string `json:"missing,omitempty"`
	Base    Side   `json:"base"`
	Slim    Side   `json:"slim"`
	// Same is true if files, config and surface are equal, however the files are split into layers. With Options.Paths
	// only Files count.
	Same bool `json:"same"`
	// Layers lists both images' layers, each once: first the common ones, then those of one image.
	Layers []Layer `json:"layers"`
	// Files lists the changes of the merged tree, in the order of a walk. A hard link is compared as its file: a copy
	// in place of a link is no change.
	Files  []Change `json:"files"`
	Counts Counts   `json:"counts"`
	// Config lists the changes of the image config and the manifest's annotations, sorted by name. Names are those of a
	// profile's config block: "env.PATH", "labels.x", "exposedPorts.8080/tcp", "entrypoint"; and "annotations.x". Lists
	// are JSON.
	Config  []Field `json:"config,omitempty"`
	Surface Surface `json:"surface"`
	Size    Size    `json:"size"`
	// Unmatched lists the Options.Paths that match nothing in either image.
	Unmatched []string `json:"unmatched,omitempty"`
	// Notes lists parts that were not compared, or left out.
	Notes []string `json:"notes,omitempty"`
}

// Side names one of the two.
type Side struct {
	Reference string     `json:"reference"`
	Digest    string     `json:"digest"`
	Size      size.Sizes `json:"size"`
}

// The values of a Side.
const (
	InBoth = "both"
	InBase = "base"
	InSlim = "slim"
)

// Layer is a layer of one image or of both.
type Layer struct {
	Digest string `json:"digest"`
	// DiffID is the digest of the layer's content.
	DiffID    string `json:"diffID"`
	CreatedBy string `json:"createdBy,omitempty"`
	// Size is that of the blob, Unpacked the sum of its files, in bytes.
	Size     int64 `json:"size"`
	Unpacked int64 `json:"unpacked"`
	// Unread is true for a layer whose files were not read.
	Unread bool `json:"unread,omitempty"`
	// In is InBoth, InBase or InSlim. Common layers are never read for the comparison.
	In string `json:"in"`
	// Counts are the layer's effects on the layers below it, for layers that are not common by digest or content. Files
	// lists them, with Options.Layers: a removed directory is one change, but Counts includes its content.
	Counts Counts   `json:"counts"`
	Files  []Change `json:"files,omitempty"`
}

// Kinds of a Change, as in the legend of slimctl diff.
const (
	Added    = "+"
	Removed  = "-"
	Modified = "M" // content, link target or device number
	Type     = "T" // the type changed
	Meta     = "U" // mode, owner, xattr or time only
)

// Change is the change of one path.
type Change struct {
	Path string `json:"path"`
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Fields lists the differences: "type", "mode", "owner", "size", "content", "link", "device", "xattr", "time";
	// empty for + and -.
	// Changes share the slices: read only.
	Fields []string `json:"fields,omitempty"`
	// Old is nil for +, New for -.
	Old *tree.Entry `json:"old,omitempty"`
	New *tree.Entry `json:"new,omitempty"`
	// Text is the unified diff of a changed text file, if Options.Text requests it. NoText is the reason if there is
	// none: Binary, Large, or Limit.
	Text   string `json:"text,omitempty"`
	NoText string `json:"noText,omitempty"`
}

// Reasons why a changed file has no Text.
const (
	Binary = "binary" // not UTF-8, or contains a NUL
	Large  = "large"  // it has more bytes than Options.Text
	Limit  = "limit"  // the number of texts, or their total size, is too large
)

// Counts holds numbers of changed paths, and bytes of regular files: AddedBytes in slim, RemovedBytes in base. A file
// with changed content counts in both.
type Counts struct {
	Added        int   `json:"added"`
	Removed      int   `json:"removed"`
	Modified     int   `json:"modified"`
	Type         int   `json:"type"`
	Meta         int   `json:"meta"`
	AddedBytes   int64 `json:"addedBytes"`
	RemovedBytes int64 `json:"removedBytes"`
}

// Field is a changed value. Old or New is empty if that side lacks it; InBase and InSlim distinguish that from an empty
// value.
type Field struct {
	Name   string `json:"name"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
	InBase bool   `json:"inBase"`
	InSlim bool   `json:"inSlim"`
}

// Surface holds the differences of the images' surfaces.
type Surface struct {
	// Outside counts the routes that answer requests from outside the container other than with an error.
	Outside    Count `json:"outside"`
	Programs   Group `json:"programs"`
	Routes     Group `json:"routes"`
	Listeners  Group `json:"listeners"`
	MCPServers Group `json:"mcpServers"`
	Tools      Group `json:"tools"`
	// Switches are those with a reader.
	Switches   Group `json:"switches"`
	Hooks      Group `json:"hooks"`
	Privileged Group `json:"privileged"`
	Users      Group `json:"users"`
	Sudo       Group `json:"sudo"`
	Packages   Group `json:"packages"`
}

// Count is the number on each side.
type Count struct {
	Base int `json:"base"`
	Slim int `json:"slim"`
}

// Group compares things of one kind. Several things with one name become one; their values are joined by "
// ".
type Group struct {
	// Base and Slim are the numbers of things; of routes with one name each counts.
	Base int `json:"base"`
	Slim int `json:"slim"`
	// Items lists things on one side only, or with differences, sorted by name. Same lists the equal names, sorted.
	Items []Field  `json:"items,omitempty"`
	Same  []string `json:"same,omitempty"`
}

// Size holds the changes of size, in bytes.
type Size struct {
	// Transfer is slim's download minus base's, without any layer at hand: negative is a gain. Beside is the download
	// for a user with the base.
	Transfer int64 `json:"transfer"`
	Beside   int64 `json:"beside"`
	// Visible is the change of the merged tree's size.
	Visible int64 `json:"visible"`
	// Hidden and Gone are the sizes of base's files that slim doesn't show, or shows with other content. Hidden are
	// those in layers that slim still has, which are still downloaded; Gone are the others.
	Hidden int64 `json:"hidden"`
	Gone   int64 `json:"gone"`
	// Components lists changed components, biggest change first.
	Components []Component `json:"components,omitempty"`
	// Ledger lists the components in slim's ledger, which define its layers, changed or not; empty for a slim image
	// without a ledger.
	Ledger []Component `json:"ledger,omitempty"`
}

// Component is a size.Component on both sides.
type Component struct {
	Name string `json:"name"`
	Base int64  `json:"base"`
	Slim int64  `json:"slim"`
}

// Options configures a comparison.
type Options struct {
	// Paths limits Files, also of layers, to paths that one of these names or matches as a glob, and everything below;
	// empty means everything. Config, surface and size always cover the complete images.
	Paths []string
	// Text adds unified diffs of text files of at most this many bytes, up to MaxText; 0 adds none.
	Text int64
	// Layers lists the changes of each layer that is not in both, too.
	Layers bool
	// Times makes a different modification time a change.
	Times bool
}

// Of compares two images. Time and memory are linear in the number of their files. Common layers are not read, unless
// Options.Text requests a file in one.
func Of(ctx context.Context, base, slim *inspect.Image, o Options) (*Diff, error) {
	paths, err := newFilter(o.Paths)
	if err != nil {
		return nil, err
	}
	c := comparison{base: base.Files, slim: slim.Files, paths: paths, times: o.Times, list: o.Layers}
	d := &Diff{Platform: slim.Platform.String(), Base: sideOf(base), Slim: sideOf(slim), Files: []Change{}}
	c.compareFiles(d)
	if d.Layers, err = c.compareLayers(); err != nil {
		return nil, err
	}
	if d.Config, err = configChanges(base, slim); err != nil {
		return nil, err
	}
	d.Surface = surfaceChanges(base.Surface, slim.Surface)
	c.compareSizes(d)
	d.Unmatched = paths.unmatched(base.Files.Tree, slim.Files.Tree)
	d.Same = len(d.Files) == 0 && (len(o.Paths) > 0 || len(d.Config) == 0 && d.Surface.same())
	for _, l := range d.Layers {
		if l.Unread {
			d.Same = d.Same && l.In == InBoth
			d.Notes = append(d.Notes, fmt.Sprintf("layer %s, in %s, was not read: its files are not compared", l.Digest, l.In))
		}
	}
	if o.Text > 0 {
		err = c.addTexts(ctx, d, o.Text)
	}
	return d, err
}

func sideOf(img *inspect.Image) Side {
	return Side{Reference: img.Reference, Digest: img.Digest.String(), Size: img.Surface.Size}
}
