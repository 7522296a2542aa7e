package image

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"

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
	flip          = imagetest.Flip
	readAll       = imagetest.Content
)

const layersEach = imagetest.LayersEach

func testOptions() Options {
	return Options{Keychain: authn.NewMultiKeychain(), Backoff: time.Millisecond}
}

func open(t testing.TB, ref string, o Options) *Source {
	t.Helper()
	s, err := Open(context.Background(), ref, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
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
