package tree

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/image"
)

// Tree is the merged tree of an image's layers, as a container sees it.
type Tree struct {
	root  *node
	layer int // the one being applied
}

type node struct {
	entry    Entry
	children map[string]*node
}

// New makes a tree that holds the root only.
func New() *Tree {
	return &Tree{root: &node{entry: Entry{Entry: image.Entry{Path: "/", Type: image.TypeDir, Mode: 0o755}, Layer: -1}}, layer: -1}
}

// Apply lays one layer's entries on the tree: first its whiteouts, which only hide what is below it, then its files.
//
// A layer that names a path below a symlink of a layer under it is refused: containerd and Docker unpack each layer by
// itself, so that a directory takes the link's place, while a tool that unpacks onto the merged tree writes where the
// link leads. No tool that makes layers of a running system writes such a one.
func (t *Tree) Apply(entries []Entry) error {
	t.layer++
	own := map[string]bool{} // directories that the layer makes, in the place of a symlink too
	for _, e := range entries {
		own[e.Path] = own[e.Path] || e.IsDir()
	}
	for _, e := range entries {
		at := e.Path
		switch e.Type {
		case TypeWhiteout:
			at = path.Dir(e.Path)
		case TypeOpaque:
		default:
			continue
		}
		if link := t.lowerLink(at); link != nil {
			if own[link.entry.Path] {
				continue // what is below it goes with the link
			}
			return fmt.Errorf("%s: %w", e.Path, link.below())
		}
		if dir := t.node(at); dir != nil && e.Type == TypeWhiteout {
			delete(dir.children, path.Base(e.Path))
		} else if dir != nil {
			dir.children = nil
		}
	}
	for _, e := range entries {
		if e.Type == TypeWhiteout || e.Type == TypeOpaque {
			continue
		}
		if err := t.put(e); err != nil {
			return err
		}
	}
	return nil
}

// lowerLink finds a symlink of a lower layer in p.
func (t *Tree) lowerLink(p string) *node {
	for _, at := range append(image.Parents(p), p) {
		if n := t.node(at); n != nil && n.entry.Type == image.TypeSymlink && n.entry.Layer < t.layer {
			return n
		}
	}
	return nil
}

func (n *node) below() error {
	return fmt.Errorf("it lies below %s, which a lower layer made a symlink to %s: runtimes differ on what that means", n.entry.Path, n.entry.Link)
}

// put follows a parent that the same layer made a symlink, as container runtimes do when they unpack it.
func (t *Tree) put(e Entry) error {
	if e.Path == "/" {
		e.Type = image.TypeDir
		e.Layer = t.layer
		t.root.entry = e
		return nil
	}
	if link := t.lowerLink(path.Dir(e.Path)); link != nil {
		return fmt.Errorf("%s: %w", e.Path, link.below())
	}
	dirPath, err := t.follow(path.Dir(e.Path))
	if err != nil {
		return fmt.Errorf("%s: %w", e.Path, err)
	}
	dir := t.root
	at := ""
	for _, name := range split(dirPath) {
		at += "/" + name
		child := dir.children[name]
		if child == nil || !child.entry.IsDir() {
			child = &node{entry: Entry{Entry: image.Entry{Path: at, Type: image.TypeDir, Mode: 0o755}, Layer: t.layer}}
			dir.set(name, child)
		}
		dir = child
	}
	e.Path = path.Join(dirPath, path.Base(e.Path))
	e.Layer = t.layer
	n := &node{entry: e}
	if old := dir.children[path.Base(e.Path)]; old != nil && old.entry.IsDir() && e.IsDir() {
		n.children = old.children
	}
	dir.set(path.Base(e.Path), n)
	return nil
}

func (n *node) set(name string, child *node) {
	if n.children == nil {
		n.children = map[string]*node{}
	}
	n.children[name] = child
}

func split(p string) []string {
	if p == "/" {
		return nil
	}
	return strings.Split(strings.TrimPrefix(p, "/"), "/")
}

// Lookup gives what is at p; symlinks are not followed, neither in p's parents nor at its end.
func (t *Tree) Lookup(p string) (Entry, bool) {
	n := t.node(image.Clean(p))
	if n == nil {
		return Entry{}, false
	}
	return n.entry, true
}

// Stat gives what is at p with every symlink followed, p's own too.
func (t *Tree) Stat(p string) (Entry, bool) {
	to, err := t.follow(image.Clean(p))
	if err != nil {
		return Entry{}, false
	}
	return t.Lookup(to)
}

// Dir lists what lies directly in the directory p, by name; nothing when it is none.
func (t *Tree) Dir(p string) []Entry {
	n := t.node(image.Clean(p))
	if n == nil {
		return nil
	}
	var out []Entry
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		out = append(out, n.children[name].entry)
	}
	return out
}

func (t *Tree) node(p string) *node {
	n := t.root
	for _, name := range split(p) {
		if n = n.children[name]; n == nil {
			return nil
		}
	}
	return n
}

// maxSymlinks is Linux's limit (path_resolution(7)).
const maxSymlinks = 40

// Resolve gives p with the symlinks among its parents followed, each inside the tree; its last element stays as it is.
// A parent that isn't there is taken as a directory to be made. A loop of symlinks is an error, and so is a parent
// that is neither directory nor symlink.
func (t *Tree) Resolve(p string) (string, error) {
	p = image.Clean(p)
	if p == "/" {
		return p, nil
	}
	dir, err := t.follow(path.Dir(p))
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	for _, at := range append(image.Parents(dir), dir) {
		if n := t.node(at); n != nil && !n.entry.IsDir() {
			return "", fmt.Errorf("%s: %s is a %s, not a directory", p, at, n.entry.Type)
		}
	}
	return path.Join(dir, path.Base(p)), nil
}

// follow resolves every symlink in p, the last element's too.
func (t *Tree) follow(p string) (string, error) {
	rest, done, links := split(p), "/", 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			done = path.Dir(done)
			continue
		}
		done = path.Join(done, name)
		n := t.node(done)
		if n == nil || n.entry.Type != image.TypeSymlink {
			continue
		}
		if links++; links > maxSymlinks {
			return "", fmt.Errorf("more than %d symlinks to follow", maxSymlinks)
		}
		target := n.entry.Link
		done = path.Dir(done)
		if strings.HasPrefix(target, "/") {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}

// Glob lists the paths that pattern matches, sorted. Symlinks are matched, never followed.
func (t *Tree) Glob(pattern string) ([]string, error) {
	pattern = strings.TrimPrefix(pattern, "/")
	if !doublestar.ValidatePattern(pattern) {
		return nil, fmt.Errorf("bad glob %q", pattern)
	}
	start, _ := doublestar.SplitPattern(pattern)
	if start == "." {
		start = ""
	}
	from := t.node(image.Clean(start))
	if from == nil {
		return nil, nil
	}
	var out []string
	from.walk(func(n *node) {
		if n.entry.Path != "/" && doublestar.MatchUnvalidated(pattern, n.entry.Path[1:]) {
			out = append(out, n.entry.Path)
		}
	})
	sort.Strings(out)
	return out, nil
}

// Entries lists everything in the tree, parents before their content, names in byte order.
func (t *Tree) Entries() []Entry {
	var out []Entry
	t.root.walk(func(n *node) { out = append(out, n.entry) })
	return out
}

func (n *node) walk(visit func(*node)) {
	visit(n)
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		n.children[name].walk(visit)
	}
}

// Of makes the tree of one layer that holds entries.
func Of(entries ...image.Entry) (*Tree, error) {
	t := New()
	layer := make([]Entry, len(entries))
	for i, e := range entries {
		layer[i] = Entry{Entry: e}
	}
	return t, t.Apply(layer)
}
