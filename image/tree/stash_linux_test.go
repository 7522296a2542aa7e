package tree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf/elftest"
	"github.com/slimctl/slimctl/internal/need"
)

// TestStashOnSmallDisk: a stash takes half of the disk's free space at most, and a disk that is full all the same has the image
// read without it.
func TestStashOnSmallDisk(t *testing.T) {
	const size = 256 << 10
	files := []image.File{image.Bytes("/a-program", 0o755, stretch(elftest.Make(elftest.File{Interp: "/ld.so"}), 2<<20))}
	for i := range 16 {
		files = append(files, image.Bytes(fmt.Sprintf("/file%02d", i), 0o644, bytes.Repeat([]byte{byte(i)}, size)))
	}
	l, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		disk string
		fill int64 // bytes left when the stash is there; 0 leaves all
		want int   // files in the stash
	}{
		"half of it":                {"4m", 0, 8},
		"in the midst of a program": {"8m", 1 << 20, 0},
		"after a program":           {"12m", 3 << 20, 0},
		"none":                      {"8m", 4096, 0},
	} {
		t.Run(name, func(t *testing.T) {
			disk := need.SmallDisk(t, c.disk)
			stash, err := NewStash(disk, func(string) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			defer stash.Close()
			if c.fill > 0 {
				fill(t, filepath.Join(disk, "full"), freeSpace(stash.file)-c.fill)
			}
			im, err := Cache{}.Open(t.Context(), img, Options{Stash: stash})
			if err != nil {
				t.Fatal(err)
			}
			elfs, err := im.ELF()
			if err != nil {
				t.Fatal(err)
			}
			has := 0
			for e := range im.Walk("/") {
				if e.Path == "/a-program" && (elfs[e.Digest] == nil || elfs[e.Digest].Interp != "/ld.so") {
					t.Errorf("the program is read as %+v", elfs[e.Digest])
				}
				r := stash.Content(e.Digest)
				if r == nil {
					continue
				}
				has++
				var content bytes.Buffer
				if _, err := content.ReadFrom(r); err != nil || content.Len() != int(e.Size) {
					t.Errorf("%s: %d bytes, not %d: %v", e.Path, content.Len(), e.Size, err)
				}
			}
			if c.want > 0 && has > c.want || has == 0 && c.want > 0 {
				t.Errorf("%d files are in the stash, want up to %d and some", has, c.want)
			}
		})
	}
}

// fill writes a file of zeros.
func fill(t *testing.T, file string, size int64) {
	t.Helper()
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}
