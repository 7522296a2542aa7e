package tree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

func newImage(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func layerOf(t *testing.T, files ...image.File) v1.Layer {
	t.Helper()
	l, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rawLayer is a layer as a hostile or careless tool may write it: entries in the order given, names as given.
func rawLayer(t *testing.T, headers ...tar.Header) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(b.Bytes(), types.OCIUncompressedLayer)
}

func treeOf(t *testing.T, layers ...v1.Layer) *tree.Tree {
	t.Helper()
	merged, err := tree.Cache{}.Open(t.Context(), newImage(t, layers...), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return merged.Tree
}

func paths(t *tree.Tree) []string {
	var out []string
	for _, e := range slices.Collect(t.Walk("/"))[1:] {
		out = append(out, string(e.Type)+" "+e.Path)
	}
	return out
}

func TestTreeMergesLayers(t *testing.T) {
	file := func(p string) image.File { return image.Bytes(p, 0o644, []byte("x")) }
	dir := func(p string) image.File { return image.Dir(p, 0o755) }
	type ls = [][]image.File
	for _, c := range []struct {
		name   string
		layers [][]image.File
		want   []string
	}{
		{"a whiteout hides a file", ls{{file("/a"), file("/b")}, {image.Whiteout("/a")}}, []string{"file /b"}},
		{"a whiteout hides a directory and all below", ls{{dir("/d"), file("/d/x")}, {image.Whiteout("/d")}}, nil},
		{
			"a whiteout doesn't hide its own layer",
			ls{{dir("/d"), file("/d/old")}, {image.Whiteout("/d"), dir("/d"), file("/d/new")}},
			[]string{"dir /d", "file /d/new", "file /d/old"}, // overlayfs shows what is below a directory that replaces a whiteout
		},
		{
			"an opaque directory hides what is below it",
			ls{{dir("/d"), file("/d/old")}, {dir("/d"), image.Bytes("/d/.wh..wh..opq", 0, nil), file("/d/new")}},
			[]string{"dir /d", "file /d/new"},
		},
		{"a file takes a directory's place", ls{{dir("/d"), file("/d/x")}, {file("/d")}}, []string{"file /d"}},
		{"a directory takes a file's place", ls{{file("/d")}, {dir("/d"), file("/d/x")}}, []string{"dir /d", "file /d/x"}},
		{"a directory keeps its content", ls{{dir("/d"), file("/d/x")}, {image.Dir("/d", 0o700)}}, []string{"dir /d", "file /d/x"}},
		{"a parent is made when it is missing", ls{{file("/d/e/x")}}, []string{"dir /d", "dir /d/e", "file /d/e/x"}},
		{
			"a symlinked parent of the same layer is followed",
			ls{{dir("/usr"), dir("/usr/bin"), image.Symlink("/bin", "usr/bin"), file("/bin/x")}},
			[]string{"symlink /bin", "dir /usr", "dir /usr/bin", "file /usr/bin/x"},
		},
		{
			"a directory takes a symlink's place",
			ls{{dir("/usr"), image.Symlink("/bin", "usr")}, {dir("/bin"), file("/bin/x")}},
			[]string{"dir /bin", "file /bin/x", "dir /usr"},
		},
		{
			"an opaque directory takes a symlink's place",
			ls{
				{dir("/usr"), file("/usr/y"), image.Symlink("/bin", "usr")},
				{dir("/bin"), image.Bytes("/bin/.wh..wh..opq", 0, nil), image.Whiteout("/bin/y"), file("/bin/x")},
			},
			[]string{"dir /bin", "file /bin/x", "dir /usr", "file /usr/y"},
		},
		{"a whiteout of nothing that is there", ls{{file("/a")}, {image.Whiteout("/b")}}, []string{"file /a"}},
		{
			"a link out of the tree stays inside",
			ls{{image.Symlink("/a-up", "../../../etc"), dir("/etc"), file("/a-up/x")}},
			[]string{"symlink /a-up", "dir /etc", "file /etc/x"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l []v1.Layer
			for _, files := range c.layers {
				l = append(l, layerOf(t, files...))
			}
			if diff := cmp.Diff(c.want, paths(treeOf(t, l...))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTreeOfHostileNames(t *testing.T) {
	tree := treeOf(t, rawLayer(t,
		tar.Header{Name: "../../etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "/abs/./x/../y", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "twice", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "twice", Typeflag: tar.TypeReg, Mode: 0o644},
	))
	want := []string{"dir /abs", "file /abs/y", "dir /etc", "file /etc/passwd", "file /twice"}
	if diff := cmp.Diff(want, paths(tree)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e, _ := tree.Lookup("/twice"); e.Mode != 0o644 {
		t.Errorf("of two entries with one path the last one counts; mode is %o", e.Mode)
	}
	if root, _ := tree.Lookup("/"); root.Mode != 0o700 || !root.IsDir() {
		t.Errorf("root is %+v", root)
	}
}

// TestTreeRefusesToGuess covers layers that runtimes read differently: with /bin a link to /opt, our own server would be
// laid where nobody looks for it, and the layer's file stay where it is.
func TestTreeRefusesToGuess(t *testing.T) {
	link := layerOf(t, image.Dir("/opt", 0o755), image.Symlink("/bin", "/opt"))
	for name, files := range map[string][]image.File{
		"a file":           {image.Bytes("/bin/x", 0o755, nil)},
		"a deeper file":    {image.Bytes("/bin/a/b", 0o755, nil)},
		"a whiteout":       {image.Whiteout("/bin/x")},
		"an opaque marker": {image.Bytes("/bin/.wh..wh..opq", 0, nil)},
	} {
		_, err := tree.Cache{}.Open(t.Context(), newImage(t, link, layerOf(t, files...)), tree.Options{})
		if err == nil || !strings.Contains(err.Error(), "below /bin, which a lower layer made a symlink to /opt") {
			t.Errorf("%s below a lower layer's symlink: error is %v", name, err)
		}
	}
}

func TestTreeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		layer      v1.Layer
	}{
		{"a loop of symlinks", "symlinks to follow", rawLayer(t,
			tar.Header{Name: "a", Linkname: "b", Typeflag: tar.TypeSymlink},
			tar.Header{Name: "b", Linkname: "a", Typeflag: tar.TypeSymlink},
			tar.Header{Name: "a/x", Typeflag: tar.TypeReg})},
		{"a whiteout of nothing", "whiteout without a name", rawLayer(t, tar.Header{Name: "d/.wh.", Typeflag: tar.TypeReg})},
		{"a whiteout of its own directory", "whiteout without a name", rawLayer(t, tar.Header{Name: "d/.wh..", Typeflag: tar.TypeReg})},
		{"an unknown type", "unknown tar entry type", rawLayer(t, tar.Header{Name: "x", Typeflag: 'Z'})},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tree.Cache{}.Open(t.Context(), newImage(t, c.layer), tree.Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestResolveAndGlob(t *testing.T) {
	tree := treeOf(t, layerOf(t,
		image.Dir("/usr", 0o755), image.Dir("/usr/bin", 0o755), image.Symlink("/bin", "usr/bin"), image.Symlink("/abs", "/usr"),
		image.Symlink("/usr/bin/sh", "dash"), image.Bytes("/usr/bin/dash", 0o755, nil), image.Symlink("/out", "../../.."),
		image.Symlink("/loop", "loop"), image.Symlink("/dangling", "/nowhere/else"),
	))
	for p, want := range map[string]string{
		"/bin/sh":       "/usr/bin/sh", // the last element stays a link
		"/abs/bin/new":  "/usr/bin/new",
		"/bin":          "/bin",
		"/out/etc/x":    "/etc/x",
		"/new/deep/x":   "/new/deep/x",
		"/dangling/x":   "/nowhere/else/x",
		"/usr/../bin/x": "/usr/bin/x",
	} {
		if got, err := tree.Resolve(p); err != nil || got != want {
			t.Errorf("Resolve(%s) = %s, %v; want %s", p, got, err, want)
		}
	}
	for _, p := range []string{"/loop/x", "/usr/bin/dash/x", "/bin/sh/x"} {
		if got, err := tree.Resolve(p); err == nil {
			t.Errorf("Resolve(%s) = %s, want an error", p, got)
		}
	}
	for pattern, want := range map[string][]string{
		"/usr/bin/*":      {"/usr/bin/dash", "/usr/bin/sh"},
		"/usr/**/d*":      {"/usr/bin/dash"},
		"/{bin,abs,nope}": {"/abs", "/bin"},
		"/bin/*":          nil, // links are not followed
		"/none/*":         nil,
	} {
		got, err := tree.Glob(pattern)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Glob(%s): %v (-want +got):\n%s", pattern, err, diff)
		}
	}
	if _, err := tree.Glob("/[a"); err == nil {
		t.Error("a bad glob is accepted")
	}
}

// TestTreeAgreesWithIndependentReading compares with ocitest, which shares no code with Tree.
func TestTreeAgreesWithIndependentReading(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: "B", Platforms: []string{"linux/amd64"}}); err != nil {
		t.Fatal(err)
	}
	img := ocitest.Layout(t, dir)["linux/amd64"]
	merged, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]ocitest.Node{}
	for _, e := range slices.Collect(merged.Walk("/"))[1:] {
		got[e.Path] = ocitest.Node{Path: e.Path, Type: e.Type, Mode: e.Mode, UID: e.UID, GID: e.GID, Xattrs: e.Xattrs}
	}
	want := map[string]ocitest.Node{}
	for p, n := range ocitest.Tree(t, img) {
		n.SHA256, n.Size, n.Link = "", 0, ""
		if got[p].Type == image.TypeLink { // ocitest gives every name of a file its metadata
			n.Type, n.Mode, n.UID, n.GID, n.Xattrs = got[p].Type, got[p].Mode, got[p].UID, got[p].GID, got[p].Xattrs
		}
		if n.Type == image.TypeSymlink {
			n.Mode = got[p].Mode
		}
		want[p] = n
	}
	if diff := ocitest.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// unreadable fails when its content is asked for.
type unreadable struct{ v1.Layer }

func (unreadable) Compressed() (io.ReadCloser, error) { return nil, errors.New("the layer was read") }

func (unreadable) Uncompressed() (io.ReadCloser, error) { return nil, errors.New("the layer was read") }

func TestIndexIsReadOnce(t *testing.T) {
	cache := tree.Cache{Dir: t.TempDir()}
	l := layerOf(t, image.Bytes("/a", 0o4755, []byte("x")), image.File{Entry: image.Entry{
		Path: "/d", Type: image.TypeDir, Mode: 0o1777, UID: 7, GID: 8, Xattrs: map[string]string{"user.x": "\x00\xff"}, ModTime: time.Unix(5, 0),
	}})
	first, err := cache.Open(t.Context(), newImage(t, l), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := cache.Open(t.Context(), newImage(t, unreadable{l}), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Collect(first.Walk("/")), slices.Collect(second.Walk("/"))); diff != "" {
		t.Errorf("read and remembered differ:\n%s", diff)
	}
	files, err := filepath.Glob(filepath.Join(cache.Dir, "index", "*", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("cache holds %v, %v", files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{"cut": whole[:len(whole)-3], "empty": nil, "flipped": append(bytes.Clone(whole[:20]), bytes.Repeat([]byte{0xaa}, 40)...)} {
		if err := os.WriteFile(files[0], damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		again, err := cache.Open(t.Context(), newImage(t, l), tree.Options{})
		if err != nil {
			t.Fatalf("%s index: %v", name, err)
		}
		if diff := cmp.Diff(slices.Collect(first.Walk("/")), slices.Collect(again.Walk("/"))); diff != "" {
			t.Errorf("%s index is believed:\n%s", name, diff)
		}
	}
}

func TestIndexOfCompressions(t *testing.T) {
	var plain bytes.Buffer
	if err := image.WriteTar(&plain, []image.File{image.Bytes("/x", 0o644, []byte("x"))}); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(plain.Bytes())
	z.Close()
	for name, l := range map[string]v1.Layer{
		"plain": static.NewLayer(plain.Bytes(), types.OCIUncompressedLayer),
		"zstd":  compressed{static.NewLayer(packed.Bytes(), types.OCILayerZStd), static.NewLayer(plain.Bytes(), types.OCIUncompressedLayer)},
	} {
		got, err := tree.Cache{}.Open(t.Context(), newImage(t, l), tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"file /x"}, paths(got.Tree)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// compressed is a static layer whose diffID is that of another one.
type compressed struct {
	v1.Layer
	raw v1.Layer
}

func (c compressed) DiffID() (v1.Hash, error) { return c.raw.DiffID() }

func TestIndexOfDamagedLayers(t *testing.T) {
	l := layerOf(t, image.Bytes("/a", 0o644, bytes.Repeat([]byte("0123456789"), 1000)))
	other := layerOf(t, image.Bytes("/b", 0o644, nil))
	blob := func(change func([]byte) []byte) v1.Layer {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return compressed{static.NewLayer(change(data), types.OCILayer), l}
	}
	for name, damaged := range map[string]v1.Layer{
		"cut":                    blob(func(b []byte) []byte { return b[:len(b)-20] }),
		"flipped":                blob(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }),
		"another layer's diffID": compressed{l, other},
		"no archive":             static.NewLayer(bytes.Repeat([]byte("no tar"), 1000), types.OCILayer),
	} {
		cache := tree.Cache{Dir: t.TempDir()}
		_, err := cache.Open(t.Context(), newImage(t, damaged), tree.Options{})
		digest, _ := damaged.Digest()
		if err == nil || !strings.Contains(err.Error(), digest.String()) {
			t.Errorf("%s: error is %v, want one that names %s", name, err, digest)
		}
		if left, _ := filepath.Glob(filepath.Join(cache.Dir, "index", "*", "*")); len(left) > 0 {
			t.Errorf("%s: remembered as %v", name, left)
		}
	}
}

func TestIndexStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	_, err := tree.Cache{}.Open(ctx, newImage(t, layerOf(t, image.Bytes("/a", 0o644, []byte("x")))), tree.Options{})
	if !errors.Is(err, reason) {
		t.Errorf("error is %v, want %v", err, reason)
	}
}
