package resolve_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image/tree"
)

const keeps = header + `own: [{path: /t/own, keep: [/t/own/a], why: w}]
overlays: [{name: o, why: w, files: [{path: /t/b.conf, content: x}]}]
keep:
  roots: [{path: /t/link, why: w}, {path: /t/own/a, why: w}, {path: /t/b.conf, why: w}]
  paths: [/t/dir, /t/own]
  components: [{name: rest}, {name: confs, paths: ["/t/*.conf"]}]
` + expect

// layersOf lists what the layers in the base's place hold, and their digests.
func layersOf(t *testing.T, r *build.Recipe) (paths []string, digests []v1.Hash) {
	t.Helper()
	for _, c := range r.Stripped() {
		d, err := c.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
		raw, err := c.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		archive := tar.NewReader(raw)
		for {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			paths = append(paths, c.Name+" "+h.Name)
		}
	}
	return paths, digests
}

// ledgerOf lists what the ledger says of each path.
func ledgerOf(t *testing.T, r *build.Recipe) (lines []string) {
	t.Helper()
	in, err := r.Ledger().Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	seen := map[string]bool{}
	if _, err := ledger.Read(in, func(row ledger.Row) bool {
		if seen[row.Path] {
			t.Errorf("%s is there twice", row.Path)
		}
		seen[row.Path] = true
		lines = append(lines, strings.Trim(fmt.Sprintf("%+q", row.String()), `"`))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestKeep: of the base stays what is needed, in the layers of its components; what is laid or removed isn't there twice.
func TestKeep(t *testing.T) {
	in := input(base(t, "B"), load(t, keeps))
	in.Cache = tree.Cache{Dir: t.TempDir()}
	recipes, made, err := resolve.Resolve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"rest t/", "rest t/dir/", "rest t/dir/file", "rest t/link", "rest t/own/", "rest t/own/a", "confs t/", "confs t/a.conf"}
	paths, digests := layersOf(t, recipes[0])
	if !slices.Equal(paths, want) {
		t.Errorf("got %q", paths)
	}
	if explain := recipes[0].Steps[0].(build.Strip).Explain; !slices.Equal(explain("/t/a.conf"), []string{"/t/a.conf: target of /t/link", "/t/link: root (w)"}) {
		t.Errorf("explained as %q", explain("/t/a.conf"))
	}

	told := ledgerOf(t, recipes[0])
	for _, want := range []string{
		"/t/a.conf: target of /t/link", "/t/b.conf: goes, replaced by overlay o", "/t/dir: for what lies in it, or for its package",
		"/t/dir/file: path (/t/dir)", "/t/dirlink: goes, nothing that stays needs it", "/t/link: root (w)", "/t/own/a: root (w)",
		"/t/own/sub: goes, removed (w)", "/t/own/sub/deep/b: goes, removed with /t/own/sub (w)", `/odd/x\xff: goes, nothing that stays needs it`,
		"/odd: goes, nothing in it stays", "/opt/gem/mcp-hub.json: added by overlay hub",
	} {
		if !slices.Contains(told, want) {
			t.Errorf("the ledger doesn't have %q", want)
		}
	}
	files, err := in.Cache.Open(t.Context(), recipes[0].Base.Image, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := files.Len() - 1; len(told) < n {
		t.Errorf("the ledger has %d paths, the base %d", len(told), n)
	}

	// With the lock nothing of the base is read, as long as nobody asks for what the cache has lost.
	in.Lock = made
	again, _, err := resolve.Resolve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(in.Cache.Dir, "stripped")); err != nil {
		t.Fatal(err)
	}
	if _, same := layersOf(t, again[0]); !slices.Equal(same, digests) {
		t.Errorf("with the lock the layers are %v, not %v", same, digests)
	}
	if again := ledgerOf(t, again[0]); !slices.Equal(told, again) {
		t.Errorf("with the lock the ledger is another")
	}
	pins := made.Platforms["linux/amd64"].Layers
	pins[0].Digest = pins[1].Digest
	if err := os.RemoveAll(filepath.Join(in.Cache.Dir, "stripped")); err != nil {
		t.Fatal(err)
	}
	if again, _, err = resolve.Resolve(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if _, err := again[0].Stripped()[0].Compressed(); err == nil || !strings.Contains(err.Error(), "run `slimctl lock` again") {
		t.Errorf("a lock with another digest: %v", err)
	}
}
