package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/slimctl/slimctl/internal/need"
)

func writeLayout(t *testing.T, indexes ...v1.ImageIndex) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, idx := range indexes {
		if err := p.AppendIndex(idx); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadLayout(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		one, two := randomIndex(t, 10_000, 2, 2), randomIndex(t, 10_000, 1, 1)
		for name, tt := range map[string]struct {
			dir  string
			want string
		}{
			"one index": {writeLayout(t, one), must(one.Digest()).String()},
			"two":       {writeLayout(t, one, two), ""},
		} {
			t.Run(name, func(t *testing.T) {
				s := serve(t, o)
				for range 2 { // a second time over what is there
					if err := s.LoadLayout("base", "v1", tt.dir); err != nil {
						t.Fatal(err)
					}
				}
				if st := s.Stats(); st.Requests != 0 {
					t.Errorf("counted: %+v", st)
				}
				idx, err := remote.Index(s.ref(t, "base:v1"))
				if err != nil {
					t.Fatal(err)
				}
				if err := validate.Index(idx); err != nil {
					t.Error(err)
				}
				if got := must(idx.Digest()).String(); tt.want != "" && got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		}
	})
}

// firstLayer is the path of the first layer's file.
func firstLayer(t *testing.T, dir string, idx v1.ImageIndex) string {
	t.Helper()
	img := must(idx.Image(must(idx.IndexManifest()).Manifests[0].Digest))
	return filepath.Join(dir, "blobs", "sha256", must(img.Manifest()).Layers[0].Digest.Hex)
}

func TestLoadLayoutRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(dir, layer string) error
		want  string
	}{
		{"missing layer", func(_, l string) error { return os.Remove(l) }, "no such file"},
		{"short layer", func(_, l string) error { return os.Truncate(l, 1) }, "has 1 bytes"},
		{"layer that is a link", func(_, l string) error {
			if err := os.Rename(l, l+"x"); err != nil {
				return err
			}
			return os.Symlink(l+"x", l)
		}, "not a regular file"},
		{"no index", func(d, _ string) error { return os.Remove(filepath.Join(d, "index.json")) }, "index.json"},
		{"digest that climbs", func(d, _ string) error {
			return os.WriteFile(filepath.Join(d, "index.json"), []byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:../../x"}]}`), 0o600)
		}, "non-hex"},
		{"no digest", func(d, _ string) error {
			return os.WriteFile(filepath.Join(d, "index.json"), []byte(`{"schemaVersion":2,"manifests":[{}]}`), 0o600)
		}, "not a regular file"},
		{"spoilt manifest", func(d, _ string) error {
			files, err := filepath.Glob(filepath.Join(d, "blobs", "sha256", "*"))
			for _, f := range files {
				b, rerr := os.ReadFile(f)
				if rerr == nil && strings.HasPrefix(string(b), `{"schemaVersion"`) {
					b[len(b)-1] = ' '
					err = os.WriteFile(f, b, 0o600)
				}
			}
			return err
		}, "has digest"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			idx := randomIndex(t, 1000, 1, 1)
			dir := writeLayout(t, idx)
			if err := tt.spoil(dir, firstLayer(t, dir, idx)); err != nil {
				t.Fatal(err)
			}
			s := serve(t, Options{Dir: t.TempDir()})
			err := s.LoadLayout("base", "v1", dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if a := s.do(t, "HEAD", "/v2/base/manifests/v1", nil); a.status != 404 {
				t.Errorf("tag is set: %d", a.status)
			}
		})
	}
	s := serve(t, Options{})
	if s.LoadLayout("../x", "v1", ".") == nil {
		t.Error("bad name taken")
	}
}

// TestLoadLayoutIsFast: 2 GB in less than 2 s, as no layer is read.
func TestLoadLayoutIsFast(t *testing.T) {
	idx := randomIndex(t, 100, 1, 1)
	dir := writeLayout(t, idx)
	const big = 2 << 30
	hex := strings.Repeat("ab", 32)
	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", hex), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "blobs", "sha256", hex), big); err != nil {
		t.Fatal(err)
	}
	cfg := filepath.Base(firstLayer(t, dir, idx))
	size := must(os.Stat(filepath.Join(dir, "blobs", "sha256", cfg))).Size()
	m := imageManifest("sha256:"+cfg, "sha256:"+hex, int(size), big)
	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", sum(m)[7:]), m, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), indexManifest(sum(m), len(m)), 0o600); err != nil {
		t.Fatal(err)
	}
	need.Within(t, 2*time.Second, func() time.Duration {
		begin := time.Now()
		if err := must(New(Options{Dir: t.TempDir()})).LoadLayout("base", "v1", dir); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	})
}
