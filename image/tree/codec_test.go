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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
)

// sample is an index with everything that one can have.
func sample() *index {
	file := func(p string, size int64) Entry {
		return Entry{Entry: image.Entry{Path: p, Type: image.TypeFile, Mode: 0o4755, UID: 1000, GID: -5, Size: size, ModTime: time.Unix(1<<40, 7).UTC()}, Digest: Digest{1, 2, byte(size)}}
	}
	x := &index{elfs: Digest{7}, elfSize: 9, entries: []Entry{
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
	for i := range 3 * batchSize { // several batches; a value must not come from the one before
		e := Entry{Entry: image.Entry{Path: fmt.Sprintf("/t%05d", i), Type: image.TypeFile, Size: int64(i % 7), ModTime: time.Unix(int64(i%3), 0).UTC()}}
		if i%2 == 0 {
			e.Digest, e.UID, e.Xattrs = Digest{byte(i), 1}, i, image.Xattrs{"user.i": fmt.Sprint(i)}
		}
		want.entries = append(want.entries, e)
	}
	if err := want.write(file, Digest{1}, Digest{2}); err != nil {
		t.Fatal(err)
	}
	check := func(got *index) string {
		return cmp.Diff(want.entries, got.entries) + cmp.Diff(want.pack.chunks, got.pack.chunks) + cmp.Diff(want.pack.start, got.pack.start) +
			cmp.Diff([]any{want.elfs, want.elfSize}, []any{got.elfs, got.elfSize})
	}
	got, err := readIndex(file, Digest{1}, Digest{2}, newLimits())
	if err != nil {
		t.Fatal(err)
	}
	if diff := check(got); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for at := len(want.pack.data); at < len(whole); at += 1 + len(whole)/500 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x10
		if err := os.WriteFile(file, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := readIndex(file, Digest{1}, Digest{2}, newLimits()); err == nil && check(got) != "" {
			t.Errorf("byte %d of %d changed, and it is believed", at, len(whole))
		}
		if err := os.WriteFile(file, whole[:at], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readIndex(file, Digest{1}, Digest{2}, newLimits()); err == nil {
			t.Errorf("cut at %d of %d, and it is believed", at, len(whole))
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
		if _, err := readTar(context.Background(), bytes.NewReader(c.raw), l); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	l := newLimits()
	x, err := readTar(context.Background(), bytes.NewReader(many(3, deep)), l)
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
		r, err := l.inflate(gzipped(c.content))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if (err != nil) != c.refused || err == nil && !bytes.Equal(got, c.content) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(c.content), err)
		}
	}
}
