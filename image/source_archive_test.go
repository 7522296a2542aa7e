package image

import (
	"context"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// TestPick chooses among the images of a layout.
func TestPick(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	one, two := testImage(t, amd64, testLayer(t, 1, 10)), testImage(t, arm64, testLayer(t, 2, 10))
	named := func(n string) layout.Option {
		return layout.WithAnnotations(map[string]string{AnnotationRefName: n, AnnotationImageName: "ghcr.io/a/b:" + n})
	}
	if err := p.AppendImage(one, named("one")); err != nil {
		t.Fatal(err)
	}
	if got := open(t, "oci:"+dir, testOptions()).Digest(); got != hexDigest(t, one) { // the only one needs no name
		t.Errorf("the only one: %s", got)
	}
	if err := p.AppendImage(one, named("alias")); err != nil {
		t.Fatal(err)
	}
	if got := open(t, "oci:"+dir, testOptions()).Digest(); got != hexDigest(t, one) { // two names of one image
		t.Errorf("two names: %s", got)
	}
	if err := p.AppendImage(two, named("two")); err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]v1.Hash{"one": hexDigest(t, one), "two": hexDigest(t, two), "ghcr.io/a/b:two": hexDigest(t, two)} {
		if got := open(t, "oci:"+dir+":"+tag, testOptions()).Digest(); got != want {
			t.Errorf("%s: %s, want %s", tag, got, want)
		}
	}
	_, err = Open(context.Background(), "oci:"+dir, testOptions())
	if err == nil || !strings.Contains(err.Error(), "it has 2 images") || !strings.Contains(err.Error(), "one, two") {
		t.Errorf("no name: %v", err)
	}

	flat, err := layout.Write(t.TempDir(), testIndex(t, []v1.Platform{amd64, arm64}, []v1.Image{one, two}))
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, "oci:"+string(flat), testOptions())
	if len(s.Platforms()) != 2 {
		t.Errorf("index.json as the index: %v", s.Platforms())
	}
	if _, err := s.Image(arm64); err != nil {
		t.Error(err)
	}
}
