package profiles_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/profiles"
)

var lines = []profile.Line{"A", "B", "C"}

func load(t *testing.T, name string) *profile.Profile {
	t.Helper()
	p, err := profile.Loader{Builtin: profiles.FS}.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(t *testing.T) []string {
	t.Helper()
	files, err := fs.Glob(profiles.FS, "*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(f, ".yaml")
	}
	return files
}

func holds(w profile.When, line profile.Line) bool {
	return len(w.Line) == 0 || slices.Contains(w.Line, line)
}

func TestEveryStepSaysWhy(t *testing.T) {
	for _, name := range names(t) {
		raw, err := fs.ReadFile(profiles.FS, name+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if line, _, _ := bytes.Cut(raw, []byte("\n")); string(line) != "# yaml-language-server: $schema=schema.json" {
			t.Errorf("%s: first line is %q", name, line)
		}
		p := load(t, name)
		say := func(what, why string) {
			if len(why) < 10 {
				t.Errorf("%s: %s: why is %q", name, what, why)
			}
		}
		for _, o := range p.Overlays {
			say(o.Name, o.Why)
			for _, f := range o.Files {
				say(f.Path, f.Why)
				if f.Link != "" {
					continue
				}
				if asset, ok := strings.CutPrefix(f.Source, "asset:"); !ok {
					t.Errorf("%s: %s comes from %q", name, f.Path, f.Source)
				} else if _, err := fs.Stat(assets.FS, asset); err != nil {
					t.Errorf("%s: %s: %v", name, f.Path, err)
				}
			}
		}
		for _, r := range slices.Concat(p.Remove, p.Strip) {
			say(r.Path+r.Glob, r.Why)
		}
		for _, c := range p.Expect.Closed {
			say(c.Glob, c.Why)
		}
	}
}

// Every asset is there because a profile lays it.
func TestNoAssetIsLeftOver(t *testing.T) {
	used := map[string]bool{}
	for _, name := range names(t) {
		for _, o := range load(t, name).Overlays {
			for _, f := range o.Files {
				used[strings.TrimPrefix(f.Source, "asset:")] = true
			}
		}
	}
	err := fs.WalkDir(assets.FS, ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !used[p] {
			t.Errorf("no profile lays %s", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The hub's list that a start script may render is the one that the profile's hub block gives.
func TestTemplateIsTheHub(t *testing.T) {
	raw, err := fs.ReadFile(assets.FS, "mcp-hub.json.template")
	if err != nil {
		t.Fatal(err)
	}
	var template struct {
		MCPServers map[string]struct {
			Type    string            `json:"type"`
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
		} `json:"mcpServers"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&template); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(t) {
		p := load(t, name)
		got := map[string]profile.Server{}
		for n, s := range template.MCPServers {
			if s.Type != "stdio" {
				t.Errorf("%s: type %q; the base's hubs take another type when it is not named", n, s.Type)
			}
			got[n] = profile.Server{Command: s.Command, Args: s.Args, Env: s.Env}
		}
		if !reflect.DeepEqual(got, p.Hub.Servers) {
			t.Errorf("%s: hub is %+v, the template says %+v", name, p.Hub.Servers, got)
		}
		if !slices.Equal(p.Expect.MCPServers, []string{"browser_shell"}) || !slices.Equal(p.Expect.Tools, []string{"browser-shell"}) {
			t.Errorf("%s: expects %v with %v", name, p.Expect.MCPServers, p.Expect.Tools)
		}
	}
}

// standinPaths lists the stand-in of a line, which has the base's names.
func standinPaths(t *testing.T, line profile.Line) map[string]bool {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: string(line), Platforms: []string{"linux/amd64"}}); err != nil {
		t.Fatal(err)
	}
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := root.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	flat := mutate.Extract(img)
	defer flat.Close()
	paths := map[string]bool{}
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if err == io.EOF {
			return paths
		}
		if err != nil {
			t.Fatal(err)
		}
		paths[path.Join("/", h.Name)] = true
	}
}

// bootCritical are the files without which the base's start scripts die (facts: run.sh and entrypoint.sh run under set -e).
var bootCritical = map[profile.Line][]string{
	"A": {
		"/opt/gem/run.sh", "/opt/gem/entrypoint.sh", "/opt/gem/nginx-wait.sh", "/opt/gem/mcp-hub-wait.sh", "/opt/gem/wait-for-python-server.sh",
		"/opt/gem/supervisord.conf", "/opt/gem/mcp.disabled", "/opt/gem/nginx.legacy.conf", "/opt/gem/nginx.srv.conf", "/opt/gem/nginx.vnc.conf",
		"/opt/gem/nginx-server-with-auth.conf", "/opt/gem/nginx-server-without-auth.conf", "/opt/gem/nginx-server-port-proxy.conf.template",
		"/opt/jupyter", "/opt/gem/matplotlibrc", "/opt/gem/preferences.json", "/opt/gem/nginx", "/opt/gem/tinyproxy/base.conf",
		"/opt/gem/openbox.xml", "/opt/novnc", "/usr/local/bin/gem-server", "/etc/nginx/mime.types", "/etc/aio_version",
	},
	"B": {
		"/opt/gem/run.sh", "/opt/gem/nginx-wait.sh", "/opt/gem/supervisord.conf", "/opt/gem/nginx.legacy.conf", "/opt/gem/nginx.vnc.conf",
		"/opt/gem/nginx-server-with-auth.conf", "/opt/gem/nginx-server-without-auth.conf", "/opt/gem/nginx-server-port-proxy.conf.template",
		"/opt/jupyter", "/opt/gem/matplotlibrc", "/opt/gem/preferences.json", "/opt/gem/nginx", "/etc/profile.d/nodejs.sh",
		"/opt/gem/nodejs.sh", "/opt/gem/openbox.xml", "/opt/novnc", "/usr/local/bin/python-server", "/etc/nginx/mime.types",
	},
}

func init() { bootCritical["C"] = append(bootCritical["B"], "/opt/gem/gem_init.sh", "/opt/gem/gem.sh") }

// On every line: what must go is there, what must stay stays, and nothing that the profile closes is left.
func TestRemovalsOnStandins(t *testing.T) {
	for _, name := range names(t) {
		p := load(t, name)
		for _, line := range lines {
			t.Run(name+string(line), func(t *testing.T) {
				paths := standinPaths(t, line)
				remove(t, p.Remove, line, paths, true)
				remove(t, p.Strip, line, paths, false)
				for _, o := range p.Overlays {
					for _, f := range o.Files {
						if holds(o.When, line) && holds(f.When, line) {
							paths[f.Path] = true
						}
					}
				}
				for _, f := range bootCritical[line] {
					if !paths[f] {
						t.Errorf("%s is gone, and the image does not start without it", f)
					}
				}
				closed(t, p, line, paths)
			})
		}
	}
}

func remove(t *testing.T, removals []profile.Removal, line profile.Line, paths map[string]bool, missing bool) {
	t.Helper()
	for _, r := range removals {
		if !holds(r.When, line) {
			continue
		}
		var hits []string
		for f := range paths {
			if f == r.Path || r.Glob != "" && match(t, r.Glob, f) && !slices.ContainsFunc(r.Except, func(e string) bool { return match(t, e, f) }) {
				hits = append(hits, f)
			}
		}
		if missing && len(hits) == 0 && r.IfMissing != "ignore" {
			t.Errorf("%s: nothing matches %s", r.Position, r.Path+r.Glob)
		}
		for f := range paths {
			if slices.ContainsFunc(hits, func(h string) bool { return f == h || strings.HasPrefix(f, h+"/") }) {
				delete(paths, f)
			}
		}
	}
}

func closed(t *testing.T, p *profile.Profile, line profile.Line, paths map[string]bool) {
	t.Helper()
	for f := range paths {
		for _, c := range p.Expect.Closed {
			if holds(c.When, line) && match(t, c.Glob, f) && !slices.ContainsFunc(c.Allow, func(a string) bool { return match(t, a, f) }) {
				t.Errorf("%s is left, but %s is closed", f, c.Glob)
			}
		}
	}
	// What the profile allows and nothing has would hide a wrong name.
	for _, c := range p.Expect.Closed {
		for _, a := range c.Allow {
			if holds(c.When, line) && len(c.When.Line) == 1 && !paths[a] {
				t.Errorf("%s allows %s, which line %s does not have", c.Glob, a, line)
			}
		}
	}
}

func match(t *testing.T, glob, name string) bool {
	t.Helper()
	ok, err := doublestar.Match(glob, name)
	if err != nil {
		t.Fatalf("%s: %v", glob, err)
	}
	return ok
}
