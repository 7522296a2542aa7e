package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/need"
)

// verifyRun boots an image and gives the report, and the evidence of each container.
func verifyRun(t *testing.T, ref string, flags ...string) (code int, report verify.Report, evidence []sandbox.Evidence) {
	t.Helper()
	bin, err := slimctl()
	if err != nil {
		t.Fatal(err)
	}
	artifacts := t.TempDir()
	args := append([]string{"verify", "--run", "--runtime", sandbox.Runc, "--artifacts", artifacts,
		"--platform", "linux/" + runtime.GOARCH, "--format", "json", "--progress", "quiet", ref}, flags...)
	cmd := exec.CommandContext(t.Context(), bin, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code = cmd.ProcessState.ExitCode()
	if err := json.Unmarshal(stdout, &report); err != nil {
		t.Fatalf("exit code %d: %v\n%s", code, err, stderr.String())
	}
	files, err := filepath.Glob(filepath.Join(artifacts, "*", "evidence.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var e sandbox.Evidence
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		evidence = append(evidence, e)
		if strings.Contains(string(text), `"SANDBOX_API_KEY": "`) && !strings.Contains(string(text), `"SANDBOX_API_KEY": "(set)"`) {
			t.Errorf("%s has the key", file)
		}
	}
	return code, report, evidence
}

// TestVerifyRun boots a closed image, which holds (l0 itself is in TestDocs); and one that lacks agent-browser, on a base whose
// nginx opens a port when it starts: no file shows that, since a base's own programs are taken as they are.
func TestVerifyRun(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	t.Run("a tool of another name", func(t *testing.T) { // an agent's whole work goes through its words
		t.Parallel()
		dir := t.TempDir()
		for name, text := range map[string]string{
			"policy.json": `{"version": 1, "tool_name": "sandbox_execute_bash"}`,
			"bash.yaml": `version: 1
name: bash
extends: l0
base: {reference: "ghcr.io/agent-infra/sandbox:latest"}
overlays:
  - name: tool
    why: clients that know nothing else
    files:
      - path: /etc/agent-browser/browser-shell.policy.json
        source: policy.json
expect:
  tools: [sandbox_execute_bash]
`,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		profile, out := filepath.Join(dir, "bash.yaml"), filepath.Join(dir, "out")
		run(t, "build", "--profile", profile, "--base", "standin-live:B", "--platform", "linux/"+runtime.GOARCH, "--output", "type=oci,dest="+out)
		code, report, evidence := verifyRun(t, "oci:"+out, "--profile", profile, "--base", "standin-live:B")
		if code != 0 || !report.Passed {
			t.Errorf("exit code %d: %+v", code, report.Findings)
		}
		if len(evidence) != 3 {
			t.Errorf("evidence of %d containers, want 3", len(evidence))
		}
		for _, f := range report.Findings {
			if strings.HasPrefix(f.Rule, "run-") {
				t.Errorf("%+v", f)
			}
		}
	})
	t.Run("what only running shows", func(t *testing.T) {
		t.Parallel()
		gone, says := []string{"/usr/bin/node", "/usr/bin/nodejs", "/usr/local/bin/node"}, "daemon"
		if profile() != "l0" { // a native program, and no Node
			gone, says = []string{"/opt/agent-browser"}, "agent-browser"
		}
		var without []image.File
		for _, p := range gone {
			without = append(without, image.Whiteout(p))
		}
		code, report, _ := verifyRun(t, withFiles(t, buildL0(t, plantedBase(t)), without...))
		found := map[string]string{}
		for _, f := range report.Findings {
			if f.Severity == verify.Error {
				found[f.Rule] += f.Message + "\n"
			}
		}
		if code != exitGate || !strings.Contains(found["run-listeners"], "*:4444 has a listener, ") {
			t.Errorf("exit code %d: %v, want run-listeners", code, found)
		}
		if !strings.Contains(found["run-tool"], `browser-shell can't do an agent's work: ["open" "http://example.com/"] has exit code`) || !strings.Contains(found["run-tool"], says) {
			t.Errorf("%v, want run-tool", found)
		}
		for rule := range found { // that it is another program shows in several ways, but not at rest
			if !strings.HasPrefix(rule, "run-") {
				t.Errorf("%s: %s", rule, found[rule])
			}
		}
	})
}

// exitGate is slimctl's exit code when a gate fails.
const exitGate = 3

// plantedBase is the live stand-in of line B with another nginx, the one program with no cage that it brings. The first one lies
// where every profile keeps files.
func plantedBase(t *testing.T) string {
	t.Helper()
	ref := standin(t)
	return withFiles(t, ref, image.Bytes("/opt/novnc/nginx", 0o755, readFile(t, ref, "/usr/sbin/nginx")),
		image.Bytes("/usr/sbin/nginx", 0o755, []byte(`#!/usr/bin/python3
import os, socket, sys
if os.fork() == 0:
    s = socket.create_server(("0.0.0.0", 4444))
    while True:
        s.accept()[0].close()
os.execv("/opt/novnc/nginx", ["/usr/sbin/nginx"] + sys.argv[1:])
`)))
}

// open returns the image of this machine's architecture.
func open(t *testing.T, ref string) v1.Image {
	t.Helper()
	src, err := image.Open(t.Context(), ref, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// readFile reads a file of an image.
func readFile(t *testing.T, ref, path string) []byte {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	files, err := tree.Cache{Dir: filepath.Join(cache, "slimctl")}.Open(t.Context(), open(t, ref), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := files.ReadFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// withFiles is an image with one more layer.
func withFiles(t *testing.T, ref string, files ...image.File) string {
	t.Helper()
	layer, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	old := open(t, ref)
	img, err := mutate.AppendLayers(old, layer)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err1 := old.Digest()
	config, err2 := old.ConfigName()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "image")
	blobs, err := filepath.Glob(filepath.Join(strings.TrimPrefix(ref, "oci:"), "blobs", "sha256", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(out, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, blob := range blobs { // a third of a gigabyte, which Write copies only where it isn't
		if name := filepath.Base(blob); name != manifest.Hex && name != config.Hex {
			_ = os.Link(blob, filepath.Join(out, "blobs", "sha256", name))
		}
	}
	if _, err := layout.Write(out, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})); err != nil {
		t.Fatal(err)
	}
	return "oci:" + out
}
