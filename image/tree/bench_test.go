package tree_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

// manyFiles makes layers of about files entries each, as package managers lay them: paths of about 70 bytes. Each file has
// size bytes that compress to about a third.
func manyFiles(t testing.TB, layers, files, size int, compression string) []v1.Layer {
	t.Helper()
	out := make([]v1.Layer, layers)
	var g sync.WaitGroup
	for i := range out {
		g.Go(func() { out[i] = fileLayer(i, files, size, compression) })
	}
	g.Wait()
	return out
}

func fileLayer(seed, files, size int, compression string) v1.Layer {
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	words := make([]string, 3000)
	for i := range words {
		words[i] = fmt.Sprintf("%x", random.Uint64())[:3+random.IntN(9)]
	}
	raw, blob := sha256.New(), &bytes.Buffer{}
	compressed := compressor(blob, compression)
	tw := tar.NewWriter(io.MultiWriter(raw, compressed))
	content := make([]byte, 0, size+16)
	for n := range files {
		dir := fmt.Sprintf("usr/lib/python3/dist-packages/package-%d-%04d/vendor/lib%d", seed, n/200, n/20%10)
		h := tar.Header{Name: fmt.Sprintf("%s/%s-%05d.py", dir, words[n%3000], n), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(size)}
		switch {
		case n%20 == 0:
			h = tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}
		case n%100 == 1:
			h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, "../target"
		}
		must(tw.WriteHeader(&h))
		if h.Size == 0 {
			continue
		}
		for content = fmt.Appendf(content[:0], "%d %d ", seed, n); len(content) < size; {
			content = append(append(content, words[random.IntN(len(words))]...), ' ')
		}
		_, err := tw.Write(content[:size])
		must(err)
	}
	must(tw.Close())
	must(compressed.Close())
	digest := sha256.Sum256(blob.Bytes())
	return knownLayer{blob.Bytes(), hashOf(digest[:]), hashOf(raw.Sum(nil))}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func compressor(w io.Writer, compression string) io.WriteCloser {
	switch compression {
	case "gzip":
		z, err := gzip.NewWriterLevel(w, 3)
		must(err)
		return z
	case "zstd":
		z, err := zstd.NewWriter(w)
		must(err)
		return z
	}
	return nopCloser{w}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must2(_ int, err error) { must(err) }

func hashOf(sum []byte) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum)} }

// knownLayer is a blob whose digests need not be found out.
type knownLayer struct {
	blob           []byte
	digest, diffID v1.Hash
}

func (l knownLayer) Digest() (v1.Hash, error) { return l.digest, nil }
func (l knownLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }
func (l knownLayer) Size() (int64, error)     { return int64(len(l.blob)), nil }

func (l knownLayer) MediaType() (types.MediaType, error) {
	switch {
	case bytes.HasPrefix(l.blob, []byte("\x1f\x8b")):
		return types.OCILayer, nil
	case bytes.HasPrefix(l.blob, []byte("\x28\xb5\x2f\xfd")):
		return types.OCILayerZStd, nil
	}
	return types.OCIUncompressedLayer, nil
}

func (l knownLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.blob)), nil
}

func (l knownLayer) Uncompressed() (io.ReadCloser, error) {
	return image.Inflate(bytes.NewReader(l.blob))
}

// cpu runs do as a benchmark does, and tells its processor time too, which other work on the machine lengthens less.
func cpu(b *testing.B, do func()) {
	used := need.CPU(b, func() {
		for b.Loop() {
			do()
		}
	})
	b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// BenchmarkIndexCold reads layers that no cache has. Beside it stands what nothing can be faster than: the same blobs
// inflated and hashed on all cores, once as for the layer's digest alone, and twice as for that of each file too.
func BenchmarkIndexCold(b *testing.B) {
	for _, compression := range []string{"gzip", "zstd", "none"} {
		layers := manyFiles(b, 6, 1500, 20_000, compression)
		img := newImage(b, layers...)
		var raw int64
		floor := func(hashes int) {
			limit := make(chan bool, runtime.GOMAXPROCS(0))
			var g sync.WaitGroup
			for _, l := range layers {
				g.Go(func() {
					limit <- true
					r, err := l.Uncompressed()
					must(err)
					sums := []io.Writer{sha256.New(), sha256.New()}
					n, err := io.Copy(io.MultiWriter(sums[:hashes]...), r)
					must(err)
					if raw == 0 {
						raw = n
					}
					<-limit
				})
			}
			g.Wait()
		}
		raw = 0
		b.Run(compression+"/inflate and hash", func(b *testing.B) {
			cpu(b, func() { floor(1) })
			b.SetBytes(6 * raw)
		})
		b.Run(compression+"/inflate and hash layer and files", func(b *testing.B) {
			cpu(b, func() { floor(2) })
			b.SetBytes(6 * raw)
		})
		b.Run(compression+"/index", func(b *testing.B) {
			b.SetBytes(6 * raw)
			cpu(b, func() {
				cache := tree.Cache{Dir: b.TempDir()}
				if _, err := cache.Open(b.Context(), img, tree.Options{}); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkOpenWarm opens an image of 150,000 files whose layers are all in the cache.
func BenchmarkOpenWarm(b *testing.B) {
	img := newImage(b, manyFiles(b, 30, 5000, 10, "gzip")...)
	cache := tree.Cache{Dir: b.TempDir()}
	if _, err := cache.Open(b.Context(), img, tree.Options{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	cpu(b, func() {
		if _, err := cache.Open(b.Context(), img, tree.Options{}); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkMerge lays layers of 10,000 entries over one another. Ten times the entries take ten times the time.
func BenchmarkMerge(b *testing.B) {
	for _, entries := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			cache := tree.Cache{Dir: b.TempDir()}
			img := newImage(b, manyFiles(b, entries/10_000, 10_000, 1, "gzip")...)
			if _, err := cache.Open(b.Context(), img, tree.Options{}); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			cpu(b, func() {
				if _, err := cache.Open(b.Context(), img, tree.Options{}); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
