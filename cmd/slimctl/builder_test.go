package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/buildkitd"
)

// TestBuilderGivesTheSameDigest builds with and without a BuildKit daemon, through the command line.
func TestBuilderGivesTheSameDigest(t *testing.T) {
	bin, _ := buildkitd.Ensure(t)
	t.Setenv("PATH", filepath.Dir(bin)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var digests []string
	for i, args := range [][]string{nil, {"--builder", "auto", "--progress", "plain"}} {
		dest := filepath.Join(t.TempDir(), "out")
		var stdout, stderr bytes.Buffer
		args = append([]string{"build", "--base", "standin:A", "--output", "type=oci,dest=" + dest, "--progress", "quiet"}, args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
			t.Fatalf("slimctl %q: exit %d\n%s", args, code, &stderr)
		}
		if i == 1 && !bytes.Contains(stderr.Bytes(), []byte("[linux/arm64] overlay of l0")) {
			t.Errorf("BuildKit's progress isn't shown:\n%s", &stderr)
		}
		if _, err := os.Stat(filepath.Join(dest, "index.json")); err != nil {
			t.Error(err)
		}
		digests = append(digests, stdout.String())
	}
	if digests[0] != digests[1] || digests[0] == "" {
		t.Errorf("the engines print %q and %q", digests[0], digests[1])
	}
}

// TestBuildkitHost: BUILDKIT_HOST is another tool's setting, which counts when --builder asks for it.
func TestBuildkitHost(t *testing.T) {
	build := []string{"build", "--base", "standin:A", "--platform", "linux/amd64", "--progress", "quiet"}
	t.Setenv("BUILDKIT_HOST", "docker-container://nosuch")
	code, want, stderr := slimctl(t.Context(), build...)
	if code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, stderr)
	}
	t.Setenv("BUILDKIT_HOST", buildkitd.Start(t).Addr)
	if code, got, stderr := slimctl(t.Context(), append(build, "--builder", "env")...); code != exitOK || got != want {
		t.Errorf("exit code %d, %q instead of %q:\n%s", code, got, want, stderr)
	}
	t.Setenv("BUILDKIT_HOST", "")
	if code, _, stderr := slimctl(t.Context(), append(build, "--builder", "env")...); code != exitUsage || !anyIn(stderr, "BUILDKIT_HOST is not set") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
	if code, _, stderr := slimctl(t.Context(), append(build, "--tlscert", "x")...); code != exitUsage || !anyIn(stderr, "name one with --builder") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

// shell returns a function that runs a line in dir by a shell. In its PATH are buildctl, with a daemon of its own, and slimctl,
// which is this test.
func shell(t *testing.T, dir string) func(line string) (output string, err error) {
	t.Helper()
	_, buildctl := buildkitd.Ensure(t)
	env, err := privateEnv(dir)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "slimctl")); err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{bin, filepath.Dir(buildctl), os.Getenv("PATH")}, string(os.PathListSeparator))
	env = append(env, "PATH="+path, "BUILDKIT_HOST="+buildkitd.Start(t).Addr)
	return func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// TestRenderingsVerify builds what llb and dockerfile render with BuildKit's own program, as their help says, and verifies it.
func TestRenderingsVerify(t *testing.T) {
	s := newSite(t)
	run := shell(t, s.dir)
	base := s.Host + "/base/aio:1"
	_, help, _ := strings.Cut((&app{}).llb().Example, "--context ctx")
	line := "slimctl llb --base " + base + " --platform linux/amd64 --context ctx" + help // as in the help, on a directory that isn't there
	for name, lines := range map[string][]string{
		"llb": {line, "slimctl verify --same tree --base " + base + " oci-archive:slim.tar"},
		"dockerfile": {
			"slimctl dockerfile --base " + base + " --platform linux/amd64 --whiteouts -o df",
			`sed -n 's/^  annotations = \["manifest:\(.*\)", "manifest:\(.*\)"\]$/annotation.\1,annotation.\2/p' df/docker-bake.hcl > df.annotations`,
			`buildctl build --frontend dockerfile.v0 --local context=df --local dockerfile=df --opt platform=linux/amd64 --output "type=oci,dest=df.tar,rewrite-timestamp=true,$(cat df.annotations)"`,
			"slimctl verify --same tree --base " + base + " oci-archive:df.tar",
		},
		"dockerfile on a layout": {
			"slimctl dockerfile --base standin:B --platform linux/amd64 --whiteouts -o dl",
			`sed -n 's/^  annotations = \["manifest:\(.*\)"\]$/annotation.\1/p' dl/docker-bake.hcl > dl.annotations`,
			`sed -n 's/^  contexts .*"oci-layout:\/\/\(.*\)@\(.*\)".*/--oci-layout slimctl-base=\1 --opt context:slimctl-base=oci-layout:\/\/slimctl-base@\2/p' dl/docker-bake.hcl > dl.context`,
			`buildctl build --frontend dockerfile.v0 --local context=dl --local dockerfile=dl --opt platform=linux/amd64 $(cat dl.context) --output "type=oci,dest=dl.tar,$(cat dl.annotations)"`,
			"slimctl verify --same tree --base standin:B oci-archive:dl.tar",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, line := range lines {
				if out, err := run(line); err != nil {
					t.Fatalf("%s: %v\n%s", line, err, out)
				}
			}
		})
	}
}
