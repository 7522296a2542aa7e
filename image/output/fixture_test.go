package output

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/imagetest"
)

var (
	amd64, arm64  = imagetest.AMD64, imagetest.ARM64
	testLayer     = imagetest.Layer
	testImage     = imagetest.Image
	testIndex     = imagetest.Index
	testBase      = imagetest.Base
	writeBase     = imagetest.WriteBase
	serveRegistry = imagetest.Serve
	hexDigest     = imagetest.Digest
	tagOf         = imagetest.Tag
	files         = imagetest.Files
	flip          = imagetest.Flip
	readAll       = imagetest.Content
)

const layersEach = imagetest.LayersEach

// derive adds one layer of size bytes to each platform of src.
func derive(t testing.TB, src *image.Source, size int, seed uint64) image.Built {
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
	return image.Built{Index: testIndex(t, ps, imgs)}
}

func testOptions() image.Options {
	return image.Options{Keychain: authn.NewMultiKeychain(), Backoff: time.Millisecond}
}

func open(t testing.TB, ref string, o image.Options) *image.Source {
	t.Helper()
	s, err := image.Open(context.Background(), ref, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// baseLayer is the descriptor of a layer of the amd64 image.
func baseLayer(t testing.TB, src *image.Source, i int) v1.Descriptor {
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
	var de *image.DigestError
	if !errors.As(err, &de) {
		t.Fatalf("got %v, want a *DigestError", err)
	}
	if de.Want != want || !strings.Contains(err.Error(), want.String()) {
		t.Fatalf("%v does not name %s", err, want)
	}
}

func refs(t testing.TB, ss ...string) []name.Reference {
	t.Helper()
	var out []name.Reference
	for _, s := range ss {
		r, err := image.ParseReference(s, false)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}
