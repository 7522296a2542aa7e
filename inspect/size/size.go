// Package size measures an image: by layer, by component and by directory, with the hidden bytes.
package size

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/packages"
)

// Sizes are in bytes.
type Sizes struct {
	// Transfer is the download without any layer at hand: the sum of the layer blobs, each once.
	Transfer int64 `json:"transfer"`
	// Unpacked is the sum of all files in all layers; Visible is that of the merged tree, hard links counted once.
	Unpacked int64 `json:"unpacked"`
	Visible  int64 `json:"visible"`
	// Hidden is Unpacked minus Visible: files that upper layers remove or replace, but that are still downloaded.
	Hidden int64 `json:"hidden"`
	// Files is the number of entries of the merged tree, without the root.
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
	// Visible is the part of it that the merged tree shows.
	Visible int64 `json:"visible"`
	Unread  bool  `json:"unread,omitempty"`
}

// Component is a named part of the image: "code-server", "Chromium", "node packages", "fonts". Every visible file is in
// exactly one; the last one is "other".
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

// maxDirectories limits Sizes.Directories.
const maxDirectories = 10_000

// Of returns the sizes of img; db may be nil. Directories has at most depth levels, largest first, and at most 10,000
// entries.
func Of(img *tree.Image, db *packages.Database, depth int) Sizes {
	s := Sizes{Layers: make([]Layer, len(img.Layers))}
	blobs := map[string]bool{}
	for i, l := range img.Layers {
		digest := l.Digest.String()
		s.Layers[i] = Layer{
			Digest: digest, CreatedBy: l.CreatedBy, Size: l.Size, Unpacked: l.Unpacked, Entries: len(l.Entries), Unread: l.Unread,
		}
		s.Unpacked += l.Unpacked
		if !blobs[digest] {
			blobs[digest] = true
			s.Transfer += l.Size
		}
	}
	from := borrowed(img.Layers)
	in := &sorter{db: db, debs: map[string]string{}, places: map[string]placed{}}
	components, directories := map[string]*Component{}, map[string]*Directory{}
	var parents []*Directory // above inside, the directory of the last file
	inside := ""
	for e := range img.Walk("/") {
		if e.Path == "/" {
			continue
		}
		s.Files++
		if e.IsDir() {
			if strings.Count(e.Path, "/") <= depth {
				directory(directories, e.Path)
			}
			continue
		}
		size := e.Size
		if e.Type == image.TypeLink {
			size = 0 // counted under the file's other name
		}
		s.Visible += size
		layer := e.Layer
		if to, ok := from[name{layer, e.Path}]; ok {
			layer = to
		}
		if layer >= 0 && layer < len(s.Layers) {
			s.Layers[layer].Visible += size
		}
		of := in.component(e.Path)
		c := components[of]
		if c == nil {
			c = &Component{Name: of}
			components[of] = c
		}
		c.Size += size
		c.Files++
		if dir := e.Path[:strings.LastIndexByte(e.Path, '/')]; dir != inside {
			inside, parents = dir, parents[:0]
			for dir := range above(e.Path, depth) {
				parents = append(parents, directory(directories, dir))
			}
		}
		for _, d := range parents {
			d.Size += size
			d.Files++
		}
	}
	s.Hidden = s.Unpacked - s.Visible
	for _, c := range components {
		s.Components = append(s.Components, *c)
	}
	slices.SortFunc(s.Components, func(a, b Component) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name))
	})
	for _, d := range directories {
		s.Directories = append(s.Directories, *d)
	}
	slices.SortFunc(s.Directories, func(a, b Directory) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Path, b.Path))
	})
	s.Directories = s.Directories[:min(len(s.Directories), maxDirectories)]
	return s
}

// name is a path in a layer.
type name struct {
	layer int
	path  string
}

// borrowed returns hard links to files of lower layers, and the layer with the bytes. If the file's own name is
// removed, the merged tree has the link as a file of the link's layer.
func borrowed(layers []tree.Layer) map[name]int {
	links, targets := map[name]string{}, map[name]bool{}
	for i, l := range layers {
		for j := range l.Entries {
			if e := &l.Entries[j]; e.Type == image.TypeLink && e.Digest == (tree.Digest{}) {
				links[name{i, e.Path}] = e.Link
			}
		}
	}
	if len(links) == 0 {
		return nil
	}
	wanted := map[string]bool{}
	for _, link := range links {
		wanted[link] = true
	}
	for i, l := range layers {
		for j := range l.Entries {
			if e := &l.Entries[j]; wanted[e.Path] && e.Type == image.TypeFile {
				targets[name{i, e.Path}] = true
			}
		}
	}
	from := map[name]int{}
	for n, link := range links {
		for i := n.layer - 1; i >= 0; i-- {
			if targets[name{i, link}] {
				from[n] = i
				break
			}
		}
	}
	return from
}

// rank sorts Other after all named components.
func rank(c Component) int {
	if c.Name == Other {
		return 1
	}
	return 0
}

func directory(of map[string]*Directory, path string) *Directory {
	d := of[path]
	if d == nil {
		d = &Directory{Path: path}
		of[path] = d
	}
	return d
}

// above returns the directories above p, topmost first, without the root, at most depth of them.
func above(p string, depth int) iter.Seq[string] {
	return func(yield func(string) bool) {
		n := 0
		for i := 1; i < len(p) && n < depth; i++ {
			if p[i] == '/' {
				if !yield(p[:i]) {
					return
				}
				n++
			}
		}
	}
}
