package tree_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// item is an entry of a layer's archive.
type item struct {
	tar.Header
	content string
}

func (i item) String() string { return fmt.Sprintf("%c %s %s", i.Typeflag, i.Name, i.Linkname) }

// archive writes items as they are.
func archive(items ...item) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		i.Size = int64(len(i.content))
		must(w.WriteHeader(&i.Header))
		_, err := w.Write([]byte(i.content))
		must(err)
	}
	must(w.Close())
	return b.Bytes()
}

// plainLayer is a layer that is not compressed.
func plainLayer(raw []byte) v1.Layer {
	sum := sha256.Sum256(raw)
	return knownLayer{raw, hashOf(sum[:]), hashOf(sum[:])}
}

// layersOf makes layers out of random bytes: few names, so that they meet.
func layersOf(random []byte) [][]item {
	next := func(n int) int {
		if len(random) == 0 {
			return 0
		}
		b := random[0]
		random = random[1:]
		return int(b) % n
	}
	name := func() string {
		p := ""
		for range 1 + next(3) {
			p = path.Join(p, []string{"a", "b", "c"}[next(3)])
		}
		return p
	}
	var layers [][]item
	var files []string // to link to
	for len(random) > 0 && len(layers) < 4 {
		var layer []item
		for range 1 + next(7) {
			h := tar.Header{Name: name(), Mode: []int64{0o644, 0o4755}[next(2)]}
			content := ""
			switch next(16) {
			case 0, 1, 2, 3, 4:
				h.Typeflag, content = tar.TypeReg, fmt.Sprintf("%d %d", len(layers), len(layer))
				files = append(files, h.Name)
			case 5, 6, 7, 8, 9:
				h.Typeflag = tar.TypeDir
			case 10:
				h.Typeflag, h.Linkname = tar.TypeSymlink, []string{"a", "b", "/a/b", "../c", "/c", "a/b", "..", "/", "../../b"}[next(9)]
			case 11, 12:
				h.Typeflag, h.Linkname, h.Mode = tar.TypeLink, "a", 0o644 // TestHostileLayers has setuid
				if len(files) > 0 {
					h.Linkname = files[next(len(files))]
				}
			case 13, 14:
				h.Name = path.Join(path.Dir(h.Name), ".wh."+path.Base(h.Name))
			case 15:
				h.Name = path.Join(path.Dir(h.Name), ".wh..wh..opq")
			}
			layer = append(layer, item{h, content})
		}
		layers = append(layers, layer)
	}
	return layers
}

// inode is a file of the model, which unpacks each layer into a directory of its own and lays them over one another as
// overlayfs does. It shares nothing with the package but the rules.
type inode struct {
	kind    image.Type // "" for a whiteout without a file of its own
	mode    int64
	content string
	link    string // of a symlink; of a hard link to a lower layer
	layer   int
	names   map[string]*inode

	implied, white, opaque bool
}

func newDir(layer int) *inode {
	return &inode{kind: image.TypeDir, mode: 0o755, layer: layer, names: map[string]*inode{}, implied: true}
}

var errModel = errors.New("refused")

// dir finds p below root, follows symlinks and makes what is missing.
func (root *inode) dir(p string, layer int, create bool) (*inode, error) {
	stack := []*inode{root}
	rest := strings.Split(p, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		at := stack[len(stack)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		n := at.names[name]
		if n == nil || n.kind == "" {
			if !create {
				return nil, nil
			}
			made := newDir(layer)
			if n != nil {
				made.white = n.white
			}
			at.names[name] = made
			n = made
		}
		switch n.kind {
		case image.TypeDir:
			stack = append(stack, n)
		case image.TypeSymlink:
			if links++; links > 40 {
				return nil, errModel
			}
			if strings.HasPrefix(n.link, "/") {
				stack = stack[:1]
			}
			rest = append(strings.Split(n.link, "/"), rest...)
		default:
			return nil, errModel
		}
	}
	return stack[len(stack)-1], nil
}

func (root *inode) lookup(p string) (*inode, error) {
	p = path.Clean("/" + p)
	if p == "/" {
		return root, nil
	}
	dir, err := root.dir(path.Dir(p), 0, false)
	if err != nil || dir == nil {
		return nil, err
	}
	return dir.names[path.Base(p)], nil
}

// unpackModel lays one layer in an empty directory.
func unpackModel(items []item, layer int) (*inode, error) {
	root := newDir(layer)
	var marks []string
	for _, i := range items {
		p := path.Clean("/" + i.Name)
		if strings.HasPrefix(path.Base(p), ".wh.") {
			marks = append(marks, p)
			continue
		}
		dir, err := root.dir(path.Dir(p), layer, true)
		if err != nil {
			return nil, err
		}
		base := path.Base(p)
		old := dir.names[base]
		n := &inode{mode: i.Mode, layer: layer, link: i.Linkname, content: i.content}
		switch i.Typeflag {
		case tar.TypeReg:
			n.kind = image.TypeFile
		case tar.TypeSymlink:
			n.kind = image.TypeSymlink
		case tar.TypeDir:
			n.kind, n.names = image.TypeDir, map[string]*inode{}
			if old != nil && old.kind == image.TypeDir {
				n.names = old.names
			}
		case tar.TypeLink:
			delete(dir.names, base)
			to, err := root.lookup(i.Linkname)
			switch {
			case err != nil || to != nil && to.kind == image.TypeDir:
				return nil, errModel
			case to != nil:
				n = to
			default:
				n.kind = image.TypeLink
			}
		}
		dir.names[base] = n
	}
	for _, p := range marks {
		dir, err := root.dir(path.Dir(p), layer, true)
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(path.Base(p), ".wh.")
		if name == ".wh..opq" {
			dir.opaque = dir != root
			continue
		}
		if dir.names[name] == nil {
			dir.names[name] = &inode{}
		}
		if n := dir.names[name]; n.kind == "" || n.kind == image.TypeDir {
			n.white = true
		}
	}
	return root, nil
}

// over lays upper on lower, both directories or upper alone.
func over(lower, upper *inode) (*inode, error) {
	switch {
	case upper.kind == "":
		return nil, nil
	case upper.kind != image.TypeDir:
		return upper, nil
	case upper.white && upper.implied:
		lower = nil
	case lower != nil && upper.implied && lower.kind == image.TypeSymlink:
		return nil, errModel // runtimes differ
	}
	out := &inode{kind: image.TypeDir, mode: upper.mode, layer: upper.layer, names: map[string]*inode{}}
	if lower != nil && lower.kind == image.TypeDir {
		if upper.implied {
			out.mode, out.layer = lower.mode, lower.layer
		}
		if !upper.opaque {
			maps.Copy(out.names, lower.names)
		}
	}
	for name, n := range upper.names {
		merged, err := over(out.names[name], n)
		if err != nil {
			return nil, err
		}
		if merged == nil {
			delete(out.names, name)
		} else {
			out.names[name] = merged
		}
	}
	return out, nil
}

// linkLower replaces the hard links in dir to lower layers by their files.
func linkLower(dir, lower, merged *inode) error {
	for name, n := range dir.names {
		if n.kind == image.TypeDir {
			if err := linkLower(n, lower, merged); err != nil {
				return err
			}
		}
		if n.kind != image.TypeLink {
			continue
		}
		to, err := lower.lookup(n.link)
		if err != nil || to == nil || to.kind == image.TypeDir {
			return errModel
		}
		parent, err := lower.dir(path.Dir(path.Clean("/"+n.link)), 0, false)
		if err != nil || merged.exactly(findDir(lower, parent, "")+"/"+path.Base(n.link)) != to {
			return errModel
		}
		dir.names[name] = to
	}
	return nil
}

// findDir returns the path of a directory.
func findDir(from, dir *inode, at string) string {
	for name, c := range from.names {
		if c == dir {
			return at + "/" + name
		}
		if p := findDir(c, dir, at+"/"+name); p != "" {
			return p
		}
	}
	return ""
}

func (root *inode) exactly(p string) *inode {
	for name := range strings.SplitSeq(p[1:], "/") {
		if root = root.names[name]; root == nil {
			return nil
		}
	}
	return root
}

// modelOf returns every path of the merged tree and what it is, one line each; hard links by their first name.
func modelOf(layers [][]item) (string, error) {
	merged := newDir(-1)
	for i, items := range layers {
		upper, err := unpackModel(items, i)
		if err != nil {
			return "", err
		}
		lower := merged
		if merged, err = over(lower, upper); err != nil {
			return "", err
		}
		if err := linkLower(merged, lower, merged); err != nil {
			return "", err
		}
	}
	var lines []string
	first := map[*inode]string{}
	var walk func(n *inode, at string)
	walk = func(n *inode, at string) {
		line := fmt.Sprintf("%s %s %o", at, n.kind, n.mode)
		switch n.kind {
		case image.TypeDir:
			line += fmt.Sprintf(" layer %d", n.layer)
		case image.TypeSymlink:
			line += " to " + n.link
		case image.TypeFile:
			if first[n] == "" {
				first[n] = at
			}
			line = fmt.Sprintf("%s file %s as %s", at, n.content, first[n])
		}
		lines = append(lines, line)
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			walk(n.names[name], strings.TrimSuffix(at, "/")+"/"+name)
		}
	}
	walk(merged, "/")
	return strings.Join(lines, "\n"), nil
}

// linesOf returns the lines of a tree in the form of modelOf, with digests for contents.
func linesOf(t *tree.Tree, contents map[tree.Digest]string) string {
	first := map[string]string{}
	var lines []string
	for e := range t.Walk("/") {
		line := fmt.Sprintf("%s %s %o", e.Path, e.Type, e.Mode)
		switch e.Type {
		case image.TypeDir:
			line += fmt.Sprintf(" layer %d", e.Layer)
		case image.TypeSymlink:
			line += " to " + e.Link
		case image.TypeFile, image.TypeLink:
			file := e.Path
			if e.Type == image.TypeLink {
				file = e.Link
			}
			if first[file] == "" {
				first[file] = e.Path
			}
			line = fmt.Sprintf("%s file %s as %s", e.Path, contents[e.Digest], first[file])
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// FuzzWhiteout lays random layers over one another, and compares with the model.
func FuzzWhiteout(f *testing.F) {
	for _, seed := range []string{"", "0123456789abcdefghijklmnopqrstuvwxyz", "\x06\x00\x00\x00\x00\x00\x01\x01\x00\x03\x05\x01\x02\x06\x07\x08\x09"} {
		f.Add([]byte(seed))
	}
	for seed := range 200 {
		sum := sha256.Sum256([]byte{byte(seed)})
		more := sha256.Sum256(sum[:])
		f.Add(append(sum[:], more[:]...))
	}
	f.Fuzz(func(t *testing.T, random []byte) {
		items := layersOf(random)
		contents := map[tree.Digest]string{}
		var layers []v1.Layer
		for _, l := range items {
			layers = append(layers, plainLayer(archive(l...)))
			for _, i := range l {
				contents[sha256.Sum256([]byte(i.content))] = i.content
			}
		}
		want, wantErr := modelOf(items)
		im, err := tree.Cache{}.Open(t.Context(), newImage(t, layers...), tree.Options{})
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%v: error is %v, the model's %v", items, err, wantErr)
		}
		if err != nil {
			return
		}
		if got := linesOf(im.Tree, contents); got != want {
			t.Errorf("%v\ngot\n%s\nwant\n%s", items, got, want)
		}
		// Beside an image that is open and has some of the layers, in the same places or in others, the answer is the same.
		half := len(layers) / 2
		for _, some := range [][]v1.Layer{layers[:half], layers[half:]} {
			open, err := tree.Cache{}.Open(t.Context(), newImage(t, some...), tree.Options{})
			if err != nil {
				continue // upper layers may need the lower ones
			}
			before := linesOf(open.Tree, contents)
			beside, err := tree.Cache{}.Open(t.Context(), newImage(t, layers...), tree.Options{Open: open})
			if err != nil {
				t.Fatal(err)
			}
			if got := linesOf(beside.Tree, contents); got != want {
				t.Errorf("%v\nbeside %d layers got\n%s\nwant\n%s", items, len(some), got, want)
			}
			if got := linesOf(open.Tree, contents); got != before {
				t.Errorf("%v\nthe open image became\n%s\nfrom\n%s", items, got, before)
			}
		}
		for e := range im.Walk("/") {
			if e.Type == image.TypeFile || e.Type == image.TypeLink {
				text, err := im.ReadFile(t.Context(), e.Path)
				if err != nil || string(text) != contents[e.Digest] {
					t.Errorf("%v: %s holds %q, %v", items, e.Path, text, err)
				}
			}
		}
	})
}
