package dockerfile

import (
	"io"
	"io/fs"
	stdlog "log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/buildkit/client"
	"github.com/tonistiigi/fsutil"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/internal/buildkitd"
	"github.com/slimctl/slimctl/internal/ocitest"
)

// TestBuiltImageIsTheRecipes builds the Dockerfile with BuildKit's own frontend and compares the image with what the
// recipe's layers and config make of the base.
func TestBuiltImageIsTheRecipes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		platforms []v1.Platform
		user      string
	}{
		{name: "run", platforms: []v1.Platform{amd64}, user: "gem"},
		{name: "run as root's own base", platforms: []v1.Platform{amd64}},
		{name: "run, two platforms", platforms: []v1.Platform{amd64, arm64}, user: "gem"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if len(tt.platforms) > 1 {
				buildkitd.RegisterArm64(t)
			}
			daemon := buildkitd.Start(t)
			daemon.RequireRun(t)
			config := baseConfig
			config.User = tt.user
			recipes := pushBase(t, config, tt.platforms)
			dir := filepath.Join(t.TempDir(), "context")
			rendered, err := Render(recipes, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := rendered.Write(dir); err != nil {
				t.Fatal(err)
			}
			checkOutElsewhere(t, dir)
			got := solve(t, daemon, dir, tt.platforms)
			if len(got) != len(recipes) {
				t.Fatalf("%d images for %d recipes", len(got), len(recipes))
			}
			for _, r := range recipes {
				compare(t, r, got[r.Platform.String()])
			}
		})
	}
}

// checkOutElsewhere does to the modes what a checkout under another umask does.
func checkOutElsewhere(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.Type() == fs.ModeSymlink:
			return err
		case d.IsDir():
			return os.Chmod(p, 0o700)
		}
		return os.Chmod(p, 0o777)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func compare(t *testing.T, r *build.Recipe, got v1.Image) {
	t.Helper()
	want := embedded(t, r)
	if d := ocitest.Diff(ocitest.Tree(t, want), ocitest.Tree(t, got)); d != "" {
		t.Errorf("%s: the tree differs:\n%s", r.Platform.String(), d)
	}
	if d := ocitest.Diff(ocitest.Config(t, want), ocitest.Config(t, got)); d != "" {
		t.Errorf("%s: the config differs:\n%s", r.Platform.String(), d)
	}
	config, err := got.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !config.Created.Equal(r.Epoch) {
		t.Errorf("%s: created %s, not %s", r.Platform.String(), config.Created, r.Epoch)
	}
}

// recipeImage is the base with a recipe's layers and config.
type recipeImage struct {
	v1.Image
	config []byte
}

func (i recipeImage) RawConfigFile() ([]byte, error) { return i.config, nil }

func embedded(t *testing.T, r *build.Recipe) v1.Image {
	t.Helper()
	layers, config, err := r.Render()
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(r.Base.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return recipeImage{Image: img, config: config}
}

// pushBase puts the base into a registry of the test and gives a recipe for each platform.
func pushBase(t *testing.T, config v1.Config, platforms []v1.Platform) []*build.Recipe {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(stdlog.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/aio:1")
	if err != nil {
		t.Fatal(err)
	}
	var index v1.ImageIndex = empty.Index
	images := map[string]v1.Image{}
	for _, p := range platforms {
		img := newBase(t, p, buildkitd.Rm(t, p.String()), config)
		images[p.String()] = img
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}})
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var recipes []*build.Recipe
	for _, p := range platforms {
		base := build.Base{Reference: ref.String(), Index: digest, Line: "B", Image: images[p.String()]}
		recipes = append(recipes, newRecipe(base, p))
	}
	return recipes
}

// solve builds the context in dir and gives the images by platform.
func solve(t *testing.T, daemon *buildkitd.Daemon, dir string, platforms []v1.Platform) map[string]v1.Image {
	t.Helper()
	out := t.TempDir()
	export := client.ExportEntry{Type: client.ExporterOCI, Attrs: map[string]string{"tar": "false"}, OutputDir: out}
	if err := run(t, daemon, dir, platforms, export); err != nil {
		t.Fatal(err)
	}
	return ocitest.Layout(t, out)
}

func run(t *testing.T, daemon *buildkitd.Daemon, dir string, platforms []v1.Platform, export client.ExportEntry) error {
	t.Helper()
	context, err := fsutil.NewFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range platforms {
		names = append(names, p.String())
	}
	_, err = daemon.Client(t).Solve(t.Context(), nil, client.SolveOpt{
		Frontend: "dockerfile.v0",
		FrontendAttrs: map[string]string{
			"platform": strings.Join(names, ","), "build-arg:SOURCE_DATE_EPOCH": strconv.FormatInt(epoch.Unix(), 10), // as docker-bake.hcl
		},
		LocalMounts: map[string]fsutil.FS{"context": context, "dockerfile": context},
		Exports:     []client.ExportEntry{export},
	}, nil)
	return err
}
