package profiles_test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
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
	return slices.DeleteFunc(files, func(name string) bool { return name == "baseline" }) // no whole profile
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
				if f.Why != "" { // else the overlay's own says it
					say(f.Path, f.Why)
				}
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
		for _, r := range p.Remove {
			say(r.Path+r.Glob, r.Why)
		}
		if p.Keep != nil {
			for _, r := range p.Keep.Roots {
				say(r.Path, r.Why)
			}
			for _, d := range p.Keep.Dlopen {
				say(d.Opener, d.Why)
			}
			for _, c := range p.Keep.Without {
				say(c.From, c.Why)
			}
			for _, d := range p.Keep.Drop {
				say(d.Glob, d.Why)
			}
		}
		for _, o := range p.Own {
			say(o.Path, o.Why)
		}
		for _, n := range p.Needs {
			say(n.Path, n.Why)
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

// One MCP server with one tool.
func TestOneServer(t *testing.T) {
	for _, name := range names(t) {
		p := load(t, name)
		if !slices.Equal(p.Expect.MCPServers, []string{"browser_shell"}) || !slices.Equal(p.Expect.Tools, []string{"browser-shell"}) {
			t.Errorf("%s: expects %v with %v", name, p.Expect.MCPServers, p.Expect.Tools)
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

// needed is what the image's programs are and read, besides our own files.
var needed = []string{
	"/usr/bin/supervisord", "/usr/bin/python3", "/usr/sbin/nginx", "/usr/bin/Xvnc", "/usr/bin/Xtigervnc", "/usr/bin/openbox",
	"/usr/local/bin/browser", "/opt/browser/chrome", "/opt/novnc/index.html", "/opt/novnc/vnc.html",
	"/opt/browser/icudtl.dat", "/usr/local/lib/python3.10/dist-packages/supervisor/supervisord.py",
	// Ours.
	"/etc/chromium", "/etc/opt/chrome", "/etc/opt/chrome_for_testing",
	"/opt/gem/supervisord.conf", "/opt/gem/nginx.conf", "/opt/gem/nginx-ipv4.conf", "/opt/gem/nginx-loopback.conf",
	"/opt/gem/nginx-loopback-ipv4.conf", "/opt/gem/nginx-main.conf", "/opt/gem/nginx-http.conf", "/opt/gem/nginx-server.conf",
	"/opt/gem/openbox.xml", "/etc/passwd", "/etc/group", "/etc/shadow",
	"/etc/agent-browser/browser-shell.policy.json",
	// Where it writes.
	"/home/gem", "/output", "/var/lib/browser-shell", "/var/log/browser-shell/audit", "/var/log/gem", "/run/browser-shell", "/run/browser-shell-front", "/run/desktop", "/run/nginx",
	"/run/supervisor",
}

// On every line: what must stay stays, nothing of the base is left in an owned directory, and the profile knows all that goes.
func TestStandinsAreClosed(t *testing.T) {
	for _, name := range names(t) {
		p := load(t, name)
		for _, line := range lines {
			t.Run(name+string(line), func(t *testing.T) {
				recipe, paths := resolved(t, p, line)
				for _, r := range recipe.Removals {
					maps.DeleteFunc(paths, func(f string, _ bool) bool { return image.Within(f, r.Path) })
				}
				for f := range paths {
					for _, o := range p.Own {
						if image.Within(f, o.Path) && f != o.Path && !slices.Contains(o.Keep, f) {
							t.Errorf("%s is left in %s", f, o.Path)
						}
					}
				}
				for _, o := range recipe.Overlays {
					for _, f := range o.Files {
						paths[f.Path] = true
					}
				}
				for _, f := range needed {
					if !paths[f] {
						t.Errorf("%s is gone, and the image does not start without it", f)
					}
				}
				for _, g := range recipe.New {
					t.Errorf("the profile does not know %s", g.Path)
				}
			})
		}
	}
}

// resolved is the profile's recipe for the stand-in of a line, which has the base's names, and the paths below what it adds.
func resolved(t *testing.T, p *profile.Profile, line profile.Line) (*build.Recipe, map[string]bool) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: string(line), Platforms: []string{"linux/amd64"}, Extra: []image.File{
		// Files without a package that programs open by paths of their own.
		image.Bytes("/opt/browser/icudtl.dat", 0o644, nil), image.Bytes("/usr/local/lib/python3.10/dist-packages/supervisor/supervisord.py", 0o644, nil),
	}}); err != nil {
		t.Fatal(err)
	}
	src, err := image.Open(t.Context(), "oci:"+dir, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	platform := v1.Platform{OS: "linux", Architecture: "amd64"}
	recipes, _, err := resolve.Resolve(t.Context(), resolve.Input{
		Profile: p, Reference: "base", Source: src, Platforms: []v1.Platform{platform}, Assets: assets.FS, Cache: tree.Cache{Dir: t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	below := recipes[0].Base.Image
	if p.Keep != nil {
		below = empty.Image
		for _, c := range recipes[0].Stripped() {
			if below, err = mutate.AppendLayers(below, c.Layer); err != nil {
				t.Fatal(err)
			}
		}
	}
	img, err := tree.Cache{}.Open(t.Context(), below, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for e := range img.Walk("/") {
		paths[e.Path] = true
	}
	return recipes[0], paths
}

// A base that lacks what the image needs is refused, and the error names program, who needs it, and where it was looked for.
func TestMissingNeedsAreNamed(t *testing.T) {
	elf := func(machine byte) []byte {
		b := make([]byte, 64)
		copy(b, "\x7fELF\x02\x01\x01")
		b[16], b[18] = 2, machine
		return b
	}
	for name, c := range map[string]struct {
		extra []image.File
		want  []string
	}{
		"no Xvnc":               {[]image.File{image.Whiteout("/usr/bin/Xtigervnc")}, []string{"lacks Xvnc", "program tigervnc of /opt/gem/supervisord.conf", "/usr/bin/Xvnc -> /usr/bin/Xtigervnc is not there"}},
		"no node":               {[]image.File{image.Whiteout("/opt/fnm"), image.Whiteout("/opt/runtime"), image.Whiteout("/usr/local/bin/node"), image.Whiteout("/usr/bin/node"), image.Whiteout("/opt/nodejs")}, []string{"lacks node", "agent-browser's daemon", "/usr/local/bin/node"}},
		"an nginx of amd64":     {[]image.File{image.Bytes("/usr/sbin/nginx", 0o755, elf(62))}, []string{"lacks nginx", "is a program for EM_X86_64, not EM_AARCH64"}},
		"an openbox for nobody": {[]image.File{image.Bytes("/usr/bin/openbox", 0o700, elf(183))}, []string{"lacks openbox", "mode 0700"}},
		"no desktop page":       {[]image.File{image.Whiteout("/opt/novnc")}, []string{"lacks /opt/novnc/vnc.html", "the desktop's page"}},
		"no Python for supervisord": {[]image.File{image.Bytes("/usr/local/bin/supervisord", 0o755, []byte("#!/opt/python3.13/bin/python3 -s\n"))}, []string{
			"lacks supervisord", "/usr/local/bin/supervisord is a script for /opt/python3.13/bin/python3: /opt/python3.13/bin/python3 is not there",
		}},
		"no Python in env": {[]image.File{image.Bytes("/usr/local/bin/supervisord", 0o755, []byte("#!/usr/bin/env python3.13\n"))}, []string{
			"lacks supervisord", "is a script for python3.13, which is in none of /usr/local/sbin:",
		}},
		"a script for itself": {[]image.File{image.Bytes("/usr/local/bin/supervisord", 0o755, []byte("#!/usr/local/bin/supervisord\n"))}, []string{"lacks supervisord", "is the last of 4 scripts"}},
		"no supervisord":      {[]image.File{image.Whiteout("/usr/local/bin/supervisord")}, []string{"lacks supervisord", "browser-shell init"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "base")
			if _, err := standin.Write(t.Context(), dir, standin.Options{Line: "B", Platforms: []string{"linux/arm64"}, Extra: c.extra}); err != nil {
				t.Fatal(err)
			}
			src, err := image.Open(t.Context(), "oci:"+dir, image.Options{})
			if err != nil {
				t.Fatal(err)
			}
			platform := v1.Platform{OS: "linux", Architecture: "arm64"}
			_, _, err = resolve.Resolve(t.Context(), resolve.Input{
				Profile: load(t, "l0"), Reference: "base", Source: src, Platforms: []v1.Platform{platform}, Assets: assets.FS,
				Overlays: map[string][]build.Lay{platform.String(): {{Name: "payload", Files: []image.File{image.Bytes("/opt/agent-browser/dist/daemon.js", 0o644, nil)}}}},
			})
			var needs *resolve.NeedsError
			if !errors.As(err, &needs) || len(needs.Missing) != 1 {
				t.Fatalf("error is %v, want one need", err)
			}
			for _, want := range c.want {
				if !strings.Contains(needs.Missing[0], want) {
					t.Errorf("%s\ndoes not say %s", needs.Missing[0], want)
				}
			}
		})
	}
}
