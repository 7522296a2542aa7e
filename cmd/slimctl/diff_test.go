package main

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/internal/ocitest"
)

// diffsOf runs slimctl diff and reads its JSON.
func diffsOf(t *testing.T, code int, args ...string) []*diff.Diff {
	t.Helper()
	args = append([]string{"diff", "--format", "json", "--progress", "quiet", "--exit-code"}, args...)
	got, stdout, stderr := slimctl(t.Context(), args...)
	if got != code {
		t.Fatalf("%q: exit code %d, want %d: %s", args, got, code, stderr)
	}
	var doc struct{ Platforms []*diff.Diff }
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return doc.Platforms
}

func names(fields []diff.Field, chosen func(diff.Field) bool) []string {
	var out []string
	for _, f := range fields {
		if chosen(f) {
			out = append(out, f.Name)
		}
	}
	return out
}

// TestDiffOfClosedImages compares each stand-in with its closed image, on both platforms, and the files with an independent
// comparison.
func TestDiffOfClosedImages(t *testing.T) {
	t.Parallel()
	for line, programs := range map[string]int{"A": 12, "B": 17, "C": 17} { // at least
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			dir, err := built[line]()
			if err != nil {
				t.Fatal(err)
			}
			diffs := diffsOf(t, exitDifferent, "standin:"+line, "oci:"+dir)
			if len(diffs) != 2 {
				t.Fatalf("%d platforms", len(diffs))
			}
			for _, d := range diffs {
				s := d.Surface
				if s.Programs.Base < programs || s.Programs.Slim != 5 {
					t.Errorf("%s: programs %d → %d, want %d or more → 5", d.Platform, s.Programs.Base, s.Programs.Slim, programs)
				}
				added := func(f diff.Field) bool { return !f.InBase }
				if got := names(s.Tools.Items, added); !slices.Equal(got, []string{"browser-shell"}) || s.Tools.Slim != 1 || s.Tools.Base < 20 {
					t.Errorf("%s: tools %d → %d, new is %q", d.Platform, s.Tools.Base, s.Tools.Slim, got)
				}
				if got := names(s.MCPServers.Items, added); !slices.Equal(got, []string{"browser_shell"}) || s.MCPServers.Slim != 1 {
					t.Errorf("%s: MCP servers: %d, new is %q", d.Platform, s.MCPServers.Slim, got)
				}
				for _, f := range s.Routes.Items {
					if f.InSlim && !strings.HasSuffix(f.New, "closed") && !strings.Contains(f.New, "auth=/_auth") &&
						!strings.Contains(f.Name, "/vnc") {
						t.Errorf("%s: %s is open to anybody: %s", d.Platform, f.Name, f.New)
					}
				}
				if i := slices.IndexFunc(s.Routes.Items, func(f diff.Field) bool { return f.Name == "8080 /" }); i < 0 || s.Routes.Items[i].New != "return 403 closed" {
					t.Errorf("%s: what answers at / is not told: %v", d.Platform, s.Routes.Items)
				}
				if s.Hooks.Base == 0 && line != "A" || s.Hooks.Slim != 0 {
					t.Errorf("%s: hooks %d → %d", d.Platform, s.Hooks.Base, s.Hooks.Slim)
				}
				for _, l := range d.Layers {
					if l.In == diff.InBase {
						t.Errorf("%s: the closed image lacks layer %s of its base", d.Platform, l.Digest)
					}
				}
				if d.Size.Hidden <= 0 || d.Size.Gone != 0 || d.Size.Transfer <= 0 || d.Size.Transfer > 20<<20 || d.Size.Beside != d.Size.Transfer {
					t.Errorf("%s: %+v", d.Platform, d.Size)
				}
				if want := d.Counts.AddedBytes - d.Counts.RemovedBytes; d.Size.Visible != want {
					t.Errorf("%s: %d bytes more are visible, and files that differ have %d more", d.Platform, d.Size.Visible, want)
				}
				if i := slices.IndexFunc(d.Config, func(f diff.Field) bool { return f.Name == "entrypoint" }); i < 0 || d.Config[i].New != `["/usr/local/bin/browser-shell","init"]` {
					t.Errorf("%s: the entrypoint is not told", d.Platform)
				}
				base, slim := imagesOf(t, "oci:"+layoutOf(t, line), "")[d.Platform], imagesOf(t, "oci:"+dir, "")[d.Platform]
				if diff := cmp.Diff(differing(ocitest.Tree(t, base), ocitest.Tree(t, slim)), marksOf(d)); diff != "" {
					t.Errorf("%s: an independent comparison: -want +got\n%s", d.Platform, diff)
				}
			}
		})
	}
}

// differing compares unpacked trees: "+", "-" or "*" by path. A hard link in the place of a copy, or the other way around, is
// no difference.
func differing(base, slim map[string]ocitest.Node) map[string]string {
	out := map[string]string{}
	plain := func(n ocitest.Node) ocitest.Node {
		if n.Type == image.TypeFile {
			n.Link = ""
		}
		return n
	}
	for p, n := range base {
		to, ok := slim[p]
		switch {
		case !ok:
			out[p] = diff.Removed
		case !cmp.Equal(plain(n), plain(to)):
			out[p] = "*"
		}
	}
	for p := range slim {
		if _, ok := base[p]; !ok {
			out[p] = diff.Added
		}
	}
	return out
}

func marksOf(d *diff.Diff) map[string]string {
	out := map[string]string{}
	for _, c := range d.Files {
		switch {
		case c.Path == "/":
		case c.Kind == diff.Added || c.Kind == diff.Removed:
			out[c.Path] = c.Kind
		default:
			out[c.Path] = "*"
		}
	}
	return out
}

// TestDiffPlatforms has images for different platforms, and one that doesn't say its own.
func TestDiffPlatforms(t *testing.T) {
	t.Parallel()
	write := func(content string, platforms ...string) string {
		index := v1.ImageIndex(empty.Index)
		for _, p := range platforms {
			l, err := image.NewLayer([]image.File{image.Bytes("/file", 0o644, []byte(content))})
			if err != nil {
				t.Fatal(err)
			}
			img, err := mutate.AppendLayers(empty.Image, l)
			if err != nil {
				t.Fatal(err)
			}
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			config = config.DeepCopy()
			config.OS, config.Architecture, _ = strings.Cut(p, "/")
			config.Architecture, config.Variant, _ = strings.Cut(config.Architecture, "/")
			if img, err = mutate.ConfigFile(img, config); err != nil {
				t.Fatal(err)
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img})
		}
		dir := filepath.Join(t.TempDir(), "layout")
		at, err := layout.Write(dir, empty.Index)
		if err == nil {
			err = at.AppendIndex(index)
		}
		if err != nil {
			t.Fatal(err)
		}
		return "oci:" + dir
	}
	amd, arm, both := write("1", "linux/amd64"), write("1", "linux/arm64"), write("1", "linux/amd64", "linux/arm64/v8")
	other, unnamed := write("2", "linux/amd64", "linux/arm64"), write("2", "")
	for _, tt := range []struct {
		name string
		args []string
		code int
		want map[string]string // by platform
	}{
		{"all", []string{both, other}, exitDifferent, map[string]string{"linux/amd64": "differs", "linux/arm64/v8": "differs"}},
		{"the same", []string{both, both}, exitOK, map[string]string{"linux/amd64": "same", "linux/arm64/v8": "same"}},
		{"chosen", []string{"--platform", "linux/amd64", both, amd}, exitOK, map[string]string{"linux/amd64": "same"}},
		{"one missing in slim", []string{both, amd}, exitDifferent, map[string]string{"linux/amd64": "same", "linux/arm64/v8": "missing in slim"}},
		{"one missing in base", []string{arm, both}, exitDifferent, map[string]string{"linux/arm64": "same", "linux/amd64": "missing in base"}},
		{"an image without a platform", []string{amd, unnamed}, exitDifferent, map[string]string{"linux/amd64": "differs"}},
		{"a base without a platform", []string{unnamed, arm}, exitDifferent, map[string]string{"linux/arm64": "differs"}},
		{"chosen for one without", []string{"--platform", "linux/arm64", unnamed, both}, exitDifferent, map[string]string{"linux/arm64": "differs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]string{}
			for _, d := range diffsOf(t, tt.code, tt.args...) {
				switch {
				case d.Missing != "":
					got[d.Platform] = "missing in " + d.Missing
				case d.Same:
					got[d.Platform] = "same"
				default:
					got[d.Platform] = "differs"
				}
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{amd, arm}, exitNotFound, "linux/amd64"},
		{[]string{both, unnamed}, exitUsage, "--platform"},
		{[]string{"--platform", "linux/s390x", both, both}, exitNotFound, "linux/s390x"},
	} {
		for _, exitCode := range []bool{false, true} {
			args := append([]string{"diff", "--progress", "quiet"}, tt.args...)
			want := tt.code
			if exitCode {
				args, want = append(args, "--exit-code"), exitTrouble
			}
			code, stdout, stderr := slimctl(t.Context(), args...)
			if code != want || stdout != "" || strings.Count(stderr, "slimctl: error: ") != 1 || !strings.Contains(stderr, tt.want) {
				t.Errorf("%q: exit code %d, want %d: %s%s", args, code, want, stdout, stderr)
			}
		}
	}
}

// TestDiffReadsLayersOnce asks a registry: a layer is read once, also when both images have it, and then never again.
func TestDiffReadsLayersOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.forget(t)
	dir, err := built["B"]()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.LoadLayout("slim/a", "closed", dir); err != nil {
		t.Fatal(err)
	}
	common := []string{"--cache-dir", filepath.Join(s.dir, "cache"), "--platform", "linux/amd64"}
	base, slim := s.Host+"/base/aio:1", s.Host+"/slim/a:closed"
	// reads are how often each blob was asked for since the last call.
	reads := func() map[string]int {
		out := map[string]int{}
		for _, r := range s.Records() {
			if _, digest, ok := strings.Cut(r.Path, "/blobs/"); ok && r.Method == "GET" {
				out[digest]++
			}
		}
		s.Reset()
		return out
	}
	layers := diffsOf(t, exitDifferent, append([]string{base, slim}, common...)...)[0].Layers
	cold := reads()
	diffsOf(t, exitDifferent, append([]string{base, slim}, common...)...)
	warm := reads()
	for _, l := range layers {
		if n := cold[l.Digest]; n != 1 {
			t.Errorf("layer %s, in %s, was read %d times", l.Digest, l.In, n)
		}
		if n := warm[l.Digest]; n != 0 {
			t.Errorf("layer %s, in %s, was read %d times although it is known", l.Digest, l.In, n)
		}
	}
}
