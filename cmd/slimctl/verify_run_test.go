//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/standin/live"
)

// buildLive builds the closed image of this machine's platform on a base that boots, and gives its reference.
func buildLive(t *testing.T, base string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	code, _, stderr := slimctl(t.Context(), "build", "--base", base, "--platform", "linux/"+runtime.GOARCH, "--output", "type=oci,dest="+dir, "--progress", "quiet")
	if code != exitOK {
		t.Fatalf("build: exit code %d\n%s", code, stderr)
	}
	return "oci:" + dir
}

// verifyRun boots an image and gives the report, and the evidence of each container.
func verifyRun(t *testing.T, ref string) (code int, report verify.Report, evidence []sandbox.Evidence) {
	t.Helper()
	artifacts := t.TempDir()
	code, stdout, stderr := slimctl(t.Context(), "verify", "--run", "--runtime", sandbox.Runc, "--artifacts", artifacts,
		"--platform", "linux/"+runtime.GOARCH, "--format", verify.JSON, "--progress", "quiet", ref)
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("exit code %d: %v\n%s", code, err, stderr)
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

// TestVerifyRun boots the closed image, which holds; and one on a base whose window manager opens a port when it starts:
// no file shows that, since a base's own programs are taken as they are.
func TestVerifyRun(t *testing.T) {
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	t.Run("closed", func(t *testing.T) {
		code, report, evidence := verifyRun(t, buildLive(t, "standin-live:B"))
		if code != exitOK || !report.Passed {
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
	t.Run("a port that only running shows", func(t *testing.T) {
		code, report, _ := verifyRun(t, buildLive(t, "oci:"+plantedBase(t)))
		found := map[string]string{}
		for _, f := range report.Findings {
			if f.Severity == verify.Error {
				found[f.Rule] += f.Message + "\n"
			}
		}
		delete(found, "run-processes") // when openbox is started once more, the old one's child is nobody's
		if code != exitGate || !strings.Contains(found["run-listeners"], "*:4444 is listened on, by") || len(found) != 1 {
			t.Errorf("exit code %d: %v, want run-listeners alone", code, found)
		}
	})
}

// plantedBase is the live stand-in of line B with another openbox.
func plantedBase(t *testing.T) string {
	t.Helper()
	dir, err := live.Cached(t.Context(), defaultCache(), "B")
	if err != nil {
		t.Fatal(err)
	}
	src, err := image.Open(t.Context(), "oci:"+dir, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	base, err := src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	openbox, err := fileIn(base, "/usr/bin/openbox")
	if err != nil {
		t.Fatal(err)
	}
	layer, err := image.NewLayer([]image.File{
		image.Bytes("/usr/lib/openbox-real", 0o755, openbox),
		image.Bytes("/usr/bin/openbox", 0o755, []byte(`#!/usr/bin/python3
import os, socket, sys
if os.fork() == 0:
    s = socket.create_server(("0.0.0.0", 4444))
    while True:
        s.accept()[0].close()
os.execv("/usr/lib/openbox-real", ["/usr/bin/openbox"] + sys.argv[1:])
`)),
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "base")
	if err := (output.Spec{Type: output.OCI, Dest: out}).Write(t.Context(), image.Built{Image: img}, nil, src, image.Options{}); err != nil {
		t.Fatal(err)
	}
	return out
}
