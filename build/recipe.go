// Package build holds the recipe, the one form between a profile and an image, and the Engine that carries it out.
package build

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Recipe is a profile resolved against one base, one lock and one platform: an ordered list of plain steps, with no
// glob and no condition left.
type Recipe struct {
	// Profile is the profile's name.
	Profile  string
	Platform v1.Platform
	Base     Base
	Steps    []Step
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
	Reference string
	// Index is the digest of the base's image index, or of its manifest when it has no index.
	Index v1.Hash
	// Manifest is the digest of this platform's manifest.
	Manifest v1.Hash
	// Line is the generation of the base's layout: A, B or C.
	Line string
	// Image gives the base's manifest and config; a recipe never reads its layers.
	Image v1.Image
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

// Step is one thing a recipe does: Remove, Lay, Configure or Strip.
type Step interface {
	// String says what the step does, for the history, for errors and for `slimctl plan`.
	String() string
}

// Remove takes a path of the base away, with everything below it.
type Remove struct {
	Path string
	// Type is what the base has there.
	Type image.Type
	Why  string
	// Source is the profile line that asked for it, as file:line:column; empty for what slimctl does of itself.
	Source string
	// With lists the files that go with an owned directory, for reading: the removal of Path takes them away.
	With []Gone
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

// Configure changes the image config.
type Configure struct {
	Change ConfigChange
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
	// Explain says how a path or package of the base came to stay, one line a step; nil when a lock answered.
	Explain func(what string) []string
}

// Component is one of those layers.
type Component struct {
	v1.Layer
	Name string
	// Files is how many files and links it has, Unpacked their bytes.
	Files    int
	Unpacked int64
}

func (s Remove) String() string    { return "remove " + s.Path }
func (s Lay) String() string       { return fmt.Sprintf("lay %s (%d files)", s.Name, len(s.Files)) }
func (s Configure) String() string { return "configure" }
func (s Strip) String() string     { return fmt.Sprintf("strip the base to %d layers", len(s.Layers)) }

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

// Layers gives the layers that the recipe adds to the base's, or to those in their place, lowest first: all removals in one, then one for each
// overlay. It fails on a step that layers can't express.
func (r *Recipe) Layers() ([]Layer, error) {
	dirs := map[string]image.Entry{} // of the image so far
	for p, e := range r.Dirs {
		dirs[p] = e
	}
	var layers []Layer
	if removals := r.Removals(); len(removals) > 0 {
		l := layerBuilder{dirs: dirs, epoch: r.Epoch, files: map[string]image.File{}, parents: map[string]bool{}}
		for _, s := range removals {
			l.add(image.Whiteout(s.Path))
		}
		for _, s := range removals {
			for p := range dirs {
				if image.Within(p, s.Path) {
					delete(dirs, p)
				}
			}
		}
		layers = append(layers, l.layer(RemoveLayer, fmt.Sprintf("slimctl %s: remove %d paths", r.Profile, len(removals))))
	}
	for _, step := range r.Steps {
		switch s := step.(type) {
		case Remove, Configure, Strip:
		case Lay:
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
		default:
			return nil, fmt.Errorf("step %q: layers can't express it", step.String())
		}
	}
	return layers, nil
}

// Stripped gives the layers that take the place of the base's, lowest first; nil when the base's stay.
func (r *Recipe) Stripped() []Component {
	if s := r.Strip(); s != nil {
		return s.Layers
	}
	return nil
}

// Ledger returns the blob that says what became of each path of the base; nil when the base's layers stay.
func (r *Recipe) Ledger() v1.Layer {
	if s := r.Strip(); s != nil {
		return s.Ledger
	}
	return nil
}

// Strip returns the recipe's Strip step; nil when the base's layers stay.
func (r *Recipe) Strip() *Strip {
	for _, s := range r.Steps {
		if s, ok := s.(Strip); ok {
			return &s
		}
	}
	return nil
}

// Removals lists the recipe's Remove steps in order.
func (r *Recipe) Removals() []Remove {
	var out []Remove
	for _, s := range r.Steps {
		if s, ok := s.(Remove); ok {
			out = append(out, s)
		}
	}
	return out
}

// Whole returns the recipe of the same image with all of the base below it, and nil for one that has that anyhow.
func (r *Recipe) Whole() *Recipe {
	i := slices.IndexFunc(r.Steps, func(s Step) bool { _, ok := s.(Strip); return ok })
	if i < 0 {
		return nil
	}
	strip, _ := r.Steps[i].(Strip)
	whole := *r
	whole.Steps = nil
	for _, s := range strip.Removals {
		whole.Steps = append(whole.Steps, s)
	}
	whole.Steps = append(whole.Steps, slices.Delete(slices.Clone(r.Steps), i, i+1)...)
	return &whole
}

// Overlays lists the recipe's Lay steps in order.
func (r *Recipe) Overlays() []Lay {
	var out []Lay
	for _, s := range r.Steps {
		if s, ok := s.(Lay); ok {
			out = append(out, s)
		}
	}
	return out
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
