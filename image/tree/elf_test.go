package tree

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf"
	"github.com/slimctl/slimctl/image/elf/elftest"
)

// TestELF reads ELF files of a layer and of the cached index, and finds the same; what only begins like one is none.
func TestELF(t *testing.T) {
	l, err := image.NewLayer([]image.File{
		image.Bytes("/a", 0o755, elftest.Make(elftest.File{Interp: "/ld.so", Needed: []string{"b.so"}})),
		image.Bytes("/b.so", 0o644, elftest.Make(elftest.File{RunPath: "$ORIGIN"})),
		image.Bytes("/big", 0o755, stretch(elftest.Make(elftest.File{Interp: "/big"}), 2<<20)),
		image.Bytes("/big2", 0o755, stretch(elftest.Make(elftest.File{Interp: "/big2"}), 1<<20)),
		image.Bytes("/cut", 0o755, elftest.Make(elftest.File{})[:80]),
		image.Bytes("/text", 0o755, []byte("#!/bin/sh\n")),
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	cache := Cache{Dir: t.TempDir()}
	for from, open := range map[string]func() (*Image, error){
		"the layer": func() (*Image, error) { return Cache{}.Open(t.Context(), img, Options{}) },
		"the cache": func() (*Image, error) {
			if _, err := cache.Open(t.Context(), img, Options{}); err != nil {
				return nil, err
			}
			return cache.Open(t.Context(), img, Options{})
		},
	} {
		im, err := open()
		if err != nil {
			t.Fatal(err)
		}
		files, err := im.ELF()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]*elf.File{}
		for e := range im.Walk("/") {
			if f := files[e.Digest]; f != nil {
				got[e.Path] = f
			}
		}
		if len(got) != 4 || got["/big"].Interp != "/big" || got["/big2"].Interp != "/big2" || got["/a"].Interp != "/ld.so" || !reflect.DeepEqual(got["/a"].Needed, []string{"b.so"}) || !reflect.DeepEqual(got["/b.so"].RunPath, []string{"$ORIGIN"}) {
			t.Errorf("from %s: %+v", from, got)
		}
	}
}

// stretch moves the program headers of an ELF file behind size bytes.
func stretch(file []byte, size int) []byte {
	const offset, number, length = 32, 56, 56 // of e_phoff and e_phnum; of an entry
	at := binary.LittleEndian.Uint64(file[offset:])
	headers := file[at : at+length*uint64(binary.LittleEndian.Uint16(file[number:]))]
	out := slices.Concat(file, make([]byte, size), headers)
	clear(out[at : at+uint64(len(headers))])
	binary.LittleEndian.PutUint64(out[offset:], uint64(len(file)+size))
	return out
}

// TestELFNamesAreBounded refuses a layer whose ELF files have more names than any base's.
func TestELFNamesAreBounded(t *testing.T) {
	var files []image.File
	for i := range maxELFText/2/60_000 + 1 {
		var needed []string
		for range 20 {
			needed = append(needed, strings.Repeat("x", 3000))
		}
		p := "/" + strings.Repeat("y", i+1)
		files = append(files, image.Bytes(p, 0o755, elftest.Make(elftest.File{Interp: p, Needed: needed})))
	}
	_, err := FromFiles(t.Context(), nil, files...)
	if err == nil || !strings.Contains(err.Error(), "the names in the layer's ELF files have more than") {
		t.Errorf("got %v", err)
	}
}
