package image

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// TestArchiveSource derives from an oci-archive base, spoils it after it was verified, and cuts it.
func TestArchiveSource(t *testing.T) {
	dir := writeBase(t, testBase(t, 100_000), "1")
	local := open(t, "oci:"+dir, testOptions())
	base := filepath.Join(t.TempDir(), "base.tar")
	o := testOptions()
	o.CacheDir = t.TempDir()
	if err := (Output{OutputOCIArchive, base}).Write(context.Background(), derive(t, local, 10, 70), nil, local, o); err != nil {
		t.Fatal(err)
	}
	time.Sleep(150 * time.Millisecond)
	out := t.TempDir()
	for _, n := range []string{"first", "second"} { // the second time everything is known to be good
		src := open(t, "oci-archive:"+base, o)
		for _, kind := range []string{OutputOCI, OutputOCIArchive} {
			dest := filepath.Join(out, n+kind)
			b := derive(t, src, 10, 90)
			if err := (Output{kind, dest}).Write(context.Background(), b, nil, src, o); err != nil {
				t.Fatal(err)
			}
			img, err := open(t, kind+":"+dest, testOptions()).Image(amd64) // no memory: all is read and hashed
			if err != nil {
				t.Fatal(err)
			}
			ls, err := img.Layers()
			if err != nil || len(ls) != layersEach+2 {
				t.Fatalf("%d layers, %v", len(ls), err)
			}
			for _, l := range ls {
				if _, err := readAll(t, l); err != nil {
					t.Errorf("%s: %v", dest, err)
				}
			}
		}
	}
	src := open(t, "oci-archive:"+base, o)
	d := baseLayer(t, src, 2)
	s, err := src.blobs.blob(d)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, base, s.off+1000)
	for _, kind := range []string{OutputOCI, OutputOCIArchive} {
		err := (Output{kind, filepath.Join(out, "x")}).Write(context.Background(), derive(t, src, 10, 90), nil, src, o)
		mustBeDigestError(t, err, d.Digest)
	}
	if got := files(t, out); len(got) != 4 {
		t.Errorf("left behind: %v", got)
	}
	if err := os.Truncate(base, s.off+1000); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), "oci-archive:"+base, o); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("a cut archive: %v", err)
	}
}

// TestPick chooses among the images of a layout.
func TestPick(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	one, two := testImage(t, amd64, testLayer(t, 1, 10)), testImage(t, arm64, testLayer(t, 2, 10))
	named := func(n string) layout.Option {
		return layout.WithAnnotations(map[string]string{annotationRefName: n, annotationImageName: "ghcr.io/a/b:" + n})
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
	if err == nil || !strings.Contains(err.Error(), "there are 2 images") || !strings.Contains(err.Error(), "one, two") {
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

// TestSymlinkedBlob has a blob that is a symbolic link, as some builders lay them.
func TestSymlinkedBlob(t *testing.T) {
	dir := writeBase(t, testBase(t, 20_000), "1")
	d := baseLayer(t, open(t, "oci:"+dir, testOptions()), 1)
	blob := filepath.Join(dir, "blobs", "sha256", d.Digest.Hex)
	other := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(blob, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, blob); err != nil {
		t.Fatal(err)
	}
	src := open(t, "oci:"+dir, testOptions())
	out := filepath.Join(t.TempDir(), "x")
	if err := (Output{OutputOCI, out}).Write(context.Background(), derive(t, src, 10, 70), nil, src, testOptions()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(out, "blobs", "sha256", d.Digest.Hex))
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// A link to a file that is something else is found by its content.
	if err := os.WriteFile(other, make([]byte, d.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	err = (Output{OutputOCI, out + "2"}).Write(context.Background(), derive(t, src, 10, 70), nil, src, testOptions())
	mustBeDigestError(t, err, d.Digest)
}
