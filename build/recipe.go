// Package build holds the recipe, which is the one form between a profile and an image, and the Engine that executes
// it.
package build

import (
	"fmt"
	"maps"
	"path"
	"sort"
	"time"

	"github.com/dustin/go-humanize/english"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Recipe is a profile resolved against one base, one lock and one platform: plain steps without globs or conditions.
// The steps are applied in the order of their fields: Strip, Removals, Overlays, Change.
type Recipe struct {
	// Profile is the profile's name.
	Profile  string
	Platform v1.Platform
	Base     Base
	// Strip replaces the base's layers by layers of what stays; nil keeps the base's layers.
	Strip *Strip
	// Removals are the paths of the base to remove.
	Removals []Remove
	// Overlays are added one after the other.
	Overlays []Lay
	// Change holds the changes to the image config.
	Change ConfigChange
	// Dirs holds the base's metadata of each directory that a step touches, by path. Layers repeat these directories;
	// other metadata would change them (facts: /tmp from 1777 to 755).
	Dirs map[string]image.Entry
	// Epoch is the time of everything that the recipe adds: the image, its history entries and its files.
	Epoch time.Time
	// Found lists what the image needs and the base has at another path. The last overlay links to it.
	Found []Found
	// New lists what is removed and is unknown both to the profile and to the earlier lock.
	New []Gone
	// Cache holds the layers that Render compressed.
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
	// Image returns the base's manifest and config. A recipe never reads its layers.
	Image v1.Image `json:"-"`
}

// NewUpstream returns the entries of New of all recipes, without duplicates.
func NewUpstream(recipes []*Recipe) []Gone {
	out := []Gone{}
	had := map[Gone]bool{}
	for _, r := range recipes {
		for _, g := range r.New {
			if !had[g] {
				had[g] = true
				out = append(out, g)
			}
		}
	}
	return out
}

// Remove removes a path of the base with everything below it.
type Remove struct {
	Path string `json:"path"`
	// Type is the type of the base's entry at Path.
	Type image.Type `json:"type,omitempty"`
	Why  string     `json:"why"`
	// Source is the profile line with the removal, as file:line:column; empty if slimctl removes the path by a rule.
	Source string `json:"source,omitempty"`
	// With lists, for display, the files that go with an owned directory. The removal of Path removes them.
	With []Gone `json:"with,omitempty"`
}

// Gone is a file, variable or MCP server of the base that isn't in the image.
type Gone struct {
	// Path is the path of a file, "env " and the name of a variable, or "MCP server " and the name of a server.
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Found is something that the image needs, such as a program, and that the base has at Target. Path links to it.
type Found struct {
	What   string `json:"what"`
	Path   string `json:"path"`
	Target string `json:"target"`
}

// Lay adds one overlay to the image.
type Lay struct {
	Name string
	Why  string
	// Files holds the overlay's content, without the base's directories above it.
	Files []image.File
}

// Strip replaces the base's layers by layers of what stays, so that the bytes of the rest are gone.
type Strip struct {
	Layers []Component
	// Time is the modification time of every file in the layers; zero keeps the base's times.
	Time time.Time
	// Ledger is the blob that records whether each path of the base stays, and why (package ledger).
	Ledger v1.Layer
	// Removals are the removals for the same image on top of the whole base (Recipe.Whole).
	Removals []Remove
	// Locked reports whether a lock named the layers.
	Locked bool
}

// Component is a layer of a Strip step.
type Component struct {
	v1.Layer
	Name string
	// Files is the number of its files and links, Unpacked their size in bytes.
	Files    int
	Unpacked int64
}

// String returns the step with its path, for errors.
func (s Remove) String() string { return "remove " + s.Path }

// String returns the step with the overlay's name, for the history and for progress.
func (s Lay) String() string { return fmt.Sprintf("lay %s (%d files)", s.Name, len(s.Files)) }

// RemoveLayer is the name of the layer that holds a recipe's removals.
const RemoveLayer = "remove"

// Layer is a layer that a recipe adds: all its files with all their parent directories.
type Layer struct {
	// Name is RemoveLayer or the overlay's name.
	Name string
	// CreatedBy is the text of the history entry.
	CreatedBy string
	Files     []image.File
	// Parents holds the paths in Files that are there only as parent directories.
	Parents map[string]bool
}

// Layers returns the layers that the recipe adds above the base's, or above those that replace them, lowest first. All
// removals are in one layer; each overlay has its own.
func (r *Recipe) Layers() []Layer {
	dirs := maps.Clone(r.Dirs) // the image's directories so far
	if dirs == nil {
		dirs = map[string]image.Entry{}
	}
	var layers []Layer
	if len(r.Removals) > 0 {
		l := layerBuilder{dirs: dirs, epoch: r.Epoch, files: map[string]image.File{}, parents: map[string]bool{}}
		for _, s := range r.Removals {
			l.addFile(image.Whiteout(s.Path))
		}
		for _, s := range r.Removals {
			maps.DeleteFunc(dirs, func(p string, _ image.Entry) bool { return image.Within(p, s.Path) })
		}
		layers = append(layers, l.finish(RemoveLayer, fmt.Sprintf("slimctl %s: remove %s", r.Profile, english.Plural(len(r.Removals), "path", ""))))
	}
	for _, s := range r.Overlays {
		l := layerBuilder{dirs: dirs, epoch: r.Epoch, files: map[string]image.File{}, parents: map[string]bool{}}
		for _, f := range s.Files {
			if f.IsDir() && dirs[f.Path].Path == "" {
				dirs[f.Path] = l.withTime(f).Entry
			}
		}
		for _, f := range s.Files {
			l.addFile(f)
		}
		layers = append(layers, l.finish(s.Name, fmt.Sprintf("slimctl %s: %s", r.Profile, s)))
	}
	return layers
}

// Stripped returns the layers that replace the base's, lowest first, or nil if the base's layers stay.
func (r *Recipe) Stripped() []Component {
	if r.Strip == nil {
		return nil
	}
	return r.Strip.Layers
}

// Ledger returns the blob that records what became of each path of the base, or nil if the base's layers stay.
func (r *Recipe) Ledger() v1.Layer {
	if r.Strip == nil {
		return nil
	}
	return r.Strip.Ledger
}

// Whole returns the recipe of the same image on top of the whole base, or nil if r already keeps the base's layers.
func (r *Recipe) Whole() *Recipe {
	if r.Strip == nil {
		return nil
	}
	whole := *r
	whole.Strip, whole.Removals = nil, r.Strip.Removals
	return &whole
}

// layerBuilder collects the files of one layer. dirs are the directories of the image so far.
type layerBuilder struct {
	dirs    map[string]image.Entry
	epoch   time.Time
	files   map[string]image.File
	parents map[string]bool
}

// withTime returns f with the recipe's time if it has none.
func (l *layerBuilder) withTime(f image.File) image.File {
	if f.ModTime.IsZero() {
		f.ModTime = l.epoch
	}
	return f
}

// addFile adds f and its parent directories to the layer. A directory that exists keeps its metadata.
func (l *layerBuilder) addFile(f image.File) {
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
	l.files[f.Path] = l.withTime(f)
}

// finish returns the layer, its files sorted by path.
func (l *layerBuilder) finish(name, createdBy string) Layer {
	out := Layer{Name: name, CreatedBy: createdBy, Parents: l.parents}
	for _, f := range l.files {
		out.Files = append(out.Files, f)
	}
	sort.Slice(out.Files, func(i, j int) bool { return out.Files[i].Path < out.Files[j].Path })
	return out
}

// ParentsOf returns all directories above paths, sorted and without duplicates.
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
