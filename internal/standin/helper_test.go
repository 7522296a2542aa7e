package standin

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// entry is one path of a merged tree, as a container would see it.
type entry struct {
	*tar.Header
	data  []byte
	layer int // of the layers, counted from 0 at the bottom
}

// cache is the stand-ins written by this test run, one directory for all tests.
var cache string

func TestMain(m *testing.M) {
	var err error
	if cache, err = os.MkdirTemp("", "standin-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(cache)
	os.Exit(code)
}

func cached(t *testing.T, line string) string {
	t.Helper()
	dir, err := Cached(t.Context(), cache, line)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// topIndex is the image index that a layout's index.json points to.
func topIndex(t *testing.T, dir string) (v1.Descriptor, v1.ImageIndex) {
	t.Helper()
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 {
		t.Fatalf("index.json of %s has %d entries, want 1", dir, len(m.Manifests))
	}
	idx, err := root.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return m.Manifests[0], idx
}

func imageOf(t *testing.T, dir, platform string) v1.Image {
	t.Helper()
	_, idx := topIndex(t, dir)
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Manifests {
		if d.Platform.String() == platform {
			img, err := idx.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return img
		}
	}
	t.Fatalf("%s has no %s", dir, platform)
	return nil
}

// layerEntries reads one layer; keys are absolute paths.
func layerEntries(t *testing.T, l v1.Layer, number int) []entry {
	t.Helper()
	r, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []entry
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry{Header: h, data: data, layer: number})
	}
}

// trees remembers merged trees by the image's digest.
var trees = map[v1.Hash]map[string]entry{}

// merged applies an image's layers as the OCI image specification's layer page says. Nobody may change the result.
func merged(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if tree, ok := trees[digest]; ok {
		return tree
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	tree := map[string]entry{}
	trees[digest] = tree
	drop := func(p string, itself bool, below int) {
		for q, e := range tree {
			if e.layer < below && (strings.HasPrefix(q, p+"/") || itself && q == p) {
				delete(tree, q)
			}
		}
	}
	for i, l := range layers {
		for _, e := range layerEntries(t, l, i) {
			p := path.Clean("/" + e.Name)
			dir, base := path.Split(p)
			switch name, gone := strings.CutPrefix(base, ".wh."); {
			case base == ".wh..wh..opq":
				drop(path.Clean(dir), false, i)
			case gone:
				drop(path.Join(dir, name), true, i)
			default:
				if old, ok := tree[p]; ok && old.Typeflag == tar.TypeDir && e.Typeflag != tar.TypeDir {
					drop(p, false, i)
				}
				tree[p] = e
			}
		}
	}
	return tree
}

// lookup follows symbolic links, as opening p in a container would.
func lookup(tree map[string]entry, p string) (entry, bool) {
	at := "/"
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for hops := 0; len(parts) > 0; {
		next := path.Join(at, parts[0])
		parts = parts[1:]
		e, ok := tree[next]
		if !ok {
			return entry{}, false
		}
		if e.Typeflag == tar.TypeSymlink {
			if hops++; hops > 20 {
				return entry{}, false
			}
			target := e.Linkname
			if !path.IsAbs(target) {
				target = path.Join(at, target)
			}
			parts = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), parts...)
			at = "/"
			continue
		}
		at = next
	}
	e, ok := tree[at]
	return e, ok
}
