package tree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf"
)

// sample is an index with everything that one can have.
func sample() *index {
	file := func(p string, size int64) Entry {
		return Entry{Entry: image.Entry{Path: p, Type: image.TypeFile, Mode: 0o4755, UID: 1000, GID: -5, Size: size, ModTime: time.Unix(1<<40, 7).UTC()}, Digest: Digest{1, 2, byte(size)}}
	}
	x := &index{compression: "zstd", foreign: "FEXTRA", odd: []Odd{{"/.wh..wh.plnk/1.2", "a name"}, {"/d/.wh..wh.x", ""}}, entries: []Entry{
		{Entry: image.Entry{Path: "/", Type: TypeOpaque}},
		{Entry: image.Entry{Path: "/", Type: image.TypeDir, Mode: 0o755, ModTime: time.Unix(-1, 0).UTC()}},
		file("/a", 0), file("/a/b", 3), file("/a-b", 1<<60),
		{Entry: image.Entry{Path: "/dev", Type: TypeWhiteout}},
		{Entry: image.Entry{Path: "/dev/null", Type: image.TypeChar}, Device: Device{1, 3}},
		{Entry: image.Entry{Path: "/dev/pipe", Type: image.TypeFifo, Xattrs: image.Xattrs{"user.a": "\x00\xff", "user.b": ""}}},
		{Entry: image.Entry{Path: "/l", Type: image.TypeLink, Link: "/a", Size: 3}, Digest: Digest{1}},
		{Entry: image.Entry{Path: "/l2", Type: image.TypeLink, Link: "/lower"}},
		{Entry: image.Entry{Path: "/s", Type: image.TypeSymlink, Link: "../x"}},
	}}
	var p packer
	for i := range 5 {
		p.add(Digest{byte(i)}, bytes.Repeat([]byte{byte(i)}, chunkSize/2))
	}
	x.pack = p.finish()
	return x
}

func TestIndexComesBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "index")
	want := sample()
	if err := want.write(file, Digest{1}, Digest{2}); err != nil {
		t.Fatal(err)
	}
	got, err := readIndex(file, Digest{1}, Digest{2}, newLimits())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.entries, got.entries) + cmp.Diff(want.odd, got.odd) + cmp.Diff(want.compression, got.compression) + cmp.Diff(want.foreign, got.foreign); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	if diff := cmp.Diff(want.pack.chunks, got.pack.chunks, cmp.AllowUnexported(chunk{})) + cmp.Diff(want.pack.start, got.pack.start); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head := len(whole) - len(want.pack.data)
	for at := range head {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x10
		if err := os.WriteFile(file, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readIndex(file, Digest{1}, Digest{2}, newLimits()); err == nil {
			t.Errorf("byte %d of %d changed, and it is believed", at, head)
		}
		if err := os.WriteFile(file, whole[:at], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readIndex(file, Digest{1}, Digest{2}, newLimits()); err == nil {
			t.Errorf("cut at %d of %d, and it is believed", at, head)
		}
	}
	if err := os.WriteFile(file, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, other := range [][2]Digest{{{3}, {2}}, {{1}, {3}}} {
		if _, err := readIndex(file, other[0], other[1], newLimits()); err == nil {
			t.Error("the index of another layer is believed")
		}
	}
}

// FuzzIndex reads any records: no panic, and what is believed is the same when written and read again.
func FuzzIndex(f *testing.F) {
	records, names := sample().records()
	f.Add(records, names)
	f.Fuzz(func(t *testing.T, records []byte, names uint64) {
		read := func(records []byte, n int, names uint64) *index {
			x := &index{entries: make([]Entry, n)}
			if !x.readRecords(records, names) {
				return nil
			}
			return x
		}
		for n := range 20 {
			x := read(records, n, names%(1<<20))
			if x == nil {
				continue
			}
			again, names := x.records()
			y := read(again, n, names)
			if y == nil {
				t.Fatal("what was read can't be written and read again")
			}
			if diff := cmp.Diff(x.entries, y.entries, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-first +again):\n%s", diff)
			}
			if x.compression != y.compression || x.foreign != y.foreign || !slices.Equal(x.odd, y.odd) {
				t.Errorf("%q %q %q, then %q %q %q", x.compression, x.foreign, x.odd, y.compression, y.foreign, y.odd)
			}
		}
	})
}

func TestPackGivesWhatItKeeps(t *testing.T) {
	content := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%d,", i), 1+i*1000) }
	var p packer
	wanted := map[Digest]int64{{9}: 1}
	for i := range 100 {
		d := Digest(sha256.Sum256(content(i)))
		p.add(d, content(i))
		p.add(d, content(i))
		wanted[d] = int64(len(content(i)))
	}
	pack := p.finish()
	got := map[Digest][]byte{}
	pack.read(wanted, got)
	if len(got) != 100 {
		t.Errorf("%d contents of 100", len(got))
	}
	for i := range 100 {
		if d := Digest(sha256.Sum256(content(i))); !bytes.Equal(got[d], content(i)) {
			t.Errorf("content %d is another", i)
		}
	}
	for i := range pack.data {
		pack.data[i] ^= byte(i)
	}
	got = map[Digest][]byte{}
	if pack.read(wanted, got); len(got) > 0 {
		t.Error("damaged contents are given")
	}
	var full packer
	for i := range maxPack/maxDatabase + 2 {
		full.add(Digest{byte(i)}, make([]byte, maxDatabase))
	}
	if n := len(full.finish().start); n != maxPack/maxDatabase {
		t.Errorf("%d contents of %d bytes kept", n, maxDatabase)
	}
}

func TestKeeps(t *testing.T) {
	of := func(p string, mode, size int64) keep {
		return keepKind(&Entry{Entry: image.Entry{Path: p, Mode: mode, Size: size}})
	}
	for p, want := range map[string]keep{
		"/etc/passwd": always, "/opt/gem/x": always, "/opt/application/a/b.py": always, "/x/y.conf": always, "/x/run.sh": always,
		"/x/hub.json.template": always, "/x/package.json": always, "/x/a-1.dist-info/METADATA": always, "/x/a-1.dist-info/RECORD": always,
		"/x/a.egg-info/PKG-INFO": always, "/var/lib/dpkg/status": always, "/var/lib/dpkg/status.d/base": always,
		"/var/lib/dpkg/info/bash.list": always, "/etcetera": never, "/x/a-1.dist-info/top_level.txt": never,
		"/var/lib/dpkg/info/bash.md5sums": always, "/usr/lib/libc.so": never, "/usr/lib/gdk-pixbuf-2.0/2.10.0/loaders.cache": always,
		"/usr/share/glib-2.0/schemas/gschemas.compiled": always, "/usr/share/mime/globs2": always, "/usr/share/mime/text/plain.xml": never,
	} {
		if got := of(p, 0o644, 10_000); got != want {
			t.Errorf("%s: %d, want %d", p, got, want)
		}
	}
	for _, c := range []struct {
		p          string
		mode, size int64
		want       keep
	}{
		{"/etc/x", 0o644, maxKept, always},
		{"/etc/x", 0o644, maxKept + 1, never},
		{"/var/lib/dpkg/status", 0o644, maxDatabase, always},
		{"/var/lib/dpkg/status", 0o644, maxDatabase + 1, never},
		{"/x/y", 0o755, maxStub, always},
		{"/x/y", 0o755, maxKept, script},
		{"/x/y", 0o755, maxKept + 1, never},
	} {
		if got := of(c.p, c.mode, c.size); got != c.want {
			t.Errorf("%s of %d bytes: %d, want %d", c.p, c.size, got, c.want)
		}
	}
}

// TestLimits: what a small archive makes of itself ends at the limits, which the test lowers.
func TestLimits(t *testing.T) {
	deep := func(n int) string { return fmt.Sprintf("%d/", n) + strings.Repeat("d/", 500) + "x" }
	many := func(n int, name func(int) string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range n {
			if err := w.WriteHeader(&tar.Header{Name: name(i), Typeflag: tar.TypeReg}); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		return b.Bytes()
	}
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "s", Linkname: strings.Repeat("x", 200), Typeflag: tar.TypeSymlink}), w.Flush()); err != nil {
		t.Fatal(err)
	}
	symlinked := head.Bytes()
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"entries":             {many(1001, func(i int) string { return fmt.Sprint(i) }), "more than"},
		"implied directories": {many(3, deep), "more than"},
		"names by symlinks":   {append(symlinked, many(100, func(i int) string { return fmt.Sprintf("s/%d", i) })...), "paths, links and attributes"},
		"names":               {many(100, func(i int) string { return strings.Repeat("x", 200) + fmt.Sprint(i) }), "paths, links and attributes"},
	} {
		l := newLimits()
		l.entries.Store(1000)
		l.names.Store(10000)
		if _, err := readTar(context.Background(), bytes.NewReader(c.raw), l, nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	l := newLimits()
	x, err := readTar(context.Background(), bytes.NewReader(many(3, deep)), l, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.entries.Store(1000)
	if _, err := merged(l, Layer{Entries: x.entries}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("implied directories of a merge: error is %v", err)
	}
	if _, err := merged(newLimits(), make([]Layer, maxLayers+1)...); err == nil {
		t.Error("more layers than can be mounted are laid")
	}
}

func TestInflateBound(t *testing.T) {
	gzipped := func(content []byte) io.Reader {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	noise := make([]byte, 32<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for name, c := range map[string]struct {
		content []byte
		refused bool
	}{
		"as large as it is": {content: noise},
		"zeros":             {content: make([]byte, len(noise)), refused: true},
	} {
		l := newLimits()
		l.inflatedBytes.Store(1 << 20)
		r, _, err := l.inflate(gzipped(c.content))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if (err != nil) != c.refused || err == nil && !bytes.Equal(got, c.content) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(c.content), err)
		}
	}
}

// TestStashIsBounded: whatever a layer holds, it takes no more than its share of the disk.
func TestStashIsBounded(t *testing.T) {
	stash, err := NewStash(t.TempDir(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer stash.Close()
	stash.size = maxStash - 5
	stash.limit.Store(maxStash)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	contents := []string{"large!", "one", "two!", "3"}
	for _, content := range contents {
		if err := w.WriteHeader(&tar.Header{Name: content, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := readTar(t.Context(), &archive, newLimits(), stash, nil); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true, false, true} {
		if r := stash.Content(sha256.Sum256([]byte(contents[i]))); (r != nil) != want {
			t.Errorf("%q is in the stash: %v", contents[i], r != nil)
		}
	}
}

// TestIndexLayerKnown: what is known of a file's content is in the index, and the content isn't hashed for it.
func TestIndexLayerKnown(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	known := map[string]Digest{"/known": {1}, "/program": {2}}
	program := &elf.File{Needed: []string{"libc.so.6"}}
	base := &Image{elfs: func() (map[Digest]*elf.File, error) { return map[Digest]*elf.File{{2}: program}, nil }}
	l, err := c.IndexLayer(t.Context(), base, func(p string) Digest { return known[p] }, func(w io.Writer) (v1.Layer, error) {
		files := []image.File{image.Bytes("/a", 0o644, []byte("a")), image.Bytes("/known", 0o644, []byte("b")), image.Bytes("/program", 0o755, []byte("c"))}
		if err := image.WriteTar(w, files); err != nil {
			return nil, err
		}
		return image.NewLayer(files)
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	files, err := c.Open(t.Context(), img, Options{})
	if err != nil {
		t.Fatal(err)
	}
	known["/a"] = sha256.Sum256([]byte("a"))
	for p, want := range known {
		if e, _ := files.Lookup(p); e.Digest != want {
			t.Errorf("%s: %s, want %s", p, e.Digest, want)
		}
	}
	if elfs, err := files.ELF(); err != nil || len(elfs) != 1 || !reflect.DeepEqual(elfs[known["/program"]], program) {
		t.Errorf("ELF files: %v %v", elfs, err)
	}
}
