// Package packages reads which packages an image has (dpkg, pip, npm), how big they are, and which files are theirs.
package packages

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
)

// Kinds of a package.
const (
	Dpkg = "dpkg"
	Pip  = "pip"
	NPM  = "npm"
)

// Package is an installed package.
type Package struct {
	// Kind is Dpkg, Pip or NPM.
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Arch is dpkg's; empty otherwise.
	Arch string `json:"arch,omitempty"`
	// Dir is where a pip or npm package lies.
	Dir string `json:"dir,omitempty"`
	// Size is in bytes: of its files that are in the image, each counted once. Files is how many.
	Size  int64 `json:"size"`
	Files int   `json:"files"`
	// Missing is how many of the files that its record names are not in the image.
	Missing int        `json:"missing,omitempty"`
	Place   tree.Place `json:"place"`
}

// Database is every package of an image.
type Database struct {
	// Packages are sorted by kind, name and directory.
	Packages []Package   `json:"packages"`
	Notes    []tree.Note `json:"notes,omitempty"`

	owners map[string]int32 // by path, the position in Packages
}

// Read reads the databases of img.
func Read(ctx context.Context, img *tree.Image) (*Database, error) {
	panic("not yet")
}

// Owner is the package that a path belongs to; nil when none does. A file inside of an npm package belongs to it, and a
// file that both dpkg and another name belongs to dpkg.
func (d *Database) Owner(path string) *Package { panic("not yet") }
