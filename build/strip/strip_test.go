package strip_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

var when = time.Unix(315532800, 0)

// stack makes an image of layers, each a list of files.
func stack(t *testing.T, layers ...[]image.File) (v1.Image, *tree.Image) {
	t.Helper()
	img, files, err := tryStack(t, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img, files
}

func tryStack(t *testing.T, layers ...[]image.File) (v1.Image, *tree.Image, error) {
	t.Helper()
	img := empty.Image
	for _, files := range layers {
		l, err := image.NewLayer(files)
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	files, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	return img, files, err
}

func layers(t *testing.T, in strip.Input) []strip.Layer {
	t.Helper()
	in.Time = when
	if in.CacheDir == "" {
		in.CacheDir = t.TempDir()
	}
	out, err := strip.Layers(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// merged is the tree of layers.
func merged(t *testing.T, layers []strip.Layer) *tree.Image {
	t.Helper()
	img := empty.Image
	var err error
	for _, l := range layers {
		if img, err = mutate.AppendLayers(img, l.Layer); err != nil {
			t.Fatal(err)
		}
	}
	files, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// listing is a tree as text, without times, and with hard links as the files that they are.
func listing(files *tree.Image, stays func(p string) bool) string {
	var b strings.Builder
	for e := range files.Walk("/") {
		if e.Path == "/" || !stays(e.Path) {
			continue
		}
		typ, link := e.Type, e.Link
		if typ == image.TypeLink {
			typ, link = image.TypeFile, ""
		}
		fmt.Fprint(&b, e.Path, " ", typ, " ", e.Mode, e.UID, e.GID, e.Size, " ", link, e.Digest, e.Xattrs)
		fmt.Fprintln(&b)
	}
	return b.String()
}

// secondName ends a hard link in a random layer.
const secondName = ".link"

// TestRandom: of any stack of layers and whatever stays of it, the layers have the tree less what goes.
func TestRandom(t *testing.T) {
	cases := 300
	if n, err := strconv.Atoi(os.Getenv("SLIMCTL_RANDOM_CASES")); err == nil {
		cases = n
	}
	for seed, tried := 0, 0; tried < cases; seed++ {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		img, base, err := tryStack(t, randomLayers(r)...)
		if err != nil {
			continue // below a link, which a tree refuses
		}
		tried++
		goes := map[string]bool{}
		for e := range base.Walk("/") {
			if goes[filepath.Dir(e.Path)] || e.Path != "/" && r.IntN(3) == 0 {
				goes[e.Path] = true // and all below it
			}
		}
		// A directory stays for what lies in it only; an empty one stays.
		some := func(p string, of uint32) bool {
			h := fnv.New32()
			_, _ = io.WriteString(h, p)
			return h.Sum32()%of == 0
		}
		in := strip.Input{
			Base: base, Image: img, Order: []string{"a", "b"},
			Component: func(p string) string {
				switch {
				case goes[p]:
					return ""
				case some(p, 2):
					return "a"
				}
				return "b"
			},
		}
		all := func(string) bool { return true }
		got := merged(t, layers(t, in))
		if d := cmp.Diff(listing(base, func(p string) bool { return !goes[p] }), listing(got, all)); d != "" {
			t.Fatalf("seed %d: -want +got\n%s", seed, d)
		}
	}
}

// randomLayers makes layers over few names, so that they meet: files, directories, links of both kinds, removals.
func randomLayers(r *rand.Rand) [][]image.File {
	names := []string{"a", "b", "c"}
	var out [][]image.File
	for range 1 + r.IntN(4) {
		have := map[string]image.File{}
		for range 1 + r.IntN(8) {
			p, depth := "", 1+r.IntN(3)
			for range depth {
				p += "/" + names[r.IntN(len(names))]
			}
			var f image.File
			switch r.IntN(6) {
			case 0:
				f = image.Dir(p, 0o700+int64(r.IntN(64)))
			case 1:
				f = image.Symlink(p, names[r.IntN(len(names))])
			case 2:
				f = image.Whiteout(p)
			default:
				f = image.Bytes(p, 0o600+int64(r.IntN(64)), []byte(strings.Repeat("x", r.IntN(5))))
				f.UID = r.IntN(3)
				f.ModTime = time.Unix(int64(r.IntN(1000)), 0)
				if r.IntN(4) == 0 {
					f.Xattrs = image.Xattrs{"user.x": "y"}
				}
			}
			have[f.Path] = f
		}
		var files []image.File
		for _, p := range slices.Sorted(maps.Keys(have)) {
			f := have[p]
			if blocked(have, f.Path) {
				continue
			}
			if f.Type == image.TypeFile && f.Size > 0 && r.IntN(3) == 0 { // a second name
				second := f.Path + secondName
				files = append(files, image.File{Entry: image.Entry{Path: second, Type: image.TypeLink, Link: f.Path, Mode: f.Mode, UID: f.UID}})
			}
			files = append(files, f)
		}
		out = append(out, files)
	}
	return out
}

// blocked reports whether a layer has something that is no directory above p, or removes and lays one name.
func blocked(have map[string]image.File, p string) bool {
	for _, dir := range image.Parents(p) {
		if f, ok := have[dir]; ok && !f.IsDir() {
			return true
		}
		if _, ok := have[image.Whiteout(dir).Path]; ok {
			return true
		}
	}
	_, removed := have[image.Whiteout(p).Path]
	return removed && !strings.Contains(filepath.Base(p), ".wh.")
}

// TestSameBytes: neither times, nor how the base's layers are cut, nor processors change a layer.
func TestSameBytes(t *testing.T) {
	big := image.Bytes("/usr/big", 0o755, []byte(strings.Repeat("compress me, in blocks\n", 200_000)))
	one := []image.File{image.Dir("/usr", 0o755), image.Bytes("/usr/a", 0o644, []byte("a")), big}
	later := image.Bytes("/usr/a", 0o644, []byte("a"))
	later.ModTime = time.Unix(1e9, 0)
	var want []v1.Hash
	for _, procs := range []int{1, 2, 8} {
		for name, s := range map[string][][]image.File{
			"one layer":  {one},
			"three":      {{image.Dir("/usr", 0o755), image.Bytes("/usr/a", 0o600, []byte("old"))}, {image.Dir("/usr", 0o755), big}, {image.Dir("/usr", 0o755), later}},
			"other days": {{image.Dir("/usr", 0o755), later, big}},
		} {
			func() {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				img, base := stack(t, s...)
				var got []v1.Hash
				for _, l := range layers(t, strip.Input{Base: base, Image: img, Order: []string{"all"}, Component: func(string) string { return "all" }}) {
					d, err := l.Digest()
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, d)
				}
				if want == nil {
					want = got
				}
				if !slices.Equal(want, got) {
					t.Errorf("%s on %d processors: %v, not %v", name, procs, got, want)
				}
			}()
		}
	}
}

// TestHardLinks: a file outlives its first name, and no link leads to another layer.
func TestHardLinks(t *testing.T) {
	link := func(p string) image.File {
		return image.File{Entry: image.Entry{Path: p, Type: image.TypeLink, Link: "/a", Mode: 0o644}}
	}
	img, base := stack(t, []image.File{image.Bytes("/a", 0o644, []byte("content")), link("/b"), link("/c"), link("/d")})
	got := layers(t, strip.Input{
		Base: base, Image: img, Order: []string{"one", "two"},
		Component: func(p string) string { return map[string]string{"/b": "one", "/c": "one", "/d": "two"}[p] },
	})
	var text []string
	for _, l := range got {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		tr := tar.NewReader(r)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, fmt.Sprintf("%s %s %c %s %s", l.Component, h.Name, h.Typeflag, h.Linkname, data))
		}
		r.Close()
	}
	if d := cmp.Diff([]string{"one b 0  content", "one c 1 b ", "two d 0  content"}, text); d != "" {
		t.Error(d)
	}
}

// TestEdits: an edit changes content and size, but not of a hard link, and another edit is another layer.
func TestEdits(t *testing.T) {
	img, base := stack(t, []image.File{
		image.Bytes("/etc/x", 0o644, []byte("one\ntwo\n")), image.Bytes("/etc/empty", 0o644, nil),
		{Entry: image.Entry{Path: "/etc/y", Type: image.TypeLink, Link: "/etc/x", Mode: 0o644}},
		{Entry: image.Entry{Path: "/etc/z", Type: image.TypeLink, Link: "/etc/x", Mode: 0o644}},
	})
	in := func(key, text string) strip.Input {
		edit := strip.Edit{Key: key, Change: func(old []byte) []byte { return append(old, text...) }}
		return strip.Input{
			Base: base, Image: img, Order: []string{"all"}, Component: func(string) string { return "all" }, CacheDir: t.TempDir(),
			Edits: map[string]strip.Edit{"/etc/x": edit, "/etc/empty": edit},
		}
	}
	files := merged(t, layers(t, in("1", "three\n")))
	for p, want := range map[string]string{"/etc/x": "one\ntwo\nthree\n", "/etc/empty": "three\n", "/etc/y": "one\ntwo\n", "/etc/z": "one\ntwo\n"} {
		if data, err := files.ReadFile(t.Context(), p); err != nil || string(data) != want {
			t.Errorf("%s: %q %v", p, data, err)
		}
	}
	again := in("1", "three\n")
	first := layers(t, again)
	again.Edits["/etc/x"] = strip.Edit{Key: "2", Change: func([]byte) []byte { return nil }}
	a, _ := first[0].Digest()
	if b, _ := layers(t, again)[0].Digest(); a == b {
		t.Error("another edit gives the layer of the first")
	}
}

// TestCompiledPython: what goes by its source's time has the new one, if Python takes it in the base. Stale code would run otherwise:
// all sources have one time then.
func TestCompiledPython(t *testing.T) {
	const mended = 1600000000
	pyc := func(flags, at, size uint32) []byte {
		b := append([]byte("\xa7\x0d\r\n"), make([]byte, 12)...)
		binary.LittleEndian.PutUint32(b[4:], flags)
		binary.LittleEndian.PutUint32(b[8:], at)
		binary.LittleEndian.PutUint32(b[12:], size)
		return append(b, "code"...)
	}
	source := func(p, text string) image.File {
		f := image.Bytes(p, 0o644, []byte(text))
		f.ModTime = time.Unix(mended, 5)
		return f
	}
	now := uint32(when.Unix())
	files := []image.File{source("/m.py", "12345"), source("/real.py", "123"), image.Symlink("/link.py", "real.py")}
	want := map[string][]byte{}
	for name, at := range map[string]struct{ base, layer []byte }{
		"m.cpython-311":       {pyc(0, mended, 5), pyc(0, now, 5)},
		"m.cpython-311.opt-1": {pyc(0, mended, 5), pyc(0, now, 5)},
		"link.cpython-311":    {pyc(0, mended, 3), pyc(0, now, 3)},
		"m.cpython-310":       {pyc(0, 1e9, 5), pyc(0, 0, 5)}, // of an older source
		"m.cpython-309":       {pyc(0, now, 5), pyc(0, 0, 5)},
		"m.cpython-308":       {pyc(0, mended, 4), pyc(0, 0, 4)},
		"gone.cpython-311":    {pyc(0, 1e9, 5), pyc(0, 0, 5)},
		"m.cpython-312":       {pyc(3, 1e9, 5), pyc(3, 1e9, 5)}, // by hash
		"m.cpython-313":       {[]byte("x"), []byte("x")},
	} {
		p := "/__pycache__/" + name + ".pyc"
		files, want[p] = append(files, image.Bytes(p, 0o644, at.base)), at.layer
	}
	in := strip.Input{Order: []string{"all"}, Component: func(string) string { return "all" }, CacheDir: t.TempDir()}
	in.Image, in.Base = stack(t, files)
	got := merged(t, layers(t, in))
	for p, want := range want {
		if data, err := got.ReadFile(t.Context(), p); err != nil || !bytes.Equal(data, want) {
			t.Errorf("%s: %q %v, want %q", p, data, err, want)
		}
	}
	// The same files with another time of a source are another layer, also from the cache.
	files[0].ModTime = time.Unix(1e9, 0)
	in.Image, in.Base = stack(t, files)
	again := merged(t, layers(t, in))
	if data, err := again.ReadFile(t.Context(), "/__pycache__/m.cpython-310.pyc"); err != nil || !bytes.Equal(data, pyc(0, now, 5)) {
		t.Errorf("with the time of its source: %q %v", data, err)
	}
}

// unread is an image whose layers can't be read.
type unread struct{ v1.Image }

func (u unread) Layers() ([]v1.Layer, error) { return nil, errors.New("the base is read") }

// broken is an image whose highest layer can't be read.
type broken struct{ v1.Image }

func (b broken) Layers() ([]v1.Layer, error) {
	all, err := b.Image.Layers()
	all[len(all)-1] = unreadable{all[len(all)-1]}
	return all, err
}

type unreadable struct{ v1.Layer }

func (unreadable) Compressed() (io.ReadCloser, error) { return nil, errors.New("the layer is read") }

// TestIndexedContents: a layer isn't read for what its index has.
func TestIndexedContents(t *testing.T) {
	img, base := stack(t, []image.File{image.Bytes("/a", 0o644, []byte("a"))}, []image.File{image.Bytes("/etc/b", 0o644, []byte("b")), image.Bytes("/big", 0o644, []byte("big"))})
	in := strip.Input{
		Base: base, Image: broken{img}, Order: []string{"all"},
		Component: func(p string) string { return map[string]string{"/a": "all", "/etc/b": "all"}[p] },
	}
	files := merged(t, layers(t, in))
	for p, want := range map[string]string{"/a": "a", "/etc/b": "b"} {
		if data, err := files.ReadFile(t.Context(), p); err != nil || string(data) != want {
			t.Errorf("%s: %q %v", p, data, err)
		}
	}
	in.Component = func(string) string { return "all" } // a layer that is being written waits for /big
	in.CacheDir = t.TempDir()
	if _, err := strip.Layers(t.Context(), in); err == nil || !strings.Contains(err.Error(), "the layer is read") {
		t.Errorf("a layer that can't be read: %v", err)
	}
}

// TestCache: layers that were made before are not made again, and nothing of the base is read; a damaged one is found.
func TestCache(t *testing.T) {
	img, base := stack(t, []image.File{image.Bytes("/a", 0o644, []byte("a")), image.Bytes("/b", 0o644, []byte("b"))})
	in := strip.Input{
		Base: base, Image: img, CacheDir: t.TempDir(), Order: []string{"one", "none", "two"},
		Component: func(p string) string { return map[string]string{"/a": "one", "/b": "two"}[p] },
	}
	first := layers(t, in)
	if len(first) != 2 || first[0].Files != 1 || first[0].Unpacked != 1 {
		t.Fatalf("got %+v", first)
	}
	in.Image = unread{img}
	again := layers(t, in)
	for i := range first {
		a, _ := first[i].Digest()
		if b, _ := again[i].Digest(); a != b {
			t.Errorf("%s, and then %s", a, b)
		}
	}
	blobs, err := filepath.Glob(filepath.Join(in.CacheDir, "stripped", "*", "*.tar.gz"))
	if err != nil || len(blobs) != 2 {
		t.Fatalf("%q %v", blobs, err)
	}
	for _, b := range blobs {
		data, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		if err := os.WriteFile(b, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range layers(t, in) {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), "cache directory") {
			t.Errorf("a damaged layer: %v", err)
		}
	}
	for _, b := range blobs {
		if err := os.Truncate(b, 3); err != nil {
			t.Fatal(err)
		}
	}
	in.Image = img
	if a, _ := first[0].Digest(); digestOf(t, layers(t, in)[0]) != a {
		t.Error("a cut layer isn't made anew")
	}
}

func digestOf(t *testing.T, l v1.Layer) v1.Hash {
	t.Helper()
	r, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h, _, err := v1.SHA256(r)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRefuses(t *testing.T) {
	img, base := stack(t, []image.File{image.Bytes("/a", 0o644, []byte("a")), {Entry: image.Entry{Path: "/fifo", Type: image.TypeFifo, Mode: 0o600}}})
	for name, component := range map[string]func(string) string{
		`/a: no layer is for the component "x"`:              func(string) string { return "x" },
		"/fifo is a fifo, which slimctl's layers can't hold": func(p string) string { return map[string]string{"/fifo": "one"}[p] },
	} {
		_, err := strip.Layers(t.Context(), strip.Input{Base: base, Image: img, Order: []string{"one"}, Component: component, CacheDir: t.TempDir()})
		if err == nil || err.Error() != name {
			t.Errorf("%q: %v", name, err)
		}
	}
}
