package diff_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/size"
	"github.com/slimctl/slimctl/internal/ocitest"
)

// files are the files of one layer.
type files []image.File

func layerOf(t testing.TB, f files) v1.Layer {
	t.Helper()
	l, err := image.NewLayer(f)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func imageOf(t testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err == nil {
		img, err = mutate.Config(img, config)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// opened is img with no surface but its sizes.
func opened(t testing.TB, cache tree.Cache, img v1.Image) *inspect.Image {
	t.Helper()
	f, err := cache.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return &inspect.Image{
		Reference: "oci:test", Digest: digest, Platform: v1.Platform{OS: "linux", Architecture: "amd64"}, Files: f,
		Surface: &inspect.Surface{Size: size.Of(f, nil, 1)},
	}
}

func open(t testing.TB, layers ...files) *inspect.Image {
	t.Helper()
	blobs := make([]v1.Layer, len(layers))
	for i, f := range layers {
		blobs[i] = layerOf(t, f)
	}
	return opened(t, tree.Cache{}, imageOf(t, v1.Config{}, blobs...))
}

func compare(t testing.TB, base, slim *inspect.Image, o diff.Options) *diff.Diff {
	t.Helper()
	d, err := diff.Of(t.Context(), base, slim, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// marks are changes as "M /path content,size".
func marks(changes []diff.Change) []string {
	out := []string{}
	for _, c := range changes {
		s := c.Kind + " " + c.Path
		if len(c.Fields) > 0 {
			s += " " + strings.Join(c.Fields, ",")
		}
		out = append(out, s)
	}
	return out
}

func file(p, content string) image.File { return image.Bytes(p, 0o644, []byte(content)) }

func with(f image.File, edit func(*image.Entry)) image.File {
	edit(&f.Entry)
	return f
}

func typed(p string, typ image.Type) image.File {
	return image.File{Entry: image.Entry{Path: p, Type: typ, Mode: 0o644}}
}

func hardlink(p, to string) image.File {
	return image.File{Entry: image.Entry{Path: p, Type: image.TypeLink, Mode: 0o644, Link: to}}
}

func opaque(dir string) image.File { return file(dir+"/.wh..wh..opq", "") }

func TestChanges(t *testing.T) {
	mode := func(m int64) func(*image.Entry) { return func(e *image.Entry) { e.Mode = m } }
	xattr := func(v string) func(*image.Entry) {
		return func(e *image.Entry) { e.Xattrs = image.Xattrs{"user.a": v} }
	}
	all := func(e *image.Entry) { e.Mode, e.UID, e.Xattrs = 0o600, 1, image.Xattrs{"user.a": "1"} }
	for _, tt := range []struct {
		name       string
		base, slim files
		want       []string
	}{
		{"nothing", files{file("/a", "x")}, files{file("/a", "x")}, nil},
		{"added", nil, files{image.Dir("/d", 0o755), file("/d/a", "x")}, []string{"+ /d", "+ /d/a"}},
		{"removed", files{image.Dir("/d", 0o755), file("/d/a", "x")}, nil, []string{"- /d", "- /d/a"}},
		{"content", files{file("/a", "x")}, files{file("/a", "y")}, []string{"M /a content"}},
		{"content and size", files{file("/a", "x")}, files{file("/a", "xyz")}, []string{"M /a size,content"}},
		{"emptied", files{file("/a", "x")}, files{file("/a", "")}, []string{"M /a size,content"}},
		{"mode", files{file("/a", "x")}, files{with(file("/a", "x"), mode(0o4755))}, []string{"U /a mode"}},
		{"uid", files{file("/a", "x")}, files{with(file("/a", "x"), func(e *image.Entry) { e.UID = 7 })}, []string{"U /a owner"}},
		{"gid", files{file("/a", "x")}, files{with(file("/a", "x"), func(e *image.Entry) { e.GID = 7 })}, []string{"U /a owner"}},
		{"xattr", files{with(file("/a", "x"), xattr("1"))}, files{with(file("/a", "x"), xattr("2"))}, []string{"U /a xattr"}},
		{"no xattr", files{with(file("/a", "x"), xattr("1"))}, files{file("/a", "x")}, []string{"U /a xattr"}},
		{"all of a file", files{file("/a", "x")}, files{with(file("/a", "longer"), all)}, []string{"M /a mode,owner,size,content,xattr"}},
		{"link target", files{image.Symlink("/a", "x")}, files{image.Symlink("/a", "y")}, []string{"M /a link"}},
		{"mode of a symlink", files{image.Symlink("/a", "x")}, files{with(image.Symlink("/a", "x"), mode(0o755))}, nil},
		{"directory", files{image.Dir("/a", 0o755)}, files{image.Dir("/a", 0o1777)}, []string{"U /a mode"}},
		{"file to directory", files{file("/a", "x")}, files{image.Dir("/a", 0o644), file("/a/b", "")}, []string{"T /a type", "+ /a/b"}},
		{"directory to link", files{image.Dir("/a", 0o755), file("/a/b", "x")}, files{image.Symlink("/a", "b")}, []string{"T /a type", "- /a/b"}},
		{"file to fifo", files{file("/a", "x")}, files{typed("/a", image.TypeFifo)}, []string{"T /a type"}},
		{"copy to hard link", files{file("/a", "x"), file("/b", "x")}, files{file("/a", "x"), hardlink("/b", "/a")}, nil},
		{"link to another copy", files{file("/a", "x"), file("/b", "x"), hardlink("/c", "/a")}, files{file("/a", "x"), file("/b", "x"), hardlink("/c", "/b")}, nil},
		{"mode of both names", files{file("/a", "x"), hardlink("/b", "/a")}, files{with(file("/a", "x"), mode(0o755)), hardlink("/b", "/a")}, []string{"U /a mode", "U /b mode"}},
		{
			"both names of a file",
			files{file("/a", "x"), hardlink("/b", "/a")},
			files{file("/a", "yy"), hardlink("/b", "/a")},
			[]string{"M /a size,content", "M /b size,content"},
		},
		{"link to another file", files{file("/a", "x"), file("/b", "y"), hardlink("/c", "/a")}, files{file("/a", "x"), file("/b", "y"), hardlink("/c", "/b")}, []string{"M /c content"}},
		{
			"order of a walk", nil,
			files{image.Dir("/a", 0o755), file("/a/b", ""), file("/a-b", ""), file("/a.b", ""), file("/ab", ""), file("/é", "")},
			[]string{"+ /a", "+ /a/b", "+ /a-b", "+ /a.b", "+ /ab", "+ /é"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := compare(t, open(t, tt.base), open(t, tt.slim), diff.Options{})
			if tt.want == nil {
				tt.want = []string{}
			}
			if diff := cmp.Diff(tt.want, marks(d.Files)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if d.Same != (len(tt.want) == 0) {
				t.Errorf("Same is %t", d.Same)
			}
			mirrored(t, d, compare(t, open(t, tt.slim), open(t, tt.base), diff.Options{}))
		})
	}
}

// mirrored checks that back is d the other way around.
func mirrored(t *testing.T, d, back *diff.Diff) {
	t.Helper()
	turned := slices.Clone(back.Files)
	for i := range turned {
		c := &turned[i]
		c.Old, c.New = c.New, c.Old
		switch c.Kind {
		case diff.Added:
			c.Kind = diff.Removed
		case diff.Removed:
			c.Kind = diff.Added
		}
	}
	if diff := cmp.Diff(d.Files, turned); diff != "" {
		t.Errorf("the other way around is no mirror: -want +got\n%s", diff)
	}
	n := back.Counts
	n.Added, n.Removed, n.AddedBytes, n.RemovedBytes = n.Removed, n.Added, n.RemovedBytes, n.AddedBytes
	if diff := cmp.Diff(d.Counts, n); diff != "" {
		t.Errorf("counts the other way around: -want +got\n%s", diff)
	}
	if d.Same != back.Same {
		t.Errorf("Same is %t, the other way around %t", d.Same, back.Same)
	}
}

func TestDeviceNumbers(t *testing.T) {
	null := func(minor int64) *inspect.Image {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: minor}), w.Close()); err != nil {
			t.Fatal(err)
		}
		return opened(t, tree.Cache{}, imageOf(t, v1.Config{}, static.NewLayer(b.Bytes(), types.OCIUncompressedLayer)))
	}
	d := compare(t, null(3), null(5), diff.Options{})
	if want := []string{"M /null device"}; !slices.Equal(want, marks(d.Files)) {
		t.Errorf("got %v, want %v", marks(d.Files), want)
	}
}

func TestTimesCountOnRequest(t *testing.T) {
	old := open(t, files{file("/a", "x")})
	new := open(t, files{with(file("/a", "x"), func(e *image.Entry) { e.ModTime = e.ModTime.AddDate(2020, 0, 0) })})
	if d := compare(t, old, new, diff.Options{}); !d.Same {
		t.Errorf("a time counts: %v", marks(d.Files))
	}
	d := compare(t, old, new, diff.Options{Times: true})
	if want := []string{"U /a time"}; d.Same || !slices.Equal(want, marks(d.Files)) {
		t.Errorf("got %v, want %v", marks(d.Files), want)
	}
}

// TestLayers has a base of three layers and, on its first two, five of slim.
func TestLayers(t *testing.T) {
	one := files{image.Dir("/opt", 0o755), image.Dir("/opt/app", 0o755), file("/opt/app/a", "one"), file("/opt/app/b", "b"), image.Dir("/opt/app/sub", 0o755), file("/opt/app/sub/c", "ccc"), file("/opt/z", "z")}
	two := files{image.Dir("/opt", 0o755), file("/opt/z", "zz")}
	three := files{file("/only-base", "x")}
	base := open(t, one, two, three)
	slim := open(
		t, one, two,
		files{image.Whiteout("/opt/app/sub")},
		files{image.Dir("/opt", 0o755), image.Dir("/opt/app", 0o755), opaque("/opt/app"), file("/opt/app/b", "b"), file("/opt/app/new", "n")},
		files{file("/opt/z", "zzz"), image.Whiteout("/opt/app"), image.Whiteout("/nothing")},
		files{image.Dir("/opt/app", 0o700), file("/opt/app/a", "one")},
		files{image.Symlink("/opt/app", "z"), with(file("/opt/z", "zzz"), func(e *image.Entry) { e.Mode = 0o600 })},
	)
	d := compare(t, base, slim, diff.Options{Layers: true})
	type layer struct {
		In     string
		Files  []string
		Counts diff.Counts
	}
	var got []layer
	for _, l := range d.Layers {
		got = append(got, layer{l.In, marks(l.Files), l.Counts})
	}
	want := []layer{
		{"both", []string{}, diff.Counts{}},
		{"both", []string{}, diff.Counts{}},
		{"base", []string{"+ /only-base"}, diff.Counts{Added: 1, AddedBytes: 1}},
		{"slim", []string{"- /opt/app/sub"}, diff.Counts{Removed: 2, RemovedBytes: 3}},
		{"slim", []string{"- /opt/app/a", "+ /opt/app/new"}, diff.Counts{Added: 1, Removed: 1, AddedBytes: 1, RemovedBytes: 3}},
		{"slim", []string{"- /opt/app", "M /opt/z size,content"}, diff.Counts{Removed: 3, Modified: 1, AddedBytes: 3, RemovedBytes: 4}},
		{"slim", []string{"+ /opt/app", "+ /opt/app/a"}, diff.Counts{Added: 2, AddedBytes: 3}},
		{"slim", []string{"T /opt/app type", "U /opt/z mode"}, diff.Counts{Type: 1, Removed: 1, Meta: 1, RemovedBytes: 3}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	last := d.Layers[7].Files[1]
	if last.Old.Layer != 4 || last.New.Layer != 6 {
		t.Errorf("/opt/z is of layers %d and %d, want 4 and 6", last.Old.Layer, last.New.Layer)
	}
	counted := compare(t, base, slim, diff.Options{})
	for i := range counted.Layers {
		if counted.Layers[i].Files != nil || counted.Layers[i].Counts != d.Layers[i].Counts {
			t.Errorf("layer %d without Options.Layers: %+v", i, counted.Layers[i])
		}
	}
	only := compare(t, base, slim, diff.Options{Layers: true, Paths: []string{"/opt/app/sub/c"}})
	if got := marks(only.Layers[3].Files); !slices.Equal(got, []string{"- /opt/app/sub/c"}) {
		t.Errorf("a path below what a layer removes: %v", got)
	}
}

// TestLayersThatAllHide would take hours if what is done for a path grew with the square of the layers that hide it.
func TestLayersThatAllHide(t *testing.T) {
	const layers, n = 300, 100
	var all []files
	for l := range layers {
		f := files{image.Dir("/d", 0o755), opaque("/d")}
		for i := range n {
			f = append(f, file(fmt.Sprintf("/d/%d", l*n+i), ""))
		}
		all = append(all, f)
	}
	d := compare(t, open(t), open(t, all...), diff.Options{})
	if want := (diff.Counts{Added: n, Removed: n}); d.Layers[layers-1].Counts != want || len(d.Files) != n+1 {
		t.Errorf("%+v, and %d files", d.Layers[layers-1].Counts, len(d.Files))
	}
}

func TestSize(t *testing.T) {
	shared := files{file("/keep", "1234"), file("/hide", "12345678")}
	base := open(t, shared, files{file("/gone", strings.Repeat("x", 100)), file("/changed", "12")})
	slim := open(t, shared, files{image.Whiteout("/hide"), file("/changed", "123"), file("/new", "1")})
	d := compare(t, base, slim, diff.Options{})
	if d.Size.Hidden != 8 || d.Size.Gone != 102 || d.Size.Visible != 3+1-8-100-2 {
		t.Errorf("%+v", d.Size)
	}
	if want := d.Counts.AddedBytes - d.Counts.RemovedBytes; d.Size.Visible != want {
		t.Errorf("%d bytes less are visible, and files that differ have %d less", d.Size.Visible, want)
	}
	if d.Size.Beside != slim.Files.Layers[1].Size || d.Size.Transfer != slim.Files.Layers[1].Size-base.Files.Layers[1].Size {
		t.Errorf("%+v", d.Size)
	}
}

func TestConfig(t *testing.T) {
	layer := layerOf(t, files{file("/a", "x")})
	base := opened(t, tree.Cache{}, imageOf(t, v1.Config{
		Env: []string{"A=1", "B=2", "DUP=first", "DUP=last", "EMPTY=", "BARE"}, User: "root", Entrypoint: []string{"/run.sh", "a && b"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}}, Volumes: map[string]struct{}{"/data": {}}, Labels: map[string]string{"l": "1", "same": "s"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "x"}, Retries: 3}, WorkingDir: "/w", Shell: []string{"/bin/bash", "-c"}, StopSignal: "SIGTERM",
	}, layer))
	slim := opened(t, tree.Cache{}, imageOf(t, v1.Config{
		Env: []string{"A=1", "B=3", "DUP=last", "C="}, Entrypoint: []string{"/init"}, Cmd: []string{},
		ExposedPorts: map[string]struct{}{"9090/tcp": {}}, Labels: map[string]string{"l": "2", "same": "s"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "x"}, Retries: 3, Interval: 30e9}, WorkingDir: "/w", StopSignal: "SIGTERM", NetworkDisabled: true,
	}, layer))
	slim.Annotations = map[string]string{"org.opencontainers.image.base.name": "x"}
	d := compare(t, base, slim, diff.Options{})
	var got []string
	for _, f := range d.Config {
		got = append(got, fmt.Sprintf("%s %t %q %t %q", f.Name, f.InBase, f.Old, f.InSlim, f.New))
	}
	want := []string{
		`annotations.org.opencontainers.image.base.name false "" true "x"`,
		`entrypoint true "[\"/run.sh\",\"a && b\"]" true "[\"/init\"]"`,
		`env.B true "2" true "3"`,
		`env.BARE true "" false ""`,
		`env.C false "" true ""`,
		`env.EMPTY true "" false ""`,
		`exposedPorts.8080/tcp true "" false ""`,
		`exposedPorts.9090/tcp false "" true ""`,
		`healthcheck true "[\"CMD\",\"x\"] retries=3" true "[\"CMD\",\"x\"] interval=30s retries=3"`,
		`labels.l true "1" true "2"`,
		`networkDisabled false "" true "true"`,
		`shell true "[\"/bin/bash\",\"-c\"]" false ""`,
		`user true "root" false ""`,
		`volumes./data true "" false ""`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if d.Same || len(d.Files) != 0 {
		t.Errorf("Same is %t with %d files", d.Same, len(d.Files))
	}
	if !compare(t, base, slim, diff.Options{Paths: []string{"/a"}}).Same {
		t.Error("the config counts although only /a was asked for")
	}
}

func TestPaths(t *testing.T) {
	slim := open(t, files{
		image.Dir("/etc", 0o755), file("/etc/a.conf", ""), image.Dir("/etc/d.conf", 0o755), file("/etc/d.conf/x", ""),
		file("/etc/b", ""), image.Dir("/etcetera", 0o755), file("/etcetera/c.conf", ""), file("/[x]", ""),
	})
	base := open(t, nil)
	for _, tt := range []struct {
		paths, want, unmatched []string
	}{
		{[]string{"/etc"}, []string{"/etc", "/etc/a.conf", "/etc/b", "/etc/d.conf", "/etc/d.conf/x"}, nil},
		{[]string{"etc/"}, []string{"/etc", "/etc/a.conf", "/etc/b", "/etc/d.conf", "/etc/d.conf/x"}, nil},
		{[]string{"**/*.conf"}, []string{"/etc/a.conf", "/etc/d.conf", "/etc/d.conf/x", "/etcetera/c.conf"}, nil},
		{[]string{"/etc/*"}, []string{"/etc/a.conf", "/etc/b", "/etc/d.conf", "/etc/d.conf/x"}, nil},
		{[]string{"/etc/{a.conf,b}", "/nothing", "/no*"}, []string{"/etc/a.conf", "/etc/b"}, []string{"/nothing", "/no*"}},
		{[]string{"/[x]"}, []string{"/[x]"}, nil},
		{[]string{`/\[x\]`}, []string{"/[x]"}, nil},
		{[]string{"/etc/../etcetera"}, []string{"/etcetera", "/etcetera/c.conf"}, nil},
		{[]string{"/"}, []string{"/[x]", "/etc", "/etc/a.conf", "/etc/b", "/etc/d.conf", "/etc/d.conf/x", "/etcetera", "/etcetera/c.conf"}, nil},
	} {
		d := compare(t, base, slim, diff.Options{Paths: tt.paths})
		var got []string
		for _, c := range d.Files {
			got = append(got, c.Path)
		}
		if !slices.Equal(got, tt.want) || !slices.Equal(d.Unmatched, tt.unmatched) {
			t.Errorf("%q: got %q and unmatched %q, want %q and %q", tt.paths, got, d.Unmatched, tt.want, tt.unmatched)
		}
		if d.Counts.Added != len(tt.want) {
			t.Errorf("%q: %d are counted", tt.paths, d.Counts.Added)
		}
	}
	for _, bad := range []string{"", "/a[", "/a{b"} {
		if err := diff.CheckPaths([]string{"/ok", bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestText(t *testing.T) {
	base := open(t, files{
		file("/text", "one\ntwo\nthree\n"), file("/binary", "a\x00b"), file("/latin1", "caf\xe9"), file("/large", strings.Repeat("x", 101)),
		file("/l", "1\n"), hardlink("/link", "/l"), file("/evil\nname", "1\n"), file("/same", "1\n"),
	})
	slim := open(t, files{
		file("/text", "one\n2\nthree\n"), file("/binary", "a\x00c"), file("/latin1", "caf\xe8"), file("/large", strings.Repeat("y", 101)),
		file("/l", "2\n"), hardlink("/link", "/l"), file("/evil\nname", "2\n"), file("/same", "1\n"), file("/new", "not shown\n"),
	})
	d := compare(t, base, slim, diff.Options{Text: 100})
	got := map[string]string{}
	for _, c := range d.Files {
		got[c.Path] = c.Text + c.NoText
	}
	want := map[string]string{
		"/text":       "--- base/text\n+++ slim/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
		"/binary":     diff.Binary,
		"/latin1":     diff.Binary,
		"/large":      diff.Large,
		"/l":          "--- base/l\n+++ slim/l\n@@ -1 +1 @@\n-1\n+2\n",
		"/link":       "--- base/link\n+++ slim/link\n@@ -1 +1 @@\n-1\n+2\n",
		"/evil\nname": "--- base\"/evil\\nname\"\n+++ slim\"/evil\\nname\"\n@@ -1 +1 @@\n-1\n+2\n",
		"/new":        "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, c := range compare(t, base, slim, diff.Options{}).Files {
		if c.Text != "" || c.NoText != "" {
			t.Errorf("nobody asked for the text of %s", c.Path)
		}
	}
}

// TestTextIsBounded has more changed text than time and memory are to be spent on.
func TestTextIsBounded(t *testing.T) {
	var old, new files
	line := strings.Repeat("x", 1<<10-1) + "\n"
	for i := range 12 {
		old = append(old, file(fmt.Sprintf("/%02d", i), strings.Repeat(line, 1<<10)))
		new = append(new, file(fmt.Sprintf("/%02d", i), strings.Repeat(line, 1<<10-i-1)))
	}
	d := compare(t, open(t, old), open(t, new), diff.Options{Text: 2 << 20})
	if n := texts(d); n[""] != 8 || n[diff.Limit] != 4 || len(d.Notes) != 1 || !strings.HasPrefix(d.Notes[0], "4 changed files") {
		t.Errorf("%v, %q", n, d.Notes)
	}
	old, new = nil, nil
	for i := range 1003 {
		old = append(old, file(fmt.Sprintf("/%04d", i), "1\n"))
		new = append(new, file(fmt.Sprintf("/%04d", i), "2\n"))
	}
	d = compare(t, open(t, old), open(t, new), diff.Options{Text: 100})
	if n := texts(d); n[""] != 1000 || n[diff.Limit] != 3 {
		t.Errorf("%v, %q", n, d.Notes)
	}
}

// texts counts why there is no text.
func texts(d *diff.Diff) map[string]int {
	n := map[string]int{}
	for _, c := range d.Files {
		n[c.NoText]++
	}
	return n
}

// unreadable is a layer that must not be read.
type unreadable struct{ v1.Layer }

var errRead = errors.New("the layer was read")

func (unreadable) Compressed() (io.ReadCloser, error)   { return nil, errRead }
func (unreadable) Uncompressed() (io.ReadCloser, error) { return nil, errRead }

// counting is a layer that counts how often it is read.
type counting struct {
	v1.Layer
	n *int
}

func (c counting) Compressed() (io.ReadCloser, error) {
	*c.n++
	return c.Layer.Compressed()
}

func (c counting) Uncompressed() (io.ReadCloser, error) {
	*c.n++
	return c.Layer.Uncompressed()
}

func TestSharedLayersAreNotRead(t *testing.T) {
	cache := tree.Cache{Dir: t.TempDir()}
	shared := layerOf(t, files{file("/a", "x"), file("/b", "y")})
	above := layerOf(t, files{file("/a", "z"), image.Whiteout("/b")})
	reads := 0
	opened(t, cache, imageOf(t, v1.Config{}, counting{shared, &reads}))
	if reads != 1 {
		t.Fatalf("a cold cache reads the layer %d times", reads)
	}
	base := opened(t, cache, imageOf(t, v1.Config{}, unreadable{shared}))
	slim := opened(t, cache, imageOf(t, v1.Config{}, counting{shared, &reads}, counting{above, &reads}))
	d := compare(t, base, slim, diff.Options{Layers: true})
	if reads != 2 {
		t.Errorf("%d reads, want one of each layer", reads)
	}
	if want := []string{"M /a content", "- /b"}; !slices.Equal(marks(d.Files), want) {
		t.Errorf("got %q, want %q", marks(d.Files), want)
	}
	warm := opened(t, cache, imageOf(t, v1.Config{}, unreadable{shared}, unreadable{above}))
	if !compare(t, slim, warm, diff.Options{Layers: true}).Same {
		t.Error("the same layers differ")
	}
}

func TestUnreadLayersAreNotCalledSame(t *testing.T) {
	cache := tree.Cache{Dir: t.TempDir()}
	a := opened(t, cache, imageOf(t, v1.Config{}, layerOf(t, files{file("/a", "x")})))
	skipped := imageOf(t, v1.Config{}, layerOf(t, files{file("/a", "x")}), layerOf(t, files{file("/b", "x")}))
	f, err := cache.Open(t.Context(), skipped, tree.Options{Skip: func(v1.Hash) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	d := compare(t, a, &inspect.Image{Files: f, Surface: &inspect.Surface{}}, diff.Options{})
	if d.Same || len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "not read") {
		t.Errorf("Same is %t, notes are %q", d.Same, d.Notes)
	}
}

// naive compares unpacked trees path by path.
func naive(base, slim map[string]ocitest.Node) map[string]string {
	out := map[string]string{}
	for p, old := range base {
		new, ok := slim[p]
		if !ok {
			out[p] = diff.Removed
			continue
		}
		fields := ""
		for _, f := range []struct {
			name    string
			differs bool
		}{
			{"type", old.Type != new.Type},
			{"mode", old.Mode != new.Mode && old.Type != image.TypeSymlink && new.Type != image.TypeSymlink},
			{"owner", old.UID != new.UID || old.GID != new.GID},
			{"size", old.Size != new.Size},
			{"content", old.SHA256 != new.SHA256},
			{"link", old.Type == image.TypeSymlink && old.Link != new.Link},
			{"xattr", !cmp.Equal(old.Xattrs, new.Xattrs)},
		} {
			if f.differs && (old.Type == new.Type || !slices.Contains([]string{"size", "content", "link"}, f.name)) {
				fields += "," + f.name
			}
		}
		if fields != "" {
			out[p] = fields
		}
	}
	for p := range slim {
		if _, ok := base[p]; !ok {
			out[p] = diff.Added
		}
	}
	return out
}

func sameAsNaive(t *testing.T, d *diff.Diff, base, slim v1.Image) {
	t.Helper()
	got := map[string]string{}
	for _, c := range d.Files {
		got[c.Path] = c.Kind
		if len(c.Fields) > 0 {
			got[c.Path] = "," + strings.Join(c.Fields, ",")
		}
	}
	delete(got, "/")
	if d := cmp.Diff(naive(ocitest.Tree(t, base), ocitest.Tree(t, slim)), got); d != "" {
		t.Errorf("an independent comparison differs: -want +got\n%s", d)
	}
}

// randomLayers makes n layers of few paths, so that they often meet, of which the first keep are below's. With named false
// some directories have no entry of their own.
func randomLayers(t *testing.T, r *rand.Rand, below []v1.Layer, keep, n int, named bool) []v1.Layer {
	out := slices.Clone(below[:keep])
	for len(out) < n {
		layer := map[string]image.File{}
		put := func(files ...image.File) {
			for _, f := range files {
				layer[f.Path] = f
			}
		}
		// What is below a symlink or a file of a lower layer is refused or unclear: names of directories, a to c, are never
		// anything else here.
		dirs := map[string]bool{"": true} // true for one with an entry
		for range r.IntN(4) {
			dir := pick(r, dirs) + "/" + string(rune('a'+r.IntN(3)))
			dirs[dir] = named || r.IntN(3) > 0
			if dirs[dir] {
				put(image.Dir(dir, []int64{0o755, 0o700}[r.IntN(2)]))
				switch r.IntN(4) {
				case 0:
					put(opaque(dir))
				case 1:
					put(image.Whiteout(dir))
				}
			}
		}
		for range r.IntN(6) {
			dir := pick(r, dirs)
			p := dir + "/" + string(rune('p'+r.IntN(5)))
			one := file(p, strings.Repeat("x", r.IntN(3)))
			switch r.IntN(9) {
			case 0:
				one.Mode = 0o4755
			case 1:
				one = image.Symlink(p, string(rune('p'+r.IntN(2))))
			case 2:
				one.UID = 1
			case 3:
				one.Xattrs = image.Xattrs{"user.x": fmt.Sprint(r.IntN(2))}
			case 4:
				one = typed(p, image.TypeFifo)
			case 5:
				put(hardlink(p+"2", p))
			case 6, 7: // of a file or of a directory; whether it makes a directory without a name, tools differ
				if one = image.Whiteout(p); r.IntN(2) == 0 {
					one = image.Whiteout(dir + "/" + string(rune('a'+r.IntN(3))))
				}
				if !dirs[dir] {
					continue
				}
			}
			put(one)
		}
		var f files
		for _, one := range layer {
			if one.Type == image.TypeLink {
				to := layer[one.Link]
				if to.Type != image.TypeFile || strings.Contains(to.Path, ".wh.") {
					continue // its file became something else
				}
				one.Mode, one.UID, one.Xattrs = to.Mode, to.UID, to.Xattrs
			}
			f = append(f, one)
		}
		out = append(out, layerOf(t, f))
	}
	return out
}

func pick(r *rand.Rand, dirs map[string]bool) string {
	all := slices.Sorted(maps.Keys(dirs))
	return all[r.IntN(len(all))]
}

// TestRandomPairs compares images that chance makes: each with itself, both ways around, with an independent comparison,
// and the layers with a replay of each layer by itself.
func TestRandomPairs(t *testing.T) {
	cache := tree.Cache{Dir: t.TempDir()}
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 5))
		named := seed%3 > 0
		oldLayers := randomLayers(t, r, nil, 0, 1+r.IntN(4), named)
		newLayers := randomLayers(t, r, oldLayers, r.IntN(len(oldLayers)+1), 5, named)
		oldImage, newImage := imageOf(t, v1.Config{}, oldLayers...), imageOf(t, v1.Config{}, newLayers...)
		base, slim := opened(t, cache, oldImage), opened(t, cache, newImage)
		d := compare(t, base, slim, diff.Options{Layers: true})
		sameAsNaive(t, d, oldImage, newImage)
		mirrored(t, d, compare(t, slim, base, diff.Options{}))
		if self := compare(t, slim, opened(t, cache, newImage), diff.Options{Times: true, Layers: true}); !self.Same {
			t.Errorf("an image differs from itself: %v", marks(self.Files))
		}
		if named { // a layer lists no directory that it makes without naming it
			sameAsReplay(t, d, cache, newLayers, diff.InSlim)
			sameAsReplay(t, d, cache, oldLayers, diff.InBase)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// sameAsReplay checks what is said of the layers that only one image has against merged trees with and without the layer.
func sameAsReplay(t *testing.T, d *diff.Diff, cache tree.Cache, blobs []v1.Layer, in string) {
	t.Helper()
	seen := map[v1.Hash]bool{}
	for i, blob := range blobs {
		digest, err := blob.Digest()
		if err != nil {
			t.Fatal(err)
		}
		again := seen[digest]
		seen[digest] = true
		at := slices.IndexFunc(d.Layers, func(l diff.Layer) bool { return l.Digest == digest.String() })
		l := d.Layers[at]
		if l.In != in || again {
			continue
		}
		want := compare(t, opened(t, cache, imageOf(t, v1.Config{}, blobs[:i]...)), opened(t, cache, imageOf(t, v1.Config{}, blobs[:i+1]...)), diff.Options{})
		var listed []diff.Change
		gone := map[string]bool{} // directories that were taken away
		for _, c := range want.Files {
			if c.Kind != diff.Removed || !gone[path.Dir(c.Path)] {
				listed = append(listed, c)
			}
			gone[c.Path] = c.New == nil || !c.New.IsDir()
		}
		if diff := cmp.Diff(marks(listed), marks(l.Files)); diff != "" {
			t.Errorf("layer %d: -want +got\n%s", i, diff)
		}
		if diff := cmp.Diff(want.Counts, l.Counts); diff != "" {
			t.Errorf("layer %d: -want +got\n%s", i, diff)
		}
	}
}

func TestNothingAtAll(t *testing.T) {
	empty := open(t)
	if d := compare(t, empty, empty, diff.Options{Text: 1, Layers: true}); !d.Same || len(d.Layers) != 0 {
		t.Errorf("%+v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := diff.Of(ctx, open(t, files{file("/a", "1")}), open(t, files{file("/a", "2")}), diff.Options{Text: 10}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
