// Package size says where the bytes of an image are: by layer, by component and by directory, and what of them is hidden.
package size

import (
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/packages"
)

// Sizes are in bytes.
type Sizes struct {
	// Transfer is what a puller who has nothing transfers: the sum of the layer blobs, each once.
	Transfer int64 `json:"transfer"`
	// Unpacked is the sum of all files in all layers; Visible that of the merged tree, hard links once.
	Unpacked int64 `json:"unpacked"`
	Visible  int64 `json:"visible"`
	// Hidden is Unpacked less Visible: what upper layers removed or replaced, and pullers still transfer.
	Hidden int64 `json:"hidden"`
	// Files is how many entries the merged tree has, without the root.
	Files       int         `json:"files"`
	Layers      []Layer     `json:"layers"`
	Components  []Component `json:"components"`
	Directories []Directory `json:"directories"`
}

// Layer is one layer.
type Layer struct {
	Digest    string `json:"digest"`
	CreatedBy string `json:"createdBy,omitempty"`
	Size      int64  `json:"size"`
	Unpacked  int64  `json:"unpacked"`
	Entries   int    `json:"entries"`
	// Visible is what of it the merged tree shows.
	Visible int64 `json:"visible"`
	Unread  bool  `json:"unread,omitempty"`
}

// Component is a part of the image that people have a name for: "code-server", "Chromium", "node packages", "fonts".
// Every visible file is in exactly one, the last of them "other".
type Component struct {
	Name  string `json:"name"`
	Size  int64  `json:"size"`
	Files int    `json:"files"`
}

// Directory is a directory with everything below it.
type Directory struct {
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	Files int    `json:"files"`
}

// Of gives the sizes of img; db may be nil. Directories are those of at most depth levels, biggest first.
func Of(img *tree.Image, db *packages.Database, depth int) Sizes { panic("not yet") }

// ComponentOf names the component of a path.
func ComponentOf(path string, db *packages.Database) string { panic("not yet") }
