package main

import (
	"bytes"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
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

// TestLedgersThatHide: verify finds a false ledger whatever else refers to the image, and why believes none of several.
func TestLedgersThatHide(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	build := []string{"build", "--base", "standin:B", "--platform", "linux/amd64", "--push", "--progress", "quiet"}
	attacks := map[string]func(image string){
		"a false one beside one without a layer": func(image string) {
			attachFalse(t, image)
			attachLayers(t, image, "")
		},
		"one without a layer alone": func(image string) { attachLayers(t, image, "") },
		"one of two layers":         func(image string) { attachLayers(t, image, "", []byte("x"), []byte("y")) },
		"many of the same lie": func(image string) {
			for i := range 20 {
				attachLayers(t, image, fmt.Sprint(i), falseLedger(t))
			}
		},
	}
	imageOf := func(title string) string { return s.Host + "/small/" + strings.ReplaceAll(title, " ", "-") + ":1" }
	for title := range attacks {
		build = append(build, "-t", imageOf(title))
	}
	if code, _, stderr := slimctl(t.Context(), build...); code != exitOK {
		t.Fatal(stderr)
	}
	for title, do := range attacks {
		t.Run(title, func(t *testing.T) {
			image := imageOf(title)
			do(image)
			code, stdout, stderr := slimctl(t.Context(), "verify", "--base", "standin:B", "--platform", "linux/amd64", "--progress", "quiet", image)
			if code != exitGate || !strings.Contains(stdout, "refers to the image; a build gives none") {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
			code, stdout, stderr = slimctl(t.Context(), "why", image, "/usr/bin/openbox")
			if code != exitOK || strings.Contains(stdout, "ledger") || !strings.Contains(stderr, "no ledger is used") {
				t.Errorf("why: exit code %d\n%s%s", code, stdout, stderr)
			}
		})
	}
}

// TestLedgerOfHostileRegistry: of a ledger whose bytes are not those of its digest nothing is believed, though what is asked for
// stands at its beginning.
func TestLedgerOfHostileRegistry(t *testing.T) {
	t.Parallel()
	honest := registry.New(registry.WithReferrersSupport(true), registry.Logger(stdlog.New(io.Discard, "", 0)))
	var lie []byte
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lie != nil && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			var body bytes.Buffer
			record := httptest.NewRecorder()
			record.Body = &body
			honest.ServeHTTP(record, r)
			if bytes.HasPrefix(body.Bytes(), []byte("\x1f\x8b")) && body.Len() > len(lie) {
				copy(body.Bytes(), lie)
			}
			_, _ = w.Write(body.Bytes())
			return
		}
		honest.ServeHTTP(w, r)
	}))
	t.Cleanup(hostile.Close)
	image := strings.TrimPrefix(hostile.URL, "http://") + "/small/a:1"
	if code, _, stderr := slimctl(t.Context(), "build", "--profile", "l1", "--base", "standin:B", "--platform", "linux/amd64", "-t", image, "--push", "--progress", "quiet"); code != exitOK {
		t.Fatal(stderr)
	}
	lie = falseLedger(t)
	code, stdout, stderr := slimctl(t.Context(), "why", image, "/usr/bin/openbox")
	if strings.Contains(stdout, "a lie") || !strings.Contains(stderr, "no ledger is used") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// attachFalse attaches a ledger that says something else to an image in a registry.
func attachFalse(t *testing.T, reference string) {
	t.Helper()
	attach(t, reference, falseLedger(t))
}

// falseLedger is a ledger that explains /usr/bin/openbox away.
func falseLedger(t *testing.T) []byte {
	t.Helper()
	var text bytes.Buffer
	w, err := ledger.NewWriter(&text, ledger.Header{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(ledger.Row{Path: "/usr/bin/openbox", Goes: "dropped", Why: "a lie"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func attach(t *testing.T, reference string, text []byte) {
	t.Helper()
	attachLayers(t, reference, "", text)
}

// attachLayers attaches an artifact of a ledger's type, with those layers. What note says makes it another one.
func attachLayers(t *testing.T, reference, note string, layers ...[]byte) {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := remote.Head(ref)
	if err != nil {
		t.Fatal(err)
	}
	artifact := empty.Image
	for _, text := range layers {
		if artifact, err = mutate.AppendLayers(artifact, static.NewLayer(text, ledger.MediaType)); err != nil {
			t.Fatal(err)
		}
	}
	if note != "" {
		artifact, _ = mutate.Annotations(artifact, map[string]string{"note": note}).(v1.Image)
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
