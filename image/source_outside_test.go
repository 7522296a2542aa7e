package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// TestOutside: what a layout holds beside its image is found, its names are told, and what builders write is none of it.
func TestOutside(t *testing.T) {
	one, two := testImage(t, amd64, testLayer(t, 1, 10)), testImage(t, arm64, testLayer(t, 2, 10))
	write := func(t *testing.T, dir, name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	type object = map[string]any
	// annotate sets annotations of the first entry.
	annotate := func(kv ...string) func(*testing.T, string, object) {
		return func(_ *testing.T, _ string, top object) {
			annotations := object{}
			for i := 0; i < len(kv); i += 2 {
				annotations[kv[i]] = kv[i+1]
			}
			top["manifests"].([]any)[0].(object)["annotations"] = annotations
		}
	}
	for name, c := range map[string]struct {
		change       func(t *testing.T, dir string, top object)
		found, names string // found is one thing, or empty
	}{
		"nothing":              {func(*testing.T, string, object) {}, "", ""},
		"a default name":       {annotate(AnnotationRefName, "latest"), "", ""},
		"a short name":         {annotate(AnnotationRefName, "v1"), "", "v1"},
		"a full name":          {annotate(AnnotationImageName, "docker.io/library/alpine:latest", AnnotationRefName, "latest"), "", "docker.io/library/alpine:latest"},
		"two names that agree": {annotate(AnnotationImageName, "ghcr.io/a/b:1", AnnotationRefName, "ghcr.io/a/b:1"), "", "ghcr.io/a/b:1"},
		"two that don't":       {annotate(AnnotationImageName, "ghcr.io/a/b:1", AnnotationRefName, "alpine"), `"ghcr.io/a/b:1", and "alpine" for short`, "ghcr.io/a/b:1"},
		"no name":              {annotate(AnnotationImageName, "A b\x1b[2J"), "can't have in a registry", "A b\x1b[2J"},
		"BuildKit's":           {annotate("org.opencontainers.image.created", "2026-01-01T00:00:00Z"), "", ""},
		"containerd's":         {annotate("containerd.io/distribution.source.ghcr.io", "a/b"), "", ""},
		"a runtime":            {annotate("run.oci.handler", "krun"), `manifests[0].annotations of index.json has the key "run.oci.handler"`, ""},
		"a list of nothing":    {annotate(AnnotationReferrers, "evil"), "", ""}, // Referrers fails
		"a name of its own": {func(t *testing.T, _ string, top object) {
			more := object{}
			raw, err := json.Marshal(top["manifests"].([]any)[0])
			if err == nil {
				err = json.Unmarshal(raw, &more)
			}
			if err != nil {
				t.Fatal(err)
			}
			more["annotations"] = object{AnnotationImageName: "alpine"}
			top["manifests"] = append(top["manifests"].([]any), more)
		}, "", "docker.io/library/alpine:latest"},
		"urls": {func(_ *testing.T, _ string, top object) {
			top["manifests"].([]any)[0].(object)["urls"] = []string{"https://evil.example"}
		}, `manifests[0] of index.json has the key "urls"`, ""},
		"an annotation of all": {func(_ *testing.T, _ string, top object) { top["annotations"] = object{"a": "b"} }, `the top of index.json has the key "annotations"`, ""},
		"an unknown key":       {func(_ *testing.T, _ string, top object) { top["evil"] = 1 }, `the top of index.json has the key "evil"`, ""},
		"a blob":               {func(t *testing.T, dir string, _ object) { write(t, dir, "blobs/sha256/"+strings.Repeat("0", 64), "x") }, "blobs/sha256/000", ""},
		"a blob by SHA-512":    {func(t *testing.T, dir string, _ object) { write(t, dir, "blobs/sha512/"+strings.Repeat("0", 128), "x") }, "blobs/sha512/000", ""},
		"a file":               {func(t *testing.T, dir string, _ object) { write(t, dir, "etc/motd", "x") }, `the file "etc/motd" belongs to no image`, ""},
		"a link": {func(t *testing.T, dir string, _ object) {
			if err := os.Symlink("/etc", filepath.Join(dir, "etc")); err != nil {
				t.Fatal(err)
			}
		}, `the file "etc"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := layout.Write(dir, empty.Index)
			if err == nil {
				err = p.AppendIndex(testIndex(t, []v1.Platform{amd64, arm64}, []v1.Image{one, two}))
			}
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "index.json")
			top := object{}
			raw, err := os.ReadFile(file)
			if err == nil {
				err = json.Unmarshal(raw, &top)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.change(t, dir, top)
			if raw, err = json.Marshal(top); err != nil {
				t.Fatal(err)
			}
			write(t, dir, "index.json", string(raw))
			src := open(t, "oci:"+dir, testOptions())
			found, err := src.Outside()
			if err != nil || (c.found == "") != (len(found) == 0) || c.found != "" && (len(found) != 1 || !strings.Contains(found[0], c.found)) {
				t.Errorf("got %q, %v; want %q", found, err, c.found)
			}
			if got := strings.Join(src.Names(), " "); got != c.names {
				t.Errorf("names %q, want %q", got, c.names)
			}
		})
	}

	// Another image of the layout is not chosen, and its blobs belong to it.
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	for i, img := range []v1.Image{one, two} {
		if err == nil {
			err = p.AppendImage(img, layout.WithAnnotations(map[string]string{AnnotationRefName: []string{"one", "two"}[i]}))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	src := open(t, "oci:"+dir+":two", testOptions())
	if found, err := src.Outside(); err != nil || len(found) > 0 || !slices.Equal(src.Names(), []string{"two"}) {
		t.Errorf("of two images: %q, %v, names %q", found, err, src.Names())
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if found, err := open(t, "oci:"+link+":two", testOptions()).Outside(); err != nil || len(found) > 0 {
		t.Errorf("by a link: %q, %v", found, err)
	}
	// index.json as the image's own index is covered by its digest.
	flat, err := layout.Write(t.TempDir(), testIndex(t, []v1.Platform{amd64, arm64}, []v1.Image{one, two}))
	if err != nil {
		t.Fatal(err)
	}
	if found, err := open(t, "oci:"+string(flat), testOptions()).Outside(); err != nil || len(found) > 0 {
		t.Errorf("index.json as the index: %q, %v", found, err)
	}
}
