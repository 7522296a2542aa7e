package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// TestIndexEntries: what a runtime may take for the image of a platform is opened, or named; nothing is passed over because
// it says that it is an attestation.
func TestIndexEntries(t *testing.T) {
	good, evil := testImage(t, amd64, testLayer(t, 1, 10)), testImage(t, amd64, testLayer(t, 2, 10))
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	marked := map[string]string{"vnd.docker.reference.type": "attestation-manifest"}
	nested := testIndex(t, []v1.Platform{amd64}, []v1.Image{evil})
	for name, c := range map[string]struct {
		add     mutate.IndexAddendum
		ignored int
		twice   bool
	}{
		"attestation":             {mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &unknown, Annotations: marked}}, 1, false},
		"marked, with a platform": {mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &amd64, Annotations: marked}}, 0, true},
		"the same platform twice": {mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &amd64}}, 0, true},
		"the same image twice":    {mutate.IndexAddendum{Add: good, Descriptor: v1.Descriptor{Platform: &amd64}}, 0, false},
		"an index in it":          {mutate.IndexAddendum{Add: nested, Descriptor: v1.Descriptor{Platform: &amd64}}, 1, false},
		"another media type":      {mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &amd64}}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			idx := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, ocitypes.OCIImageIndex),
				c.add, mutate.IndexAddendum{Add: good, Descriptor: v1.Descriptor{Platform: &amd64}})
			dir := filepath.Join(t.TempDir(), "layout")
			l, err := layout.Write(dir, empty.Index)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.AppendIndex(idx); err != nil {
				t.Fatal(err)
			}
			if name == "another media type" {
				changeInner(t, dir, func(inner *v1.IndexManifest) {
					inner.Manifests[0].MediaType = "application/vnd.OCI.image.manifest.v1+json"
				})
			}
			src, err := Open(t.Context(), "oci:"+dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := ignoredBy(t, src); len(got) != c.ignored {
				t.Errorf("ignored %v, want %d", got, c.ignored)
			}
			img, err := src.Image(amd64)
			if c.twice {
				if err == nil || !strings.Contains(err.Error(), "two images") {
					t.Errorf("error is %v, want one that tells of two images", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, _ := img.Digest()
			if want, _ := good.Digest(); got != want {
				t.Errorf("it gives %s, want %s", got, want)
			}
		})
	}
}

func ignoredBy(t *testing.T, src *Source) []Ignored {
	t.Helper()
	return src.Ignored(true)
}

// changeInner changes the index that a layout's own index leads to.
func changeInner(t *testing.T, dir string, change func(*v1.IndexManifest)) {
	t.Helper()
	top := readIndexFile(t, filepath.Join(dir, "index.json"))
	inner := readIndexFile(t, filepath.Join(dir, "blobs", "sha256", top.Manifests[0].Digest.Hex))
	change(&inner)
	raw, err := json.Marshal(inner)
	if err != nil {
		t.Fatal(err)
	}
	top.Manifests[0].Digest, top.Manifests[0].Size = digestOf(raw), int64(len(raw))
	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", top.Manifests[0].Digest.Hex), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	writeIndexFile(t, dir, top)
}

func readIndexFile(t *testing.T, file string) (m v1.IndexManifest) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const dockerSchema1 = "application/vnd.docker.distribution.manifest.v1+json"

// TestTopEntries: an entry of index.json that isn't opened must not be able to take the place of the one that is. containerd
// imports each entry that has a name, whatever its platform and media type, and the last one of a name counts.
func TestTopEntries(t *testing.T) {
	good, evil := testImage(t, amd64, testLayer(t, 1, 10)), testImage(t, amd64, testLayer(t, 2, 10))
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	const full, other = "docker.io/library/slim:1", "docker.io/library/other:1"
	for name, c := range map[string]struct {
		evil    v1.Descriptor
		tag     string
		ignored int
		err     string // of Open, or of Outside
	}{
		"an attestation with the name":  {v1.Descriptor{Platform: &unknown, Annotations: names(full, "1")}, "", 1, "to sha256:"},
		"by the tag":                    {v1.Descriptor{Platform: &unknown, Annotations: names(full, "1")}, "1", 1, "to sha256:"},
		"by the short name":             {v1.Descriptor{Platform: &unknown, Annotations: names("", "1")}, "1", 1, ""},
		"by another spelling":           {v1.Descriptor{Platform: &unknown, Annotations: names("slim:1", "")}, "1", 1, "to sha256:"},
		"by the full name as the short": {v1.Descriptor{Platform: &unknown, Annotations: names("", full)}, "1", 1, "to sha256:"},
		"schema 1 with the name":        {v1.Descriptor{MediaType: dockerSchema1, Annotations: names(full, "1")}, "", 1, "to sha256:"},
		"an image with the name":        {v1.Descriptor{Annotations: names(full, "1")}, full, 0, "it has 2 images"},
		"an attestation, other name":    {v1.Descriptor{Platform: &unknown, Annotations: names(other, "1")}, "", 1, ""},
		"schema 1, other name":          {v1.Descriptor{MediaType: dockerSchema1, Annotations: names(other, "1")}, full, 1, ""},
		"schema 1 without a name":       {v1.Descriptor{MediaType: dockerSchema1}, "", 1, ""},
		"an image without a name":       {v1.Descriptor{}, "1", 1, ""},
		"an attestation without a name": {v1.Descriptor{Platform: &unknown}, "", 1, ""},
		"another image":                 {v1.Descriptor{Annotations: names(other, "2")}, "1", 0, ""},
		"another image of the same tag": {v1.Descriptor{Annotations: names(other, "1")}, full, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := topLayout(t, mutate.IndexAddendum{Add: good, Descriptor: v1.Descriptor{Annotations: names(full, "1")}},
				mutate.IndexAddendum{Add: evil, Descriptor: c.evil})
			ref := "oci:" + dir
			if c.tag != "" {
				ref += ":" + c.tag
			}
			src, err := Open(t.Context(), ref, Options{})
			if err != nil {
				if c.err == "" || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error is %v, want %q", err, c.err)
				}
				return
			}
			if found, err := src.Outside(); err != nil || c.err != "" && !strings.Contains(strings.Join(found, "\n"), c.err) {
				t.Errorf("outside %q, %v, want %q", found, err, c.err)
			}
			if src.Digest() != hexDigest(t, good) || len(ignoredBy(t, src)) != c.ignored {
				t.Errorf("it gives %s and ignores %v, want %d", src.Digest(), ignoredBy(t, src), c.ignored)
			}
		})
	}
	t.Run("one image, twice with one name", func(t *testing.T) {
		d := mutate.IndexAddendum{Add: good, Descriptor: v1.Descriptor{Annotations: names(full, "1")}}
		open(t, "oci:"+topLayout(t, d, d)+":1", testOptions())
	})
	t.Run("several platforms", func(t *testing.T) {
		dir := topLayout(t, mutate.IndexAddendum{Add: good, Descriptor: v1.Descriptor{Platform: &amd64}},
			mutate.IndexAddendum{Add: testImage(t, arm64, testLayer(t, 3, 10)), Descriptor: v1.Descriptor{Platform: &arm64}},
			mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &unknown}},
			mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &unknown, Annotations: names(full, "")}},
			mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{MediaType: dockerSchema1}})
		if src := open(t, "oci:"+dir, testOptions()); len(src.Platforms()) != 2 || len(ignoredBy(t, src)) != 3 {
			t.Errorf("platforms %v, ignored %v", src.Platforms(), ignoredBy(t, src))
		}
	})
}

func names(full, short string) map[string]string {
	out := map[string]string{}
	if full != "" {
		out[AnnotationImageName] = full
	}
	if short != "" {
		out[AnnotationRefName] = short
	}
	return out
}

// topLayout writes a layout whose index.json has the entries given, media types too.
func topLayout(t *testing.T, add ...mutate.IndexAddendum) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range add {
		if err := l.AppendImage(a.Add.(v1.Image)); err != nil {
			t.Fatal(err)
		}
	}
	top := readIndexFile(t, filepath.Join(dir, "index.json"))
	for i, a := range add {
		d := &top.Manifests[i]
		d.Annotations, d.Platform = a.Annotations, a.Platform
		if a.MediaType != "" {
			d.MediaType = a.MediaType
		}
	}
	writeIndexFile(t, dir, top)
	return dir
}

func writeIndexFile(t *testing.T, dir string, top v1.IndexManifest) {
	t.Helper()
	raw, err := json.Marshal(top)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "index.json"), raw, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPlatformSpellings: containerd takes an entry for the image of a platform in any spelling (containerd/platforms,
// Normalize), so that two such entries are two images of it.
func TestPlatformSpellings(t *testing.T) {
	good, evil := testImage(t, amd64, testLayer(t, 1, 10)), testImage(t, amd64, testLayer(t, 2, 10))
	for name, c := range map[string]struct {
		platform *v1.Platform
		twice    bool
	}{
		"x86_64":          {&v1.Platform{OS: "linux", Architecture: "x86_64"}, true},
		"x86-64":          {&v1.Platform{OS: "linux", Architecture: "x86-64"}, true},
		"AMD64":           {&v1.Platform{OS: "linux", Architecture: "AMD64"}, true},
		"Linux":           {&v1.Platform{OS: "Linux", Architecture: "amd64"}, true},
		"no OS":           {&v1.Platform{Architecture: "amd64"}, true},
		"nothing":         {&v1.Platform{}, true},
		"no platform":     {nil, true},
		"V1":              {&v1.Platform{OS: "linux", Architecture: "amd64", Variant: "V1"}, true},
		"an OS version":   {&v1.Platform{OS: "linux", Architecture: "amd64", OSVersion: "5"}, true},
		"an OS feature":   {&v1.Platform{OS: "linux", Architecture: "amd64", OSFeatures: []string{"x"}}, true},
		"v2":              {&v1.Platform{OS: "linux", Architecture: "amd64", Variant: "v2"}, false},
		"386":             {&v1.Platform{OS: "linux", Architecture: "386"}, false},
		"another OS":      {&v1.Platform{OS: "freebsd", Architecture: "amd64"}, false},
		"known to no-one": {&v1.Platform{OS: "linux", Architecture: "amd64x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			idx := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, ocitypes.OCIImageIndex),
				mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: c.platform}},
				mutate.IndexAddendum{Add: good, Descriptor: v1.Descriptor{Platform: &amd64}})
			dir := writeBase(t, idx, "a")
			if c.platform == nil {
				changeInner(t, dir, func(inner *v1.IndexManifest) { inner.Manifests[0].Platform = nil })
			}
			src := open(t, "oci:"+dir, testOptions())
			if len(src.Platforms()) != 2 {
				t.Errorf("platforms %v", src.Platforms())
			}
			img, err := src.Image(amd64)
			_, all := src.Images(src.Platforms()...)
			if c.twice {
				for _, err := range []error{err, all} {
					if err == nil || !strings.Contains(err.Error(), "two images") {
						t.Errorf("error is %v, want one that tells of two images", err)
					}
				}
				return
			}
			if err != nil || all != nil {
				t.Fatal(err, all)
			}
			if hexDigest(t, img) != hexDigest(t, good) {
				t.Error("it gives the other image")
			}
		})
	}
	for _, c := range [][2]v1.Platform{
		{{OS: "linux", Architecture: "aarch64"}, arm64},
		{{OS: "linux", Architecture: "arm64", Variant: "8"}, arm64},
		{{OS: "linux", Architecture: "arm64", Variant: "v8"}, arm64},
		{{OS: "linux", Architecture: "armhf"}, {OS: "linux", Architecture: "arm"}},
		{{OS: "linux", Architecture: "armel"}, {OS: "linux", Architecture: "arm", Variant: "v6"}},
		{{OS: "macos", Architecture: "arm64"}, {OS: "darwin", Architecture: "arm64"}},
	} {
		if !SamePlatform(c[0], c[1]) || !SamePlatform(c[1], c[0]) {
			t.Errorf("%s is not %s", c[0], c[1])
		}
	}
}
