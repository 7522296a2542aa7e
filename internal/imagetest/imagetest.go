// Package imagetest makes bases for tests of package image and the packages below it, without importing any of them.
package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/internal/registry"
)

// The platforms of Base.
var (
	AMD64 = v1.Platform{OS: "linux", Architecture: "amd64"}
	ARM64 = v1.Platform{OS: "linux", Architecture: "arm64"}
)

// Layer returns a layer with a gzip of slightly more than size bytes.
func Layer(t testing.TB, seed uint64, size int) v1.Layer {
	t.Helper()
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a fixture
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	var blob bytes.Buffer
	z := gzip.NewWriter(&blob)
	w := tar.NewWriter(z)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("data/%d", seed), Mode: 0o644, Size: int64(size)}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob.Bytes())), nil },
		tarball.WithMediaType(ocitypes.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Image returns an image of layers.
func Image(t testing.TB, p v1.Platform, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, ocitypes.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, ocitypes.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.AppendLayers(img, layers...); err != nil {
		t.Fatal(err)
	}
	return img
}

// Index returns an index of images; images[i] is for the platform ps[i].
func Index(t testing.TB, ps []v1.Platform, images []v1.Image) v1.ImageIndex {
	t.Helper()
	idx := mutate.IndexMediaType(empty.Index, ocitypes.OCIImageIndex)
	for i, p := range ps {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: images[i], Descriptor: v1.Descriptor{Platform: &p}})
	}
	return idx
}

// LayersEach is the number of layers per platform of Base, one of which is shared.
const LayersEach = 4

// Base returns an index of two platforms with an attestation. size is the size of each layer, in bytes.
func Base(t testing.TB, size int) v1.ImageIndex {
	t.Helper()
	shared := Layer(t, 1, size)
	var images []v1.Image
	ps := []v1.Platform{AMD64, ARM64}
	for i, p := range ps {
		ls := []v1.Layer{shared}
		for n := 1; n < LayersEach; n++ {
			ls = append(ls, Layer(t, uint64(10*(i+1)+n), size))
		}
		images = append(images, Image(t, p, ls...))
	}
	idx := Index(t, ps, images)
	att := Image(t, v1.Platform{OS: "unknown", Architecture: "unknown"}, Layer(t, 99, 10))
	return mutate.AppendManifests(idx, mutate.IndexAddendum{Add: att, Descriptor: v1.Descriptor{
		Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"},
	}})
}

// WriteBase writes a base with go-containerregistry's layout writer, under a tag, and returns the directory.
func WriteBase(t testing.TB, idx v1.ImageIndex, tag string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendIndex(idx, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Serve starts a registry that stops at the end of the test.
func Serve(t testing.TB, o registry.Options) *registry.Server {
	t.Helper()
	s, err := registry.Serve(context.Background(), "", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Digest returns b's digest.
func Digest(t testing.TB, b interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	h, err := b.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Tag parses a tag.
func Tag(t testing.TB, s string) name.Tag {
	t.Helper()
	n, err := name.NewTag(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Files lists the files in dir, to find half-written ones.
func Files(t testing.TB, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

// Flip changes one bit of a file in place and restores its times.
func Flip(t testing.TB, file string, off int64) {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// Content returns a layer's blob.
func Content(t testing.TB, l v1.Layer) ([]byte, error) {
	t.Helper()
	rc, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}
