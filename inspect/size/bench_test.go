package size

import (
	"fmt"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// BenchmarkOf shows that time grows with the number of files, and no faster.
func BenchmarkOf(b *testing.B) {
	for _, files := range []int{150_000, 1_000_000} {
		entries := make([]image.Entry, files)
		tops := []string{
			"/usr/lib/x86_64-linux-gnu", "/usr/share/doc", "/opt/python3.12/lib/python3.12/site-packages", "/usr/lib/node_modules", "/home/gem",
		}
		for i := range entries {
			entries[i] = image.Entry{
				Path: fmt.Sprintf("%s/package-%d/sub-%d/file-%d", tops[i%len(tops)], i/100, i%7, i), Type: image.TypeFile, Mode: 0o644, Size: int64(i),
			}
		}
		merged, err := tree.Of(entries...)
		if err != nil {
			b.Fatal(err)
		}
		img := &tree.Image{Tree: merged, Layers: make([]tree.Layer, 1)}
		b.Run(fmt.Sprint(files), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if s := Of(img, nil, 3); s.Files < files || len(s.Components) != 4 {
					b.Fatal(s.Files, s.Components)
				}
			}
		})
	}
}
