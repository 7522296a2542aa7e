package image_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

func layerOf(t *testing.T, files ...image.File) v1.Layer {
	t.Helper()
	l, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNewLayerIsDeterministic(t *testing.T) {
	a, b := image.Bytes("/d/a", 0o644, []byte("a")), image.Bytes("/d-b", 0o644, []byte("b"))
	dir := image.File{Entry: image.Entry{Path: "/d", Type: image.TypeDir, Mode: 0o755, Xattrs: map[string]string{"user.b": "1", "user.a": "2"}}}
	one, _ := layerOf(t, a, b, dir).Digest()
	two, _ := layerOf(t, dir, b, a).Digest()
	if one != two {
		t.Errorf("the order of files changes the digest: %s, %s", one, two)
	}
}

func TestLayerCache(t *testing.T) {
	cache := image.LayerCache{Dir: t.TempDir()}
	files := func(content string) []image.File { return []image.File{image.Bytes("/a", 0o644, []byte(content))} }
	build := func(content string) (digest v1.Hash, blob []byte) {
		t.Helper()
		l, err := cache.Layer(files(content))
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		blob, err = io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		digest, err = l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return digest, blob
	}
	cold, blob := build("one")
	warm, same := build("one")
	if cold != warm || !bytes.Equal(blob, same) {
		t.Error("the cache changes a layer")
	}
	if other, _ := build("two"); other == cold {
		t.Error("another content gives the cached layer")
	}
	kept, err := filepath.Glob(filepath.Join(cache.Dir, "layers", "*", "*"))
	if err != nil || len(kept) != 2 {
		t.Fatalf("the cache holds %v, %v", kept, err)
	}
	other, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, tampered := range [][]byte{[]byte("tampered"), nil, other} {
		for _, file := range kept {
			if err := os.WriteFile(file, tampered, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, content := range []string{"one", "two"} {
			if again, b := build(content); content == "one" && (again != cold || !bytes.Equal(b, blob)) {
				t.Errorf("a damaged cache gives %s", again)
			}
		}
	}
}

func TestLayerOfAChangingFile(t *testing.T) {
	n := 0
	f := image.Bytes("/a", 0o644, []byte("x"))
	f.Open = func() (io.ReadCloser, error) { n++; return io.NopCloser(strings.NewReader(string(rune('a' + n)))), nil }
	if _, err := image.NewLayer([]image.File{f}); err == nil {
		t.Error("a file that changes between two readings is accepted")
	}
}

func TestNewLayerRefuses(t *testing.T) {
	short := image.Bytes("/x", 0o644, []byte("12345"))
	short.Size = 9
	long := image.Bytes("/x", 0o644, []byte("12345"))
	long.Size = 2
	for name, files := range map[string][]image.File{
		"one path twice":    {image.Bytes("/x", 0o644, nil), image.Bytes("/x", 0o644, nil)},
		"content too short": {short},
		"content too long":  {long},
		"no content":        {{Entry: image.Entry{Path: "/x", Type: image.TypeFile, Size: 1}}},
		"unknown type":      {{Entry: image.Entry{Path: "/x", Type: "socket"}}},
	} {
		if _, err := image.NewLayer(files); err == nil || !strings.Contains(err.Error(), "/x") {
			t.Errorf("%s: error is %v, want one that names /x", name, err)
		}
	}
}
