package tree

import (
	"bytes"
	"math/rand/v2"
	"reflect"
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
	for _, from := range []string{"the layer", "the cache"} {
		im, err := cache.Open(t.Context(), img, Options{})
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
		if len(got) != 2 || got["/a"].Interp != "/ld.so" || !reflect.DeepEqual(got["/a"].Needed, []string{"b.so"}) || !reflect.DeepEqual(got["/b.so"].RunPath, []string{"$ORIGIN"}) {
			t.Errorf("from %s: %+v", from, got)
		}
	}
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

// TestSpool reads what was written anywhere, in memory, in the file and across both.
func TestSpool(t *testing.T) {
	want := make([]byte, maxSpool+1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	var s spool
	defer s.close()
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 100_000)
		if err := s.write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	for _, off := range []int{0, maxSpool - 10, maxSpool, len(want) - 20} {
		got := make([]byte, 20)
		if n, err := s.ReadAt(got, int64(off)); n != 20 || err != nil || !bytes.Equal(got, want[off:off+20]) {
			t.Errorf("at %d: %d bytes, %v", off, n, err)
		}
	}
	if n, err := s.ReadAt(make([]byte, 20), int64(len(want)-5)); n != 5 || err == nil {
		t.Errorf("beyond the end: %d bytes, %v", n, err)
	}
}
