// Package build holds the recipe, the one form between a profile and an image, and the Engine that carries it out.
package build

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Recipe is a profile resolved against one base, one lock and one platform: plain steps, with no glob and no condition left. They
// are taken in the order of their fields: Strip, Removals, Overlays, Change.
type Recipe struct {
	// Profile is the profile's name.
	Profile  string
	Platform v1.Platform
	Base     Base
	// Strip takes what stays of the base's layers into new ones; nil when the base's layers stay.
	Strip *Strip
	// Removals take paths of the base away.
	Removals []Remove
	// Overlays are laid on the image one after the other.
	Overlays []Lay
	// Change is that of the image config.
	Change ConfigChange
	// Dirs holds the base's true metadata of each of its directories that a step touches, by path. A layer that
	// carried them otherwise would change them (facts: /tmp from 1777 to 755).
	Dirs map[string]image.Entry
	// Epoch is the time of everything the recipe adds: the image, its history and its files.
	Epoch time.Time
	// New lists what goes and what neither the profile nor the lock before knows of the base.
	New []Gone
	// Cache is where Render keeps the layers that it compressed.
	Cache image.LayerCache
}

// Base is the image that a recipe derives from, for one platform.
type Base struct {
	// Reference is the base as the user named it.
	Reference string `json:"reference"`
	// Index is the digest of the base's image index, or of its manifest when it has no index.
	Index v1.Hash `json:"digest"`
	// Manifest is the digest of this platform's manifest.
	Manifest v1.Hash `json:"manifest"`
	// Line is the generation of the base's layout: A, B or C.
	Line string `json:"line"`
	// Image gives the base's manifest and config; a recipe never reads its layers.
	Image v1.Image `json:"-"`
}

// NewUpstream returns what is new to any of the recipes, each once.
func NewUpstream(recipes []*Recipe) []Gone {
	out := []Gone{}
	for _, r := range recipes {
		for _, g := range r.New {
			if !slices.Contains(out, g) {
				out = append(out, g)
			}
		}
	}
	return out
}

// Remove takes a path of the base away, with everything below it.
type Remove struct {
	Path string `json:"path"`
	// Type is what the base has there.
	Type image.Type `json:"type,omitempty"`
	Why  string     `json:"why"`
	// Source is the profile line that asked for it, as file:line:column; empty for what slimctl does of itself.
	Source string `json:"source,omitempty"`
	// With lists the files that go with an owned directory, for reading: the removal of Path takes them away.
	With []Gone `json:"with,omitempty"`
}

// Gone is something of the base that isn't in the image.
type Gone struct {
	// Path is a file's path, the name of a variable after "env ", or the name of a server after "MCP server ".
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Lay lays one overlay on the image.
type Lay struct {
	Name string
	Why  string
	// Files holds the overlay's content without the directories of the base that it lies in.
	Files []image.File
}

// Strip puts other layers in the place of the base's own: of what stays of it, so that the bytes of what goes are gone.
type Strip struct {
	Layers []Component
	// Time is that of every file in them; zero leaves them the base's.
	Time time.Time
	// Ledger is the blob that says of each path of the base whether it stays, and why (package ledger).
	Ledger v1.Layer
	// Removals are those of an image that has all of the base, and so closes it.
	Removals []Remove
	// Explain returns why a path or package of the base stays, one line a step;
	// nil when a lock answered. It may read the base again.
	Explain func(what string) ([]string, error)
}

// Component is one of those layers.
type Component struct {
	v1.Layer
	Name string
	// Files is how many files and links it has, Unpacked their bytes.
	Files    int
	Unpacked int64
}

// String returns the step with its path, for errors.
func (s Remove) String() string { return "remove " + s.Path }

// String returns the step with the overlay's name, for the history and for progress.
func (s Lay) String() string { return fmt.Sprintf("lay %s (%d files)", s.Name, len(s.Files)) }

// RemoveLayer is the name of the layer that holds a recipe's removals.
const RemoveLayer = "remove"

// Layer is one layer that a recipe adds, complete: every file with all its parent directories.
type Layer struct {
	// Name is RemoveLayer or the overlay's name.
	Name string
	// CreatedBy goes to the history.
	CreatedBy string
	Files     []image.File
	// Parents marks the paths in Files that are there only as parent directories.
	Parents map[string]bool
}

// Layers returns the layers that the recipe adds to the base's, or to those in their place, lowest first: all removals in one, then
// one for each overlay.
func (r *Recipe) Layers() []Layer {
	dirs := maps.Clone(r.Dirs) // of the image so far
	if dirs == nil {
		dirs = map[string]image.Entry{}
	}
	var layers []Layer
	if len(r.Removals) > 0 {
		l := layerBuilder{dirs: dirs, epoch: r.Epoch, files: map[string]image.File{}, parents: map[string]bool{}}
		for _, s := range r.Removals {
			l.add(image.Whiteout(s.Path))
		}
		for _, s := range r.Removals {
			maps.DeleteFunc(dirs, func(p string, _ image.Entry) bool { return image.Within(p, s.Path) })
		}
		layers = append(layers, l.layer(RemoveLayer, fmt.Sprintf("slimctl %s: remove %d paths", r.Profile, len(r.Removals))))
	}
	for _, s := range r.Overlays {
		l := layerBuilder{dirs: dirs, epoch: r.Epoch, files: map[string]image.File{}, parents: map[string]bool{}}
		for _, f := range s.Files {
			if f.IsDir() && dirs[f.Path].Path == "" {
				dirs[f.Path] = l.dated(f).Entry
			}
		}
		for _, f := range s.Files {
			l.add(f)
		}
		layers = append(layers, l.layer(s.Name, fmt.Sprintf("slimctl %s: %s", r.Profile, s)))
	}
	return layers
}

// Stripped gives the layers that take the place of the base's, lowest first; nil when the base's stay.
func (r *Recipe) Stripped() []Component {
	if r.Strip == nil {
		return nil
	}
	return r.Strip.Layers
}

// Ledger returns the blob that says what became of each path of the base; nil when the base's layers stay.
func (r *Recipe) Ledger() v1.Layer {
	if r.Strip == nil {
		return nil
	}
	return r.Strip.Ledger
}

// Whole returns the recipe of the same image with all of the base below it, and nil for one that has that anyhow.
func (r *Recipe) Whole() *Recipe {
	if r.Strip == nil {
		return nil
	}
	whole := *r
	whole.Strip, whole.Removals = nil, r.Strip.Removals
	return &whole
}

type layerBuilder struct {
	dirs    map[string]image.Entry
	epoch   time.Time
	files   map[string]image.File
	parents map[string]bool
}

func (l *layerBuilder) dated(f image.File) image.File {
	if f.ModTime.IsZero() {
		f.ModTime = l.epoch
	}
	return f
}

func (l *layerBuilder) add(f image.File) {
	for _, p := range image.Parents(f.Path) {
		if _, ok := l.files[p]; ok {
			continue
		}
		dir, ok := l.dirs[p]
		if !ok {
			dir = image.Dir(p, 0o755).Entry
			dir.ModTime = l.epoch
			l.dirs[p] = dir
		}
		l.files[p] = image.File{Entry: dir}
		l.parents[p] = true
	}
	if f.IsDir() {
		f = image.File{Entry: l.dirs[f.Path]}
		delete(l.parents, f.Path)
	}
	l.files[f.Path] = l.dated(f)
}

func (l *layerBuilder) layer(name, createdBy string) Layer {
	out := Layer{Name: name, CreatedBy: createdBy, Parents: l.parents}
	for _, f := range l.files {
		out.Files = append(out.Files, f)
	}
	sort.Slice(out.Files, func(i, j int) bool { return out.Files[i].Path < out.Files[j].Path })
	return out
}

// ParentsOf lists the directories that the files of paths lie in, each once, topmost first.
func ParentsOf(paths []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, p := range paths {
		for _, dir := range image.Parents(path.Clean(p)) {
			if !seen[dir] {
				seen[dir] = true
				out = append(out, dir)
			}
		}
	}
	sort.Strings(out)
	return out
}
