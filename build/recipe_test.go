package build_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// listing shows a layer as ls would.
func listing(l build.Layer) []string {
	var out []string
	for _, f := range l.Files {
		parent := ""
		if l.Parents[f.Path] {
			parent = " parent"
		}
		out = append(out, fmt.Sprintf("%s %04o %d:%d%s", f.Path, f.Mode, f.UID, f.GID, parent))
	}
	return out
}

func TestLayersCarryTheirParents(t *testing.T) {
	r := &build.Recipe{
		Profile: "p", Epoch: epoch,
		Dirs: map[string]image.Entry{
			"/tmp":     {Path: "/tmp", Type: image.TypeDir, Mode: 0o1777},
			"/srv":     {Path: "/srv", Type: image.TypeDir, Mode: 0o750, UID: 1000, GID: 1000},
			"/srv/old": {Path: "/srv/old", Type: image.TypeDir, Mode: 0o700},
		},
		Removals: []build.Remove{
			{Path: "/tmp/x"},
			{Path: "/srv/old"},
		},
		Overlays: []build.Lay{
			{Name: "one", Files: []image.File{image.Bytes("/srv/old/deep/a", 0o644, []byte("a")), image.Dir("/tmp", 0o755)}},
			{Name: "two", Files: []image.File{image.Bytes("/srv/own/b", 0o644, []byte("b")), image.Dir("/srv/own", 0o711)}},
			{Name: "three", Files: []image.File{image.Symlink("/srv/own/c", "b")}},
		},
	}
	layers := r.Layers()
	got := map[string][]string{}
	for _, l := range layers {
		got[l.Name] = listing(l)
	}
	want := map[string][]string{
		"remove": {"/srv 0750 1000:1000 parent", "/srv/.wh.old 0000 0:0", "/tmp 1777 0:0 parent", "/tmp/.wh.x 0000 0:0"},
		// What was removed with /srv/old gives its directories nothing, and a directory of the base stays what it is.
		"one":   {"/srv 0750 1000:1000 parent", "/srv/old 0755 0:0 parent", "/srv/old/deep 0755 0:0 parent", "/srv/old/deep/a 0644 0:0", "/tmp 1777 0:0"},
		"two":   {"/srv 0750 1000:1000 parent", "/srv/own 0711 0:0", "/srv/own/b 0644 0:0"},
		"three": {"/srv 0750 1000:1000 parent", "/srv/own 0711 0:0 parent", "/srv/own/c 0777 0:0"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, l := range layers {
		for _, f := range l.Files {
			if f.ModTime.IsZero() && r.Dirs[f.Path].Path == "" {
				t.Errorf("%s: %s has no time", l.Name, f.Path)
			}
		}
	}
}

// TestStripped: layers of what stays take the base's place, in config and history.
func TestStripped(t *testing.T) {
	kept := mustLayer(t)
	r := &build.Recipe{
		Profile: "p", Epoch: epoch, Platform: v1.Platform{OS: "linux", Architecture: "arm64"},
		Base: build.Base{Reference: "base", Image: base(t, `{
			"architecture": "arm64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:aa", "sha256:bb"]},
			"history": [{"created_by": "one"}, {"created_by": "two"}]}`)},
		Strip: &build.Strip{Layers: []build.Component{{Layer: kept, Name: "browser", Files: 7}}},
		Overlays: []build.Lay{
			{Name: "o", Files: []image.File{image.Bytes("/y", 0o644, nil)}},
		},
	}
	layers, raw, err := r.Render()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []struct {
			By    string `json:"created_by"`
			Empty bool   `json:"empty_layer"`
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	a, err := kept.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	b, err := layers[0].DiffID()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.RootFS.DiffIDs, []string{a.String(), b.String()}) {
		t.Errorf("diffIDs %v", got.RootFS.DiffIDs)
	}
	var text []string
	for _, h := range got.History {
		text = append(text, fmt.Sprintf("%s, empty: %t", h.By, h.Empty))
	}
	if want := []string{"one, empty: true", "two, empty: true", "slimctl p: keep browser (7 files), empty: false", "slimctl p: lay o (1 files), empty: false"}; !slices.Equal(text, want) {
		t.Errorf("history %q", text)
	}
}

func base(t *testing.T, config string) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, mustLayer(t))
	if err != nil {
		t.Fatal(err)
	}
	return configured{img, []byte(config)}
}

func mustLayer(t *testing.T) v1.Layer {
	l, err := image.NewLayer([]image.File{image.Bytes("/x", 0o644, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// configured is an image with a config of any bytes.
type configured struct {
	v1.Image
	config []byte
}

func (c configured) RawConfigFile() ([]byte, error) { return c.config, nil }

func TestConfig(t *testing.T) {
	r := &build.Recipe{
		Profile: "p", Epoch: epoch, Platform: v1.Platform{OS: "linux", Architecture: "arm64"},
		Base: build.Base{Reference: "base", Image: base(t, `{
			"architecture": "arm64", "variant": "v8", "os": "linux", "author": "them", "docker_version": "20", "container": "abc",
			"config": {"Env": ["PATH=/bin", "A=1", "B=2", "A=twice"], "Cmd": ["/run.sh"], "Entrypoint": ["/init"], "X-Unknown": {"k": [1]},
				"Labels": {"keep": "1", "change": "old"}, "ExposedPorts": {"8080/tcp": {}}, "Shell": ["/bin/bash"]},
			"rootfs": {"type": "layers", "diff_ids": ["sha256:aa", "sha256:bb"]},
			"history": [{"created_by": "one"}, {"created_by": "env", "empty_layer": true, "created": "2020-01-01T00:00:00Z"}]}`)},
		Removals: []build.Remove{
			{Path: "/x"},
		},
		Change: build.ConfigChange{
			Env: map[string]string{"A": "<new>", "Z": "26", "C": "3"}, UnsetEnv: []string{"B"},
			Labels: map[string]string{"change": "new"}, Entrypoint: []string{"/ours"},
			Healthcheck: &v1.HealthConfig{Test: []string{"NONE"}},
		},
	}
	_, raw, err := r.Render()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	diffIDs := got["rootfs"].(map[string]any)["diff_ids"].([]any)
	if len(diffIDs) != 3 || diffIDs[1] != "sha256:bb" {
		t.Errorf("diff_ids are %v", diffIDs)
	}
	delete(got, "rootfs")
	at := "2026-01-02T03:04:05Z"
	want := map[string]any{
		"architecture": "arm64", "variant": "v8", "os": "linux", "author": "them", "created": at,
		"config": map[string]any{
			"Env": []any{"PATH=/bin", "A=<new>", "C=3", "Z=26"}, "Entrypoint": []any{"/ours"}, "X-Unknown": map[string]any{"k": []any{1.0}},
			"Labels": map[string]any{"keep": "1", "change": "new"}, "ExposedPorts": map[string]any{"8080/tcp": map[string]any{}},
			"Shell": []any{"/bin/bash"}, "Healthcheck": map[string]any{"Test": []any{"NONE"}},
		},
		"history": []any{
			map[string]any{"created_by": "one", "created": at},
			map[string]any{"created_by": "env", "empty_layer": true, "created": "2020-01-01T00:00:00Z"},
			map[string]any{"comment": "layer of the base", "created": at},
			map[string]any{"comment": "slimctl", "created_by": "slimctl p: remove 1 path", "created": at},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Without rendering, it is the same but for our layers' diffIDs.
	alone, err := r.Config()
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(raw), fmt.Sprintf(",%q", diffIDs[2]), "", 1)
	if string(alone) != without {
		t.Errorf("Config gives\n%s\nRender without our layers\n%s", alone, without)
	}
}

func TestConfigOfABrokenBase(t *testing.T) {
	for _, config := range []string{``, `null`, `[]`, `{"config": 5}`, `{"config": {"Env": "x"}}`, `{"rootfs": 1}`} {
		r := &build.Recipe{Base: build.Base{Reference: "base:1", Image: base(t, config)}, Change: build.ConfigChange{Env: map[string]string{"A": "1"}}}
		if _, _, err := r.Render(); err == nil || !strings.Contains(err.Error(), "base:1") {
			t.Errorf("config %q: error is %v, want one that names the base", config, err)
		}
		if _, err := r.Config(); err == nil || !strings.Contains(err.Error(), "base:1") {
			t.Errorf("Config, config %q: error is %v, want one that names the base", config, err)
		}
	}
}

// TestNewUpstream: what is new to several platforms is told once, also of a base with as many files as three node_modules in an owned
// directory: comparing each with each took minutes.
func TestNewUpstream(t *testing.T) {
	var gone []build.Gone
	for i := range 200_000 {
		gone = append(gone, build.Gone{Path: fmt.Sprintf("/opt/gem/node_modules/%06d", i), Why: "w"})
	}
	other := build.Gone{Path: gone[0].Path, Why: "another"}
	got := build.NewUpstream([]*build.Recipe{{New: gone}, {New: append([]build.Gone{other}, gone...)}})
	if want := append(slices.Clone(gone), other); !slices.Equal(got, want) {
		t.Errorf("%d are new, not %d", len(got), len(want))
	}
}
