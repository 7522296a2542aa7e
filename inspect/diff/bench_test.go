package diff_test

import (
	"fmt"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// weights are layers with n files each below dirs directories of their own.
func weights(t testing.TB, seed string, layers, n int) []v1.Layer {
	var out []v1.Layer
	for l := range layers {
		f := files{image.Dir("/opt", 0o755), image.Dir("/opt/components", 0o755)}
		for i := range n {
			dir := fmt.Sprintf("/opt/components/number-%03d", (l*n+i)/50)
			if i%50 == 0 {
				f = append(f, image.Dir(dir, 0o755))
			}
			f = append(f, file(fmt.Sprintf("%s/some-file-name-%05d.js", dir, i), fmt.Sprint(seed, l, i)))
		}
		out = append(out, layerOf(t, f))
	}
	return out
}

func benchmark(b *testing.B, base, slim *inspect.Image, o diff.Options) {
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var d *diff.Diff
	for b.Loop() {
		d = compare(b, base, slim, o)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(len(d.Files)), "changes")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB-kept")
	runtime.KeepAlive(d)
}

// BenchmarkDerived compares a base of 30 layers with an image that has five more on top.
func BenchmarkDerived(b *testing.B) {
	for _, n := range []int{15_000, 150_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cache := tree.Cache{Dir: b.TempDir()}
			layers := weights(b, "", 30, n/30)
			base := opened(b, cache, imageOf(b, v1.Config{}, layers...))
			var gone files
			for i := range n / 500 {
				gone = append(gone, image.Whiteout(fmt.Sprintf("/opt/components/number-%03d", i*2)))
			}
			layers = append(layers, layerOf(b, gone))
			for i := range 4 {
				var own files
				for j := range 1000 {
					own = append(own, file(fmt.Sprintf("/opt/own-%d/%d", i, j), ""), file(fmt.Sprintf("/opt/components/number-%03d/new-%d", j, i), ""))
				}
				layers = append(layers, layerOf(b, own))
			}
			benchmark(b, base, opened(b, cache, imageOf(b, v1.Config{}, layers...)), diff.Options{})
		})
	}
}

// BenchmarkDifferent compares images that share no layer, and of whose files each differs.
func BenchmarkDifferent(b *testing.B) {
	for _, n := range []int{15_000, 150_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			base := opened(b, tree.Cache{}, imageOf(b, v1.Config{}, weights(b, "a", 30, n/30)...))
			slim := opened(b, tree.Cache{}, imageOf(b, v1.Config{}, weights(b, "b", 30, n/30)...))
			benchmark(b, base, slim, diff.Options{Layers: true})
		})
	}
}
