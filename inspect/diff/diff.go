// Package diff tells what differs between two images: files, configuration, surface and size.
package diff

import (
	"context"
	"fmt"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/size"
)

// Diff is what differs between two images of one platform. It is slimctl diff's JSON, which docs/diff.md explains: fields
// are added, never renamed.
type Diff struct {
	Platform string `json:"platform"`
	// Missing is InBase or InSlim when only the other one has the platform: then nothing was compared, and what follows is
	// empty.
	Missing string `json:"missing,omitempty"`
	Base    Side   `json:"base"`
	Slim    Side   `json:"slim"`
	// Same is true when nothing differs but names: files, config and surface are the same, however the files are cut into
	// layers. With Options.Paths only Files count.
	Same bool `json:"same"`
	// Layers are both images' layers, each once: first those that both have, then those of one.
	Layers []Layer `json:"layers"`
	// Files are the changes of the merged tree, sorted by path as a walk has them. A hard link counts as the file that it is
	// a name of: a copy in the place of a link is no change.
	Files  []Change `json:"files"`
	Counts Counts   `json:"counts"`
	// Config are changes of the image config and the manifest's annotations, sorted by name. Names are those of a profile's
	// config block: "env.PATH", "labels.x", "exposedPorts.8080/tcp", "entrypoint"; and "annotations.x". Lists are JSON.
	Config  []Field `json:"config,omitempty"`
	Surface Surface `json:"surface"`
	Size    Size    `json:"size"`
	// Unmatched are those of Options.Paths that match nothing in either image.
	Unmatched []string `json:"unmatched,omitempty"`
	// Notes tell what was not compared, or left out.
	Notes []string `json:"notes,omitempty"`
}

// Side names one of the two.
type Side struct {
	Reference string     `json:"reference"`
	Digest    string     `json:"digest"`
	Size      size.Sizes `json:"size"`
}

// Where something is.
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
	// Size is the blob's, Unpacked the sum of its files, in bytes.
	Size     int64 `json:"size"`
	Unpacked int64 `json:"unpacked"`
	// Unread is true for a layer whose files nobody looked at.
	Unread bool `json:"unread,omitempty"`
	// In is InBoth, InBase or InSlim. Layers in both are never read to compare.
	In string `json:"in"`
	// Counts are what the layer itself does to the layers below it, for layers that are not in both by digest or content.
	// Files are the changes, with Options.Layers: a directory that the layer takes away is one, and Counts has all that goes
	// with it.
	Counts Counts   `json:"counts"`
	Files  []Change `json:"files,omitempty"`
}

// Kinds of a Change, as the legend of slimctl diff has them.
const (
	Added    = "+"
	Removed  = "-"
	Modified = "M" // content, link target or device number
	Type     = "T" // the type changed
	Meta     = "U" // mode, owner, xattr or time only
)

// Change is one path that differs.
type Change struct {
	Path string `json:"path"`
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Fields are what differs: "type", "mode", "owner", "size", "content", "link", "device", "xattr", "time"; empty for
	// + and -.
	// Changes share them: read only.
	Fields []string `json:"fields,omitempty"`
	// Old is nil for +, New for -.
	Old *tree.Entry `json:"old,omitempty"`
	New *tree.Entry `json:"new,omitempty"`
	// Text is the unified diff of a text file whose content changed, where Options.Text asks for it. NoText tells why there
	// is none: Binary, Large, or Limit.
	Text   string `json:"text,omitempty"`
	NoText string `json:"noText,omitempty"`
}

// Why a changed file has no Text.
const (
	Binary = "binary" // it isn't UTF-8, or has a NUL
	Large  = "large"  // it has more bytes than Options.Text
	Limit  = "limit"  // there are too many texts, or bytes in all of them
)

// Counts are numbers of changed paths, and bytes of regular files: AddedBytes in slim, RemovedBytes in base, where a file
// with other content is in both.
type Counts struct {
	Added        int   `json:"added"`
	Removed      int   `json:"removed"`
	Modified     int   `json:"modified"`
	Type         int   `json:"type"`
	Meta         int   `json:"meta"`
	AddedBytes   int64 `json:"addedBytes"`
	RemovedBytes int64 `json:"removedBytes"`
}

// Field is a value that differs. Old or New is empty where one side lacks it; InBase and InSlim say which side has it.
type Field struct {
	Name   string `json:"name"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
	InBase bool   `json:"inBase"`
	InSlim bool   `json:"inSlim"`
}

// Surface is what differs in what the images expose.
type Surface struct {
	// Outside counts the routes that answer requests from outside the container with anything but an error.
	Outside    Count `json:"outside"`
	Programs   Group `json:"programs"`
	Routes     Group `json:"routes"`
	Listeners  Group `json:"listeners"`
	MCPServers Group `json:"mcpServers"`
	Tools      Group `json:"tools"`
	// Switches are those that something reads.
	Switches   Group `json:"switches"`
	Hooks      Group `json:"hooks"`
	Privileged Group `json:"privileged"`
	Users      Group `json:"users"`
	Sudo       Group `json:"sudo"`
	Packages   Group `json:"packages"`
}

// Count is how many there are on each side.
type Count struct {
	Base int `json:"base"`
	Slim int `json:"slim"`
}

// Group is one kind of thing on both sides. Things of one name are one: what is said of them is joined by " | ".
type Group struct {
	// Base and Slim are how many there are.
	Base int `json:"base"`
	Slim int `json:"slim"`
	// Items are what is on one side only, or differs; sorted by name. Same are the names that don't differ, sorted.
	Items []Field  `json:"items,omitempty"`
	Same  []string `json:"same,omitempty"`
}

// Size says what really became smaller, in bytes.
type Size struct {
	// Transfer is slim's less base's, for a puller who has nothing: negative is a gain. Beside is what a puller who has the
	// base transfers.
	Transfer int64 `json:"transfer"`
	Beside   int64 `json:"beside"`
	// Visible is the change of what a container sees.
	Visible int64 `json:"visible"`
	// Hidden and Gone are the files that base shows and slim doesn't, or shows with other content: Hidden are those in
	// layers that slim still has, so that pullers still transfer them; Gone are the others.
	Hidden int64 `json:"hidden"`
	Gone   int64 `json:"gone"`
	// Components are changed components, biggest change first.
	Components []Component `json:"components,omitempty"`
	// Ledger are the components of slim's ledger, changed or not, by which its layers are cut; none for a slim image without one.
	Ledger []Component `json:"ledger,omitempty"`
}

// Component is a size.Component on both sides.
type Component struct {
	Name string `json:"name"`
	Base int64  `json:"base"`
	Slim int64  `json:"slim"`
}

// Options choose what is compared.
type Options struct {
	// Paths restricts Files, of layers too, to what one of these names or matches as a glob, and what lies below that; empty is
	// everything. Config, surface and size are always of the whole images.
	Paths []string
	// Text adds unified diffs of text files of at most this many bytes, up to MaxText; 0 adds none.
	Text int64
	// Layers lists the changes of each layer that is not in both, too.
	Layers bool
	// Times has a different modification time count as a change.
	Times bool
}

// Of compares two images. Time and memory grow with the number of their files; of layers that both have nothing is read,
// unless Options.Text asks for a file in one.
func Of(ctx context.Context, base, slim *inspect.Image, o Options) (*Diff, error) {
	paths, err := newFilter(o.Paths)
	if err != nil {
		return nil, err
	}
	c := comparison{base: base.Files, slim: slim.Files, paths: paths, times: o.Times, list: o.Layers}
	d := &Diff{Platform: slim.Platform.String(), Base: sideOf(base), Slim: sideOf(slim), Files: []Change{}}
	c.files(d)
	d.Layers = c.layers()
	if d.Config, err = configChanges(base, slim); err != nil {
		return nil, err
	}
	d.Surface = surfaceChanges(base.Surface, slim.Surface)
	c.sizes(d)
	d.Unmatched = paths.unmatched(base.Files.Tree, slim.Files.Tree)
	d.Same = len(d.Files) == 0 && (len(o.Paths) > 0 || len(d.Config) == 0 && d.Surface.same())
	for _, l := range d.Layers {
		if l.Unread {
			d.Same = d.Same && l.In == InBoth
			d.Notes = append(d.Notes, fmt.Sprintf("layer %s, in %s, was not read: its files are not compared", l.Digest, l.In))
		}
	}
	if o.Text > 0 {
		err = c.texts(ctx, d, o.Text)
	}
	return d, err
}

func sideOf(img *inspect.Image) Side {
	return Side{Reference: img.Reference, Digest: img.Digest.String(), Size: img.Surface.Size}
}
