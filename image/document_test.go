package image

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// TestDocuments: what programs read in more ways than one is refused, whatever it comes from.
func TestDocuments(t *testing.T) {
	replaced := func(old, by string) func(string) string {
		return func(s string) string {
			if !strings.Contains(s, old) {
				t.Errorf("no %s in %s", old, s)
			}
			return strings.Replace(s, old, by, 1)
		}
	}
	same := func(s string) string { return s }
	const layer = `{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":1,"digest":"sha256:` +
		`0000000000000000000000000000000000000000000000000000000000000000"}`
	for name, c := range map[string]struct {
		index, manifest func(string) string
		err             string
	}{
		"good":                        {same, same, ""},
		"layers twice":                {same, replaced(`"layers":`, `"layers":[`+layer+`],"layers":`), `the key "layers" is there twice`},
		"layers in two cases":         {same, replaced(`"layers":`, `"layers":[`+layer+`],"Layers":`), `"Layers" differs from "layers" in case only`},
		"layers in another case":      {same, replaced(`"layers":`, `"LAYERS":`), "differs from"},
		"another alphabet":            {same, replaced(`"layers":`, `"layer\u017f":`), "differs from"},
		"config in two cases":         {same, replaced(`"config":`, `"Config":`+layer+`,"config":`), "differs from"},
		"a digest twice":              {same, replaced(`"digest":`, `"digest":"x","digest":`), "is there twice"},
		"a digest in two cases":       {same, replaced(`"digest":`, `"Digest":"x","digest":`), "differs from"},
		"more behind it":              {same, func(s string) string { return s + s }, "more after its end"},
		"manifests in a manifest":     {same, replaced(`"layers":`, `"manifests":[],"layers":`), `it has "manifests"`},
		"schema 1 in a manifest":      {same, replaced(`"layers":`, `"fsLayers":[],"layers":`), `it has "fsLayers"`},
		"another media type":          {same, replaced(string(ocitypes.OCIManifestSchema1), string(ocitypes.DockerManifestSchema2)), "it states the media type"},
		"an index's media type":       {same, replaced(string(ocitypes.OCIManifestSchema1), string(ocitypes.OCIImageIndex)), "it states the media type"},
		"no media type":               {same, replaced(`"mediaType":"`+string(ocitypes.OCIManifestSchema1)+`",`, ""), ""},
		"manifests twice":             {replaced(`"manifests":`, `"manifests":[],"manifests":`), same, "is there twice"},
		"manifests in two cases":      {replaced(`"manifests":`, `"manifests":[],"Manifests":`), same, "differs from"},
		"a platform in two cases":     {replaced(`"platform":`, `"Platform":{},"platform":`), same, "differs from"},
		"an OS in two cases":          {replaced(`"os":"linux"`, `"OS":"windows","os":"linux"`), same, "differs from"},
		"layers in an index":          {replaced(`"manifests":`, `"layers":[],"manifests":`), same, `it has "layers"`},
		"config in an index":          {replaced(`"manifests":`, `"config":`+layer+`,"manifests":`), same, `it has "config"`},
		"a manifest's type":           {replaced(string(ocitypes.OCIImageIndex), string(ocitypes.OCIManifestSchema1)), same, "it states the media type"},
		"annotations in two cases":    {replaced(`"manifests":`, `"annotations":{"a":"1","A":"2"},"manifests":`), same, ""},
		"an annotation twice":         {replaced(`"manifests":`, `"annotations":{"a":"1","a":"2"},"manifests":`), same, "is there twice"},
		"more behind the index":       {func(s string) string { return s + "x" }, same, "index sha256:"},
		"too many levels":             {replaced(`"manifests":`, `"x":`+strings.Repeat("[", 20)+strings.Repeat("]", 20)+`,"manifests":`), same, "levels"},
		"manifests of a wrong type":   {replaced(`"manifests":[`, `"manifests":{"x":[`), same, "index sha256:"},
		"a manifest of a wrong type":  {same, replaced(`"layers":[`, `"layers":{"x":[`), "manifest sha256:"},
		"an unknown key stays unread": {same, replaced(`"layers":`, `"other":{"Layers":1},"layers":`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := rewritten(t, c.index, c.manifest)
			host := manifestServer(t, dir)
			for _, ref := range []string{"oci:" + dir, host + "/a:a"} {
				src, err := Open(t.Context(), ref, testOptions())
				if err == nil {
					_, err = src.Image(amd64)
				}
				if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "sha256:")) {
					t.Errorf("%s: error is %v, want %q", ref, err, c.err)
				}
			}
		})
	}
	for name, c := range map[string]struct{ file, old, by string }{
		"oci-layout twice":   {"oci-layout", `{`, `{"imageLayoutVersion":"2.0.0",`},
		"oci-layout in case": {"oci-layout", `{`, `{"ImageLayoutVersion":"2.0.0",`},
		"index.json twice":   {"index.json", `"manifests":`, `"manifests":[],"manifests":`},
		"index.json in case": {"index.json", `"manifests":`, `"manifests":[],"Manifests":`},
		"index.json's type":  {"index.json", string(ocitypes.OCIImageIndex), string(ocitypes.OCIManifestSchema1)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := rewritten(t, same, same)
			raw, err := os.ReadFile(filepath.Join(dir, c.file))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, c.file), []byte(replaced(c.old, c.by)(string(raw))), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), "oci:"+dir, testOptions()); err == nil || !strings.Contains(err.Error(), c.file) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// rewritten is a layout of an index of one image, both documents changed as text.
func rewritten(t *testing.T, index, manifest func(string) string) string {
	t.Helper()
	dir := writeBase(t, testIndex(t, []v1.Platform{amd64}, []v1.Image{testImage(t, amd64, testLayer(t, 1, 10))}), "a")
	put := func(d *v1.Descriptor, raw []byte, err error) {
		if err == nil {
			d.Digest, d.Size = digestOf(raw), int64(len(raw))
			err = os.WriteFile(blobFile(dir, d.Digest), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	top := readIndexFile(t, filepath.Join(dir, "index.json"))
	inner := readIndexFile(t, blobFile(dir, top.Manifests[0].Digest))
	raw, err := os.ReadFile(blobFile(dir, inner.Manifests[0].Digest))
	put(&inner.Manifests[0], []byte(manifest(string(raw))), err)
	raw, err = json.Marshal(inner)
	put(&top.Manifests[0], []byte(index(string(raw))), err)
	writeIndexFile(t, dir, top)
	return dir
}

func blobFile(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }

// manifestServer is a registry that checks nothing: it serves the blobs of a layout, and its image as the tag a.
func manifestServer(t *testing.T, dir string) (host string) {
	t.Helper()
	top := readIndexFile(t, filepath.Join(dir, "index.json"))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := path.Base(r.URL.Path)
		if r.URL.Path == "/v2/" {
			return
		}
		mt := ocitypes.OCIManifestSchema1
		if id == "a" || id == top.Manifests[0].Digest.String() {
			id, mt = top.Manifests[0].Digest.String(), top.Manifests[0].MediaType
		}
		w.Header().Set("Content-Type", string(mt))
		http.ServeFile(w, r, filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(id, "sha256:")))
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}
