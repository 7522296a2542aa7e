package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// tampered is a copy of the L0 image of line B, an index of two platforms, that a test changes.
type tampered struct {
	testing.TB
	dir string
	// index, manifest and config are the documents of the index, and of its first image; save writes those that aren't as they
	// were.
	index, manifest, config object
	was                     [3]object
}

type object = map[string]any

func tamper(t testing.TB, dir string) *tampered {
	t.Helper()
	good, err := built["B"]()
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(good))
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &tampered{TB: t, dir: dir}
	top := f.document("index.json")
	f.index = f.document(f.blobName(entry(top, "manifests", 0)))
	f.manifest = f.document(f.blobName(entry(f.index, "manifests", 0)))
	f.config = f.document(f.blobName(f.manifest["config"].(object)))
	f.was = [3]object{clone(f, f.index), clone(f, f.manifest), clone(f, f.config)}
	return f
}

func entry(o object, list string, i int) object { return o[list].([]any)[i].(object) }

// push appends an entry to a list of a document.
func push(o object, list string, more any) { o[list] = append(o[list].([]any), more) }

func (f *tampered) blobName(d object) string {
	return "blobs/sha256/" + strings.TrimPrefix(d["digest"].(string), "sha256:")
}

func (f *tampered) document(name string) (o object) {
	f.Helper()
	raw, err := os.ReadFile(filepath.Join(f.dir, name))
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	if err != nil {
		f.Fatal(err)
	}
	return o
}

func (f *tampered) write(name string, data []byte) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), data, 0o644); err != nil {
		f.Fatal(err)
	}
}

// blob adds a blob, and has the descriptor name it. What is no []byte is written as JSON.
func (f *tampered) blob(d object, content any) object {
	f.Helper()
	raw, ok := content.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(content); err != nil {
			f.Fatal(err)
		}
	}
	h, size, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		f.Fatal(err)
	}
	d["digest"], d["size"] = h.String(), size
	f.write(f.blobName(d), raw)
	return d
}

// save writes the documents that were changed, each with the digests of those below it.
func (f *tampered) save() {
	f.Helper()
	top := f.document("index.json")
	for i, d := range []struct{ descriptor, document object }{
		{f.manifest["config"].(object), f.config}, {entry(f.index, "manifests", 0), f.manifest}, {entry(top, "manifests", 0), f.index},
	} {
		if !reflect.DeepEqual(clone(f, d.document), f.was[2-i]) {
			f.blob(d.descriptor, d.document)
		}
	}
	raw, err := json.Marshal(top)
	if err != nil {
		f.Fatal(err)
	}
	f.write("index.json", raw)
	f.removeUnused()
}

var hexDigest = regexp.MustCompile(`[0-9a-f]{64}`)

// removeUnused removes the blobs that no document names any more.
func (f *tampered) removeUnused() {
	f.Helper()
	used := map[string]bool{}
	var use func(file string)
	use = func(file string) {
		raw, err := os.ReadFile(filepath.Join(f.dir, file))
		if err != nil || !bytes.HasPrefix(raw, []byte("{")) && !bytes.HasPrefix(raw, []byte("[")) {
			return
		}
		for _, hex := range hexDigest.FindAllString(string(raw), -1) {
			if blob := "blobs/sha256/" + hex; !used[blob] {
				used[blob] = true
				use(blob)
			}
		}
	}
	use("index.json")
	use("manifest.json")
	all, err := filepath.Glob(filepath.Join(f.dir, "blobs/sha256", strings.Repeat("[0-9a-f]", 64)))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range all {
		if !used["blobs/sha256/"+filepath.Base(file)] {
			if err := os.Remove(file); err != nil {
				f.Fatal(err)
			}
		}
	}
}

// annotate sets an annotation of the image's entry in index.json.
func (f *tampered) annotate(key, value string) {
	f.Helper()
	top := f.document("index.json")
	entry(top, "manifests", 0)["annotations"] = object{key: value}
	raw, err := json.Marshal(top)
	if err != nil {
		f.Fatal(err)
	}
	f.write("index.json", raw)
}

// added puts one more layer on top.
func (f *tampered) added(files ...image.File) {
	f.Helper()
	l, err := image.NewLayer(files)
	if err != nil {
		f.Fatal(err)
	}
	r, err := l.Compressed()
	if err != nil {
		f.Fatal(err)
	}
	blob, err := io.ReadAll(r)
	if err != nil {
		f.Fatal(err)
	}
	h, err := l.DiffID()
	if err != nil {
		f.Fatal(err)
	}
	push(f.manifest, "layers", f.blob(object{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}, blob))
	push(f.config["rootfs"].(object), "diff_ids", h.String())
	push(f.config, "history", object{"created_by": "slimctl l0: lay more"})
}

// swap has two layers change their places.
func (f *tampered) swap(i, j int) {
	for _, list := range [][]any{f.manifest["layers"].([]any), f.config["rootfs"].(object)["diff_ids"].([]any)} {
		list[i], list[j] = list[j], list[i]
	}
}

// layers counts the layers.
func (f *tampered) layers() int { return len(f.manifest["layers"].([]any)) }

// removal is the position of the layer that removes: the first above the base.
func (f *tampered) removal() int {
	for i, h := range f.config["history"].([]any) {
		if by, _ := h.(object)["created_by"].(string); strings.Contains(by, ": remove ") {
			empty := 0
			for _, e := range f.config["history"].([]any)[:i] {
				if e.(object)["empty_layer"] == true {
					empty++
				}
			}
			return i - empty
		}
	}
	f.Fatal("the history has no removal")
	return 0
}

// relayer replaces a layer by what change makes of its archive.
func (f *tampered) relayer(i int, change func(archive []byte) (blob []byte)) {
	f.Helper()
	d := entry(f.manifest, "layers", i)
	raw, err := os.ReadFile(filepath.Join(f.dir, f.blobName(d)))
	if err != nil {
		f.Fatal(err)
	}
	blob := change(gunzip(f, raw))
	f.blob(d, blob)
	h, _, err := v1.SHA256(bytes.NewReader(gunzip(f, blob)))
	if err != nil {
		f.Fatal(err)
	}
	f.config["rootfs"].(object)["diff_ids"].([]any)[i] = h.String()
}

// gunzip is what a blob holds, compressed or not.
func gunzip(t testing.TB, blob []byte) []byte {
	t.Helper()
	if !bytes.HasPrefix(blob, []byte("\x1f\x8b")) {
		return blob
	}
	r, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// gzipped compresses as BuildKit does; header changes the gzip header.
func gzipped(t testing.TB, data []byte, header func(*gzip.Header)) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if header != nil {
		header(&w.Header)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rewritten writes an archive anew, each header changed, with more entries at its end.
func rewritten(t testing.TB, archive []byte, change func(*tar.Header), more ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	r, w := tar.NewReader(bytes.NewReader(archive)), tar.NewWriter(&b)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		change(h)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range more {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// attestation is the manifest of one, of layers with that media type, which attests the index's first image.
func (f *tampered) attestation(mediaType string, config object) object {
	statement := f.blob(object{"mediaType": mediaType, "annotations": object{"in-toto.io/predicate-type": "https://slsa.dev/provenance/v1"}},
		object{"_type": "https://in-toto.io/Statement/v0.1"})
	config["rootfs"] = object{"type": "layers", "diff_ids": []any{statement["digest"]}}
	return f.blob(object{
		"mediaType": "application/vnd.oci.image.manifest.v1+json",
		"platform":  object{"os": "unknown", "architecture": "unknown"},
		"annotations": object{
			"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": entry(f.index, "manifests", 1)["digest"],
		},
	}, object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": f.blob(object{"mediaType": "application/vnd.oci.image.config.v1+json"}, config), "layers": []any{statement},
	})
}

func unknownConfig() object {
	return object{"os": "unknown", "architecture": "unknown", "config": object{}}
}

const inToto = "application/vnd.in-toto+json"

// TestTamperedImagesAreFound changes a good image in one way each. Verify is told the base, and is to say no: by the rule,
// or by refusing to read.
func TestTamperedImagesAreFound(t *testing.T) {
	t.Parallel()
	top := func(f *tampered) int { return f.layers() - 1 }
	extra := func(o object) { o["urls"] = []any{"https://evil.example/x"} }
	for name, c := range map[string]struct {
		do   func(*tampered)
		want string // of what it says; empty where the image is good
	}{
		"nothing": {func(*tampered) {}, ""},

		// Beside the layout.
		"manifest.json of another image": {func(f *tampered) {
			evil := f.blob(object{}, object{"os": "linux", "architecture": "amd64", "rootfs": object{"type": "layers", "diff_ids": []any{}}})
			f.write("manifest.json", []byte(`[{"Config":"`+f.blobName(evil)+`","RepoTags":["slim:1"],"Layers":[]}]`))
		}, "don't name the same image"},
		"manifest.json with layers less": {func(f *tampered) {
			f.write("manifest.json", []byte(`[{"Config":"`+f.blobName(f.manifest["config"].(object))+`","RepoTags":["slim:1"],"Layers":[]}]`))
		}, "don't name the same image"},
		"manifest.json of several": {func(f *tampered) {
			evil := f.blob(object{}, object{"os": "linux", "architecture": "amd64", "rootfs": object{"type": "layers", "diff_ids": []any{}}})
			f.write("manifest.json", []byte(`[`+f.dockerEntry()+`,{"Config":"`+f.blobName(evil)+`","RepoTags":["slim:2"],"Layers":[]}]`))
		}, "don't name the same image"},
		"a manifest.json that climbs": {func(f *tampered) {
			f.write("manifest.json", []byte(strings.Replace("["+f.dockerEntry()+"]", "blobs/", "../x/../blobs/", 1)))
		}, "blobs/"},
		"manifest.json is a directory": {func(f *tampered) {
			if err := os.Mkdir(filepath.Join(f.dir, "manifest.json"), 0o755); err != nil {
				f.Fatal(err)
			}
		}, "manifest.json"},
		"repositories":              {func(f *tampered) { f.write("repositories", []byte(`{"slim":{"1":"abc"}}`)) }, "error layout"},
		"manifest.json of the same": {func(f *tampered) { f.write("manifest.json", []byte("["+f.dockerEntry()+"]")) }, ""},
		"repositories and manifest.json": {func(f *tampered) {
			f.write("repositories", []byte(`{}`))
			f.write("manifest.json", []byte("["+f.dockerEntry()+"]"))
		}, "error layout"},
		"a file more in the layout": {func(f *tampered) { f.write("README", []byte("x")) }, "error layout"},
		"a blob more":               {func(f *tampered) { f.write("blobs/sha256/x", []byte("x")) }, "error layout"},
		"a runtime in index.json":   {func(f *tampered) { f.annotate("run.oci.handler", "krun") }, "error layout"},
		"a name that is none":       {func(f *tampered) { f.annotate("io.containerd.image.name", "\x1b[2J") }, "error layout"},
		"an odd layout version":     {func(f *tampered) { f.write("oci-layout", []byte(`{"imageLayoutVersion":"1.evil"}`)) }, "another version than 1.0.0"},
		"more in oci-layout":        {func(f *tampered) { f.write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0","x":1}`)) }, "other keys"},
		"two names of another image": {func(f *tampered) {
			f.annotate("io.containerd.image.name", "docker.io/library/alpine:latest")
			top := f.document("index.json")
			more := clone(f, entry(top, "manifests", 0))
			more["annotations"] = object{"io.containerd.image.name": "docker.io/library/debian:latest"}
			push(top, "manifests", more)
			raw, err := json.Marshal(top)
			if err != nil {
				f.Fatal(err)
			}
			f.write("index.json", raw)
		}, ""},
		"another image's name": {func(f *tampered) { f.annotate("io.containerd.image.name", "docker.io/library/alpine:latest") }, ""},

		// Beside the images of the index.
		"an attestation": {func(f *tampered) { push(f.index, "manifests", f.attestation(inToto, unknownConfig())) }, "error platform"},
		"an image of no platform": {func(f *tampered) {
			evil := clone(f, entry(f.index, "manifests", 0))
			evil["platform"] = object{"os": "unknown", "architecture": "unknown"}
			push(f.index, "manifests", evil)
		}, "error platform"},
		"an image called an attestation": {func(f *tampered) {
			evil := clone(f, f.attestation(inToto, unknownConfig()))
			other := entry(f.index, "manifests", 1)
			evil["digest"], evil["size"] = other["digest"], other["size"]
			push(f.index, "manifests", evil)
		}, "error platform"},
		"layers in an attestation": {func(f *tampered) {
			push(f.index, "manifests", f.attestation("application/vnd.oci.image.layer.v1.tar", unknownConfig()))
		}, "error platform"},
		"an attestation that starts": {func(f *tampered) {
			push(f.index, "manifests", f.attestation(inToto, object{"os": "unknown", "architecture": "unknown", "config": object{"Cmd": []any{"/bin/sh"}}}))
		}, "error platform"},
		"an attestation for Linux": {func(f *tampered) {
			push(f.index, "manifests", f.attestation(inToto, object{"os": "linux", "architecture": "amd64"}))
		}, "error platform"},
		"an attestation of something else": {func(f *tampered) {
			a := f.attestation(inToto, unknownConfig())
			a["annotations"].(object)["vnd.docker.reference.digest"] = "sha256:" + strings.Repeat("0", 64)
			push(f.index, "manifests", a)
		}, "error platform"},
		"an attestation without a type": {func(f *tampered) {
			a := f.attestation(inToto, unknownConfig())
			delete(a["annotations"].(object), "vnd.docker.reference.type")
			push(f.index, "manifests", a)
		}, "error platform"},
		"an attestation with a name": {func(f *tampered) {
			a := f.attestation(inToto, unknownConfig())
			a["annotations"].(object)["io.containerd.image.name"] = "docker.io/library/slim:1"
			push(f.index, "manifests", a)
		}, "error platform"},
		"an attestation with a version": {func(f *tampered) {
			a := f.attestation(inToto, unknownConfig())
			a["platform"].(object)["os.version"] = "1"
			push(f.index, "manifests", a)
		}, "error platform"},
		"an attestation that is gone": {func(f *tampered) {
			a := f.attestation(inToto, unknownConfig())
			a["digest"] = "sha256:" + strings.Repeat("0", 64)
			push(f.index, "manifests", a)
		}, "error platform"},

		// The documents themselves.
		"data in the index's entry":    {func(f *tampered) { entry(f.index, "manifests", 0)["data"] = "e30=" }, "error index"},
		"urls in the index's entry":    {func(f *tampered) { extra(entry(f.index, "manifests", 0)) }, "error index"},
		"an artifact in the index":     {func(f *tampered) { entry(f.index, "manifests", 0)["artifactType"] = "x/y" }, "error index"},
		"an annotation in the index":   {func(f *tampered) { entry(f.index, "manifests", 0)["annotations"] = object{"a": "b"} }, "error index"},
		"a key in the index's entry":   {func(f *tampered) { entry(f.index, "manifests", 0)["x"] = 1 }, "error index"},
		"an OS feature in the index":   {func(f *tampered) { entry(f.index, "manifests", 0)["platform"].(object)["os.features"] = []any{"x"} }, "error index"},
		"an OS version in the index":   {func(f *tampered) { entry(f.index, "manifests", 0)["platform"].(object)["os.version"] = "5" }, "error"},
		"a key of the platform":        {func(f *tampered) { entry(f.index, "manifests", 0)["platform"].(object)["x"] = "5" }, "error index"},
		"Docker's type in the index":   {func(f *tampered) { f.index["mediaType"] = "application/vnd.docker.distribution.manifest.list.v2+json" }, "media type"},
		"no type of the index":         {func(f *tampered) { delete(f.index, "mediaType") }, "error index"},
		"the index an artifact":        {func(f *tampered) { f.index["artifactType"] = "x/y" }, "error index"},
		"a subject of the index":       {func(f *tampered) { f.index["subject"] = entry(f.index, "manifests", 1) }, "error index"},
		"another schema of the index":  {func(f *tampered) { f.index["schemaVersion"] = 1 }, "error index"},
		"a key of the index":           {func(f *tampered) { f.index["x"] = object{} }, "error index"},
		"another schema":               {func(f *tampered) { f.manifest["schemaVersion"] = 1 }, "error manifest"},
		"a key of the manifest":        {func(f *tampered) { f.manifest["x"] = object{} }, "error manifest"},
		"a key of the config":          {func(f *tampered) { f.manifest["config"].(object)["x"] = "y" }, "error manifest"},
		"data of the config":           {func(f *tampered) { f.manifest["config"].(object)["data"] = "e30=" }, "error manifest"},
		"a key of the base's layer":    {func(f *tampered) { entry(f.manifest, "layers", 0)["x"] = "y" }, "error manifest"},
		"data of the base's layer":     {func(f *tampered) { entry(f.manifest, "layers", 0)["data"] = "e30=" }, "error manifest"},
		"urls of the base's layer":     {func(f *tampered) { extra(entry(f.manifest, "layers", 0)) }, "error manifest"},
		"the base's layer an artifact": {func(f *tampered) { entry(f.manifest, "layers", 0)["artifactType"] = "x/y" }, "error manifest"},
		"a platform of the base's": {func(f *tampered) {
			entry(f.manifest, "layers", 0)["platform"] = object{"os": "linux", "architecture": "amd64"}
		}, "error manifest"},
		"another type of the base's": {func(f *tampered) {
			entry(f.manifest, "layers", 0)["mediaType"] = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
		}, "error manifest"},
		"an annotation of the base's": {func(f *tampered) { entry(f.manifest, "layers", 0)["annotations"] = object{"a": "b"} }, "error manifest"},
		"a table of contents": {func(f *tampered) {
			entry(f.manifest, "layers", 0)["annotations"] = object{"containerd.io/snapshot/stargz/toc.digest": "sha256:" + strings.Repeat("0", 64)}
		}, "error manifest"},
		"an index of the index's image": {func(f *tampered) {
			entry(f.index, "manifests", 0)["mediaType"] = "application/vnd.oci.image.index.v1+json"
		}, "error platform"},

		// The layers above the base.
		"compressed by another": {func(f *tampered) { f.relayer(top(f), func(b []byte) []byte { return gzipped(f, b, nil) }) }, "error layer"},
		"more in gzip's header": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte {
				return gzipped(f, b, func(h *gzip.Header) { h.Extra = []byte("SG\x04\x00evil") })
			})
		}, "error layer"},
		"a name in gzip's header": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte { return gzipped(f, b, func(h *gzip.Header) { h.Name = "x.tar" }) })
		}, "error layer"},
		"two gzip members": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte {
				return append(gzipped(f, b[:len(b)-1024], nil), gzipped(f, b[len(b)-1024:], nil)...)
			})
		}, "error layer"},
		"an empty gzip member": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte { return append(gzipped(f, b, nil), gzipped(f, nil, nil)...) })
		}, "error layer"},
		"a user's name": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte {
				return gzipped(f, rewritten(f, b, func(h *tar.Header) { h.Uname = "daemon" }), nil)
			})
		}, "error layer"},
		"a group's name": {func(f *tampered) {
			f.relayer(f.removal(), func(b []byte) []byte {
				return gzipped(f, rewritten(f, b, func(h *tar.Header) { h.Gname = "daemon" }), nil)
			})
		}, "error layer"},
		"parts of a second": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte {
				return gzipped(f, rewritten(f, b, func(h *tar.Header) { h.Format, h.ModTime = tar.FormatPAX, h.ModTime.Add(1) }), nil)
			})
		}, "error layer"},
		"the year 3000": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte {
				return gzipped(f, rewritten(f, b, func(h *tar.Header) { h.Format, h.ModTime = tar.FormatPAX, h.ModTime.AddDate(1000, 0, 0) }), nil)
			})
		}, "error layer"},
		"of GNU tar": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte {
				return gzipped(f, rewritten(f, b, func(h *tar.Header) { h.Format = tar.FormatGNU }), nil)
			})
		}, "error layer"},
		"nginx in the removals": {func(f *tampered) { plantNginx(f) }, "/usr/sbin/nginx has another content"},

		// Which layers there are, and how they are compressed.
		"a file more":           {func(f *tampered) { f.added(image.Bytes("/usr/bin/x", 0o644, []byte("x"))) }, "/usr/bin/x is a file, and the profile does not say so"},
		"an empty layer":        {func(f *tampered) { f.added() }, "error layer"},
		"two of ours swapped":   {func(f *tampered) { f.swap(top(f), top(f)-1) }, "error layer"},
		"two of the base's":     {func(f *tampered) { f.swap(0, 1) }, "error layer"},
		"ours below the base's": {func(f *tampered) { f.swap(0, top(f)) }, "error layer"},
		"the base's compressed by another": {func(f *tampered) {
			f.relayer(0, func(b []byte) []byte { return gzipped(f, b, func(h *gzip.Header) { h.Comment = "x" }) })
		}, "error layer"},
		"not compressed": {func(f *tampered) {
			f.relayer(top(f), func(b []byte) []byte { return b })
			entry(f.manifest, "layers", top(f))["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
		}, "error layer"},
		"the top away": {func(f *tampered) {
			f.manifest["layers"] = f.manifest["layers"].([]any)[:top(f)]
			ids := f.config["rootfs"].(object)
			ids["diff_ids"] = ids["diff_ids"].([]any)[:len(f.manifest["layers"].([]any))]
		}, "error layer"},

		// The image config, its history, and annotations.
		"an author":         {func(f *tampered) { f.config["author"] = "evil" }, "error config"},
		"another time":      {func(f *tampered) { f.config["created"] = "2030-01-01T00:00:00Z" }, "error config"},
		"a key of Docker's": {func(f *tampered) { f.config["container_config"] = object{"Cmd": []any{"/bin/sh"}} }, "error config"},
		"a variable":        {func(f *tampered) { push(f.config["config"].(object), "Env", "X=1") }, "error config"},
		"a label":           {func(f *tampered) { f.config["config"].(object)["Labels"] = object{"traefik.enable": "true"} }, "error config"},
		"a volume":          {func(f *tampered) { f.config["config"].(object)["Volumes"] = object{"/etc": object{}} }, "error config"},
		"another history":   {func(f *tampered) { entry(f.config, "history", 0)["created_by"] = "evil" }, "error config"},
		"one step more":     {func(f *tampered) { push(f.config, "history", object{"created_by": "evil", "empty_layer": true}) }, "error config"},
		"a runtime":         {func(f *tampered) { f.manifest["annotations"] = object{"run.oci.handler": "krun"} }, "error manifest"},
		"another base": {func(f *tampered) {
			f.index["annotations"].(object)["org.opencontainers.image.base.digest"] = "sha256:" + strings.Repeat("0", 64)
		}, "error index"},
		"no annotation": {func(f *tampered) { delete(f.manifest, "annotations") }, "error manifest"},

		// Other platforms, and an index in the index.
		"a platform more": {func(f *tampered) {
			evil := clone(f, entry(f.index, "manifests", 0))
			evil["platform"] = object{"os": "linux", "architecture": "riscv64"}
			push(f.index, "manifests", evil)
		}, "error"},
		"Windows": {func(f *tampered) {
			evil := clone(f, entry(f.index, "manifests", 0))
			evil["platform"] = object{"os": "windows", "architecture": "amd64"}
			push(f.index, "manifests", evil)
		}, "error"},
		"a platform twice":  {func(f *tampered) { push(f.index, "manifests", clone(f, entry(f.index, "manifests", 0))) }, "error"},
		"a platform less":   {func(f *tampered) { f.index["manifests"] = f.index["manifests"].([]any)[:1] }, "error platform"},
		"the other's image": {func(f *tampered) { entry(f.index, "manifests", 1)["digest"] = entry(f.index, "manifests", 0)["digest"] }, "error"},
		"a nested index": {func(f *tampered) {
			nested := f.blob(object{"mediaType": "application/vnd.oci.image.index.v1+json"}, f.index)
			push(f.index, "manifests", nested)
		}, "error platform"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tamper(t, t.TempDir())
			c.do(f)
			f.save()
			code, stdout, stderr := slimctl(t.Context(), "verify", "--base", "standin:B", "--progress", "quiet", "oci:"+f.dir)
			switch {
			case c.want == "" && code != exitOK:
				t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
			case c.want != "" && (code != exitGate && code != exitError && code != exitIntegrity || !strings.Contains(stdout+stderr, c.want)):
				t.Errorf("exit code %d, want %q in:\n%s%s", code, c.want, stdout, stderr)
			}
			if name == "two names of another image" && (!strings.Contains(stdout, "alpine:latest") || !strings.Contains(stdout, "debian:latest")) {
				t.Errorf("the names aren't told in:\n%s", stdout)
			}
			if name == "another image's name" && !strings.Contains(stdout, "note name: ") || strings.ContainsRune(stdout+stderr, '\x1b') {
				t.Errorf("the name isn't told in:\n%s%s", stdout, stderr)
			}
			if sameTree[name] != "" {
				code, stdout, stderr = slimctl(t.Context(), "verify", "--same", "tree", "--base", "standin:B", "--progress", "quiet", "oci:"+f.dir)
				if passes := sameTree[name] == "passes"; passes != (code == exitOK) || !passes && !strings.Contains(stdout, sameTree[name]) {
					t.Errorf("--same tree: exit code %d, want %q in:\n%s%s", code, sameTree[name], stdout, stderr)
				}
			}
		})
	}
}

// sameTree is what --same tree says of some of them.
var sameTree = map[string]string{
	"compressed by another": "passes", "an empty layer": "passes", "two of ours swapped": "passes", "another time": "passes", "another history": "passes",
	"an attestation": "passes", "nothing": "passes",
	"more in gzip's header": "passes", "a name in gzip's header": "passes", "two gzip members": "passes",
	"an empty gzip member": "passes", "a user's name": "passes", "a group's name": "passes",
	"parts of a second": "passes", "the year 3000": "passes", "of GNU tar": "passes",
	"not compressed": "error", "nginx in the removals": "error file", "the top away": "error file", "a file more": "error file",
	"a variable": "error config", "a runtime": "error manifest", "no annotation": "error manifest",
	"data of the base's layer": "error manifest", "a table of contents": "error manifest", "urls in the index's entry": "error index",
}

// plantNginx puts a program of the base into the layer that removes.
func plantNginx(f *tampered) {
	f.relayer(f.removal(), func(b []byte) []byte {
		return gzipped(f, rewritten(f, b, func(*tar.Header) {}, &tar.Header{Typeflag: tar.TypeReg, Name: "usr/sbin/nginx", Mode: 0o755, Size: 8}), nil)
	})
}

func clone(t testing.TB, o object) (out object) {
	t.Helper()
	raw, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// dockerEntry is what docker save writes of the first image.
func (f *tampered) dockerEntry() string {
	layers := []string{}
	for i := range f.layers() {
		layers = append(layers, f.blobName(entry(f.manifest, "layers", i)))
	}
	raw, err := json.Marshal(object{"Config": f.blobName(f.manifest["config"].(object)), "RepoTags": []string{"slim:1"}, "Layers": layers})
	if err != nil {
		f.Fatal(err)
	}
	return string(raw)
}

// TestTamperedArchivesAreRefused: an entry that the digest does not reach is found, and unclean or repeated names are refused.
func TestTamperedArchivesAreRefused(t *testing.T) {
	t.Parallel()
	add := func(headers ...*tar.Header) func(testing.TB, []byte) []byte {
		return func(t testing.TB, b []byte) []byte { return rewritten(t, b, func(*tar.Header) {}, headers...) }
	}
	file := func(name string, size int64) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}
	}
	for name, c := range map[string]struct {
		do   func(testing.TB, []byte) []byte
		want string
	}{
		"nothing":                 {func(_ testing.TB, b []byte) []byte { return b }, ""},
		"longer zeros":            {func(_ testing.TB, b []byte) []byte { return append(b, make([]byte, 20*512)...) }, ""},
		"another archive behind":  {func(_ testing.TB, b []byte) []byte { return append(b, b...) }, "after its end"},
		"a word behind":           {func(_ testing.TB, b []byte) []byte { return append(b, "evil"...) }, "after its end"},
		"a word far behind":       {func(_ testing.TB, b []byte) []byte { return append(append(b, make([]byte, 1<<20)...), 1) }, "after its end"},
		"no end":                  {func(_ testing.TB, b []byte) []byte { return b[:len(b)-1024] }, ""}, // every file is there
		"half an end":             {func(_ testing.TB, b []byte) []byte { return b[:len(b)-512] }, ""},
		"an entry that climbs":    {add(file("../index.json", 3)), "../index.json"},
		"one that climbs within":  {add(file("blobs/../manifest.json", 3)), "blobs/../manifest.json"},
		"one from the root":       {add(file("/manifest.json", 3)), "/manifest.json"},
		"one by a dot":            {add(&tar.Header{Typeflag: tar.TypeDir, Name: "./blobs/", Mode: 0o755}), ""}, // as tar -C DIR . writes them
		"a file more":             {add(file("./x", 3)), "error layout"},
		"the same file twice":     {add(file("index.json", 3)), "two entries"},
		"the same by another":     {add(file("./index.json", 3)), "two entries"},
		"a directory in its way":  {add(&tar.Header{Typeflag: tar.TypeDir, Name: "index.json/", Mode: 0o755}), "two entries"},
		"a file in another's way": {add(file("index.json/x", 3)), "index.json"},
		"a link to elsewhere":     {add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "manifest.json", Linkname: "../x", Mode: 0o777}), "is not a regular file"},
		"a device":                {add(&tar.Header{Typeflag: tar.TypeChar, Name: "x", Mode: 0o666}), "error layout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good, err := built["B"]()
			if err != nil {
				t.Fatal(err)
			}
			archive := filepath.Join(t.TempDir(), "slim.tar")
			if err := os.WriteFile(archive, c.do(t, tarOf(t, good)), 0o644); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := slimctl(t.Context(), "verify", "--base", "standin:B", "--progress", "quiet", "oci-archive:"+archive)
			if c.want == "" && code != exitOK || c.want != "" && (code != exitError && code != exitGate || !strings.Contains(stdout+stderr, c.want)) {
				t.Errorf("exit code %d, want %q in:\n%s%s", code, c.want, stdout, stderr)
			}
		})
	}
}

// tarOf is a directory as an archive.
func tarOf(t testing.TB, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, p))
		if err == nil {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: 0o644, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestGateWithoutTheBase: what nobody compared with the base is no success, unless only the surface is asked for.
func TestGateWithoutTheBase(t *testing.T) {
	t.Parallel()
	f := tamper(t, t.TempDir())
	if code, stdout, stderr := slimctl(t.Context(), "verify", "--progress", "quiet", "oci:"+f.dir); code != exitUnproven || !strings.Contains(stdout+stderr, "--base") {
		t.Errorf("a good image, and no base: exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := slimctl(t.Context(), "verify", "--surface-only", "--progress", "quiet", "oci:"+f.dir); code != exitOK || !strings.Contains(stdout, "nothing was proven") {
		t.Errorf("the surface of a good image: exit code %d\n%s%s", code, stdout, stderr)
	}
	plantNginx(f)
	f.save()
	if code, stdout, stderr := slimctl(t.Context(), "verify", "--progress", "quiet", "oci:"+f.dir); code != exitUnproven {
		t.Errorf("nginx in the removals, and no base: exit code %d\n%s%s", code, stdout, stderr)
	}
	f.added(image.Bytes("/usr/bin/helper", 0o4755, []byte("x")))
	f.save()
	if code, stdout, stderr := slimctl(t.Context(), "verify", "--surface-only", "--progress", "quiet", "oci:"+f.dir); code != exitGate || !strings.Contains(stdout, "error privileged") {
		t.Errorf("the surface of an open image: exit code %d\n%s%s", code, stdout, stderr)
	}
}
