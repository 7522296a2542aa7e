package privilege

import (
	"fmt"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// BenchmarkRead shows that time grows with the number of files, and no faster.
func BenchmarkRead(b *testing.B) {
	for _, files := range []int{150_000, 1_000_000} {
		entries := make([]image.Entry, files)
		for i := range entries {
			entries[i] = image.Entry{Path: fmt.Sprintf("/usr/lib/%d/%d", i/100, i), Type: image.TypeFile, Mode: 0o644}
		}
		entries[files/2].Mode = 0o4755
		merged, err := tree.Of(entries...)
		if err != nil {
			b.Fatal(err)
		}
		img := &tree.Image{Tree: merged}
		b.Run(fmt.Sprint(files), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := Read(b.Context(), img)
				if err != nil || len(r.Files) != 1 {
					b.Fatal(r, err)
				}
			}
		})
	}
}
