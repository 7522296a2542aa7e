package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/slimctl/slimctl/internal/registry"
)

var (
	amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}
	arm64 = v1.Platform{OS: "linux", Architecture: "arm64"}
)

// testLayer makes a layer whose gzip is a little more than size bytes.
func testLayer(t testing.TB, seed uint64, size int) v1.Layer {
	t.Helper()
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a fixture
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	l, err := NewLayer([]File{Bytes(fmt.Sprintf("/data/%d", seed), 0o644, data)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testImage(t testing.TB, p v1.Platform, layers ...v1.Layer) v1.Image {
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

func testIndex(t testing.TB, ps []v1.Platform, images []v1.Image) v1.ImageIndex {
	t.Helper()
	idx := mutate.IndexMediaType(empty.Index, ocitypes.OCIImageIndex)
	for i, p := range ps {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: images[i], Descriptor: v1.Descriptor{Platform: &p}})
	}
	return idx
}

// layersEach is how many layers each platform of the test base has, one of them shared.
const layersEach = 4

// testBase is an index of two platforms with an attestation beside them.
func testBase(t testing.TB, size int) v1.ImageIndex {
	t.Helper()
	shared := testLayer(t, 1, size)
	var images []v1.Image
	ps := []v1.Platform{amd64, arm64}
	for i, p := range ps {
		ls := []v1.Layer{shared}
		for n := 1; n < layersEach; n++ {
			ls = append(ls, testLayer(t, uint64(10*(i+1)+n), size))
		}
		images = append(images, testImage(t, p, ls...))
	}
	idx := testIndex(t, ps, images)
	att := testImage(t, v1.Platform{OS: "unknown", Architecture: "unknown"}, testLayer(t, 99, 10))
	return mutate.AppendManifests(idx, mutate.IndexAddendum{Add: att, Descriptor: v1.Descriptor{
		Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"},
	}})
}

// writeBase writes the base by go-containerregistry's own layout writer, under a tag.
func writeBase(t testing.TB, idx v1.ImageIndex, tag string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendIndex(idx, layout.WithAnnotations(map[string]string{annotationRefName: tag})); err != nil {
		t.Fatal(err)
	}
	return dir
}

// derive adds one layer of size bytes to each platform of src.
func derive(t testing.TB, src *Source, size int, seed uint64) Built {
	t.Helper()
	ps := src.Platforms()
	imgs, err := src.Images(ps...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ps {
		if imgs[i], err = mutate.AppendLayers(imgs[i], testLayer(t, seed+uint64(i), size)); err != nil {
			t.Fatal(err)
		}
	}
	return Built{Index: testIndex(t, ps, imgs)}
}

func testOptions() Options {
	return Options{Keychain: authn.NewMultiKeychain(), backoff: time.Millisecond}
}

func serveRegistry(t testing.TB, o registry.Options) *registry.Server {
	t.Helper()
	s, err := registry.Serve(context.Background(), "", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func open(t testing.TB, ref string, o Options) *Source {
	t.Helper()
	s, err := Open(context.Background(), ref, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hexDigest(t testing.TB, b interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	h, err := b.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func tagOf(t testing.TB, s string) name.Tag {
	t.Helper()
	n, err := name.NewTag(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// files lists what is in dir, so that tests see whether anything half-written stayed.
func files(t testing.TB, dir string) []string {
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

// flip changes one bit of a file in place, and gives the file its old times back.
func flip(t testing.TB, file string, off int64) {
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

// baseLayer is the descriptor of a layer of the amd64 image.
func baseLayer(t testing.TB, src *Source, i int) v1.Descriptor {
	t.Helper()
	img, err := src.Image(amd64)
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return m.Layers[i]
}

func mustBeDigestError(t *testing.T, err error, want v1.Hash) {
	t.Helper()
	var de *DigestError
	if !errors.As(err, &de) {
		t.Fatalf("got %v, want a *DigestError", err)
	}
	if de.Want != want || !strings.Contains(err.Error(), want.String()) {
		t.Fatalf("%v does not name %s", err, want)
	}
}

func readAll(t testing.TB, l v1.Layer) ([]byte, error) {
	t.Helper()
	rc, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	var b bytes.Buffer
	_, err = io.Copy(&b, rc)
	return b.Bytes(), err
}
