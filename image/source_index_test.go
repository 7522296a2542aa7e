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
		"attestation":             {mutate.IndexAddendum{Add: evil, Descriptor: v1.Descriptor{Platform: &unknown, Annotations: marked}}, 0, false},
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
				retype(t, dir)
			}
			src, err := Open(t.Context(), "oci:"+dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := src.Ignored(); len(got) != c.ignored {
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

// retype changes the media type of the first entry of the index that a layout's own index leads to.
func retype(t *testing.T, dir string) {
	t.Helper()
	top := readIndexFile(t, filepath.Join(dir, "index.json"))
	inner := readIndexFile(t, filepath.Join(dir, "blobs", "sha256", top.Manifests[0].Digest.Hex))
	inner.Manifests[0].MediaType = "application/vnd.OCI.image.manifest.v1+json"
	raw, err := json.Marshal(inner)
	if err != nil {
		t.Fatal(err)
	}
	top.Manifests[0].Digest, top.Manifests[0].Size = digestOf(raw), int64(len(raw))
	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", top.Manifests[0].Digest.Hex), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	raw, err = json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), raw, 0o644); err != nil {
		t.Fatal(err)
	}
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
