package tree_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// FuzzTar reads any bytes as a layer: an error or an index, which is the same when it comes from the cache, and contents that
// have their digests.
func FuzzTar(f *testing.F) {
	raw := archive(directory("etc"), regular("etc/a.conf", "x"), linked(tar.TypeSymlink, "b", "etc"), linked(tar.TypeLink, "c", "b/a.conf"),
		pax("d", "SCHILY.xattr.user.x", "\x01\xff"), regular("etc/.wh.e", ""), regular(".wh..wh..opq", ""), device("f", 1, 3))
	for _, compression := range []string{"gzip", "zstd", "none"} {
		var b bytes.Buffer
		z := compressor(&b, compression)
		must2(z.Write(raw))
		must(z.Close())
		f.Add(b.Bytes())
	}
	// Go's own collection has every form of sparse file; where the sources are not installed we do without.
	root, _ := exec.CommandContext(f.Context(), "go", "env", "GOROOT").Output()
	samples, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "archive", "tar", "testdata", "*.tar"))
	for _, s := range samples {
		if b, err := os.ReadFile(s); err == nil && len(b) < 64<<10 {
			f.Add(b)
		}
	}
	cache := tree.Cache{Dir: f.TempDir()}
	f.Fuzz(func(t *testing.T, blob []byte) {
		blob = withChecksums(blob)
		var raw []byte
		if r, err := image.Inflate(bytes.NewReader(blob)); err == nil {
			raw, _ = io.ReadAll(io.LimitReader(r, 4<<20))
		}
		if len(raw) == 4<<20 || sparseBytes(raw) > 4<<20 {
			return // what is large takes long, and no more
		}
		digest, diffID := sha256.Sum256(blob), sha256.Sum256(raw)
		layer := knownLayer{blob, hashOf(digest[:]), hashOf(diffID[:])}
		img := newImage(t, layer)
		read, err := cache.Open(t.Context(), img, tree.Options{})
		files, _ := filepath.Glob(filepath.Join(cache.Dir, "index", "*", "*"+layer.digest.Hex+"*"))
		defer func() {
			for _, file := range files {
				os.Remove(file)
			}
		}()
		if err != nil {
			return
		}
		if len(files) != 1 {
			t.Fatalf("the cache has %v", files)
		}
		uncached, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		remembered, err := cache.Open(t.Context(), newImage(t, unreadable{layer}), tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for name, other := range map[string]*tree.Image{"again": uncached, "from the cache": remembered} {
			if diff := cmp.Diff(read.Layers, other.Layers, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("read %s (-first +now):\n%s", name, diff)
			}
			if diff := cmp.Diff(slices.Collect(read.Walk("/")), slices.Collect(other.Walk("/"))); diff != "" {
				t.Errorf("read %s (-first +now):\n%s", name, diff)
			}
		}
		for e := range read.Walk("/") {
			if e.Digest == (tree.Digest{}) || e.Size > 1<<20 {
				continue
			}
			content, err := read.ReadFile(t.Context(), e.Path)
			if err != nil || sha256.Sum256(content) != e.Digest || int64(len(content)) != e.Size {
				t.Errorf("%q: %d bytes of %d, %v", e.Path, len(content), e.Size, err)
			}
		}
	})
}

// withChecksums makes the checksums of tar headers right, so that more than the first check is tried.
func withChecksums(archive []byte) []byte {
	out := bytes.Clone(archive)
	for block := range slices.Chunk(out, 512) {
		if len(block) < 512 || string(block[257:262]) != "ustar" {
			continue
		}
		copy(block[148:], "        ")
		sum := 0
		for _, b := range block {
			sum += int(b)
		}
		copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	}
	return out
}

// sparseBytes is the size of the files in an archive, with what it leaves out of them.
func sparseBytes(raw []byte) (n int64) {
	for tr := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := tr.Next()
		if err != nil {
			return n
		}
		n = max(n, n+h.Size)
	}
}
