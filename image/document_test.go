package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// TestDocuments: media types and sizes are as the descriptor says. What else a document says is covered by its digest.
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
		"good":                       {same, same, ""},
		"another media type":         {same, replaced(string(ocitypes.OCIManifestSchema1), string(ocitypes.DockerManifestSchema2)), "media type is"},
		"an index's media type":      {same, replaced(string(ocitypes.OCIManifestSchema1), string(ocitypes.OCIImageIndex)), "media type is"},
		"no media type":              {same, replaced(`"mediaType":"`+string(ocitypes.OCIManifestSchema1)+`",`, ""), ""},
		"a manifest's type":          {replaced(string(ocitypes.OCIImageIndex), string(ocitypes.OCIManifestSchema1)), same, "media type is"},
		"manifests of a wrong type":  {replaced(`"manifests":[`, `"manifests":{"x":[`), same, "index sha256:"},
		"a manifest of a wrong type": {same, replaced(`"layers":[`, `"layers":{"x":[`), "manifest sha256:"},
		"a size below nothing":       {same, replaced(`"size":`, `"size":-1,"x":`), "a size of -1"}, // go-containerregistry reads without end
		"an index's size":            {replaced(`"size":`, `"size":-1,"x":`), same, "a size of -1"},
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
		"oci-layout twice":  {"oci-layout", `{`, `{"imageLayoutVersion":"2.0.0",`},
		"index.json's type": {"index.json", string(ocitypes.OCIImageIndex), string(ocitypes.OCIManifestSchema1)},
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
		if strings.HasPrefix(r.URL.Path, "/v2/moved/manifests/") { // a manifest may come from anywhere
			http.Redirect(w, r, "/elsewhere/"+id, http.StatusTemporaryRedirect)
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

// TestDocumentBounds: a document of a few MiB must not take hundreds of them to decode.
func TestDocumentBounds(t *testing.T) {
	same := func(s string) string { return s }
	many := func(key string, n int) func(string) string {
		return func(s string) string { return strings.Replace(s, "{", `{"`+key+`":`+elements(n)+`,`, 1) }
	}
	inPlace := func(key string, n int) func(string) string {
		return func(s string) string {
			return strings.Replace(s, `"`+key+`":[`, `"`+key+`":`+strings.TrimSuffix(elements(n), "]")+",", 1)
		}
	}
	const mib = 1 << 20
	for name, c := range map[string]struct {
		index, manifest func(string) string
		err             string
	}{
		"manifests": {inPlace("manifests", 1_000_000), same, "more than 50000 JSON values"},
		"in case":   {many("Manifests", 1_000_000), same, "more than 50000 JSON values"},
		"layers":    {same, inPlace("layers", 1_000_000), "more than 50000 JSON values"},
		"values":    {same, many("x", 1_000_000), "more than 50000 JSON values"},
		"deep": {same, func(s string) string {
			return strings.Replace(s, "{", `{"x":`+strings.Repeat("[", mib)+strings.Repeat("]", mib)+",", 1)
		}, "exceeded max depth"},
		"bytes":    {same, func(s string) string { return s + strings.Repeat(" ", 4*mib) }, "more than 4194304"},
		"index":    {func(s string) string { return s + strings.Repeat(" ", 4*mib) }, same, "more than 4194304"},
		"not much": {same, func(s string) string { return s + strings.Repeat(" ", 3*mib) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := rewritten(t, c.index, c.manifest)
			host := manifestServer(t, dir)
			for _, ref := range []string{"oci:" + dir, host + "/a:a", host + "/moved:a"} {
				var err error
				used := allocated(func() {
					var src *Source
					if src, err = Open(t.Context(), ref, testOptions()); err == nil {
						_, err = src.Image(amd64)
					}
				})
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: error is %v, want %q", ref, err, c.err)
				}
				if used > 100*mib {
					t.Errorf("%s: it took %d MiB", ref, used/mib)
				}
			}
		})
	}
	t.Run("index.json", func(t *testing.T) {
		dir := rewritten(t, same, same)
		if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(`{"manifests":`+elements(1_000_000)+`}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), "oci:"+dir, testOptions()); err == nil || !strings.Contains(err.Error(), "more than 50000 JSON values") {
			t.Errorf("error is %v", err)
		}
	})
	for name, c := range map[string]struct{ config, err string }{
		"history":      {`{"history":` + elements(1_000_000) + `}`, "more than 50000 JSON values"},
		"diff_ids":     {`{"rootfs":{"diff_ids":` + elements(1_000_000) + `}}`, "more than 50000 JSON values"},
		"config bytes": {`{}` + strings.Repeat(" ", 4*mib), "more than 4194304"},
		"long history": {`{"rootfs":{"diff_ids":[""]},"history":` + elements(5000) + `}`, ""},
		"a key twice":  {`{"a":1,"a":2,"rootfs":{"diff_ids":[""]}}`, ""}, // which verify tells of
	} {
		t.Run(name, func(t *testing.T) {
			config := strings.Replace(c.config, `[""]`, `["sha256:`+strings.Repeat("0", 64)+`"]`, 1)
			dir := rewritten(t, same, func(s string) string {
				var m v1.Manifest
				if err := json.Unmarshal([]byte(s), &m); err != nil {
					t.Fatal(err)
				}
				m.Config.Digest, m.Config.Size = digestOf([]byte(config)), int64(len(config))
				raw, err := json.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				return string(raw)
			})
			if err := os.WriteFile(blobFile(dir, digestOf([]byte(config))), []byte(config), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, ref := range []string{"oci:" + dir, manifestServer(t, dir) + "/a:a"} {
				var err error
				used := allocated(func() { _, err = open(t, ref, testOptions()).Image(amd64) })
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: error is %v, want %q", ref, err, c.err)
				}
				if used > 100*mib {
					t.Errorf("%s: it took %d MiB", ref, used/mib)
				}
			}
		})
	}
}

// TestOldDockerBounds has a docker archive that is no layout: go-containerregistry decodes its config when it opens it.
func TestOldDockerBounds(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range [][2]string{
		{"manifest.json", `[{"Config":"c.json","RepoTags":["a:1"],"Layers":[]}]`},
		{"c.json", `{"history":` + elements(1_000_000) + `}`},
	} {
		if err := w.WriteHeader(&tar.Header{Name: e[0], Mode: 0o644, Size: int64(len(e[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "old.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	used := allocated(func() { _, err = Open(t.Context(), "docker-archive:"+file, testOptions()) })
	if err == nil || !strings.Contains(err.Error(), "more than 50000 JSON values") || used > 100<<20 {
		t.Errorf("error is %v, and it took %d bytes", err, used)
	}
}

// elements is a JSON array of n empty objects.
func elements(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]" }

// allocated is how many bytes do allocates, freed or not.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
