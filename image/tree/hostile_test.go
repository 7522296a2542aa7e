package tree_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

func regular(name, content string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, content}
}

func linked(kind byte, name, target string) item {
	return item{tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o777}, ""}
}

func withMode(mode int64, i item) item {
	i.Mode = mode
	return i
}

func withXattr(key, value string, i item) item {
	i.PAXRecords = map[string]string{key: value}
	return i
}

func directory(name string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func device(name string, major, minor int64) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeChar, Devmajor: major, Devminor: minor}, ""}
}

func pax(name, key, value string) item {
	i := regular(name, "x")
	i.PAXRecords = map[string]string{key: value}
	return i
}

func TestLayersAsRuntimesUnpackThem(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers [][]item
		want   string
	}{
		{"the last of several entries counts", [][]item{{regular("a", "old"), regular("a", "new")}}, "/a file new"},
		{"a file takes the place of a directory of its own layer", [][]item{{directory("a"), regular("a/b", "x"), regular("a", "new")}}, "/a file new"},
		{
			"a symlink too, with what is below",
			[][]item{{regular("a/b", "x"), directory("c"), linked(tar.TypeSymlink, "a", "c"), regular("a/d", "y")}},
			"/a symlink c, /c dir, /c/d file y",
		},
		{"a directory twice keeps its content", [][]item{{directory("a"), regular("a/b", "x"), directory("a")}}, "/a dir, /a/b file x"},
		{
			"a hard link of a hard link",
			[][]item{{regular("a", "x"), linked(tar.TypeLink, "b", "a"), linked(tar.TypeLink, "c", "b")}},
			"/a file x, /b hardlink /a x, /c hardlink /a x",
		},
		{
			"a hard link by a symlinked directory",
			[][]item{{regular("d/a", "x"), linked(tar.TypeSymlink, "s", "d"), linked(tar.TypeLink, "b", "s/a")}},
			"/b hardlink /d/a x, /d dir, /d/a file x, /s symlink d",
		},
		{"a hard link to a lower layer", [][]item{{regular("a", "x")}, {linked(tar.TypeLink, "b", "a")}}, "/a file x, /b hardlink /a x"},
		{"a hard link to a symlink", [][]item{{linked(tar.TypeSymlink, "a", "x"), linked(tar.TypeLink, "b", "a")}}, "/a symlink x, /b symlink x"},
		{
			"a hard link outlives its file",
			[][]item{{regular("a", "x"), linked(tar.TypeLink, "b", "a"), linked(tar.TypeLink, "c", "a")}, {regular(".wh.a", "")}},
			"/b file x, /c hardlink /b x",
		},
		{
			"a hard link keeps what its file was",
			[][]item{{regular("a", "x"), linked(tar.TypeLink, "b", "a")}, {regular("a", "new")}},
			"/a file new, /b file x",
		},
		{"within a layer as well", [][]item{{regular("a", "x"), linked(tar.TypeLink, "b", "a"), regular("a", "new")}}, "/a file new, /b file x"},
		{
			"a file replaced by the same file is another one",
			[][]item{{regular("a", "x"), linked(tar.TypeLink, "b", "a")}, {regular("a", "x")}},
			"/a file x, /b file x",
		},
		{"what is hidden comes back as something else", [][]item{{regular("a/b", "x")}, {regular(".wh.a", "")}, {regular("a/c", "y")}}, "/a dir, /a/c file y"},
		{"a directory of whiteouts alone", [][]item{{regular("d/.wh.x", "")}}, "/d dir"},
		{
			"a whiteout by a symlink of its layer",
			[][]item{{regular("d/x", "x")}, {directory("d"), linked(tar.TypeSymlink, "s", "d"), regular("s/.wh.x", "")}},
			"/d dir, /s symlink d",
		},
		{"an opaque root", [][]item{{regular("a", "x"), regular("d/b", "x")}, {regular(".wh..wh..opq", ""), regular("d/c", "y")}}, "/a file x, /d dir, /d/b file x, /d/c file y"},
		{"a directory replaces a whiteout", [][]item{{regular("d/a", "x")}, {regular(".wh.d", ""), directory("d"), regular("d/b", "y")}}, "/d dir, /d/a file x, /d/b file y"},
		{"AUFS's records are nothing", [][]item{{regular(".wh..wh.aufs", ""), regular("a", "x")}}, "/a file x"},
		{
			"names around the slash",
			[][]item{{regular("a-b", "1"), regular("a/b", "2"), regular("a.b", "3"), regular("a0", "4")}, {regular("a/.wh.b", ""), regular("a-b", "5")}},
			"/a dir, /a-b file 5, /a.b file 3, /a0 file 4",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var layers []v1.Layer
			for _, items := range c.layers {
				layers = append(layers, plainLayer(archive(items...)))
			}
			im, err := tree.Cache{}.Open(t.Context(), newImage(t, layers...), tree.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for e := range im.Walk("/") {
				line := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Path, e.Type, e.Link))
				if e.Digest != (tree.Digest{}) {
					content, err := im.ReadFile(t.Context(), e.Path)
					if err != nil || int64(len(content)) != e.Size {
						t.Errorf("%s: %d bytes of %d, %v", e.Path, len(content), e.Size, err)
					}
					line += " " + string(content)
				}
				got = append(got, line)
			}
			if got := strings.Join(got[1:], ", "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestHostileLayers(t *testing.T) {
	long := strings.Repeat("d/", 2100)
	for _, c := range []struct {
		name, want string
		layers     [][]item
	}{
		{"a file as a directory", "/a is a file, not a directory", [][]item{{regular("a", "x"), regular("a/b", "y")}}},
		{"a hard link as a directory", "/b is a hardlink, not a directory", [][]item{{regular("a", "x"), linked(tar.TypeLink, "b", "a"), regular("b/c", "y")}}},
		{"a hard link to itself", "/a: hard link to /a: it doesn't exist", [][]item{{linked(tar.TypeLink, "a", "a")}}},
		{"hard links in a circle", "hard link to /b: it doesn't exist", [][]item{{linked(tar.TypeLink, "a", "b"), linked(tar.TypeLink, "b", "a")}}},
		{"a hard link to nothing", "/a: hard link to /etc/shadow: it doesn't exist", [][]item{{linked(tar.TypeLink, "a", "../../etc/shadow")}}},
		{"a hard link to a directory", "is a directory", [][]item{{directory("d"), linked(tar.TypeLink, "a", "d")}}},
		{"a hard link to a lower directory", "is a directory", [][]item{{directory("d")}, {linked(tar.TypeLink, "a", "d")}}},
		{"a hard link to what its layer hides", "its own layer removes that", [][]item{{regular("a", "x")}, {regular(".wh.a", ""), linked(tar.TypeLink, "b", "a")}}},
		{"a hard link by a loop", "symlinks to follow", [][]item{{linked(tar.TypeSymlink, "s", "s")}, {linked(tar.TypeLink, "a", "s/x")}}},
		// Docker 28 gives the file the link's rights, and it keeps them without the link.
		{"a hard link with setuid, gone again", "runtimes give them to the file", [][]item{{regular("a", "x"), withMode(0o4755, linked(tar.TypeLink, "b", "a"))}, {regular(".wh.b", "")}}},
		{"a hard link to a lower layer with setgid", "runtimes give them to the file", [][]item{{regular("a", "x")}, {withMode(0o2755, linked(tar.TypeLink, "b", "a"))}}},
		{"a hard link with capabilities", "runtimes give them to the file", [][]item{{regular("a", "x"), withXattr("SCHILY.xattr.security.capability", "x", linked(tar.TypeLink, "b", "a"))}}},
		{"the root as a symlink", "the root is a symlink", [][]item{{linked(tar.TypeSymlink, "x/..", "y")}}},
		{"a path that no kernel takes", "more than 4095 bytes", [][]item{{regular(long+"x", "x")}}},
		{"a link that no kernel takes", "more than 4095 bytes", [][]item{{linked(tar.TypeSymlink, "x", long)}}},
		{"symlinks that make a long path", "more than 4095 bytes", [][]item{{
			linked(tar.TypeSymlink, "a", long[:3000]), linked(tar.TypeSymlink, long[:3000]+"b", long[:3000]), regular("a/b/x", "x"),
		}}},
		{"overlayfs's whiteout", "character device 0:0", [][]item{{device("x", 0, 0)}}},
		{"overlayfs's attribute", "reserved for overlayfs", [][]item{{pax("x", "SCHILY.xattr.trusted.overlay.redirect", "/etc")}}},
		{"a whiteout below a file", "/a is a file, not a directory", [][]item{{regular("a", "x"), regular("a/.wh.b", "")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var layers []v1.Layer
			for _, items := range c.layers {
				layers = append(layers, plainLayer(archive(items...)))
			}
			im, err := tree.Cache{}.Open(t.Context(), newImage(t, layers...), tree.Options{})
			if err == nil {
				t.Fatalf("no error but %v", slices.Collect(im.Walk("/")))
			}
			if !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
				t.Errorf("error is %.2000v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestHugePAXHeader(t *testing.T) {
	raw := archive(regular("x", strings.Repeat("9", 16<<20)))
	raw[156] = tar.TypeXHeader
	sum := 0
	copy(raw[148:156], "        ")
	for _, b := range raw[:512] {
		sum += int(b)
	}
	copy(raw[148:], fmt.Sprintf("%06o\x00 ", sum))
	taken := allocated(func() {
		_, err := tree.Cache{}.Open(t.Context(), newImage(t, plainLayer(raw)), tree.Options{})
		if err == nil || !strings.Contains(err.Error(), "header field too long") {
			t.Errorf("error is %v", err)
		}
	})
	if taken > 8<<20 {
		t.Errorf("a PAX header of 16 MiB took %d bytes of memory", taken)
	}
}

// TestSparseBomb: a few bytes of archive stand for a file that takes hours to hash.
func TestSparseBomb(t *testing.T) {
	program := need.Program(t, "tar")
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "hole"))
	must(err)
	must(f.Truncate(1 << 40))
	must(f.Close())
	for _, format := range []string{"gnu", "posix"} {
		raw, err := exec.CommandContext(t.Context(), program, "-C", dir, "--sparse", "--format="+format, "-c", "hole").Output()
		if err != nil || len(raw) > 1<<20 {
			t.Fatalf("%d bytes, %v", len(raw), err)
		}
		_, err = tree.Cache{}.Open(t.Context(), newImage(t, plainLayer(raw)), tree.Options{})
		if err == nil || !strings.Contains(err.Error(), "sparse files of the image have more than") {
			t.Errorf("%s: error is %v", format, err)
		}
	}
}

// AUFS's own records lay nothing.
func TestAUFSRecords(t *testing.T) {
	im, err := tree.Cache{}.Open(t.Context(), newImage(t, plainLayer(archive(
		regular(".wh..wh.aufs", ""), regular("usr/bin/.wh..wh.nginx", ""), regular(".wh..wh.plnk/1.2", "x"), regular("usr/lib/.wh..wh..opq", ""), regular("a", "x"),
	))), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(paths(im.Tree), ", "); got != "file /a, dir /usr, dir /usr/lib" {
		t.Errorf("the tree has %s", got)
	}
}

// allocated is how many bytes of memory do takes in all, those that it gives back too.
func allocated(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

type nothing struct{}

func (nothing) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// zeros is a layer that holds one file of zeros.
func zeros(compression string, size int64) v1.Layer {
	var blob bytes.Buffer
	raw := sha256.New()
	z := compressor(&blob, compression)
	w := tar.NewWriter(io.MultiWriter(z, raw))
	must(w.WriteHeader(&tar.Header{Name: "etc/zeros", Typeflag: tar.TypeReg, Size: size, Mode: 0o644}))
	_, err := io.Copy(w, io.LimitReader(nothing{}, size))
	must(err)
	must(w.Close())
	must(z.Close())
	digest := sha256.Sum256(blob.Bytes())
	return knownLayer{blob.Bytes(), hashOf(digest[:]), hashOf(raw.Sum(nil))}
}

func TestZerosTakeNoMemory(t *testing.T) {
	for _, compression := range []string{"gzip", "zstd"} {
		img := newImage(t, zeros(compression, 48<<20))
		taken := allocated(func() {
			im, err := tree.Cache{Dir: t.TempDir()}.Open(t.Context(), img, tree.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if e, _ := im.Lookup("/etc/zeros"); e.Size != 48<<20 {
				t.Errorf("size is %d", e.Size)
			}
		})
		if taken > 20<<20 {
			t.Errorf("%s: 48 MiB of zeros took %d bytes of memory", compression, taken)
		}
	}
}

// BenchmarkZeros reads 10 GB of zeros in 10 MB.
func BenchmarkZeros(b *testing.B) {
	img := newImage(b, zeros("gzip", 10e9))
	b.SetBytes(10e9)
	b.ReportAllocs()
	cpu(b, func() {
		if _, err := (tree.Cache{}).Open(b.Context(), img, tree.Options{}); err != nil {
			b.Fatal(err)
		}
	})
}

// TestDamagedBlobs flips bits and cuts, all over the blob: what comes out is an error, and nothing is remembered.
func TestDamagedBlobs(t *testing.T) {
	random := make([]byte, 3000)
	must2(rand.NewChaCha8([32]byte{}).Read(random))
	raw := archive(directory("etc"), regular("etc/x.conf", string(random)), regular("usr/bin/y", "#!/bin/sh"+strings.Repeat("\ntrue", 300)))
	sum := sha256.Sum256(raw)
	for _, compression := range []string{"gzip", "zstd", "none"} {
		var b bytes.Buffer
		z := compressor(&b, compression)
		must2(z.Write(raw))
		must(z.Close())
		blob := b.Bytes()
		cache := tree.Cache{Dir: t.TempDir()}
		open := func(blob []byte) error {
			digest := sha256.Sum256(blob)
			_, err := cache.Open(t.Context(), newImage(t, knownLayer{blob, hashOf(digest[:]), hashOf(sum[:])}), tree.Options{})
			return err
		}
		for at := 0; at < len(blob); at += 1 + len(blob)/40 {
			for bit := range 8 {
				flipped := bytes.Clone(blob)
				flipped[at] ^= 1 << bit
				if err := open(flipped); err == nil && !headerOnly(flipped, raw) {
					t.Errorf("%s: bit %d of byte %d flipped, and no error", compression, bit, at)
				}
			}
			if err := open(blob[:at]); err == nil {
				t.Errorf("%s: cut at %d of %d, and no error", compression, at, len(blob))
			}
		}
		files, err := filepath.Glob(filepath.Join(cache.Dir, "index", "*", "*"))
		for _, f := range files {
			if !strings.HasSuffix(f, ".idx") {
				t.Errorf("left %s, %v", f, err)
			}
		}
	}
}

// headerOnly reports whether blob holds raw all the same: a time in a gzip header makes no difference.
func headerOnly(blob, raw []byte) bool {
	r, err := image.Inflate(bytes.NewReader(blob))
	if err != nil {
		return false
	}
	got, err := io.ReadAll(r)
	return err == nil && bytes.Equal(got, raw)
}

// BenchmarkManyEntries indexes a layer of 1,000,000 entries; BenchmarkMerge shows that the time is linear.
func BenchmarkManyEntries(b *testing.B) {
	img := newImage(b, fileLayer(0, 1_000_000, 1, "zstd"))
	b.ReportAllocs()
	cpu(b, func() {
		if _, err := (tree.Cache{Dir: b.TempDir()}).Open(b.Context(), img, tree.Options{}); err != nil {
			b.Fatal(err)
		}
	})
}
