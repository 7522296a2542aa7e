package tree

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/image"
)

// Tree is the merged tree of an image's layers, as a container sees it. It is immutable and safe for concurrent use.
type Tree struct {
	// layers are the entries of each layer, in the order of a walk. layers[0] holds the entries that the merge added.
	layers [][]Entry
	// refs are the visible entries, in the order of a walk: directories before their content.
	refs []ref
	// unlinked are the refs before relink, for merging the next layer.
	unlinked []ref
}

// ref refers to the entry layers[layer][index].
type ref struct{ layer, index int32 }

// New returns a tree with only the root.
func New() *Tree {
	root := Entry{Entry: image.Entry{Path: "/", Type: image.TypeDir, Mode: 0o755}, Layer: -1}
	return &Tree{layers: [][]Entry{{root}}, refs: []ref{{}}, unlinked: []ref{{}}}
}

// Of returns the tree of one layer with entries.
func Of(entries ...image.Entry) (*Tree, error) {
	l := newLimits()
	u := newUnpacker(l)
	for _, e := range entries {
		if err := u.add(Entry{Entry: e}); err != nil {
			return nil, err
		}
	}
	layer, err := u.finish()
	if err != nil {
		return nil, err
	}
	return merged(l, Layer{Entries: layer})
}

func (t *Tree) at(r ref) *Entry { return &t.layers[r.layer][r.index] }

// cleaned returns image.Clean(p), but doesn't copy a path that is clean: the result may be a part of p.
func cleaned(p string) string {
	if strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	return image.Clean(p)
}

// find returns the position of p, or the one that it would have.
func (t *Tree) find(p string) (int, bool) {
	return sort.Find(len(t.refs), func(i int) int { return comparePaths(p, t.at(t.refs[i]).Path) })
}

// after returns the position after i and everything below it.
func (t *Tree) after(i int) int {
	dir := t.at(t.refs[i]).Path
	return i + 1 + leading(t.refs[i+1:], func(r ref) bool { return within(t.at(r).Path, dir) })
}

// leading returns the number of refs for which ok holds, by binary search. All of them must come first.
func leading(refs []ref, ok func(ref) bool) int {
	n := 1
	for n <= len(refs) && ok(refs[n-1]) {
		n *= 2
	}
	low := n / 2
	return low + sort.Search(min(n, len(refs)+1)-1-low, func(i int) bool { return !ok(refs[low+i]) })
}

// within reports whether p is below dir.
func within(p, dir string) bool {
	return dir == "/" || len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// Lookup returns the entry at p, without following symlinks.
func (t *Tree) Lookup(p string) (Entry, bool) {
	i, ok := t.find(cleaned(p))
	if !ok {
		return Entry{}, false
	}
	return *t.at(t.refs[i]), true
}

// Stat returns the entry at p, following all symlinks.
func (t *Tree) Stat(p string) (Entry, bool) {
	to, err := t.follow(cleaned(p))
	if err != nil {
		return Entry{}, false
	}
	return t.Lookup(to)
}

// Dir lists the entries directly in the directory p, by name. It returns nil if p isn't a directory.
func (t *Tree) Dir(p string) []Entry {
	i, ok := t.find(cleaned(p))
	if !ok {
		return nil
	}
	var out []Entry
	end := t.after(i)
	for i++; i < end; i = t.after(i) {
		out = append(out, *t.at(t.refs[i]))
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Len returns the number of entries in the tree, including the root.
func (t *Tree) Len() int { return len(t.refs) }

// Walk iterates over p and everything below it, parents first, names in byte order. It follows no symlinks. The entries
// belong to the tree: read only.
func (t *Tree) Walk(p string) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		i, ok := t.find(cleaned(p))
		if !ok {
			return
		}
		for _, r := range t.refs[i:t.after(i)] {
			if !yield(t.at(r)) {
				return
			}
		}
	}
}

// maxSymlinks is Linux's limit (path_resolution(7)).
const maxSymlinks = 40

// Resolve returns p with the symlinks in its parents followed inside the tree. Its last element stays as it is. A
// missing parent counts as a directory. It fails on a loop of symlinks, and on a parent that is neither a directory nor
// a symlink.
func (t *Tree) Resolve(p string) (string, error) {
	p = cleaned(p)
	if p == "/" {
		return p, nil
	}
	dir, err := t.follow(path.Dir(p))
	if err != nil {
		return "", fmt.Errorf("%s: %w", shown(p), err)
	}
	for at := dir; at != "/"; at = path.Dir(at) {
		if e, ok := t.Lookup(at); ok && !e.IsDir() {
			return "", fmt.Errorf("%s: %s is a %s, not a directory", shown(p), shown(at), e.Type)
		}
	}
	return path.Join(dir, path.Base(p)), nil
}

// follow resolves every symlink in p, including the last element.
func (t *Tree) follow(p string) (string, error) {
	rest, done, links := p, "/", 0
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if name == "" {
			continue
		}
		done = path.Join(done, name)
		if len(done) > maxPath {
			return "", fmt.Errorf("symlinks make it a path of more than %d bytes", maxPath)
		}
		i, ok := t.find(done)
		if !ok || t.at(t.refs[i]).Type != image.TypeSymlink {
			continue
		}
		if links++; links > maxSymlinks {
			return "", fmt.Errorf("more than %d symlinks to follow", maxSymlinks)
		}
		target := t.at(t.refs[i]).Link
		done = path.Dir(done)
		if strings.HasPrefix(target, "/") {
			done = "/"
		}
		rest = target + "/" + rest
	}
	return done, nil
}

// Glob returns the paths that pattern matches, sorted. It matches symlinks but doesn't follow them. The syntax is
// doublestar's.
func (t *Tree) Glob(pattern string) ([]string, error) {
	pattern = strings.TrimPrefix(pattern, "/")
	if !doublestar.ValidatePattern(pattern) {
		return nil, fmt.Errorf("bad glob %q", pattern)
	}
	if !strings.ContainsAny(pattern, `{[\`) && !strings.Contains(pattern, "**") {
		out := t.level(nil, 0, strings.Split(pattern, "/"))
		sort.Strings(out)
		return out, nil
	}
	start, _ := doublestar.SplitPattern(pattern)
	if start == "." {
		start = ""
	}
	var out []string
	from, ok := t.find(image.Clean(start))
	if !ok {
		return nil, nil
	}
	for _, r := range t.refs[from:t.after(from)] {
		if p := t.at(r).Path; p != "/" && doublestar.MatchUnvalidated(pattern, p[1:]) {
			out = append(out, p)
		}
	}
	sort.Strings(out)
	return out, nil
}

// level matches the first of names in the directory at position dir, and the others below.
func (t *Tree) level(out []string, dir int, names []string) []string {
	if !strings.ContainsAny(names[0], "*?") {
		i, ok := t.find(path.Join(t.at(t.refs[dir]).Path, names[0]))
		if ok {
			out = t.descend(out, i, names)
		}
		return out
	}
	end := t.after(dir)
	for i := dir + 1; i < end; i = t.after(i) {
		if doublestar.MatchUnvalidated(names[0], path.Base(t.at(t.refs[i]).Path)) {
			out = t.descend(out, i, names)
		}
	}
	return out
}

func (t *Tree) descend(out []string, i int, names []string) []string {
	if len(names) == 1 {
		return append(out, t.at(t.refs[i]).Path)
	}
	return t.level(out, i, names[1:])
}
