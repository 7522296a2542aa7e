// Package ocitest reads images in tests: merged trees and configs in a form for comparing two images. It doesn't use
// package image, so that a comparison of slimctl's images with BuildKit's is independent of slimctl's own reader.
package ocitest

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Node is one path of a merged tree, without its times.
type Node struct {
	Path string
	Type image.Type
	// Mode holds the permissions with setuid, setgid and sticky; it is 0777 for a symlink.
	Mode     int64
	UID, GID int
	Size     int64
	// SHA256 is the digest of a regular file's content, in hex.
	SHA256 string
	// Link is a symlink's target as written, or for a hard-linked file its first name in byte order.
	Link         string
	Major, Minor int64
	Xattrs       map[string]string
}

// Tree returns the merged tree of img's layers by path, without the root. It ends the test if a layer can't be read.
func Tree(t testing.TB, img v1.Image) map[string]Node {
	t.Helper()
	tree, err := merge(img)
	if err != nil {
		t.Fatal(err)
	}
	return tree.nodes()
}

func merge(img v1.Image) (*tree, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	m := &tree{inodes: map[string]*Node{}}
	for i, l := range layers {
		if err := m.applyLayer(l); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return m, nil
}

// tree maps paths to inodes. The names of a hard-linked file share one.
type tree struct{ inodes map[string]*Node }

// entry is one header of an archive with its node, which is nil for a whiteout and a hard link.
type entry struct {
	path   string
	header *tar.Header
	node   *Node
}

// applyLayer applies l to the tree. It applies whiteouts first, because they hide only lower layers, at any place in
// the archive.
func (m *tree) applyLayer(l v1.Layer) error {
	entries, err := read(l)
	if err != nil {
		return err
	}
	dirs := map[string]bool{"/": true}
	for _, e := range entries {
		if e.header.Typeflag == tar.TypeDir {
			dirs[e.path] = true
		}
		if !isWhiteout(e.path) {
			for p := path.Dir(e.path); !dirs[p]; p = path.Dir(p) {
				dirs[p] = true
			}
		}
	}
	for _, e := range entries {
		m.whiteout(e.path, dirs)
	}
	for _, e := range entries {
		if err := m.put(e); err != nil {
			return fmt.Errorf("%s: %w", e.header.Name, err)
		}
	}
	return nil
}

func read(l v1.Layer) (entries []entry, err error) {
	r, err := l.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			// Data after the end of the archive is part of the layer's digest.
			_, err = io.Copy(io.Discard, r)
			return entries, err
		}
		if err != nil {
			return nil, err
		}
		e := entry{path: path.Clean("/" + h.Name), header: h}
		if h.Typeflag != tar.TypeLink && !isWhiteout(e.path) {
			if e.node, err = newNode(h, archive); err != nil {
				return nil, fmt.Errorf("%s: %w", h.Name, err)
			}
		}
		entries = append(entries, e)
	}
}

func isWhiteout(p string) bool { return strings.HasPrefix(path.Base(p), ".wh.") }

// whiteout applies a whiteout of a layer with these directories: in containerd a directory takes the place of a whiteout of its
// own layer, and overlayfs hides nothing by an opaque root.
func (m *tree) whiteout(p string, dirs map[string]bool) {
	name, ok := strings.CutPrefix(path.Base(p), ".wh.")
	if !ok {
		return
	}
	dir := m.real(path.Dir(p))
	if name == ".wh..opq" {
		if dir != "/" {
			m.clear(dir)
		}
	} else if !dirs[path.Join(path.Dir(p), name)] {
		gone := path.Join(dir, name)
		m.clear(gone)
		delete(m.inodes, gone)
	}
}

func (m *tree) put(e entry) error {
	p, h := e.path, e.header
	if p == "/" || isWhiteout(p) {
		return nil
	}
	p = path.Join(m.makeDirs(path.Dir(p)), path.Base(p))
	if h.Typeflag == tar.TypeLink {
		target := path.Clean("/" + h.Linkname)
		target = path.Join(m.real(path.Dir(target)), path.Base(target))
		n := m.inodes[target]
		if n == nil {
			return fmt.Errorf("hard link to %s, which isn't there", target)
		}
		m.clear(p)
		m.inodes[p] = n
		return nil
	}
	if e.node.Type != image.TypeDir {
		m.clear(p)
	}
	m.inodes[p] = e.node
	return nil
}

func newNode(h *tar.Header, r io.Reader) (*Node, error) {
	n := &Node{Mode: h.Mode & 0o7777, UID: h.Uid, GID: h.Gid, Xattrs: xattrs(h)}
	switch h.Typeflag {
	case tar.TypeReg:
		sum := sha256.New()
		size, err := io.Copy(sum, r)
		if err != nil {
			return nil, err
		}
		n.Type, n.Size, n.SHA256 = image.TypeFile, size, hex.EncodeToString(sum.Sum(nil))
	case tar.TypeDir:
		n.Type = image.TypeDir
	case tar.TypeSymlink:
		n.Type, n.Link, n.Mode = image.TypeSymlink, h.Linkname, 0o777
	case tar.TypeFifo:
		n.Type = image.TypeFifo
	case tar.TypeChar, tar.TypeBlock:
		n.Type, n.Major, n.Minor = image.TypeChar, h.Devmajor, h.Devminor
		if h.Typeflag == tar.TypeBlock {
			n.Type = image.TypeBlock
		}
	default:
		return nil, fmt.Errorf("unknown type %q", h.Typeflag)
	}
	return n, nil
}

func xattrs(h *tar.Header) map[string]string {
	var out map[string]string
	for k, v := range h.PAXRecords {
		if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = v
		}
	}
	return out
}

// makeDirs creates missing directories of p, like an unpacker, and returns its path with symlinks followed.
func (m *tree) makeDirs(p string) string {
	p = m.real(p)
	for dir := p; dir != "/"; dir = path.Dir(dir) {
		if n := m.inodes[dir]; n == nil || n.Type != image.TypeDir {
			m.inodes[dir] = &Node{Type: image.TypeDir, Mode: 0o755}
		}
	}
	return p
}

// real follows every symlink in p inside the tree. It stops after 40 links, the kernel's limit.
func (m *tree) real(p string) string {
	for range 40 {
		next, found := m.step(p)
		if !found {
			break
		}
		p = next
	}
	return p
}

// step replaces the first symlink in p.
func (m *tree) step(p string) (string, bool) {
	for i := 1; i <= len(p); i++ {
		if i < len(p) && p[i] != '/' {
			continue
		}
		if n := m.inodes[p[:i]]; n != nil && n.Type == image.TypeSymlink {
			target := n.Link
			if !path.IsAbs(target) {
				target = path.Dir(p[:i]) + "/" + target
			}
			return path.Clean("/" + target + p[i:]), true
		}
	}
	return p, false
}

// clear removes everything below p.
func (m *tree) clear(p string) {
	below := strings.TrimSuffix(p, "/") + "/"
	maps.DeleteFunc(m.inodes, func(at string, _ *Node) bool { return strings.HasPrefix(at, below) })
}

func (m *tree) nodes() map[string]Node {
	names := map[*Node][]string{}
	for _, p := range slices.Sorted(maps.Keys(m.inodes)) {
		names[m.inodes[p]] = append(names[m.inodes[p]], p)
	}
	out := map[string]Node{}
	for n, paths := range names {
		for _, p := range paths {
			c := *n
			c.Path = p
			if len(paths) > 1 {
				c.Link = paths[0]
			}
			out[p] = c
		}
	}
	return out
}
