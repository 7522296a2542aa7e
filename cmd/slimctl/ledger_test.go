package main

import (
	"bytes"
	"io"
	stdlog "log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"github.com/slimctl/slimctl/build/ledger"
)

// TestLedgerInRegistry: why answers both ways from the ledger that a push leaves beside the image, and reads no layer; one that
// somebody else attaches is found by verify, and believed by nobody.
func TestLedgerInRegistry(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	withAPI := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(stdlog.New(io.Discard, "", 0))))
	t.Cleanup(withAPI.Close)
	cli := func(args ...string) (int, string) {
		t.Helper()
		code, stdout, stderr := slimctl(t.Context(), append([]string{"--cache-dir", filepath.Join(s.dir, "cache")}, args...)...)
		return code, stdout + stderr
	}
	base := s.Host + "/base/aio:1"
	for title, host := range map[string]string{"without the referrers API": s.Host, "with it": strings.TrimPrefix(withAPI.URL, "http://")} {
		t.Run(title, func(t *testing.T) {
			image := host + "/small/a:1"
			if code, text := cli("build", "--profile", "l1", "--base", base, "--platform", "linux/amd64", "-t", image, "--push", "--progress", "quiet"); code != exitOK {
				t.Fatal(text)
			}
			s.Reset()
			for path, want := range map[string]string{
				"/usr/bin/openbox": "root (program openbox", "/opt/gem/run.sh": "goes, removed", "/usr/local/bin/browser-shell": "added by overlay browser-shell",
			} {
				code, stdout, stderr := slimctl(t.Context(), "--cache-dir", filepath.Join(s.dir, "fresh"), "why", image, path)
				if code != exitOK || !strings.Contains(stdout, want) {
					t.Errorf("%s: exit code %d\n%s%s", path, code, stdout, stderr)
				}
			}
			if host == s.Host {
				if out := s.Stats().BytesOut; out > 100<<10 {
					t.Errorf("%d bytes were read", out)
				}
			}
			verify := []string{"verify", "--profile", "l1", "--base", base, "--progress", "quiet", image}
			if code, text := cli(verify...); code != exitOK || !strings.Contains(text, "passed: proven") {
				t.Errorf("exit code %d\n%s", code, text)
			}
			attachFalse(t, image)
			if code, text := cli(verify...); code != exitGate || !strings.Contains(text, "ledger") || !strings.Contains(text, "refers to the image; a build gives sha256:") {
				t.Errorf("a false ledger: exit code %d\n%s", code, text)
			}
			if code, text := cli("verify", "--profile", "l1", "--progress", "quiet", image); code != exitUnproven || !strings.Contains(text, "the ledger that refers to it") {
				t.Errorf("a false ledger and no base: exit code %d\n%s", code, text)
			}
			if code, text := cli("why", image, "/usr/bin/openbox"); code != exitOK || strings.Contains(text, "a lie") || !strings.Contains(text, "2 ledgers refer to it") {
				t.Errorf("two ledgers: exit code %d\n%s", code, text)
			}
		})
	}
}

// TestBadLedger: what can't be read as a ledger is told, and then the layers are asked.
func TestBadLedger(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	image := s.Host + "/small/a:1"
	if code, _, stderr := slimctl(t.Context(), "build", "--base", "standin:B", "--platform", "linux/amd64", "-t", image, "--push", "--progress", "quiet"); code != exitOK {
		t.Fatal(stderr)
	}
	attach(t, image, []byte("not gzip"))
	for _, args := range [][]string{{"why", image, "/usr/bin/openbox"}, {"diff", "standin:B", image, "--platform", "linux/amd64"}} {
		if code, stdout, stderr := slimctl(t.Context(), args...); code != exitOK || !strings.Contains(stdout, "linux/amd64") || !strings.Contains(stderr, "no ledger is used: ledger: ") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// attachFalse attaches a ledger that says something else to an image in a registry.
func attachFalse(t *testing.T, reference string) {
	t.Helper()
	var text bytes.Buffer
	w, err := ledger.NewWriter(&text, ledger.Header{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(ledger.Row{Path: "/usr/bin/openbox", Stays: "root", Why: "a lie"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	attach(t, reference, text.Bytes())
}

func attach(t *testing.T, reference string, text []byte) {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := remote.Head(ref)
	if err != nil {
		t.Fatal(err)
	}
	artifact, err := mutate.AppendLayers(empty.Image, static.NewLayer(text, ledger.MediaType))
	if err != nil {
		t.Fatal(err)
	}
	attached, ok := mutate.Subject(mutate.ConfigMediaType(artifact, ledger.ArtifactType), *subject).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	digest, err := attached.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref.Context().Digest(digest.String()), attached); err != nil {
		t.Fatal(err)
	}
}
