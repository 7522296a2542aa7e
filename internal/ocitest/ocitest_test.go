package ocitest

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/slimctl/slimctl/image"
)

// imageOf makes an image whose layers hold headers; a regular file's content is its Gname.
func imageOf(t *testing.T, layers ...[]tar.Header) v1.Image {
	t.Helper()
	img := empty.Image
	for _, headers := range layers {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			content := h.Gname
			h.Gname = ""
			h.ModTime = time.Unix(1, 0)
			if h.Typeflag == tar.TypeReg {
				h.Size = int64(len(content))
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, content); h.Typeflag == tar.TypeReg && err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Gname: content}
}

func dir(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: 1, Gid: 2}
}

func link(kind byte, name, target string) tar.Header {
	return tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
}

func TestTree(t *testing.T) {
	for _, tt := range []struct {
		name   string
		layers [][]tar.Header
		want   string // path:type, or path:type:size, sorted
	}{
		{"whiteout hides what is below only, wherever it stands", [][]tar.Header{
			{file("a", "x"), file("d/b", "x"), file("d/c", "x")}, {file("d/b", "new"), file("d/.wh.b", ""), file(".wh.a", "")},
		}, "/d:dir /d/b:file:3 /d/c:file:1"},
		{"whiteout of a directory", [][]tar.Header{{file("d/b", "x"), file("dd", "x")}, {file(".wh.d", "")}}, "/dd:file:1"},
		{"opaque directory", [][]tar.Header{{file("d/b", "x")}, {dir("d/", 0o755), file("d/.wh..wh..opq", ""), file("d/n", "")}}, "/d:dir /d/n:file:0"},
		{"file in a directory's place", [][]tar.Header{{file("d/b", "x")}, {file("d", "xx")}}, "/d:file:2"},
		{"directory in a file's place", [][]tar.Header{{file("d", "x")}, {file("d/b", "xx")}}, "/d:dir /d/b:file:2"},
		{"through a symlinked directory", [][]tar.Header{
			{dir("usr/bin/", 0o755), file("usr/bin/a", ""), link(tar.TypeSymlink, "bin", "usr/bin"), link(tar.TypeSymlink, "abs", "/bin")},
			{file("abs/b", "x"), file("bin/.wh.a", "")},
		}, "/abs:symlink /bin:symlink /usr:dir /usr/bin:dir /usr/bin/b:file:1"},
		{
			"a loop of symlinks ends",
			[][]tar.Header{{link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a")}, {file("a/x/.wh.y", "")}},
			"/a:symlink /b:symlink",
		},
		{"one of two names goes", [][]tar.Header{{file("a", "x"), link(tar.TypeLink, "b", "a")}, {file(".wh.a", "")}}, "/b:file:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := map[string]string{}
			for _, w := range strings.Fields(tt.want) {
				p, rest, _ := strings.Cut(w, ":")
				want[p] = rest
			}
			got := map[string]string{}
			for p, n := range Tree(t, imageOf(t, tt.layers...)) {
				got[p] = string(n.Type)
				if n.Type == image.TypeFile {
					got[p] += ":" + string(rune('0'+n.Size))
				}
			}
			if d := Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTreeSeesEveryDifference(t *testing.T) {
	base := func() tar.Header { return file("f", "content") }
	for name, change := range map[string]func(*tar.Header){
		"content": func(h *tar.Header) { h.Gname = "CONTENT" },
		"size":    func(h *tar.Header) { h.Gname = "longer content" },
		"mode":    func(h *tar.Header) { h.Mode = 0o4644 },
		"uid":     func(h *tar.Header) { h.Uid = 7 },
		"gid":     func(h *tar.Header) { h.Gid = 7 },
		"type":    func(h *tar.Header) { *h = dir("f/", 0o644) },
		"link":    func(h *tar.Header) { *h = link(tar.TypeSymlink, "f", "x") },
		"xattr":   func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.user.x": "y"} },
		"device":  func(h *tar.Header) { *h = tar.Header{Typeflag: tar.TypeChar, Name: "f", Devmajor: 1, Devminor: 3} },
	} {
		h := base()
		change(&h)
		if Diff(Tree(t, imageOf(t, []tar.Header{base()})), Tree(t, imageOf(t, []tar.Header{h}))) == "" {
			t.Errorf("%s: not seen", name)
		}
	}
	copied := imageOf(t, []tar.Header{file("a", "x"), file("b", "x")})
	linked := imageOf(t, []tar.Header{file("b", "x"), link(tar.TypeLink, "a", "b")})
	if Diff(Tree(t, copied), Tree(t, linked)) == "" {
		t.Error("a hard link and a copy are the same")
	}
	other := imageOf(t, []tar.Header{file("a", "x"), link(tar.TypeLink, "b", "a")})
	if d := Diff(Tree(t, other), Tree(t, linked)); d != "" {
		t.Errorf("hard links the other way around differ:\n%s", d)
	}
}

func TestConfigAndLayout(t *testing.T) {
	with := func(edit func(*v1.ConfigFile)) v1.Image {
		c, err := empty.Image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c = c.DeepCopy()
		c.OS, c.Architecture = "linux", "amd64"
		edit(c)
		img, err := mutate.ConfigFile(empty.Image, c)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	plain := with(func(*v1.ConfigFile) {})
	for name, edit := range map[string]func(*v1.ConfigFile){
		"env": func(c *v1.ConfigFile) { c.Config.Env = []string{"A=b"} }, "architecture": func(c *v1.ConfigFile) { c.Architecture = "arm64" },
		"onbuild": func(c *v1.ConfigFile) { c.Config.OnBuild = []string{"RUN x"} }, "health": func(c *v1.ConfigFile) { c.Config.Healthcheck = &v1.HealthConfig{Retries: 1} },
	} {
		if Diff(Config(t, plain), Config(t, with(edit))) == "" {
			t.Errorf("%s: not seen", name)
		}
	}
	same := with(func(c *v1.ConfigFile) { c.Created = v1.Time{Time: time.Unix(9, 0)}; c.Config.Env = []string{} })
	if d := Diff(Config(t, plain), Config(t, same)); d != "" {
		t.Errorf("a time or an empty list counts:\n%s", d)
	}
	arm := with(func(c *v1.ConfigFile) { c.Architecture = "arm64" })
	dir := t.TempDir()
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: plain}, mutate.IndexAddendum{Add: arm})})
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	if got := Layout(t, dir); len(got) != 2 || got["linux/amd64"] == nil || got["linux/arm64"] == nil {
		t.Errorf("got %v", got)
	}
}
