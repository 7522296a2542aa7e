package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// maxLayers is the largest number of layers that overlayfs mounts (fs/overlayfs/params.h, OVL_MAX_STACK).
const maxLayers = 500

// merged returns the merged tree of layers, the lowest first.
func merged(l *limits, layers ...Layer) (*Tree, error) { return New().mergeOnto(l, layers, 0) }

// Merge returns the merged tree of an image's layers. t must be the tree of the first n, and stays unchanged.
func (t *Tree) Merge(layers []Layer, n int) (*Tree, error) {
	if n == len(layers) {
		return t, nil
	}
	return t.mergeOnto(nil, layers, n)
}

// mergeOnto returns the merged tree of layers. t must be the tree of the first n, and stays unchanged.
func (t *Tree) mergeOnto(l *limits, layers []Layer, n int) (*Tree, error) {
	if len(layers) > maxLayers {
		return nil, fmt.Errorf("the image has %d layers, more than the %d that can be mounted", len(layers), maxLayers)
	}
	all := len(t.unlinked)
	for _, layer := range layers[n:] {
		all += len(layer.Entries)
	}
	out := &Tree{layers: slices.Clone(t.layers), refs: append(make([]ref, 0, all), t.unlinked...)}
	out.layers[0] = slices.Clip(t.layers[0])
	spare := make([]ref, 0, all)
	complete := !slices.ContainsFunc(layers[:n], func(l Layer) bool { return l.Unread })
	for i, layer := range layers[n:] {
		m := merge{Tree: out, limits: l, below: out.refs, left: out.refs}
		out.refs, spare = spare[:0], out.refs
		if err := m.apply(layer.Entries, complete); err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", n+i, layer.Digest, err)
		}
		complete = complete && !layer.Unread
	}
	out.relink()
	return out, nil
}

// merge is the merging of one layer onto a tree.
type merge struct {
	*Tree  // its refs start empty and are appended in order
	limits *limits
	// below are the refs of the tree without the layer; left is the part of them still to merge.
	below, left []ref
	// parent is a directory that is already in the tree.
	parent string
}

// apply merges the layer's entries. Marks hide entries of lower layers only.
//
// A layer that names a path below a symlink of a lower layer is refused: containerd unpacks each layer separately, so a
// directory would replace the link. No tool that makes layers of a running system writes such a layer.
//
// complete reports whether all lower layers were read.
func (m *merge) apply(layer []Entry, complete bool) error {
	m.layers = append(m.layers, layer)
	for i, n := 0, 0; i < len(layer); i = n {
		for n = i + 1; n < len(layer) && layer[n].Path == layer[i].Path; {
			n++
		}
		if err := m.mergePath(i, n); err != nil {
			return fmt.Errorf("%s: %w", shown(layer[i].Path), err)
		}
	}
	m.refs = append(m.refs, m.left...)
	for i := range layer {
		if e := &layer[i]; e.Type == image.TypeLink && e.Digest == (Digest{}) {
			if err := m.resolve(e, complete); err != nil {
				return fmt.Errorf("%s: hard link to %s: %w", shown(e.Path), shown(e.Link), err)
			}
		}
	}
	return nil
}

// mergePath merges the layer's entries i to n, which have the same path.
func (m *merge) mergePath(i, n int) error {
	layer := int32(len(m.layers) - 1)
	var whiteout, opaque bool
	var own *Entry
	var ownRef ref
	for ; i < n; i++ {
		switch e := &m.layers[layer][i]; e.Type {
		case TypeWhiteout:
			whiteout = true
		case TypeOpaque:
			opaque = true
		default:
			own, ownRef = e, ref{layer, int32(i)}
		}
	}
	p := m.layers[layer][n-1].Path
	before := leading(m.left, func(r ref) bool { return comparePaths(m.at(r).Path, p) < 0 })
	m.refs, m.left = append(m.refs, m.left[:before]...), m.left[before:]
	if p != "/" {
		if err := m.ensureDir(parent(p)); err != nil {
			return err
		}
	}
	// Find the lower layers' entry at p, and the end of what is below it.
	var old *Entry
	var oldRef ref
	if len(m.left) > 0 && m.at(m.left[0]).Path == p {
		oldRef = m.left[0]
		old = m.at(oldRef)
		m.left = m.left[1:]
	}
	// A directory replaces a whiteout of its own layer, as in containerd, and isn't opaque.
	if keep := own != nil && own.IsDir() && !opaque; !keep {
		m.left = m.left[leading(m.left, func(r ref) bool { return within(m.at(r).Path, p) }):]
	}
	switch {
	case own != nil:
		m.refs = append(m.refs, ownRef)
		if own.IsDir() {
			m.parent = p
		}
	case opaque && !whiteout && old != nil:
		m.refs = append(m.refs, oldRef)
		return m.ensureDir(p)
	case opaque:
		return m.ensureDir(p)
	}
	return nil
}

// ensureDir ensures that a directory above the layer's content exists. A lower layer's metadata stays.
func (m *merge) ensureDir(p string) error {
	if p == m.parent {
		return nil
	}
	i, ok := m.find(p)
	switch {
	case ok && m.at(m.refs[i]).IsDir():
	case ok && m.at(m.refs[i]).Type == image.TypeSymlink:
		return fmt.Errorf("it is below %s, which a lower layer made a symlink to %s: a directory would replace that", shown(p), shown(m.at(m.refs[i]).Link))
	case ok:
		m.refs[i] = m.addImplied(p)
	default:
		if err := m.limits.take(1, 0); err != nil {
			return err
		}
		if err := m.ensureDir(parent(p)); err != nil {
			return err
		}
		m.refs = append(m.refs, m.addImplied(p))
	}
	m.parent = p
	return nil
}

// parent returns the directory of a clean path without allocating.
func parent(p string) string { return p[:max(1, strings.LastIndexByte(p, '/'))] }

// addImplied adds a directory that no layer names, as runtimes do.
func (m *merge) addImplied(p string) ref {
	return m.add(Entry{Entry: image.Entry{Path: p, Type: image.TypeDir, Mode: 0o755}, Layer: len(m.layers) - 2})
}

// add adds an entry that no layer has.
func (t *Tree) add(e Entry) ref {
	t.layers[0] = append(t.layers[0], e)
	return ref{0, int32(len(t.layers[0]) - 1)}
}

// resolve finds the file of a hard link in the lower layers.
func (m *merge) resolve(e *Entry, complete bool) error {
	lower := &Tree{layers: m.layers, refs: m.below}
	p, err := lower.Resolve(e.Link)
	if err != nil {
		return err
	}
	was, ok := lower.find(p)
	if !ok {
		if complete {
			return errors.New("it doesn't exist")
		}
		return nil
	}
	target := lower.refs[was]
	if now, ok := m.find(p); !ok || m.refs[now] != target {
		return errors.New("its own layer removes that")
	}
	if m.at(target).IsDir() {
		return errors.New("it is a directory")
	}
	i, _ := m.find(e.Path)
	linked, err := m.at(m.refs[i]).linkedTo(*m.at(target))
	m.refs[i] = m.add(linked)
	return err
}

// relink turns hard links into files if a later layer removed or replaced their other name. Of several such links the
// first one becomes the file.
func (t *Tree) relink() {
	type file struct {
		link   string
		digest Digest
	}
	first := map[file]string{}
	t.unlinked = t.refs
	for i, r := range t.refs {
		if t.at(r).Type != image.TypeLink || t.at(r).Digest == (Digest{}) {
			continue
		}
		e := *t.at(r)
		if to, ok := t.find(e.Link); ok {
			target := t.at(t.refs[to])
			if target.Type == image.TypeFile && target.Digest == e.Digest && target.Layer <= e.Layer {
				continue
			}
		}
		f := file{e.Link, e.Digest}
		if p, ok := first[f]; ok {
			e.Link = p
		} else {
			first[f] = e.Path
			e.Type, e.Link = image.TypeFile, ""
		}
		if &t.refs[0] == &t.unlinked[0] {
			t.refs = slices.Clone(t.refs)
		}
		t.refs[i] = t.add(e)
	}
}
