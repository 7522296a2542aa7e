package overlays

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

const (
	nodeVersion   = "0.8.10"
	nodeSum       = "sha512-tL5ZfnAa+vZQfEUkEVyyZQFzF6+r9nE07UnjCFMhNFZA709dRc9KYIK1AOXwzBKNHrnxrCaAMgeNJin7NO7j5g=="
	nativeVersion = "0.41.2"
	nativeSum     = "sha512-/agCKB5rw1EEK8SKWo4zid7a5kOwlclqALC0P3c69buJvKdhrl/dJkKdfLqGGaiNIbWzRdqqT0PxZVkwVEf2fg=="
)

// fetched returns a real payload from the user's cache, which tests share between runs.
func fetched(t *testing.T, version, integrity string) *Payload {
	t.Helper()
	p, err := Fetch(context.Background(), version, integrity, Options{Log: t.Logf})
	if err != nil {
		if _, missing := exec.LookPath("npm"); missing != nil {
			need.Program(t, "npm")
		}
		t.Fatal(err)
	}
	return p
}

// privateCache returns a cache of the test's own that holds a copy of p, and the copy's directory.
func privateCache(t *testing.T, p *Payload) (Options, string) {
	t.Helper()
	cache := t.TempDir()
	dir := filepath.Join(cache, "payload", filepath.Base(p.dir))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.Export(dir); err != nil {
		t.Fatal(err)
	}
	return Options{CacheDir: cache, Log: t.Logf}, dir
}

// write lays image files below root, as an image would show them.
func write(t *testing.T, root string, files []image.File) {
	t.Helper()
	for _, f := range files {
		to := filepath.Join(root, f.Path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if f.Type == image.TypeSymlink {
			if err := os.Symlink(filepath.Join(root, f.Link), to); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(to, read(t, f), os.FileMode(f.Mode)); err != nil {
			t.Fatal(err)
		}
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// noLeftovers fails when the cache's room holds anything but the names given.
func noLeftovers(t *testing.T, cache, room string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(cache, room))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
		t.Errorf("%s holds %q, want %q", room, got, want)
	}
}
