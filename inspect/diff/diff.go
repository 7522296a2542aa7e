// Package diff tells what differs between two images: files, configuration, surface and size.
package diff

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/size"
)

// Diff is what differs between two images of one platform. It is slimctl diff's JSON: fields are added, never renamed.
type Diff struct {
	Platform string `json:"platform"`
	Base     Side   `json:"base"`
	Slim     Side   `json:"slim"`
	// Same is true when nothing differs but names.
	Same bool `json:"same"`
	// Layers are both images' layers: first those that both have, then those of one.
	Layers []Layer `json:"layers"`
	// Files are the changes of the merged tree, sorted by path as a walk has them.
	Files  []Change `json:"files"`
	Counts Counts   `json:"counts"`
	// Config are changes of the image config.
	Config  []Field `json:"config,omitempty"`
	Surface Surface `json:"surface"`
	Size    Size    `json:"size"`
}

// Side names one of the two.
type Side struct {
	Reference string     `json:"reference"`
	Digest    string     `json:"digest"`
	Size      size.Sizes `json:"size"`
}

// Layer is a layer of one image or of both.
type Layer struct {
	Digest    string `json:"digest"`
	CreatedBy string `json:"createdBy,omitempty"`
	Size      int64  `json:"size"`
	Unpacked  int64  `json:"unpacked"`
	// In is "both", "base" or "slim". Layers in both are never read to compare.
	In string `json:"in"`
	// Files are what the layer itself does to the layers below it, for layers that are not in both.
	Files  []Change `json:"files,omitempty"`
	Counts Counts   `json:"counts"`
}

// Kinds of a Change, as the legend of slimctl diff has them.
const (
	Added    = "+"
	Removed  = "-"
	Modified = "M" // content, or link target
	Type     = "T" // the type changed
	Meta     = "U" // mode, owner, xattr or time only
)

// Change is one path that differs.
type Change struct {
	Path string `json:"path"`
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Fields are what differs: "type", "mode", "owner", "size", "content", "link", "xattr"; empty for + and -.
	Fields []string `json:"fields,omitempty"`
	// Old and New are nil for + and -.
	Old *tree.Entry `json:"old,omitempty"`
	New *tree.Entry `json:"new,omitempty"`
	// Text is the unified diff of a text file; empty for what is none, or too large.
	Text string `json:"text,omitempty"`
}

// Counts are numbers of changed paths, and bytes of regular files.
type Counts struct {
	Added        int   `json:"added"`
	Removed      int   `json:"removed"`
	Modified     int   `json:"modified"`
	Type         int   `json:"type"`
	Meta         int   `json:"meta"`
	AddedBytes   int64 `json:"addedBytes"`
	RemovedBytes int64 `json:"removedBytes"`
}

// Field is a value that differs. Old or New is empty where one side lacks it; Has says which do.
type Field struct {
	Name   string `json:"name"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
	InBase bool   `json:"inBase"`
	InSlim bool   `json:"inSlim"`
}

// Surface is what differs in what the images expose.
type Surface struct {
	Programs   Group `json:"programs"`
	Routes     Group `json:"routes"`
	Listeners  Group `json:"listeners"`
	MCPServers Group `json:"mcpServers"`
	Tools      Group `json:"tools"`
	Switches   Group `json:"switches"`
	Hooks      Group `json:"hooks"`
	Privileged Group `json:"privileged"`
	Users      Group `json:"users"`
	Sudo       Group `json:"sudo"`
	Packages   Group `json:"packages"`
}

// Group is one kind of thing on both sides.
type Group struct {
	// Base and Slim are how many there are.
	Base int `json:"base"`
	Slim int `json:"slim"`
	// Items are what is on one side only, or differs; sorted by name. Same are the names that don't differ.
	Items []Field  `json:"items,omitempty"`
	Same  []string `json:"same,omitempty"`
}

// Size says what really became smaller, in bytes.
type Size struct {
	// Transfer is slim's less base's, for a puller who has nothing: negative is a gain. Beside is what a puller who has the
	// base transfers.
	Transfer int64 `json:"transfer"`
	Beside   int64 `json:"beside"`
	// Visible is the change of what a container sees. Hidden is what slim hides of bytes that pullers still transfer.
	Visible int64 `json:"visible"`
	Hidden  int64 `json:"hidden"`
	// Components are changed components, biggest change first.
	Components []Component `json:"components,omitempty"`
}

// Component is a size.Component on both sides.
type Component struct {
	Name string `json:"name"`
	Base int64  `json:"base"`
	Slim int64  `json:"slim"`
}

// Options choose what is compared.
type Options struct {
	// Paths restricts Files to what matches one of these globs, or lies below one; empty is everything.
	Paths []string
	// Text adds unified diffs of text files of at most this many bytes; 0 adds none.
	Text int64
	// Times has a different modification time count as a change.
	Times bool
}

// Of compares two images.
func Of(ctx context.Context, base, slim *inspect.Image, o Options) (*Diff, error) {
	panic("not yet")
}
