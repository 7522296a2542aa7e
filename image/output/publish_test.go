package output

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/slimctl/slimctl/internal/registry"
)

// TestPublishTagsLast: a file that can't be written leaves every tag as it was, and what stands in its place.
func TestPublishTagsLast(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 10_000)
	b := derive(t, src, 1000, 1)
	tag, err := name.NewTag(reg.Host + "/slim:1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	target := Target{Files: []Spec{{OCI, filepath.Join(dir, "mine")}}, Tags: []name.Tag{tag}, Push: true}
	mine := filepath.Join(dir, "mine", "file")
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Publish(t.Context(), b, target, src, testOptions()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error is %v, want one for the directory that is there", err)
	}
	if d, err := remote.Head(tag); err == nil {
		t.Errorf("%s is %s", tag, d.Digest)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}

	target.Files[0].Dest = filepath.Join(dir, "out")
	ledger, err := Publish(t.Context(), b, target, src, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	want, err := b.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	if d, err := remote.Head(tag); err != nil || d.Digest != want.Digest {
		t.Errorf("%s is %v (%v), want %s", tag, d, err, want.Digest)
	}
	if got := open(t, "oci:"+target.Files[0].Dest, testOptions()); got.Digest() != want.Digest {
		t.Errorf("the layout holds %s, want %s", got.Digest(), want.Digest)
	}
	if ledger.Mounted == 0 || ledger.Uploaded == 0 {
		t.Errorf("the ledger counts %+v", ledger)
	}
}
