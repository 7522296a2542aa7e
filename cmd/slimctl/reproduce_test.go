package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/need"
)

// TestVerifyReadsNoLayer counts, by the registry's own log, what verifying a pushed image of two platforms takes with a lock, from
// a cache that knows nothing of base or image.
func TestVerifyReadsNoLayer(t *testing.T) {
	t.Parallel()
	for _, profile := range []string{"l0", "l1"} {
		t.Run(profile, func(t *testing.T) { verifyReadsNoLayer(t, profile) })
	}
}

func verifyReadsNoLayer(t *testing.T, profile string) {
	s := newSite(t)
	base, slim, lock := s.Host+"/base/aio:1", s.Host+"/slim/a:1", filepath.Join(s.dir, "slim.lock")
	must := func(cache string, args ...string) string {
		t.Helper()
		code, stdout, stderr := slimctl(t.Context(), append([]string{"--cache-dir", filepath.Join(s.dir, cache)}, args...)...)
		if code != exitOK {
			t.Fatalf("%q: exit code %d:\n%s%s", args, code, stdout, stderr)
		}
		return stdout
	}
	must("cache", "lock", "--profile", profile, "--base", base, "-o", lock)
	must("cache", "build", "--profile", profile, "--base", base, "--lock", lock, "-t", slim, "--push", "--progress", "quiet")
	cold := filepath.Join(s.dir, "cold")
	if err := coldCache(cold); err != nil {
		t.Fatal(err)
	}
	layers := map[string]bool{}
	ref, err := name.ParseReference(slim)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range manifest.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range m.Layers {
			layers[l.Digest.String()] = true
		}
	}
	if len(manifest.Manifests) != 2 || len(layers) < 16 {
		t.Fatalf("%d platforms, %d layers", len(manifest.Manifests), len(layers))
	}
	for _, cache := range []string{"a cache that knows nothing", "the same cache again"} {
		s.Reset()
		var out string
		took := need.CPU(t, func() {
			out = must("cold", "verify", "--profile", profile, "--base", base, "--lock", lock, "--format", "json", "--progress", "quiet", slim)
		})
		var report verify.Report
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatal(err)
		}
		stats := s.Stats()
		t.Logf("%s: %s of CPU time in all that runs here, %d requests, %d bytes, %d rules", cache, took, stats.Requests, stats.BytesOut, len(report.Rules))
		if !report.Passed || report.Proven != verify.ByDigest || len(report.Platforms) != 2 || !strings.HasPrefix(report.Base, base+"@sha256:") {
			t.Errorf("%s", out)
		}
		if stats.BytesOut >= 100<<10 {
			t.Errorf("%d bytes were read, want less than 100 kB", stats.BytesOut)
		}
		for _, r := range s.Records() {
			if i := strings.LastIndex(r.Path, "sha256:"); i >= 0 && strings.Contains(r.Path, "/blobs/") && layers[r.Path[i:]] {
				t.Errorf("a layer was read: %s %s", r.Method, r.Path)
			}
		}
	}
}

// TestBaseByAnnotation: the profile says which repository is believed, the image only which digest of it.
func TestBaseByAnnotation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	base := s.Host + "/base/aio:1"
	if err := s.LoadLayout("evil/aio", "1", layoutOf(t, "A")); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(s.dir, "own.yaml")
	write := func(reference string) {
		t.Helper()
		if err := os.WriteFile(own, []byte("version: 1\nname: own\nextends: l0\nbase: {reference: \""+reference+"\"}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(base)
	cli := func(args ...string) (int, string) {
		t.Helper()
		code, stdout, stderr := slimctl(t.Context(), append([]string{"--cache-dir", filepath.Join(s.dir, "cache")}, args...)...)
		return code, stdout + stderr
	}
	out := filepath.Join(s.dir, "out", "x")
	if code, text := cli("build", "--profile", own, "--platform", "linux/amd64", "--output", "type=oci,dest="+out); code != exitOK {
		t.Fatal(text)
	}
	verify := []string{"verify", "--profile", own, "--progress", "quiet", "oci:" + out}
	if code, text := cli(verify...); code != exitOK || !strings.Contains(text, "proven, profile own on "+base+"@sha256:") {
		t.Errorf("the profile's own base: exit code %d\n%s", code, text)
	}
	// The tag moves on: the image says which digest it was.
	if err := s.LoadLayout("base/aio", "1", layoutOf(t, "C")); err != nil {
		t.Fatal(err)
	}
	if code, text := cli(verify...); code != exitOK || !strings.Contains(text, "proven, profile own on "+base+"@sha256:") {
		t.Errorf("after the tag moved: exit code %d\n%s", code, text)
	}
	// An image of another repository's base isn't believed, nor is a digest besides the profile's.
	for name, reference := range map[string]string{
		"another repository": s.Host + "/evil/aio:1", "another digest": s.Host + "/base/aio@sha256:" + strings.Repeat("0", 64), "no registry": "standin:B",
	} {
		write(reference)
		if code, text := cli(verify...); code != exitUnproven || !strings.Contains(text, "--base IMAGE or --lock FILE") || !strings.Contains(text, "the base: ") {
			t.Errorf("%s: exit code %d\n%s", name, code, text)
		}
	}
	// One that can't be read is unproven, in words.
	write(base)
	s.Stop()
	if code, text := cli(append([]string{"--cache-dir", filepath.Join(s.dir, "fresh")}, verify...)...); code != exitUnproven || !strings.Contains(text, "can't be read") {
		t.Errorf("no registry: exit code %d\n%s", code, text)
	}
}
