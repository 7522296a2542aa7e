package verify_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/embedded"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/profiles"
)

// closed is the l0 image of a line's stand-in, with its expectations. The payload and browser-shell are stubs.
type closed struct {
	images map[string]v1.Image
	bases  map[string]v1.Image
	want   map[string]*expect.Expect
	index  map[string]string
	cache  tree.Cache
}

var closedImages sync.Map // by line, func() (*closed, error)

// closeLine builds it, once for all tests.
func closeLine(t testing.TB, line string) *closed {
	t.Helper()
	f, _ := closedImages.LoadOrStore(line, sync.OnceValues(func() (*closed, error) { return buildClosed(line) }))
	c, err := f.(func() (*closed, error))()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// scratch is a directory for all of this package's tests; TestMain makes it.
var scratch string

func buildClosed(line string) (*closed, error) {
	ctx := context.Background()
	dir := filepath.Join(scratch, line)
	if _, err := standin.Write(ctx, filepath.Join(dir, "base"), standin.Options{Line: line}); err != nil {
		return nil, err
	}
	reference := "oci:" + filepath.Join(dir, "base")
	cache := tree.Cache{Dir: filepath.Join(dir, "cache")}
	src, err := image.Open(ctx, reference, image.Options{CacheDir: cache.Dir})
	if err != nil {
		return nil, err
	}
	p, err := profile.Loader{Builtin: profiles.FS}.Load("l0")
	if err != nil {
		return nil, err
	}
	var platforms []v1.Platform
	for _, s := range p.Platforms {
		os, arch, _ := strings.Cut(string(s), "/")
		platforms = append(platforms, v1.Platform{OS: os, Architecture: arch})
	}
	own := map[string][]build.Lay{}
	for _, platform := range platforms {
		own[platform.String()] = stubs(platform)
	}
	recipes, _, err := resolve.Resolve(ctx, resolve.Input{
		Profile: p, Reference: reference, Source: src, Platforms: platforms, Assets: assets.FS, Cache: cache, Overlays: own,
	})
	if err != nil {
		return nil, err
	}
	base := map[string]string{"org.opencontainers.image.base.digest": src.Digest().String()}
	built, err := embedded.Assemble(ctx, recipes, build.Annotations{Index: base, Manifest: base})
	if err != nil {
		return nil, err
	}
	c := &closed{images: map[string]v1.Image{}, bases: map[string]v1.Image{}, want: map[string]*expect.Expect{}, index: base, cache: cache}
	manifest, err := built.Index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for i, m := range manifest.Manifests {
		name := platforms[i].String()
		if c.images[name], err = built.Index.Image(m.Digest); err != nil {
			return nil, err
		}
		c.bases[name] = recipes[i].Base.Image
		if c.want[name], err = expected(p, recipes[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// stubs are an overlay payload and an overlay browser-shell with the real paths.
func stubs(p v1.Platform) []build.Lay {
	machine, name := byte(elf.EM_X86_64), "x64"
	if p.Architecture == "arm64" {
		machine, name = byte(elf.EM_AARCH64), "arm64"
	}
	text := func(p string) image.File { return image.Bytes(p, 0o644, []byte("// "+p+"\n")) }
	const root = "/opt/agent-browser/"
	return []build.Lay{
		{Name: "payload", Why: "stub", Files: []image.File{
			image.Bytes(root+"bin/agent-browser-linux-"+name, 0o755, program(machine)), text(root + "package.json"), text(root + "dist/daemon.js"),
			text(root + "node_modules/ws/index.js"), image.Symlink("/usr/local/bin/agent-browser", root+"bin/agent-browser-linux-"+name),
		}},
		// Too large for a script, as the real one is.
		{Name: "browser-shell", Why: "stub", Files: []image.File{image.Bytes(shell, 0o755, append(program(machine), make([]byte, 1<<20)...))}},
	}
}

// expected says what a recipe's image must be.
func expected(p *profile.Profile, r *build.Recipe) (*expect.Expect, error) {
	line, platform := profile.Line(r.Base.Line), profile.Platform(r.Platform.String())
	holds := func(w profile.When) bool {
		return (len(w.Line) == 0 || slices.Contains(w.Line, line)) && (len(w.Platform) == 0 || slices.Contains(w.Platform, platform))
	}
	x, c := p.Expect, p.Config
	e := &expect.Expect{
		Profile: p.Name, Platform: string(platform), Programs: x.Programs, Routes: x.Routes, MCPServers: x.MCPServers, Tools: x.Tools,
		Listeners: x.Listeners, Privileged: p.Privileged, Switches: x.Switches, Base: expect.Base{Digest: r.Base.Index.String()},
		Config: expect.Config{Entrypoint: c.Entrypoint, Cmd: c.Cmd, WorkingDir: c.WorkingDir, Env: c.Env, Unset: r.Change().UnsetEnv, ExposedPorts: c.ExposedPorts, Healthcheck: c.Healthcheck.Test, Labels: c.Labels},
	}
	for _, o := range p.Own {
		allow := []string{o.Path}
		for _, k := range o.Keep {
			allow = append(allow, k, k+"/**")
		}
		e.Closed = append(e.Closed, expect.Closed{Glob: o.Path + "/**", Allow: allow, Why: o.Why, Source: fmt.Sprint(o.Position)})
	}
	for _, d := range p.Remove {
		if holds(d.When) {
			e.Removed = append(e.Removed, expect.Removed{Glob: d.Path + d.Glob, Except: d.Except, Why: d.Why, Source: fmt.Sprint(d.Position)})
		}
	}
	for _, d := range r.Removals() {
		e.Removed = append(e.Removed, expect.Removed{Glob: d.Path, Why: d.Why})
	}
	layers, err := r.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		e.Base.Above = append(e.Base.Above, strings.TrimPrefix(l.Name, build.RemoveLayer))
		for _, f := range l.Files {
			if l.Name == build.RemoveLayer || l.Parents[f.Path] {
				continue
			}
			laid := expect.File{Path: f.Path, Type: string(f.Type), Mode: f.Mode, UID: f.UID, GID: f.GID, Size: f.Size, Link: f.Link, Overlay: l.Name}
			if f.Open != nil {
				r, err := f.Open()
				if err != nil {
					return nil, err
				}
				data, err := io.ReadAll(r)
				if err != nil {
					return nil, err
				}
				laid.SHA256 = fmt.Sprintf("sha256:%x", sha256.Sum256(data))
			}
			e.Files = append(e.Files, laid)
		}
	}
	config, err := r.Base.Image.ConfigFile()
	if err != nil {
		return nil, err
	}
	for _, d := range config.RootFS.DiffIDs {
		e.Base.Layers = append(e.Base.Layers, d.String())
	}
	manifest, err := r.Base.Image.Manifest()
	if err != nil {
		return nil, err
	}
	for _, l := range manifest.Layers {
		e.Base.Manifest = append(e.Base.Manifest, expect.Descriptor{
			MediaType: image.OCILayerType(l.MediaType), Digest: l.Digest.String(), Size: l.Size, Annotations: image.KeptAnnotations(l.Annotations),
		})
	}
	e.Base.Config, err = r.Config()
	return e, err
}

// plant is what somebody does to the image of one platform.
type plant struct {
	// base takes the base instead of the closed image.
	base bool
	// files make one more layer.
	files []image.File
	// config changes the image config, manifest its annotations.
	config   func(*v1.ConfigFile)
	manifest map[string]string
	want     func(*expect.Expect)
}

// input opens the images of some platforms, all when none is named, with something planted in the first.
func (c *closed) input(t testing.TB, p plant, platforms ...string) verify.Input {
	t.Helper()
	if len(platforms) == 0 {
		platforms = slices.Sorted(maps.Keys(c.images))
	}
	in := verify.Input{Expect: map[string]*expect.Expect{}, Annotations: c.index}
	for i, name := range platforms {
		img, want := c.images[name], *c.want[name]
		if p.base {
			img = c.bases[name]
		}
		if i == 0 {
			img = planted(t, img, p)
			if p.want != nil {
				p.want(&want)
			}
		}
		files, err := c.cache.Open(t.Context(), img, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		read, err := inspect.Read(t.Context(), "example.org/slim:1", img, files)
		if err != nil {
			t.Fatal(err)
		}
		in.Images = append(in.Images, read)
		in.Expect[name] = &want
	}
	return in
}

func planted(t testing.TB, img v1.Image, p plant) v1.Image {
	t.Helper()
	var err error
	if len(p.files) > 0 {
		if img, err = mutate.AppendLayers(img, layerOf(t, p.files)); err != nil {
			t.Fatal(err)
		}
	}
	if p.config != nil {
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config = config.DeepCopy()
		p.config(config)
		if img, err = mutate.ConfigFile(img, config); err != nil {
			t.Fatal(err)
		}
	}
	if p.manifest != nil {
		img = mutate.Annotations(img, p.manifest).(v1.Image)
	}
	return img
}

func describe(r *verify.Report) string {
	var b bytes.Buffer
	_ = r.Write(&b, verify.Text)
	return b.String()
}

// The image that slimctl builds on each line is clean: no error, no warning, nothing unchecked.
func TestClosedImagesAreClean(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			r := check(t, closeLine(t, line).input(t, plant{}))
			for _, f := range r.Findings {
				if f.Severity != verify.Info {
					t.Errorf("%s %s: %s %v", f.Platform, f.Rule, f.Message, f.Places)
				}
			}
			if !r.Passed || len(r.Unchecked) > 0 {
				t.Errorf("passed %v, unchecked %q", r.Passed, r.Unchecked)
			}
		})
	}
}
