package output

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/slimctl/slimctl/image"
)

// tarEntry is an entry of an archive that a test puts together.
type tarEntry struct {
	name string
	data string
	typ  byte // 0 is a file
	link string
}

func readEntries(t testing.TB, file string) []tarEntry {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []tarEntry
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tarEntry{h.Name, string(data), h.Typeflag, h.Linkname})
	}
}

func writeEntries(t testing.TB, entries []tarEntry) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.typ, Linkname: e.link, Mode: 0o644, Size: int64(len(e.data))}
		extended := e.typ == tar.TypeXHeader
		if extended {
			h.Typeflag = tar.TypeReg
		}
		start := b.Len()
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if extended { // which the writer writes by itself only
			block := b.Bytes()[start:]
			block[156] = tar.TypeXHeader
			copy(block[148:156], "        ")
			sum := 0
			for _, c := range block {
				sum += int(c)
			}
			copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// dockerArchive writes an image as slimctl does.
func dockerArchive(t testing.TB, img v1.Image, tags ...name.Tag) []tarEntry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "d.tar")
	if err := (Spec{DockerArchive, file}).Write(t.Context(), image.Built{Image: img}, tags, nil, testOptions()); err != nil {
		t.Fatal(err)
	}
	return readEntries(t, file)
}

// TestOwnDockerArchive opens what slimctl writes: it is the image to the byte, with its digest and its annotations.
func TestOwnDockerArchive(t *testing.T) {
	img := mutate.Annotations(testImage(t, amd64, testLayer(t, 1, 500), testLayer(t, 2, 500)), map[string]string{"a": "b"}).(v1.Image)
	file := writeEntries(t, dockerArchive(t, img, tagOf(t, "example.com/x:1"), tagOf(t, "alpine:3")))
	for _, ref := range []string{"docker-archive:" + file, "docker-archive:" + file + ":example.com/x:1", "docker-archive:" + file + ":alpine:3", "oci-archive:" + file, "oci-archive:" + file + ":3"} {
		s := open(t, ref, testOptions())
		got, err := s.Image(amd64)
		if err != nil {
			t.Fatal(err)
		}
		m, err := got.Manifest()
		if err != nil || s.Digest() != hexDigest(t, img) || m.Annotations["a"] != "b" {
			t.Errorf("%s: %s, annotations %v, %v", ref, s.Digest(), m.Annotations, err)
		}
	}
	if _, err := image.Open(t.Context(), "docker-archive:"+file+":alpine:4", testOptions()); err == nil || !strings.Contains(err.Error(), "alpine:3") {
		t.Errorf("a name that isn't there: %v", err)
	}
}

// TestHostileDockerArchives has archives that are one image to one program and another to the next, and incomplete ones.
func TestHostileDockerArchives(t *testing.T) {
	good, evil := testImage(t, amd64, testLayer(t, 1, 500), testLayer(t, 2, 500)), testImage(t, amd64, testLayer(t, 3, 500), testLayer(t, 2, 500))
	tag := tagOf(t, "example.com/x:1")
	whole, other := dockerArchive(t, good, tag), dockerArchive(t, evil, tag)
	document := func(entries []tarEntry, name string) string {
		return entries[slices.IndexFunc(entries, func(e tarEntry) bool { return e.name == name })].data
	}
	evilDocker := tarEntry{name: "manifest.json", data: document(other, "manifest.json")}
	// Both images' blobs, so that whatever names one finds it.
	both := slices.Clone(whole)
	for _, e := range other {
		if !slices.ContainsFunc(both, func(o tarEntry) bool { return o.name == e.name }) {
			both = append(both, e)
		}
	}
	var list tarball.Manifest
	if err := json.Unmarshal([]byte(document(whole, "manifest.json")), &list); err != nil {
		t.Fatal(err)
	}
	one := list[0]
	docker := func(change func(*tarball.Descriptor)) []tarEntry {
		d := tarball.Descriptor{Config: one.Config, RepoTags: one.RepoTags, Layers: slices.Clone(one.Layers)}
		change(&d)
		raw, err := json.Marshal(tarball.Manifest{d})
		if err != nil {
			t.Fatal(err)
		}
		return replaced(both, "manifest.json", string(raw))
	}
	m, err := good.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	without := func(name string) []tarEntry {
		return slices.DeleteFunc(slices.Clone(whole), func(e tarEntry) bool { return e.name == name })
	}
	sparse := document(whole, "manifest.json")
	records := ""
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=manifest.json", fmt.Sprintf("GNU.sparse.realsize=%d", len(sparse))} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r)
	}
	area := fmt.Sprintf("1\n0\n%d\n", len(sparse))
	for name, tt := range map[string]struct {
		entries []tarEntry
		says    string
		oci     bool // as an oci-archive, too
	}{
		"whole":               {whole, "", true},
		"both":                {both, "", true},
		"two manifest.json":   {append(slices.Clone(both), evilDocker), `two entries called "manifest.json"`, true},
		"the evil one first":  {append([]tarEntry{evilDocker}, both...), `two entries called "manifest.json"`, true},
		"in another spelling": {append(slices.Clone(both), tarEntry{name: "././manifest.json", data: evilDocker.data}), "is not clean", true},
		"a name that climbs":  {append(slices.Clone(both), tarEntry{name: "./x/../manifest.json", data: evilDocker.data}), "is not clean", true},
		"by a link":           {append(slices.Clone(both), tarEntry{name: "manifest.json", typ: tar.TypeSymlink, link: one.Config}), `two entries called "manifest.json"`, true},
		"by a directory":      {append(slices.Clone(both), tarEntry{name: "manifest.json/", typ: tar.TypeDir}), `two entries called "manifest.json"`, true},
		"two index.json":      {append(slices.Clone(both), tarEntry{name: "index.json", data: document(other, "index.json")}), `two entries called "index.json"`, true},
		"a blob twice":        {append(slices.Clone(both), tarEntry{name: one.Layers[0], data: "evil"}), "two entries called", true},
		"a directory twice":   {append(slices.Clone(both), tarEntry{name: "blobs/", typ: tar.TypeDir}), "", true},
		"another image":       {replaced(both, "manifest.json", evilDocker.data), "don't name the same image", true},
		"another index":       {replaced(both, "index.json", document(other, "index.json")), "don't name the same image", true},
		"another config":      {docker(func(d *tarball.Descriptor) { d.Config = one.Layers[0] }), "no image of index.json has the config", true},
		"another layer":       {docker(func(d *tarball.Descriptor) { d.Layers[0] = one.Layers[1] }), "don't name the same image", true},
		"another order":       {docker(func(d *tarball.Descriptor) { slices.Reverse(d.Layers) }), "don't name the same image", true},
		"a layer less":        {docker(func(d *tarball.Descriptor) { d.Layers = d.Layers[:1] }), "its 1 layers", true},
		"a layer more":        {docker(func(d *tarball.Descriptor) { d.Layers = append(d.Layers, d.Layers[0]) }), "its 3 layers", true},
		"no such layer":       {docker(func(d *tarball.Descriptor) { d.Layers[1] = "layer.tar" }), "don't name the same image", true},
		"control characters":  {docker(func(d *tarball.Descriptor) { d.Config = "\x1b[2J" }), "don't name the same image", true},
		"another name":        {docker(func(d *tarball.Descriptor) { d.RepoTags = []string{"example.com/y:1"} }), "", true},
		"one image more":      {replaced(both, "manifest.json", "["+strings.Trim(document(whole, "manifest.json"), "[]")+","+strings.Trim(evilDocker.data, "[]")+"]"), "manifest.json", true},
		"none":                {replaced(both, "manifest.json", "[]"), "0 such images", false},
		"no JSON":             {replaced(both, "manifest.json", "[{}] evil"), "manifest.json", true},
		"no manifest.json":    {without("manifest.json"), `no "manifest.json" in the archive`, false},
		"no index.json":       {without("index.json"), `no "index.json" in the archive`, true},
		"no oci-layout":       {without("oci-layout"), "oci-layout is missing", true},
		"no manifest":         {without(blobName(hexDigest(t, good))), "is missing", true},
		"no config":           {without(blobName(m.Config.Digest)), "is missing", true},
		// Found when it is read; files that no digest reaches are found by (*image.Source).Outside.
		"no layer": {without(blobName(m.Layers[1].Digest)), "", true},
		"a sparse file": {append(without("manifest.json"), tarEntry{name: "x", data: records, typ: tar.TypeXHeader},
			tarEntry{name: "y", data: area + strings.Repeat("\x00", 512-len(area)) + sparse}), `"manifest.json" is not a regular file`, true},
		"a directory's link": {append(slices.Clone(both), tarEntry{name: "blobs2", typ: tar.TypeSymlink, link: "blobs"}), "", true},
		"a link in a circle": {append(slices.Clone(both), tarEntry{name: "x", typ: tar.TypeSymlink, link: "x"}), "", true},
		"a linked config": {append(without(one.Config), tarEntry{name: one.Config, typ: tar.TypeSymlink, link: "../../real"},
			tarEntry{name: "real", data: document(whole, one.Config)}), "is not a regular file", true},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeEntries(t, tt.entries)
			for _, kind := range []string{"docker-archive", "oci-archive"} {
				if kind == "oci-archive" && !tt.oci {
					continue
				}
				s, err := image.Open(t.Context(), kind+":"+file, testOptions())
				switch {
				case tt.says == "" && (err != nil || s.Digest() != hexDigest(t, good)):
					t.Errorf("%s: %v", kind, err)
				case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
					t.Errorf("%s: got %v, want %q", kind, err, tt.says)
				case err != nil && strings.ContainsAny(err.Error(), "\x1b"):
					t.Errorf("%s: %q has control characters", kind, err)
				}
			}
		})
	}
	for _, tagged := range []string{"example.com/x:2", "example.com/y:1"} {
		file := writeEntries(t, docker(func(d *tarball.Descriptor) { d.RepoTags = []string{"example.com/y:1"} }))
		if _, err := image.Open(t.Context(), "docker-archive:"+file+":"+tagged, testOptions()); err == nil {
			t.Errorf("%s is the image of another name in index.json", tagged)
		}
	}
}

// replaced gives one file another content.
func replaced(entries []tarEntry, name, data string) []tarEntry {
	out := slices.Clone(entries)
	for i := range out {
		if out[i].name == name {
			out[i].data = data
		}
	}
	return out
}

// TestDockerArchiveOfAnIndex has an index of two platforms in index.json, as Docker's containerd store saves it, and
// manifest.json with one of them. The other is there, or was not saved.
func TestDockerArchiveOfAnIndex(t *testing.T) {
	images := []v1.Image{testImage(t, amd64, testLayer(t, 1, 500)), testImage(t, arm64, testLayer(t, 2, 500))}
	idx := testIndex(t, []v1.Platform{amd64, arm64}, images)
	file := filepath.Join(t.TempDir(), "i.tar")
	if err := (Spec{OCIArchive, file}).Write(t.Context(), image.Built{Index: idx}, nil, nil, testOptions()); err != nil {
		t.Fatal(err)
	}
	entries := readEntries(t, file)
	for _, e := range dockerArchive(t, images[0]) {
		if e.name == "manifest.json" {
			entries = append(entries, e)
		}
	}
	s := open(t, "docker-archive:"+writeEntries(t, entries), testOptions())
	if len(s.Platforms()) != 2 || s.Digest() != hexDigest(t, idx) {
		t.Errorf("%v, %s", s.Platforms(), s.Digest())
	}
	gone := blobName(hexDigest(t, images[1]))
	s = open(t, "docker-archive:"+writeEntries(t, slices.DeleteFunc(entries, func(e tarEntry) bool { return e.name == gone })), testOptions())
	if _, err := s.Image(amd64); err != nil {
		t.Error(err)
	}
	if _, err := s.Image(arm64); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an image that was not saved: %v", err)
	}
}
