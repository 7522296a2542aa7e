package standin

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/klauspost/compress/gzip"

	"github.com/slimctl/slimctl/image"
)

func TestWriteIsDeterministic(t *testing.T) {
	for name, o := range map[string]Options{
		"A": {Line: "A"}, "B": {Line: "B"}, "C": {Line: "C"},
		"one platform": {Line: "B", Platforms: []string{"linux/arm64"}},
		"heavier":      {Line: "A", Platforms: []string{"linux/amd64"}, Weight: 3_000_001, Extra: []image.File{image.Bytes("/etc/planted", 0o600, []byte("x"))}},
	} {
		t.Run(name, func(t *testing.T) {
			var digests [2]v1.Hash
			for i := range digests {
				var err error
				dir := filepath.Join(t.TempDir(), "layout")
				if digests[i], err = Write(t.Context(), dir, o); err != nil {
					t.Fatal(err)
				}
				top, _ := topIndex(t, dir)
				if top.Digest != digests[i] {
					t.Errorf("index.json points to %s, Write returned %s", top.Digest, digests[i])
				}
			}
			if digests[0] != digests[1] {
				t.Errorf("%s, then %s", digests[0], digests[1])
			}
		})
	}
}

func TestLayoutIsValid(t *testing.T) {
	tags := map[string]string{"A": "1.0.0.152", "B": "1.9.3", "C": "1.11.0"}
	for line, tag := range tags {
		t.Run(line, func(t *testing.T) {
			dir := cached(t, line)
			top, idx := topIndex(t, dir)
			if top.MediaType != types.OCIImageIndex || top.Annotations["org.opencontainers.image.ref.name"] != tag {
				t.Errorf("index.json has %s named %q, want an OCI image index named %q", top.MediaType, top.Annotations, tag)
			}
			if err := validate.Index(idx); err != nil {
				t.Error(err)
			}
			m, err := idx.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			var platforms []string
			for _, d := range m.Manifests {
				platforms = append(platforms, d.Platform.String())
			}
			if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
				t.Errorf("platforms %v, want %v", platforms, want)
			}
			if size := diskUse(t, dir); size > 10<<20 {
				t.Errorf("the layout takes %d bytes, want less than 10 MiB", size)
			}
		})
	}
}

func diskUse(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, err := d.Info()
			total += info.Size()
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

func TestPlatformsDiffer(t *testing.T) {
	machines := map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}
	for _, line := range []string{"A", "B", "C"} {
		for platform, machine := range machines {
			tree := merged(t, imageOf(t, cached(t, line), platform))
			for _, p := range []string{"/bin/bash", "/opt/browser/chrome", "/usr/bin/Xvnc", "/usr/local/bin/websocat"} {
				e, ok := lookup(tree, p)
				if !ok {
					t.Errorf("%s %s: no %s", line, platform, p)
					continue
				}
				f, err := elf.NewFile(bytes.NewReader(e.data))
				if err != nil {
					t.Errorf("%s %s: %s: %v", line, platform, p, err)
				} else if f.Machine != machine {
					t.Errorf("%s %s: %s is for %s", line, platform, p, f.Machine)
				}
			}
		}
	}
}

func TestProgramsOnlyExit(t *testing.T) {
	a, ok := arches["linux/"+runtime.GOARCH]
	if !ok || runtime.GOOS != "linux" {
		t.Skipf("no stand-in program runs on %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	p := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(p, a.elf("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := exec.Command(p).Run(); !errors.As(err, &exit) || exit.ExitCode() != 69 {
		t.Errorf("%v, want exit status 69", err)
	}
}

func TestWeight(t *testing.T) {
	const weight = 12_000_003
	dir := filepath.Join(t.TempDir(), "layout")
	if _, err := Write(t.Context(), dir, Options{Line: "B", Weight: weight}); err != nil {
		t.Fatal(err)
	}
	blobs := map[v1.Hash]bool{}
	for _, platform := range defaultPlatforms {
		plain, err := imageOf(t, cached(t, "B"), platform).Layers()
		if err != nil {
			t.Fatal(err)
		}
		layers, err := imageOf(t, dir, platform).Layers()
		if err != nil {
			t.Fatal(err)
		}
		extra := layers[len(plain):]
		if len(extra) != 10 {
			t.Fatalf("%s: %d layers of weight, want 10", platform, len(extra))
		}
		var compressed int64
		var entries []entry
		for i, l := range extra {
			digest, err := l.Digest()
			if err != nil {
				t.Fatal(err)
			}
			blobs[digest] = true
			size, err := l.Size()
			if err != nil {
				t.Fatal(err)
			}
			compressed += size
			entries = append(entries, layerEntries(t, l, i)...)
		}
		if d := compressed - weight; max(d, -d) > weight/10 {
			t.Errorf("%s: %d bytes of layers, want %d, give or take a tenth", platform, compressed, weight)
		}
		checkWeightFiles(t, platform, entries, compressed)
	}
	if len(blobs) != 20 {
		t.Errorf("%d different weight layers, want 20: every platform has its own", len(blobs))
	}
}

// checkWeightFiles asks whether the files are as a root file system's are.
func checkWeightFiles(t *testing.T, platform string, entries []entry, compressed int64) {
	t.Helper()
	var raw int64
	var files, small, large int
	children := map[string]map[string]bool{}
	contents := map[[sha256.Size]byte]bool{}
	for _, e := range entries {
		p := path.Clean(e.Name)
		if children[path.Dir(p)] == nil {
			children[path.Dir(p)] = map[string]bool{}
		}
		children[path.Dir(p)][p] = true
		if e.Typeflag != tar.TypeReg {
			continue
		}
		files++
		raw += e.Size
		contents[sha256.Sum256(e.data)] = true
		switch {
		case e.Size < 64<<10:
			small++
		case e.Size >= 1<<20:
			large++
		}
		if e.Size < 1 || e.Size >= 8<<20 {
			t.Errorf("%s: %s has %d bytes", platform, p, e.Size)
		}
		// One file alone compresses too: it is no noise beside text.
		if e.Size > 1<<20 {
			if ratio := float64(e.Size) / float64(gzipped(t, e.data)); ratio < 2.2 || ratio > 2.8 {
				t.Errorf("%s: %s compresses %.2f:1, want about 2.5:1", platform, p, ratio)
			}
		}
	}
	if ratio := float64(raw) / float64(compressed); ratio < 2.3 || ratio > 2.7 {
		t.Errorf("%s: the weight compresses %.2f:1, want about 2.5:1", platform, ratio)
	}
	if small < 9*files/10 || large == 0 || raw/int64(files) > 150_000 {
		t.Errorf("%s: %d files, %d small and %d large, of %d bytes in all", platform, files, small, large, raw)
	}
	if len(contents) < files {
		t.Errorf("%s: %d files have %d contents", platform, files, len(contents))
	}
	for dir, names := range children {
		if len(names) > 100 {
			t.Errorf("%s: %s has %d entries", platform, dir, len(names))
		}
	}
}

func gzipped(t *testing.T, data []byte) int {
	t.Helper()
	var b bytes.Buffer
	zw, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zw.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Len()
}

// What a file holds must not depend on how it is read.
func TestWeightFileReads(t *testing.T) {
	const size = 100_000
	open := func() io.ReadCloser {
		r, err := weightFile("linux/amd64", "/x", size).Open()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	whole, err := io.ReadAll(open())
	if err != nil || len(whole) != size {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	if err := iotest.TestReader(open(), whole); err != nil {
		t.Error(err)
	}
}

func TestSmallWeight(t *testing.T) {
	for weight, layers := range map[int64]int{1: 1, 9: 9, 10: 10, 11: 10} {
		got := weightLayers("linux/amd64", weight)
		var total int64
		for _, l := range got {
			for _, f := range l.weight() {
				total += f.Size
			}
		}
		if len(got) != layers || total < 2*weight || total > 3*weight {
			t.Errorf("weight %d: %d layers, want %d, with files of %d bytes", weight, len(got), layers, total)
		}
	}
}

func TestExtraIsTheTopLayer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	hole := image.Bytes("/srv/app/data/hole.conf", 0o644, []byte("listen 1;\n"))
	if _, err := Write(t.Context(), dir, Options{Line: "A", Weight: 100, Extra: []image.File{hole, image.Whiteout("/etc/motd")}}); err != nil {
		t.Fatal(err)
	}
	img := imageOf(t, dir, "linux/arm64")
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	tree := merged(t, img)
	if got := tree["/srv/app/data/hole.conf"]; got.layer != len(layers)-1 || string(got.data) != "listen 1;\n" {
		t.Errorf("the planted file is in layer %d with %q", got.layer, got.data)
	}
	if got := tree["/srv/app"]; got.layer != len(layers)-1 || got.Mode != 0o750 || got.Uid != 1000 {
		t.Errorf("the parent of the planted file is %o %d in layer %d; want 750 of 1000 in the top one", got.Mode, got.Uid, got.layer)
	}
	if _, ok := tree["/etc/motd"]; ok {
		t.Error("a planted whiteout hides nothing")
	}
}

func TestDestination(t *testing.T) {
	root := t.TempDir()
	full, empty, file := filepath.Join(root, "full"), filepath.Join(root, "empty"), filepath.Join(root, "file")
	for _, dir := range []string{full, empty} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{file, filepath.Join(full, "mine")} {
		if err := os.WriteFile(p, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Line: "A", Platforms: []string{"linux/amd64"}}
	for _, dir := range []string{full, file} {
		if _, err := Write(t.Context(), dir, o); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v, want fs.ErrExist", dir, err)
		}
	}
	for _, dir := range []string{empty, filepath.Join(root, "new", "deeper")} {
		if _, err := Write(t.Context(), dir, o); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v %v, want mode 755", dir, info.Mode(), err)
		}
	}
	if got := names(t, full); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("the refused destination now holds %v", got)
	}
	if got := names(t, empty); !slices.Equal(got, []string{"blobs", "index.json", "oci-layout"}) {
		t.Errorf("a layout of %v", got)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestNothingHalfWritten(t *testing.T) {
	broken := image.File{
		Entry: image.Entry{Path: "/x", Type: image.TypeFile, Mode: 0o644, Size: 1},
		Open:  func() (io.ReadCloser, error) { return nil, errors.New("no content") },
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		o   Options
	}{
		"bad extra":        {t.Context(), Options{Line: "A", Extra: []image.File{broken}}},
		"stopped before":   {stopped, Options{Line: "A"}},
		"stopped half-way": {late, Options{Line: "A", Weight: 8 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if _, err := Write(c.ctx, filepath.Join(root, "layout"), c.o); err == nil {
				t.Error("no error")
			}
			if got := names(t, root); len(got) > 0 {
				t.Errorf("left behind: %v", got)
			}
		})
	}
}

func TestBadOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no line":        {},
		"unknown line":   {Line: "b"},
		"unknown arch":   {Line: "A", Platforms: []string{"linux/riscv64"}},
		"platform twice": {Line: "A", Platforms: []string{"linux/amd64", "linux/amd64"}},
		"weight":         {Line: "A", Weight: -1},
	} {
		dir := filepath.Join(t.TempDir(), "layout")
		if _, err := Write(t.Context(), dir, o); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: something was written", name)
		}
	}
}

func TestCachedConcurrently(t *testing.T) {
	root := t.TempDir()
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		wg.Go(func() {
			dir, err := Cached(t.Context(), root, "A")
			if err != nil {
				t.Error(err)
			}
			got[i] = dir
		})
	}
	wg.Wait()
	if len(slices.Compact(slices.Sorted(slices.Values(got)))) != 1 {
		t.Errorf("different directories: %v", got)
	}
	if left := names(t, root); len(left) != 1 {
		t.Errorf("the cache holds %v, want one layout", left)
	}
	if _, err := Cached(t.Context(), root, "Z"); err == nil {
		t.Error("no error for line Z")
	}
}

// Two processes know nothing of each other: one writes, the other is told that it came late.
func TestWriteConcurrently(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "layout")
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { _, errs[i] = Write(t.Context(), dir, Options{Line: "A", Platforms: []string{"linux/amd64"}}) })
	}
	wg.Wait()
	written := 0
	for _, err := range errs {
		if err == nil {
			written++
		} else if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v, want fs.ErrExist", err)
		}
	}
	if written != 1 {
		t.Errorf("%d of 4 writers wrote, want 1", written)
	}
	if left := names(t, root); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if _, idx := topIndex(t, dir); validate.Index(idx) != nil {
		t.Error("the layout is not valid")
	}
}

func BenchmarkCached(b *testing.B) {
	root := b.TempDir()
	for b.Loop() {
		if _, err := Cached(b.Context(), root, "B"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWeight(b *testing.B) {
	const weight = 256 << 20
	b.SetBytes(weight)
	root := b.TempDir()
	for i := 0; b.Loop(); i++ {
		o := Options{Line: "B", Platforms: []string{"linux/amd64"}, Weight: weight}
		if _, err := Write(b.Context(), filepath.Join(root, fmt.Sprint(i)), o); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, line := range []string{"A", "B", "C"} {
		b.Run(line, func(b *testing.B) {
			root := b.TempDir()
			for i := 0; b.Loop(); i++ {
				if _, err := Write(b.Context(), filepath.Join(root, fmt.Sprint(i)), Options{Line: line}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
