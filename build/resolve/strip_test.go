package resolve_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image"
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

// appended is the image of src with one layer more.
func appended(t *testing.T, src *image.Source, files ...image.File) *image.Source {
	t.Helper()
	img, err := src.Image(v1.Platform{OS: "linux", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	more, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.AppendLayers(img, more); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := at.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	if src, err = image.Open(t.Context(), "oci:"+dir, image.Options{}); err != nil {
		t.Fatal(err)
	}
	return src
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

	// A second build takes what the first one found out, for this profile only.
	locks := []string{filepath.Join(t.TempDir(), lock.Name)}
	if err := made.Write(locks[0]); err != nil {
		t.Fatal(err)
	}
	resolved := func(in resolve.Input) *build.Recipe {
		t.Helper()
		recipes, locked, err := resolve.Resolve(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, filepath.Join(t.TempDir(), lock.Name))
		if err := locked.Write(locks[len(locks)-1]); err != nil {
			t.Fatal(err)
		}
		return recipes[0]
	}
	second := resolved(in)
	if _, same := layersOf(t, second); !slices.Equal(same, digests) || !slices.Equal(ledgerOf(t, second), told) {
		t.Errorf("again the layers are %v, not %v, or the ledger is another", same, digests)
	}
	if first, err := os.ReadFile(locks[0]); err != nil {
		t.Error(err)
	} else if again, err := os.ReadFile(locks[1]); err != nil || string(again) != string(first) {
		t.Errorf("again the lock is %s, not %s, %v", again, first, err)
	}
	remembered, err := filepath.Glob(filepath.Join(in.Cache.Dir, "stripped", "*", "*.pins"))
	if err != nil || len(remembered) != 1 {
		t.Fatalf("remembered are %q, %v", remembered, err)
	}
	edit := func(file string, edit func(string) string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(edit(string(text))), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	edit(remembered[0], func(s string) string { return strings.Replace(s, `"files":`, `"files":7`, 1) })
	if n := resolved(in).Stripped()[0].Files; n < 70 {
		t.Errorf("again the first layer has %d files: what was remembered isn't used", n)
	}
	for name, of := range map[string]string{
		"another path":      strings.Replace(keeps, "[/t/dir, /t/own]", "[/t/dir]", 1),
		"another overlay":   strings.Replace(keeps, "path: /t/b.conf, content", "path: /t/a.conf, content", 1),
		"another removal":   strings.Replace(keeps, "keep: [/t/own/a]", "keep: [/t/own/a, /t/own/sub]", 1),
		"another component": strings.Replace(keeps, "confs, paths", "texts, paths", 1),
	} {
		other := in
		other.Profile = load(t, of)
		if n := resolved(other).Stripped()[0].Files; n >= 70 {
			t.Errorf("%s: the first layer has %d files, as remembered of another profile", name, n)
		}
	}
	edit(remembered[0], func(string) string { return "[" })
	if n := resolved(in).Stripped()[0].Files; n >= 70 {
		t.Errorf("the first layer has %d files, by a damaged memory", n)
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
	for name, spoil := range map[string]func(p *strip.Pin){
		"another digest": func(p *strip.Pin) { p.Digest = pins[1].Digest },
		"another diffID": func(p *strip.Pin) { p.DiffID = pins[1].DiffID },
		"another size":   func(p *strip.Pin) { p.Size++ },
	} {
		good := pins[0]
		spoil(&pins[0])
		if again, _, err = resolve.Resolve(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if _, err := again[0].Stripped()[0].Compressed(); err == nil || !strings.Contains(err.Error(), "run `slimctl lock` again") {
			t.Errorf("a lock with %s: %v", name, err)
		}
		pins[0] = good
	}
}

// TestUnownedInterpreter: the modules of an interpreter that no package owns stay with it. One whose modules are elsewhere is
// told of as what the base lacks (exit status 3), with the line of the profile that keeps it. env finds an interpreter by the
// image's PATH, the profile's or the base's.
func TestUnownedInterpreter(t *testing.T) {
	const path, paths, stays = "config: {env: {PATH: /opt/py/bin}}\n", "paths: [/opt/py, ", "rest opt/py/lib/python3.12/os.py"
	rooted := strings.Replace(keeps, "roots: [", "roots: [{path: /t/script, why: w}, ", 1)
	for name, c := range map[string]struct {
		profile string
		modules string
		needs   bool // what the base lacks
		want    string
	}{
		"without a PATH":     {rooted, "lib/python3.12", false, "/t/script needs the interpreter python3.12, which is not in the base"},
		"of no package":      {path + rooted, "lib/python3.12", false, ""},
		"modules elsewhere":  {path + rooted, "modules", true, "\nkeep: {paths: [/opt/py]}"},
		"named in a profile": {path + strings.Replace(rooted, "paths: [", paths, 1), "lib/python3.12", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			src := appended(t, base(t, "B"), image.Bytes("/t/script", 0o755, []byte("#!/usr/bin/env python3.12\n")), image.Bytes("/usr/bin/env", 0o755, []byte("env")),
				image.Dir("/opt/py/bin", 0o755), image.Bytes("/opt/py/bin/python3.12", 0o755, []byte("python")),
				image.Bytes("/opt/py/"+c.modules+"/os.py", 0o644, nil))
			in := input(src, load(t, c.profile))
			in.Cache = tree.Cache{Dir: t.TempDir()}
			recipes, _, err := resolve.Resolve(t.Context(), in)
			if errors.As(err, new(*resolve.NeedsError)) != c.needs || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if c.want != "" {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if paths, _ := layersOf(t, recipes[0]); !slices.Contains(paths, stays) {
				t.Errorf("the interpreter's modules don't stay: %q", paths)
			}
		})
	}
}

// TestDeepTree guards that a base with deep directories ends soon: a directory above many paths is asked once. Memory stands
// for the time, which was minutes of a tree as deep as Linux allows.
func TestDeepTree(t *testing.T) {
	var files []image.File
	for _, dir := range []string{"/t/own/sub", "/t/dir"} {
		dir += strings.Repeat("/a", 1000)
		for i := range 200 {
			files = append(files, image.Bytes(fmt.Sprintf("%s/%d", dir, i), 0o644, nil))
		}
	}
	in := input(appended(t, base(t, "B"), files...), load(t, keeps))
	in.Cache = tree.Cache{Dir: t.TempDir()}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	recipes, _, err := resolve.Resolve(t.Context(), in)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 500<<20 {
		t.Errorf("it allocated %d MB: the way up is walked for every path", took>>20)
	}
	paths, _ := layersOf(t, recipes[0])
	if i := slices.Index(paths, "rest t/dir/a/"); i < 0 || !strings.HasPrefix(paths[i+1199], "rest t/dir/a/a/") || slices.Contains(paths, "rest t/own/sub/") {
		t.Errorf("%.500q stay", paths)
	}
}
