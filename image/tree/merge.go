package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// maxLayers is how many layers overlayfs mounts at most (fs/overlayfs/params.h, OVL_MAX_STACK).
const maxLayers = 500

// merged lays layers on each other, the lowest first.
func merged(l *limits, layers ...Layer) (*Tree, error) { return New().with(l, layers, 0) }

// with gives the merged tree of layers; t, which stays as it is, is that of the first n.
func (t *Tree) with(l *limits, layers []Layer, n int) (*Tree, error) {
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

// merge lays one layer on a tree.
type merge struct {
	*Tree  // its refs are empty, and made in order
	limits *limits
	// below are the refs of the tree without the layer; left of them is what was not dealt with yet.
	below, left []ref
	// parent is a directory that is in the tree already.
	parent string
}

// apply lays the layer's entries on the tree. Marks hide what is below the layer only.
//
// A layer that names a path below a symlink of a layer under it is refused: containerd and Docker unpack each layer by
// itself, so that a directory takes the link's place, while a tool that unpacks onto the merged tree writes where the
// link leads. No tool that makes layers of a running system writes such a one.
//
// complete is false when a lower layer was not read.
func (m *merge) apply(layer []Entry, complete bool) error {
	m.layers = append(m.layers, layer)
	for i, n := 0, 0; i < len(layer); i = n {
		for n = i + 1; n < len(layer) && layer[n].Path == layer[i].Path; {
			n++
		}
		if err := m.lay(i, n); err != nil {
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

// lay deals with the layer's entries i to n, which have one path.
func (m *merge) lay(i, n int) error {
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
		if err := m.mkdir(parent(p)); err != nil {
			return err
		}
	}
	// What the layers below have at p, and how much there and below it.
	var old *Entry
	var oldRef ref
	if len(m.left) > 0 && m.at(m.left[0]).Path == p {
		oldRef = m.left[0]
		old = m.at(oldRef)
		m.left = m.left[1:]
	}
	if keep := own != nil && own.IsDir() && !whiteout && !opaque; !keep {
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
		return m.mkdir(p)
	case opaque:
		return m.mkdir(p)
	}
	return nil
}

// mkdir makes sure of a directory that the layer has content in. What a lower layer says of it holds.
func (m *merge) mkdir(p string) error {
	if p == m.parent {
		return nil
	}
	i, ok := m.find(p)
	switch {
	case ok && m.at(m.refs[i]).IsDir():
	case ok && m.at(m.refs[i]).Type == image.TypeSymlink:
		return fmt.Errorf("it lies below %s, which a lower layer made a symlink to %s: runtimes differ on what that means", shown(p), shown(m.at(m.refs[i]).Link))
	case ok:
		m.refs[i] = m.implied(p)
	default:
		if err := m.limits.take(1, 0); err != nil {
			return err
		}
		if err := m.mkdir(parent(p)); err != nil {
			return err
		}
		m.refs = append(m.refs, m.implied(p))
	}
	m.parent = p
	return nil
}

// parent is the directory of a clean path, with no memory taken.
func parent(p string) string { return p[:max(1, strings.LastIndexByte(p, '/'))] }

// implied makes the directory that no layer names, as runtimes do.
func (m *merge) implied(p string) ref {
	return m.add(Entry{Entry: image.Entry{Path: p, Type: image.TypeDir, Mode: 0o755}, Layer: len(m.layers) - 2})
}

// add remembers an entry that no layer has.
func (t *Tree) add(e Entry) ref {
	t.layers[0] = append(t.layers[0], e)
	return ref{0, int32(len(t.layers[0]) - 1)}
}

// resolve finds the file of a hard link in the layers below.
func (m *merge) resolve(e *Entry, complete bool) error {
	lower := &Tree{layers: m.layers, refs: m.below}
	p, err := lower.Resolve(e.Link)
	if err != nil {
		return err
	}
	was, ok := lower.find(p)
	if !ok {
		if complete {
			return errors.New("it isn't there")
		}
		return nil
	}
	target := lower.refs[was]
	if now, ok := m.find(p); !ok || m.refs[now] != target {
		return errors.New("its own layer takes that away: runtimes differ on what that means")
	}
	if m.at(target).IsDir() {
		return errors.New("it is a directory")
	}
	i, _ := m.find(e.Path)
	m.refs[i] = m.add(m.at(m.refs[i]).linked(*m.at(target)))
	return nil
}

// relink makes files of hard links whose other name was taken away or replaced by a later layer: each is the file that it led
// to, and of several the first one is.
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
