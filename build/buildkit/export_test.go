package buildkit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/internal/buildkitd"
	"github.com/slimctl/slimctl/internal/registry"
	"github.com/slimctl/slimctl/internal/standin"
)

// recipes lay one file on a stand-in.
func recipes(t *testing.T, platforms ...string) ([]*build.Recipe, *image.Source) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: "A", Platforms: platforms}); err != nil {
		t.Fatal(err)
	}
	src, err := image.Open(t.Context(), "oci:"+dir, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out []*build.Recipe
	for _, s := range platforms {
		p, err := v1.ParsePlatform(s)
		if err != nil {
			t.Fatal(err)
		}
		img, err := src.Image(*p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, &build.Recipe{
			Profile: "test", Platform: *p, Epoch: time.Unix(1e9, 0), Base: build.Base{Reference: "base", Index: src.Digest(), Image: img},
			Overlays: []build.Lay{{Name: "one", Files: []image.File{image.Bytes("/new", 0o644, []byte("new"))}}},
		})
	}
	return out, src
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestOutputs(t *testing.T) {
	daemon := buildkitd.Start(t)
	dir := t.TempDir()
	one, src := recipes(t, "linux/arm64")
	var outputs []output.Spec
	for _, kind := range []string{output.OCI, output.OCIArchive, output.DockerArchive} {
		outputs = append(outputs, output.Spec{Type: kind, Dest: filepath.Join(dir, kind)})
	}
	result, err := Engine{Addr: daemon.Addr}.Build(t.Context(), build.Request{Recipes: one, Source: src, Target: output.Target{Files: outputs}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"docker-archive", "oci", "oci-archive"}, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, base := range []string{"oci:" + outputs[0].Dest, "oci-archive:" + outputs[1].Dest} {
		got, err := image.Open(t.Context(), base, image.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest() != result.Digest {
			t.Errorf("%s holds %s, the daemon told %s", base, got.Digest(), result.Digest)
		}
	}
	if _, err := image.Open(t.Context(), "docker-archive:"+outputs[2].Dest, image.Options{}); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeftOfAFailure covers what the daemon can't do, what we refuse, and a cancelled build.
func TestNothingIsLeftOfAFailure(t *testing.T) {
	daemon := buildkitd.Start(t)
	both, src := recipes(t, "linux/amd64", "linux/arm64")
	broken, _ := recipes(t, "linux/amd64")
	broken[0].Base.Index.Hex = "00" + broken[0].Base.Index.Hex[2:] // the daemon won't find it
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx     context.Context
		recipes []*build.Recipe
		addr    string
		kind    string
	}{
		"no daemon":                    {t.Context(), both, "unix:///nowhere/buildkitd.sock", output.OCI},
		"a base that isn't there":      {t.Context(), broken, daemon.Addr, output.OCIArchive},
		"two platforms in one archive": {t.Context(), both, daemon.Addr, output.DockerArchive},
		"cancelled before it began":    {cancelled, both, daemon.Addr, output.OCI},
	} {
		dir := t.TempDir()
		_, err := Engine{Addr: c.addr}.Build(c.ctx, build.Request{
			Recipes: c.recipes, Source: src,
			Target: output.Target{Files: []output.Spec{
				{Type: output.OCI, Dest: filepath.Join(dir, "first")}, {Type: c.kind, Dest: filepath.Join(dir, "out")},
			}},
		})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if left := names(t, dir); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Engine{Addr: daemon.Addr}.Build(t.Context(), build.Request{
		Recipes: both, Source: src, Target: output.Target{Files: []output.Spec{{Type: output.OCI, Dest: dir}}},
	})
	if err == nil {
		t.Error("a directory with something in it is overwritten")
	}
	if diff := cmp.Diff([]string{"mine"}, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAnotherDigest: what didn't come to the digest that was verified gets no name, on disk or in a registry.
func TestAnotherDigest(t *testing.T) {
	daemon := buildkitd.Start(t)
	one, src := recipes(t, "linux/amd64")
	reg, err := registry.Serve(t.Context(), "", registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reg.Stop)
	var tags []name.Tag
	for _, s := range []string{"/slim/a:1", "/slim/a:2", "/slim/b:1"} {
		tag, err := name.NewTag(reg.Host + s)
		if err != nil {
			t.Fatal(err)
		}
		tags = append(tags, tag)
	}
	dir := t.TempDir()
	try := func(kind string, digest v1.Hash) (v1.Descriptor, error) {
		return Engine{Addr: daemon.Addr}.Build(t.Context(), build.Request{
			Recipes: one, Source: src, Digest: digest,
			Target: output.Target{Files: []output.Spec{{Type: output.OCI, Dest: filepath.Join(dir, kind)}}, Tags: tags, Push: true},
		})
	}
	other := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	if _, err := try("other", other); err == nil || !strings.Contains(err.Error(), other.String()) {
		t.Errorf("error is %v, want one that names %s", err, other)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	for _, tag := range tags {
		if d, err := remote.Head(tag); err == nil {
			t.Errorf("%s points at %s", tag, d.Digest)
		}
	}
	free, err := Engine{Addr: daemon.Addr}.Build(t.Context(), build.Request{Recipes: one, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := try("same", free.Digest); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"same"}, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, tag := range tags {
		if d, err := remote.Head(tag); err != nil || d.Digest != free.Digest {
			t.Errorf("%s: %v %v, want %s", tag, d, err, free.Digest)
		}
	}
}
