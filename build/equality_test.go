package build_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/buildkit/client"
	"github.com/tonistiigi/fsutil"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/buildkit"
	"github.com/slimctl/slimctl/build/dockerfile"
	"github.com/slimctl/slimctl/build/embedded"
	"github.com/slimctl/slimctl/build/llb"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/buildkitd"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/registry"
	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/profiles"
)

// traps is what L0 alone doesn't meet of what engines are known to disagree on: a removal in a sticky directory and in
// one of mode 750 that isn't root's, overlays in both, a file that takes a symlink's place, a path that leads through a
// symlinked directory, an empty directory, an owner that isn't root, and names that need care in a Dockerfile.
const traps = `
version: 1
name: traps
extends: l0
remove:
  - path: /tmp/traps-file
    why: /tmp must stay 1777
  - path: /srv/traps/private
    why: a parent of mode 750 that belongs to 1000:1000
  - glob: /srv/traps/many/*.x
    why: a glob
overlays:
  - name: traps
    why: places where renderings differ
    files:
      - {path: /tmp/traps-new, content: "new\n"}
      - {path: /srv/traps/own, content: "own\n", owner: "1000:1000", mode: "0640"}
      - {path: /srv/traps/empty, dir: true, mode: "0711"}
      - {path: /srv/traps/link, content: "was a symlink\n"}
      - {path: /bin/traps-tool, content: "#!/bin/sh\n", mode: "0755"}
      - {path: "/srv/traps/a $name \"with\" [odd] 'signs'", content: "x"}
`

// trapFiles is what the stand-in gets for it.
func trapFiles() []image.File {
	owned := func(f image.File) image.File { f.UID, f.GID = 1000, 1000; return f }
	return []image.File{
		{Entry: image.Entry{Path: "/tmp", Type: image.TypeDir, Mode: 0o1777}},
		image.Bytes("/tmp/traps-file", 0o600, []byte("x")),
		owned(image.File{Entry: image.Entry{Path: "/srv/traps", Type: image.TypeDir, Mode: 0o750, Xattrs: map[string]string{"user.mark": "kept"}}}),
		owned(image.Bytes("/srv/traps/private", 0o600, []byte("x"))),
		owned(image.Bytes("/srv/traps/stays", 0o600, []byte("stays"))),
		image.Dir("/srv/traps/many", 0o2775),
		image.Bytes("/srv/traps/many/a.x", 0o644, []byte("a")),
		image.Bytes("/srv/traps/many/b.x", 0o644, []byte("b")),
		image.Bytes("/srv/traps/many/c.y", 0o644, []byte("c")),
		image.Symlink("/srv/traps/link", "/etc/passwd"),
	}
}

// smallTraps is what a stripped base has besides that renderings differ on: names that are patterns, a hard link whose first name
// goes, compiled Python that goes by times, dpkg's database, and directories that are kept empty.
const smallTraps = `
version: 1
name: small-traps
extends: l1
keep:
  packages: [traps-stays]
  paths: [/srv/traps]
  drop:
    - {glob: "/srv/traps/many/*.x{, }", why: names}
    - {glob: "/srv/traps/emptied/*", why: a directory that stays}
overlays:
  - name: traps
    why: places where renderings differ
    files:
      - {path: /tmp/traps-new, content: "new\n"}
      - {path: /srv/traps/own, content: "own\n", owner: "1000:1000", mode: "0640"}
      - {path: /srv/traps/link, content: "was a symlink\n"}
`

func smallTrapFiles() []image.File {
	stamped := "\xa7\r\r\n\x00\x00\x00\x00" + "\x01\x02\x03\x04" + "\x01\x00\x00\x00" + "code"
	return []image.File{
		image.Bytes("/srv/traps/many/! [a]*?\\.x", 0o644, []byte("goes")),
		image.Bytes("/srv/traps/many/! [a]bc\\.y", 0o644, []byte("stays")),
		image.Bytes("/srv/traps/many/b.x ", 0o644, []byte("goes")),
		image.Bytes("/srv/traps/many/first.x", 0o755, []byte("linked")),
		{Entry: image.Entry{Path: "/srv/traps/second", Type: image.TypeLink, Link: "/srv/traps/many/first.x"}},
		{Entry: image.Entry{Path: "/srv/traps/third", Type: image.TypeLink, Link: "/srv/traps/many/first.x"}},
		image.Dir("/srv/traps/emptied", 0o1711), image.Bytes("/srv/traps/emptied/x", 0o644, nil),
		image.Bytes("/srv/traps/m.py", 0o644, []byte("1\n")), image.Bytes("/srv/traps/__pycache__/m.cpython-311.pyc", 0o640, []byte(stamped)),
		image.Bytes("/var/lib/dpkg/status", 0o644, []byte("Package: traps-stays\nStatus: install ok installed\nVersion: 1\n\n"+
			"Package: traps-goes\nStatus: install ok installed\nVersion: 1\n\n")),
		image.Bytes("/var/lib/dpkg/info/format", 0o644, []byte("1\n")),
		image.Bytes("/var/lib/dpkg/info/traps-stays.list", 0o644, []byte("/.\n/srv\n/srv/traps\n/srv/traps/stays\n/srv/traps/gone\n")),
		image.Bytes("/var/lib/dpkg/info/traps-goes.list", 0o644, []byte("/.\n/srv\n")),
	}
}

// world is a base in a registry, and recipes resolved against it.
type world struct {
	t         *testing.T
	line      string
	host      *registry.Server
	layout    string // the base as an OCI layout
	reference string // the base in the registry
	cache     string
	profile   string // traps, or another one
	whole     bool   // the overlays' files are, and not their heads alone
}

// layers is the directory of the compressed overlays, which are the same in every world.
var layers string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if layers, err = os.MkdirTemp("", "slimctl-layers-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(layers)
		return m.Run()
	}())
}

func newWorld(t *testing.T, line string, extra ...image.File) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, line: line, profile: traps, layout: filepath.Join(dir, "base"), cache: filepath.Join(dir, "cache")}
	if err := errors.Join(os.Mkdir(w.cache, 0o755), os.Symlink(layers, filepath.Join(w.cache, "layers"))); err != nil {
		t.Fatal(err)
	}
	if _, err := standin.Write(t.Context(), w.layout, standin.Options{Line: line, Extra: append(trapFiles(), extra...)}); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.host, err = registry.Serve(t.Context(), "", registry.Options{Dir: filepath.Join(dir, "registry")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.host.Stop)
	if err := w.host.LoadLayout("base/aio", "1", w.layout); err != nil {
		t.Fatal(err)
	}
	w.reference = w.host.Host + "/base/aio:1"
	return w
}

// resolve resolves the traps profile. lock may be nil.
func (w *world) resolve(reference string, lock *lock.File, platforms ...string) ([]*build.Recipe, *image.Source, *lock.File) {
	w.t.Helper()
	ctx := w.t.Context()
	file := filepath.Join(w.t.TempDir(), "traps.yaml")
	if err := os.WriteFile(file, []byte(w.profile), 0o644); err != nil {
		w.t.Fatal(err)
	}
	p, err := profile.Loader{Builtin: profiles.FS}.Load(file)
	if err != nil {
		w.t.Fatal(err)
	}
	src, err := image.Open(ctx, reference, image.Options{CacheDir: w.cache})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(platforms) == 0 {
		platforms = []string{"linux/amd64", "linux/arm64"}
	}
	in := resolve.Input{
		Profile: p, Reference: reference, Source: src, Assets: assets.FS, Lock: lock, Cache: tree.Cache{Dir: w.cache},
		Overlays: map[string][]build.Lay{},
	}
	for _, s := range platforms {
		parsed, err := v1.ParsePlatform(s)
		if err != nil {
			w.t.Fatal(err)
		}
		in.Platforms = append(in.Platforms, *parsed)
		if in.Overlays[s], err = ownOverlays(ctx, p.Payload.AgentBrowser, parsed.Architecture); err != nil {
			w.t.Fatal(err)
		}
		if !w.whole {
			in.Overlays[s] = headsOf(in.Overlays[s])
		}
	}
	recipes, written, err := resolve.Resolve(ctx, in)
	if err != nil {
		w.t.Fatal(err)
	}
	return recipes, src, written
}

var laid sync.Map // of ownOverlays, by architecture: compiling the server takes a second each time

// ownOverlays returns the payload, by npm, and the server, compiled here for amd64 alone: no engine runs it.
func ownOverlays(ctx context.Context, want profile.AgentBrowser, arch string) ([]build.Lay, error) {
	if have, ok := laid.Load(arch); ok {
		return slices.Clone(have.([]build.Lay)), nil
	}
	payload, err := overlays.Fetch(ctx, want.Version, want.Integrity, overlays.Options{})
	if err != nil {
		return nil, err
	}
	files, err := payload.Files(arch)
	if err != nil {
		return nil, err
	}
	server, err := overlays.Server(ctx, "amd64", overlays.Options{})
	if err != nil {
		return nil, err
	}
	out := []build.Lay{{Name: "payload", Why: "payload", Files: files}, {Name: "browser-shell", Why: "server", Files: server}}
	laid.Store(arch, out)
	return slices.Clone(out), nil
}

// headsOf returns the overlays with the first 100 kB of each file: compressing 20 MB in each engine was half of these tests.
func headsOf(lays []build.Lay) []build.Lay {
	const head = 100_000
	for i, lay := range lays {
		lays[i].Files = slices.Clone(lay.Files)
		for j, f := range lay.Files {
			if f.Size <= head {
				continue
			}
			lays[i].Files[j].Size = head
			lays[i].Files[j].Open = func() (io.ReadCloser, error) {
				r, err := f.Open()
				if err != nil {
					return nil, err
				}
				return struct {
					io.Reader
					io.Closer
				}{io.LimitReader(r, head), r}, nil
			}
		}
	}
	return lays
}

func (w *world) tag(repo string) name.Tag {
	tag, err := name.NewTag(w.host.Host + "/" + repo + ":1")
	if err != nil {
		w.t.Fatal(err)
	}
	return tag
}

var annotations = build.Annotations{
	Index:    map[string]string{"org.opencontainers.image.base.name": "base", "z": "<&>"},
	Manifest: map[string]string{"a": "b"},
}

// assemble makes the image of the embedded engine.
func assemble(t *testing.T, recipes []*build.Recipe, a build.Annotations) (image.Built, v1.Descriptor) {
	t.Helper()
	built, err := embedded.Assemble(t.Context(), recipes, a)
	if err != nil {
		t.Fatal(err)
	}
	d, err := built.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	return built, d
}

func lines(t *testing.T, test func(t *testing.T, w *world)) {
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel() // they wait for the daemon, and for the disk
			test(t, newWorld(t, line))
		})
	}
}

// TestEnginesGiveOneDigest holds the embedded engine against a real buildkitd, bit for bit.
func TestEnginesGiveOneDigest(t *testing.T) {
	daemon := buildkitd.Start(t)
	lines(t, func(t *testing.T, w *world) {
		w.whole = w.line == "B"
		for _, c := range []struct {
			name, base string
			platforms  []string
			more       string // of the profile
		}{
			{"registry", w.reference, nil, ""},
			{"layout", "oci:" + w.layout, nil, ""},
			{"one platform", w.reference, []string{"linux/arm64"}, ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				w.profile = traps + c.more
				recipes, src, _ := w.resolve(c.base, nil, c.platforms...)
				_, ours := assemble(t, recipes, annotations)
				out := filepath.Join(t.TempDir(), "out")
				target := output.Target{
					Files: []output.Spec{{Type: output.OCI, Dest: out}}, Push: true, Tags: []name.Tag{w.tag("slim/" + filepath.Base(out))},
				}
				theirs, err := buildkit.Engine{Addr: daemon.Addr}.Build(t.Context(), build.Request{
					Recipes: recipes, Source: src, Annotations: annotations, Target: target,
				})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(ours, theirs); diff != "" {
					t.Errorf("embedded engine, and then buildkitd:\n%s", diff)
				}
				pushed, err := remote.Head(target.Tags[0])
				if err != nil {
					t.Fatal(err)
				}
				if pushed.Digest != ours.Digest {
					t.Errorf("buildkitd pushed %s, the embedded engine builds %s", pushed.Digest, ours.Digest)
				}
				if n := len(ocitest.Layout(t, out)); n != len(recipes) {
					t.Errorf("buildkitd's layout holds %d images, want %d", n, len(recipes))
				}
			})
		}
	})
}

// TestEnginesAgreeOnOtherBases is about what a manifest may say that the stand-in's doesn't.
func TestEnginesAgreeOnOtherBases(t *testing.T) {
	daemon := buildkitd.Start(t)
	for title, change := range map[string]func(*v1.Manifest){
		"Docker's media types": func(m *v1.Manifest) {
			m.MediaType, m.Config.MediaType = types.DockerManifestSchema2, types.DockerConfigJSON
			for i := range m.Layers {
				m.Layers[i].MediaType = types.DockerLayer
			}
		},
		"annotations of layers": func(m *v1.Manifest) {
			for i := range m.Layers {
				m.Layers[i].Annotations = map[string]string{"containerd.io/snapshot/stargz/toc.digest": "sha256:" + strings.Repeat("ab", 32), "other": "x"}
			}
		},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "B")
			ref, err := name.ParseReference(w.reference)
			if err != nil {
				t.Fatal(err)
			}
			img, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
			if err != nil {
				t.Fatal(err)
			}
			changed := w.tag("base/changed")
			if err := remote.Write(changed, newManifest(t, img, change)); err != nil {
				t.Fatal(err)
			}
			recipes, src, _ := w.resolve(changed.String(), nil, "linux/amd64")
			_, ours := assemble(t, recipes, build.Annotations{})
			theirs, err := buildkit.Engine{Addr: daemon.Addr}.Build(t.Context(), build.Request{Recipes: recipes, Source: src})
			if err != nil {
				t.Fatal(err)
			}
			if ours.Digest != theirs.Digest {
				t.Errorf("embedded engine: %s, buildkitd: %s", ours.Digest, theirs.Digest)
			}
		})
	}
}

// remanifested is an image with another manifest.
type remanifested struct {
	v1.Image
	raw []byte
}

func newManifest(t *testing.T, img v1.Image, change func(*v1.Manifest)) v1.Image {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	m = m.DeepCopy()
	change(m)
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return remanifested{img, raw}
}

func (r remanifested) RawManifest() ([]byte, error) { return r.raw, nil }
func (r remanifested) Manifest() (*v1.Manifest, error) {
	return v1.ParseManifest(bytes.NewReader(r.raw))
}

func (r remanifested) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(r.raw))
	return h, err
}
func (r remanifested) Size() (int64, error) { return int64(len(r.raw)), nil }
func (r remanifested) MediaType() (types.MediaType, error) {
	m, err := r.Manifest()
	return m.MediaType, err
}

// TestRenderingsGiveOneTree holds the other renderings against the embedded engine by merged tree and config; the
// oracle is the simple form, in which BuildKit itself works on the unpacked base.
func TestRenderingsGiveOneTree(t *testing.T) {
	daemon := buildkitd.Start(t)
	lines(t, func(t *testing.T, w *world) {
		recipes, src, _ := w.resolve(w.reference, nil)
		built, _ := assemble(t, recipes, build.Annotations{})
		want := ocitest.Index(t, built.Index)
		forms := []llb.Form{llb.Merge}
		if w.line == "B" {
			forms = append(forms, llb.Simple) // the slow oracle: one line says what the other two would
		}
		for _, form := range forms {
			t.Run(string(form), func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				_, err := buildkit.Engine{Addr: daemon.Addr, Form: form}.Build(t.Context(), build.Request{
					Recipes: recipes, Source: src, Target: output.Target{Files: []output.Spec{{Type: output.OCI, Dest: out}}},
				})
				if err != nil {
					t.Fatal(err)
				}
				sameImages(t, want, ocitest.Layout(t, out))
			})
		}
	})
}

// TestStrippedRenderingsGiveOneTree does what TestRenderingsGiveOneTree does of a base that is made small, and holds buildkitd to the
// embedded engine's digest.
func TestStrippedRenderingsGiveOneTree(t *testing.T) {
	daemon := buildkitd.Start(t)
	w := newWorld(t, "B", smallTrapFiles()...)
	w.profile = smallTraps
	recipes, src, _ := w.resolve(w.reference, nil)
	built, ours := assemble(t, recipes, annotations)
	want := ocitest.Index(t, built.Index)
	for _, p := range []string{"/srv/traps/second", "/srv/traps/emptied", "/srv/traps/__pycache__/m.cpython-311.pyc", "/var/lib/dpkg/status"} {
		if _, ok := ocitest.Tree(t, want["linux/amd64"])[p]; !ok {
			t.Errorf("%s doesn't stay", p)
		}
	}
	for _, form := range []llb.Form{llb.Overlay, llb.Merge, llb.Simple} {
		t.Run(string(form), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			theirs, err := buildkit.Engine{Addr: daemon.Addr, Form: form}.Build(t.Context(), build.Request{
				Recipes: recipes, Source: src, Annotations: annotations, Target: output.Target{Files: []output.Spec{{Type: output.OCI, Dest: out}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if form == llb.Overlay && theirs.Digest != ours.Digest {
				t.Errorf("embedded engine: %s, buildkitd: %s", ours.Digest, theirs.Digest)
			}
			have := ocitest.Layout(t, out)
			sameImages(t, want, have)
			if diff := cmp.Diff(times(t, want["linux/amd64"]), times(t, have["linux/amd64"])); diff != "" {
				t.Errorf("times:\n%s", diff)
			}
		})
	}
}

// times has the modification time of each file of an image; those of directories are BuildKit's own.
func times(t *testing.T, img v1.Image) map[string]time.Time {
	t.Helper()
	all := mutate.Extract(img)
	defer all.Close()
	out := map[string]time.Time{}
	for r := tar.NewReader(all); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir {
			out[image.Clean(h.Name)] = h.ModTime.UTC()
		}
	}
}

// TestDockerfileGivesTheSameTree builds the Dockerfile with BuildKit's own frontend. Its RUN needs an rm in the base,
// which the stand-in hasn't, and so a base of its own for each platform; for arm64, which is emulated here, one will do.
func TestDockerfileGivesTheSameTree(t *testing.T) {
	buildkitd.RegisterArm64(t)
	daemon := buildkitd.Start(t)
	daemon.RequireRun(t)
	both := []string{"linux/amd64", "linux/arm64"}
	for _, line := range []string{"A", "B", "C"} {
		for _, platform := range both {
			if platform == "linux/arm64" && line != "B" {
				continue
			}
			t.Run(line+" run "+platform, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, line, image.Bytes("/usr/bin/rm", 0o755, buildkitd.Rm(t, strings.TrimPrefix(platform, "linux/"))))
				sameAsDockerfile(t, daemon, w, dockerfile.Options{}, platform)
			})
		}
	}
}

// TestStrippedDockerfileGivesTheSameTree: of a base that is made small, too. What differs are times, and Python compiled by them.
func TestStrippedDockerfileGivesTheSameTree(t *testing.T) {
	daemon := buildkitd.Start(t)
	daemon.RequireRun(t)
	extra := append(smallTrapFiles(), image.Bytes("/usr/bin/rm", 0o755, buildkitd.Rm(t, "amd64")))
	w := newWorld(t, "B", slices.DeleteFunc(extra, func(f image.File) bool { return strings.HasSuffix(f.Path, ".pyc") })...)
	w.profile = smallTraps
	sameAsDockerfile(t, daemon, w, dockerfile.Options{}, "linux/amd64")
}

func sameAsDockerfile(t *testing.T, daemon *buildkitd.Daemon, w *world, o dockerfile.Options, platforms ...string) {
	recipes, _, _ := w.resolve(w.reference, nil, platforms...)
	want := map[string]v1.Image{}
	for _, r := range recipes {
		built, _ := assemble(t, []*build.Recipe{r}, build.Annotations{})
		want[r.Platform.String()] = built.Image
	}
	rendered, err := dockerfile.Render(recipes, o)
	if err != nil {
		t.Fatal(err)
	}
	dir, out := filepath.Join(t.TempDir(), "context"), t.TempDir()
	if err := rendered.Write(dir); err != nil {
		t.Fatal(err)
	}
	context, err := fsutil.NewFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = daemon.Client(t).Solve(t.Context(), nil, client.SolveOpt{
		Frontend: "dockerfile.v0", FrontendAttrs: map[string]string{"platform": strings.Join(platforms, ",")},
		LocalMounts: map[string]fsutil.FS{"context": context, "dockerfile": context},
		Exports:     []client.ExportEntry{{Type: client.ExporterOCI, Attrs: map[string]string{"tar": "false", "compression": "uncompressed"}, OutputDir: out}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var but []string
	if recipes[0].Stripped() != nil {
		but = runMakes
	}
	sameImages(t, want, ocitest.Layout(t, out), but...)
}

// runMakes are directories that a RUN makes: an image that is built with one has them, also where all of them go.
var runMakes = []string{"/dev", "/proc", "/sys"}

func sameImages(t *testing.T, want, got map[string]v1.Image, but ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d images, want %d", len(got), len(want))
	}
	for platform, img := range want {
		wanted, have := withoutUserXattrs(ocitest.Tree(t, img)), withoutUserXattrs(ocitest.Tree(t, got[platform]))
		for _, p := range but {
			delete(wanted, p)
			delete(have, p)
		}
		if diff := ocitest.Diff(wanted, have); diff != "" {
			t.Errorf("%s: tree:\n%s", platform, diff)
		}
		if diff := ocitest.Diff(ocitest.Config(t, img), ocitest.Config(t, got[platform])); diff != "" {
			t.Errorf("%s: config:\n%s", platform, diff)
		}
	}
}

// withoutUserXattrs drops what BuildKit can't keep: the layers that it makes itself carry security.capability and no
// other extended attribute (containerd, pkg/archive, ChangeWriter). Layers that slimctl makes carry them all.
func withoutUserXattrs(tree map[string]ocitest.Node) map[string]ocitest.Node {
	for p, n := range tree {
		maps.DeleteFunc(n.Xattrs, func(k, _ string) bool { return strings.HasPrefix(k, "user.") })
		if len(n.Xattrs) == 0 {
			n.Xattrs = nil
			tree[p] = n
		}
	}
	return tree
}

// TestParentsKeepTheBasesMetadata looks at the directories that the traps touch, in the embedded engine's image.
func TestParentsKeepTheBasesMetadata(t *testing.T) {
	w := newWorld(t, "B")
	recipes, _, _ := w.resolve("oci:"+w.layout, nil, "linux/amd64")
	built, _ := assemble(t, recipes, build.Annotations{})
	tree := ocitest.Tree(t, built.Image)
	for p, want := range map[string]ocitest.Node{
		"/tmp":            {Mode: 0o1777},
		"/srv/traps":      {Mode: 0o750, UID: 1000, GID: 1000, Xattrs: map[string]string{"user.mark": "kept"}},
		"/srv/traps/many": {Mode: 0o2775},
	} {
		want.Path, want.Type = p, image.TypeDir
		if diff := cmp.Diff(want, tree[p]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p, diff)
		}
	}
	for _, gone := range []string{"/tmp/traps-file", "/srv/traps/private", "/srv/traps/many/a.x", "/bin/traps-tool"} {
		if _, ok := tree[gone]; ok {
			t.Errorf("%s is still there", gone)
		}
	}
	for _, there := range []string{"/srv/traps/stays", "/srv/traps/many/c.y", "/usr/bin/traps-tool", "/tmp/traps-new"} {
		if _, ok := tree[there]; !ok {
			t.Errorf("%s is missing", there)
		}
	}
}

// TestLockNeedsNoBaseLayer counts what a build with a lock pulls, by the registry's own log.
func TestLockNeedsNoBaseLayer(t *testing.T) {
	w := newWorld(t, "B", image.Bytes("/srv/traps/many/\xff.x", 0o644, nil)) // a name that is no UTF-8, removed
	recipes, _, written := w.resolve(w.reference, nil)
	_, first := assemble(t, recipes, annotations)
	file := filepath.Join(t.TempDir(), lock.Name)
	if err := written.Write(file); err != nil {
		t.Fatal(err)
	}
	lock, err := lock.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	w.cache = t.TempDir() // no index to help
	w.host.Reset()
	recipes, src, _ := w.resolve(w.reference, lock)
	built, second := assemble(t, recipes, annotations)
	target := output.Target{Push: true, Tags: []name.Tag{w.tag("slim/locked")}}
	if _, err := output.Publish(t.Context(), built, target, src, image.Options{}); err != nil {
		t.Fatal(err)
	}
	if first.Digest != second.Digest {
		t.Errorf("without the lock %s, with it %s", first.Digest, second.Digest)
	}
	stats := w.host.Stats()
	if stats.BytesOut >= 64<<10 {
		t.Errorf("%d bytes were pulled with a lock, want less than 64 KiB", stats.BytesOut)
	}
	t.Logf("%d requests, %d bytes pulled, %d pushed, %d mounts, %d round trips", stats.Requests, stats.BytesOut, stats.BytesIn, stats.Mounts, stats.RoundTrips)

	w.host.Reset()
	if _, err := output.Publish(t.Context(), built, target, src, image.Options{}); err != nil {
		t.Fatal(err)
	}
	if stats := w.host.Stats(); stats.BytesIn != 0 {
		t.Errorf("a second push of the same image uploaded %d bytes", stats.BytesIn)
	}
}

// TestBuildsRepeat builds in two directories, at two times, from nothing.
func TestBuildsRepeat(t *testing.T) {
	var digests []v1.Hash
	for range 2 {
		w := newWorld(t, "B")
		w.cache = t.TempDir()
		recipes, _, _ := w.resolve("oci:"+w.layout, nil)
		_, r := assemble(t, recipes, build.Annotations{})
		digests = append(digests, r.Digest)
		time.Sleep(1100 * time.Millisecond) // file times have whole seconds
	}
	if digests[0] != digests[1] {
		t.Errorf("two builds gave %s and %s", digests[0], digests[1])
	}
}
