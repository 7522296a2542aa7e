package verify_test

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
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
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/profiles"
)

// closed is the l0 image of a line's stand-in, with its expectations. The payload and browser-shell are stubs.
type closed struct {
	images map[string]v1.Image
	bases  map[string]v1.Image
	want   map[string]*expect.Expect
	// made are the images opened, to compare with; index is their index, annotations its annotations.
	made        map[string]*inspect.Image
	index       []byte
	annotations map[string]string
	cache       tree.Cache
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
	c := &closed{
		images: map[string]v1.Image{}, bases: map[string]v1.Image{}, want: map[string]*expect.Expect{}, made: map[string]*inspect.Image{}, annotations: base, cache: cache,
	}
	if c.index, err = built.Index.RawManifest(); err != nil {
		return nil, err
	}
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
		files, err := cache.Open(ctx, c.images[name], tree.Options{})
		if err != nil {
			return nil, err
		}
		if c.made[name], err = inspect.Read(ctx, "made", c.images[name], files); err != nil {
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
	x := p.Expect
	e := &expect.Expect{
		Profile: p.Name, Platform: r.Platform.String(), Programs: x.Programs, Routes: x.Routes, MCPServers: x.MCPServers, Tools: x.Tools,
		Listeners: x.Listeners, Upstreams: x.Upstreams, Privileged: p.Privileged, Switches: x.Switches, Env: p.Config.Env, Laid: map[string]string{}, Removed: map[string]string{},
	}
	for _, d := range r.Removals {
		e.Removed[d.Path] = d.Source
	}
	for _, o := range r.Overlays {
		for _, f := range o.Files {
			e.Laid[f.Path] = "l0.yaml (" + o.Name + ")"
		}
	}
	config, err := r.Base.Image.ConfigFile()
	if err != nil {
		return nil, err
	}
	for _, d := range config.RootFS.DiffIDs {
		e.Base = append(e.Base, d.String())
	}
	return e, nil
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
}

// input opens the images of some platforms, all when none is named, with something planted in the first.
func (c *closed) input(t testing.TB, p plant, platforms ...string) verify.Input {
	t.Helper()
	images := map[string]v1.Image{}
	if len(platforms) == 0 {
		platforms = slices.Sorted(maps.Keys(c.images))
	}
	for i, name := range platforms {
		if images[name] = c.images[name]; p.base {
			images[name] = c.bases[name]
		}
		if i == 0 {
			images[name] = planted(t, images[name], p)
		}
	}
	return c.inputOf(t, images)
}

// inputOf opens images, which are compared with those of the profile. There is an index when there are all of them.
func (c *closed) inputOf(t testing.TB, images map[string]v1.Image) verify.Input {
	t.Helper()
	in := verify.Input{Expect: map[string]*expect.Expect{}, Want: &verify.Want{Annotations: c.annotations, Images: map[string]*inspect.Image{}}}
	if len(images) == len(c.images) {
		in.Index, in.Want.Index = c.index, c.index
	}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		files, err := c.cache.Open(t.Context(), images[name], tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		read, err := inspect.Read(t.Context(), "example.org/slim:1", images[name], files)
		if err != nil {
			t.Fatal(err)
		}
		in.Images = append(in.Images, read)
		in.Expect[name], in.Want.Images[name] = c.want[name], c.made[name]
		if in.Index != nil && read.Digest != c.made[name].Digest {
			entry := func(img *inspect.Image) []byte {
				return fmt.Appendf(nil, "\"digest\": %q,\n      \"size\": %d", img.Digest, len(img.RawManifest))
			}
			if in.Index = bytes.Replace(in.Index, entry(c.made[name]), entry(read), 1); bytes.Equal(in.Index, c.index) {
				t.Fatalf("the index has no %s:\n%s", entry(c.made[name]), c.index)
			}
		}
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
	_ = report.Findings(&b, report.Text, r)
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
