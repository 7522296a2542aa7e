package slim_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/registry"
	"github.com/slimctl/slimctl/slim"
)

// TestMain leaves the examples out on a machine that can't fetch the payload, since an example can't skip itself.
func TestMain(m *testing.M) {
	flag.Parse()
	if _, err := exec.LookPath("npm"); err != nil && os.Getenv("CI") != "true" {
		fmt.Println("the examples are skipped: npm is not installed")
		_ = flag.Set("test.skip", "^Example")
	}
	os.Exit(m.Run())
}

// onStandin builds l0 for one platform.
func onStandin() slim.BuildOptions {
	var o slim.BuildOptions
	o.Base, o.Platforms, o.NoLock = "standin:B", []string{"linux/amd64"}, true
	return o
}

func TestMistakesAreUsageErrors(t *testing.T) {
	dir := t.TempDir()
	file := output.Spec{Type: output.OCI, Dest: filepath.Join(dir, "out")}
	archive := output.Spec{Type: output.DockerArchive, Dest: filepath.Join(dir, "out.tar")}
	for name, change := range map[string]func(*slim.BuildOptions){
		"no such profile":           func(o *slim.BuildOptions) { o.Profile = "l9" },
		"no such file":              func(o *slim.BuildOptions) { o.Profile = filepath.Join(dir, "none.yaml") },
		"no such stand-in":          func(o *slim.BuildOptions) { o.Base = "standin:X" },
		"no platform":               func(o *slim.BuildOptions) { o.Platforms = []string{"amd64"} },
		"not the profile's":         func(o *slim.BuildOptions) { o.Platforms = []string{"linux/s390x"} },
		"a lock and none":           func(o *slim.BuildOptions) { o.Lock = "slim.lock" },
		"a push to nowhere":         func(o *slim.BuildOptions) { o.Target.Push = true },
		"two files of one name":     func(o *slim.BuildOptions) { o.Target.Files = []output.Spec{file, file} },
		"two platforms, one image":  func(o *slim.BuildOptions) { o.Platforms, o.Target.Files = nil, []output.Spec{archive} },
		"two platforms into Docker": func(o *slim.BuildOptions) { o.Platforms, o.Target.Load = nil, true },
	} {
		t.Run(name, func(t *testing.T) {
			o := onStandin()
			change(&o)
			_, err := slim.Build(t.Context(), o)
			if err == nil || !errors.As(err, new(*slim.UsageError)) {
				t.Errorf("error is %v, want a UsageError", err)
			}
		})
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v was written", left)
	}
}

// engine is an engine that notes what it is asked for.
type engine struct {
	asked []build.Request
	err   error
}

func (e *engine) Build(_ context.Context, req build.Request) (v1.Descriptor, error) {
	e.asked = append(e.asked, req)
	return v1.Descriptor{Digest: req.Digest}, e.err
}

// TestEngineIsToldWhatWasVerified: another engine may give nothing a name but the very image that was verified.
func TestEngineIsToldWhatWasVerified(t *testing.T) {
	need.Program(t, "npm")
	ours, err := slim.Build(t.Context(), onStandin())
	if err != nil {
		t.Fatal(err)
	}
	var e engine
	o := onStandin()
	o.Engine, o.Target.Tags = &e, []name.Tag{{}}
	theirs, err := slim.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.asked) != 1 || e.asked[0].Digest != ours.Image.Digest || theirs.Image.Digest != ours.Image.Digest {
		t.Errorf("the engine was asked for %v, and gave %v; verified is %s", e.asked, theirs.Image, ours.Image.Digest)
	}
	if len(e.asked[0].Target.Tags) != 1 || len(e.asked[0].Annotations.Manifest) == 0 {
		t.Errorf("the engine wasn't told all: %+v", e.asked[0])
	}
	o.NoVerify = true
	if _, err := slim.Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if last := e.asked[len(e.asked)-1]; last.Digest != (v1.Hash{}) {
		t.Errorf("without verifying the engine was bound to %s", last.Digest)
	}
}

// openProfile writes a profile whose nginx has one location more than its expectations allow.
func openProfile(t *testing.T) (file string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nname: open\nextends: l0\noverlays:\n  - name: nginx\n    why: a test\n    files:\n")
	confs, err := fs.Glob(assets.FS, "nginx/*.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, conf := range confs {
		fmt.Fprintf(&b, "      - path: /opt/gem/%s\n", path.Base(conf))
		if path.Base(conf) != "nginx-server.conf" {
			fmt.Fprintf(&b, "        source: asset:%s\n", conf)
			continue
		}
		text, err := fs.ReadFile(assets.FS, conf)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "        content: %q\n", string(text)+"location /hole { proxy_pass http://127.0.0.1:9222; }\n")
	}
	file = filepath.Join(t.TempDir(), "open.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestNothingIsWrittenOfAFinding builds an image that its own profile's expectations don't allow.
func TestNothingIsWrittenOfAFinding(t *testing.T) {
	need.Program(t, "npm")
	reg, err := registry.Serve(t.Context(), "", registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reg.Stop)
	tag, err := name.NewTag(reg.Host + "/slim:1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	profile := openProfile(t)
	var e engine
	for _, engine := range []build.Engine{nil, &e} {
		o := onStandin()
		o.Profile, o.Engine = profile, engine
		o.Target = output.Target{Files: []output.Spec{{Type: output.OCI, Dest: filepath.Join(dir, "out")}}, Tags: []name.Tag{tag}, Push: true}
		_, err = slim.Build(t.Context(), o)
		var found *slim.FindingsError
		if !errors.As(err, &found) || found.Report.Passed || !strings.Contains(err.Error(), "/hole") {
			t.Fatalf("error is %v, want findings that name the location", err)
		}
	}
	if len(e.asked) > 0 {
		t.Errorf("the engine was asked for %v", e.asked)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v was written", left)
	}
	if d, err := remote.Head(tag); err == nil {
		t.Errorf("%s is %s", tag, d.Digest)
	}
}

// TestManyNewPaths: a base with very many new files doesn't fill the screen.
func TestManyNewPaths(t *testing.T) {
	for n, want := range map[int]int{0: 1, 199: 200, 250_000: 201} {
		recipe := &build.Recipe{}
		for i := range n {
			recipe.New = append(recipe.New, build.Gone{Path: fmt.Sprintf("/opt/%d", i), Why: "w"})
		}
		recipe.New = append(recipe.New, build.Gone{Path: "MCP server new", Why: "w"})
		var lines []string
		(&slim.Resolved{Recipes: []*build.Recipe{recipe}}).LogNewUpstream(func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) })
		if len(lines) != want || lines[0] != "new upstream, removed: MCP server new (w)" || n > want && lines[want-1] != "new upstream, removed: and 249,801 more" {
			t.Errorf("%d: %d lines, from %q to %q", n, len(lines), lines[0], lines[len(lines)-1])
		}
	}
}
