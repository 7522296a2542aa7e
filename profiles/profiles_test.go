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
				if f.Link != "" || f.Dir {
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

// template is what assets/mcp-hub.json.template says.
func template(t *testing.T) map[string]profile.Server {
	t.Helper()
	raw, err := fs.ReadFile(assets.FS, "mcp-hub.json.template")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		MCPServers map[string]struct {
			Type, Command string
			Args          []string
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	servers := map[string]profile.Server{}
	for name, s := range file.MCPServers {
		if s.Type != "stdio" {
			t.Errorf("mcp-hub.json.template: %s is %s", name, s.Type)
		}
		servers[name] = profile.Server{Command: s.Command, Args: s.Args}
	}
	return servers
}

// One MCP server with one tool, and the hub's policy knows it.
func TestOneServer(t *testing.T) {
	raw, err := fs.ReadFile(assets.FS, "policy/hub.policy.json")
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Servers map[string]json.RawMessage `json:"servers"`
	}
	if err := json.Unmarshal(raw, &policy); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(t) {
		p := load(t, name)
		want := map[string]profile.Server{"browser_shell": {Command: "/usr/local/bin/browser-shell", Args: []string{"mcp"}}}
		if !reflect.DeepEqual(want, p.Hub.Servers) {
			t.Errorf("%s: hub is %+v", name, p.Hub.Servers)
		}
		if !slices.Equal(p.Expect.MCPServers, []string{"browser_shell"}) || !slices.Equal(p.Expect.Tools, []string{"browser-shell"}) {
			t.Errorf("%s: expects %v with %v", name, p.Expect.MCPServers, p.Expect.Tools)
		}
		if got := template(t); !reflect.DeepEqual(got, p.Hub.Servers) {
			t.Errorf("%s: mcp-hub.json.template is %+v", name, got)
		}
		for server := range policy.Servers {
			if _, ok := p.Hub.Servers[server]; !ok {
				t.Errorf("%s: the hub's policy is about %s, which isn't there", name, server)
			}
		}
	}
}

// The image starts with our program, passes none of the base's words to it, and asks it how it is.
func TestEntry(t *testing.T) {
	for _, name := range names(t) {
		c := load(t, name).Config
		if !slices.Equal(c.Entrypoint, []string{"/usr/local/bin/browser-shell", "init"}) || len(c.Cmd) > 0 || c.WorkingDir != "/" {
			t.Errorf("%s: starts %q %q in %s", name, c.Entrypoint, c.Cmd, c.WorkingDir)
		}
		if c.Healthcheck == nil || !slices.Equal(c.Healthcheck.Test, []string{"CMD", "/usr/local/bin/browser-shell", "health"}) {
			t.Errorf("%s: healthcheck %+v", name, c.Healthcheck)
		}
		for variable, value := range c.Env {
			if value != "" && variable != "PATH" {
				t.Errorf("%s: sets %s=%s, which nothing reads", name, variable, value)
			}
		}
	}
}

// Every variable that the base sets and that would have started something is blank.
func TestSwitchesAreBlank(t *testing.T) {
	env := load(t, "l0").Config.Env
	for _, variable := range strings.Fields(`BROWSER_COMMANDLINE_ARGS BROWSER_EXTRA_ARGS DISABLE_BROWSER DISABLE_CODE_SERVER DISABLE_JUPYTER
		DISABLE_MCP_BROWSER DISABLE_NODEJS_REPL DISABLE_VNC ENABLE_CJK_IME EXTRA_MCP_SERVERS LOG_STDOUT_SERVER PROXY_BYPASS_LIST RUN_HOOK_INIT
		RUN_HOOK_POST_READY RUN_HOOK_PRE_SERVICES SANDBOX_SHUTDOWN_HOOKS WAIT_PORTS`) {
		if value, ok := env[variable]; !ok || value != "" {
			t.Errorf("%s is %q", variable, value)
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

// needed is what the image's programs are and read, besides our own files.
var needed = []string{
	"/usr/bin/supervisord", "/usr/bin/python3", "/usr/sbin/nginx", "/usr/bin/Xvnc", "/usr/bin/Xtigervnc", "/usr/bin/openbox",
	"/usr/local/bin/browser", "/opt/browser/chrome", "/opt/novnc/index.html", "/opt/novnc/vnc.html",
	// Ours.
	"/opt/gem/supervisord.conf", "/opt/gem/nginx.conf", "/opt/gem/nginx-ipv4.conf", "/opt/gem/nginx-loopback.conf",
	"/opt/gem/nginx-loopback-ipv4.conf", "/opt/gem/nginx-main.conf", "/opt/gem/nginx-http.conf", "/opt/gem/nginx-server.conf",
	"/opt/gem/openbox.xml", "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/agent-browser/hub.policy.json",
	"/etc/agent-browser/browser-shell.policy.json",
	// Where it writes.
	"/home/gem", "/output", "/var/lib/browser-shell", "/var/log/browser-shell/audit", "/var/log/gem", "/run/browser-shell", "/run/browser-shell-front", "/run/nginx",
	"/run/supervisor",
}

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
				for _, f := range needed {
					if !paths[f] {
						t.Errorf("%s is gone, and the image does not start without it", f)
					}
				}
				for f := range paths {
					if strings.HasPrefix(f, "/opt/gem/") && strings.HasSuffix(f, ".sh") || strings.HasPrefix(f, "/home/gem/") {
						t.Errorf("%s is left", f)
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
