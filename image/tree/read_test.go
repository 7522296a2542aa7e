package tree_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image/tree"
)

// countedLayer counts how often it is read.
type countedLayer struct {
	v1.Layer
	reads *atomic.Int32
}

func (l countedLayer) Compressed() (io.ReadCloser, error) {
	l.reads.Add(1)
	return l.Layer.Compressed()
}

func TestReadFiles(t *testing.T) {
	big := strings.Repeat("big ", 100_000)
	lower := plainLayer(archive(
		regular("etc/a.conf", "kept"), regular("srv/x", "not kept"), regular("srv/y", "neither"), regular("srv/big", big),
		linked(tar.TypeSymlink, "link", "srv/x"), linked(tar.TypeLink, "hard", "srv/y"), linked(tar.TypeLink, "conf", "etc/a.conf"), regular("srv/empty", ""),
	))
	upper := plainLayer(archive(linked(tar.TypeLink, "lower", "srv/big"), regular("srv/y", "new"), regular("etc/b.conf", "kept too")))
	var reads atomic.Int32
	img := newImage(t, countedLayer{lower, &reads}, countedLayer{upper, &reads})
	want := map[string]string{
		"/etc/a.conf": "kept", "/conf": "kept", "/etc/b.conf": "kept too", "/srv/x": "not kept", "/link": "not kept", "/hard": "neither",
		"/srv/y": "new", "/lower": big, "/srv/empty": "", "/etc/../srv/../link": "not kept",
	}
	for name, dir := range map[string]string{"with a cache": t.TempDir(), "without": ""} {
		im, err := tree.Cache{Dir: dir}.Open(t.Context(), img, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		read := func(most int, paths ...string) {
			t.Helper()
			reads.Store(0)
			got, err := im.ReadFiles(t.Context(), paths...)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range paths {
				if text, ok := got[p]; !ok || text == nil || string(text) != want[p] {
					t.Errorf("%s: %s holds %.50q", name, p, text)
				}
			}
			if reads := int(reads.Load()); reads > most {
				t.Errorf("%s: %v took %d reads of layers, want at most %d", name, paths, reads, most)
			}
		}
		read(0)
		read(0, "/etc/a.conf", "/conf", "/etc/b.conf", "/srv/empty")
		read(1, "/etc/a.conf", "/srv/x", "/link", "/hard", "/lower")
		read(2, "/etc/a.conf", "/conf", "/etc/b.conf", "/srv/x", "/link", "/hard", "/srv/y", "/lower", "/srv/empty", "/etc/../srv/../link")
		if dir == "" {
			continue
		}
		read(2, "/srv/x", "/hard", "/srv/y")
		read(0, "/srv/x", "/hard", "/srv/y") // as last time
		read(0, "/srv/x")
		files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
		if err != nil || len(files) != 4 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, f := range files { // what is kept is at the end
			text, err := os.ReadFile(f)
			must(err)
			for i := len(text) - 10; i < len(text); i++ {
				text[i] ^= 0x55
			}
			must(os.WriteFile(f, text, 0o644))
		}
		if im, err = (tree.Cache{Dir: dir}).Open(t.Context(), img, tree.Options{}); err != nil {
			t.Fatal(err)
		}
		read(2, "/etc/a.conf", "/etc/b.conf")
		read(2, "/srv/x", "/hard", "/srv/y")
		must(os.RemoveAll(dir))
		read(2, "/etc/a.conf", "/etc/b.conf")
	}
}

func TestReadFilesRefuses(t *testing.T) {
	large := item{tar.Header{Name: "large", Typeflag: tar.TypeReg}, strings.Repeat("\x00", tree.MaxRead+1)}
	img := newImage(t, plainLayer(archive(directory("d"), regular("f", "x"), linked(tar.TypeSymlink, "dangling", "nowhere"), device("c", 1, 3), large)))
	im, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{"/d": "it is a dir", "/c": "it is a char", "/large": "more than the"} {
		if _, err := im.ReadFile(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error is %v, want one that says %q", p, err, want)
		}
	}
	for _, p := range []string{"/none", "/dangling", "/f/x"} {
		if _, err := im.ReadFile(t.Context(), p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error is %v", p, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if _, err := im.ReadFile(ctx, "/f"); !errors.Is(err, reason) {
		t.Errorf("error is %v, want %v", err, reason)
	}
}

func TestSkip(t *testing.T) {
	lower, upper := plainLayer(archive(regular("a", "x"), regular("gone", "x"))), plainLayer(archive(linked(tar.TypeLink, "b", "a"), regular("c", "y"), regular(".wh.gone", "")))
	first, err := lower.Digest()
	must(err)
	skip := tree.Options{Skip: func(d v1.Hash) bool { return d == first }}
	cache := tree.Cache{Dir: t.TempDir()}
	im, err := cache.Open(t.Context(), newImage(t, unreadable{lower}, upper), skip)
	if err != nil {
		t.Fatal(err)
	}
	if !im.Layers[0].Unread || len(im.Layers[0].Entries) != 0 || im.Layers[1].Unread {
		t.Errorf("layers are %+v", im.Layers)
	}
	if _, err := im.ReadFile(t.Context(), "/b"); err == nil || !strings.Contains(err.Error(), "not read") {
		t.Errorf("error is %v", err)
	}
	if text, err := im.ReadFile(t.Context(), "/c"); err != nil || string(text) != "y" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := cache.Open(t.Context(), newImage(t, lower), tree.Options{}); err != nil {
		t.Fatal(err)
	}
	if im, err = cache.Open(t.Context(), newImage(t, unreadable{lower}, upper), skip); err != nil || im.Layers[0].Unread {
		t.Errorf("a layer that the cache holds is left out: %v", err)
	}
	if e, ok := im.Lookup("/b"); !ok || e.Link != "/a" {
		t.Errorf("/b is %+v", e)
	}
}
