package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/slimctl/slimctl/internal/registry"
)

// site is a registry with the stand-in of line B at base/aio:1 and another image at slim/a:1, and a directory to build in.
type site struct {
	*registry.Server
	dir string
	old v1.Hash // of slim/a:1
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{dir: t.TempDir()}
	if err := warmCache(filepath.Join(s.dir, "cache")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.Server, err = registry.Serve(t.Context(), "", registry.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err := s.LoadLayout("base/aio", "1", layoutOf(t, "B")); err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(s.tag(t), empty.Image); err != nil {
		t.Fatal(err)
	}
	if s.old, err = empty.Image.Digest(); err != nil {
		t.Fatal(err)
	}
	s.Reset()
	return s
}

func (s *site) tag(t *testing.T) name.Tag {
	t.Helper()
	tag, err := name.NewTag(s.Host + "/slim/a:1")
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// forget makes the site's cache a cold one.
func (s *site) forget(t *testing.T) {
	t.Helper()
	for _, name := range learned {
		if err := os.Remove(filepath.Join(s.dir, "cache", name)); err != nil {
			t.Fatal(err)
		}
	}
}

// untouched checks that the tag is as it was and that out holds nothing, hidden files included.
func (s *site) untouched(t *testing.T) {
	t.Helper()
	s.Fault(nil)
	s.SetLatency(0)
	if got := entries(filepath.Join(s.dir, "out")); len(got) > 0 {
		t.Errorf("the destination's directory holds %q", got)
	}
	desc, err := remote.Head(s.tag(t))
	if err != nil {
		t.Fatal(err)
	}
	if desc.Digest != s.old {
		t.Errorf("the tag moved to %s", desc.Digest)
	}
}

// slimctl runs the CLI in this process.
func slimctl(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(ctx, args, &out, &err)
	return code, out.String(), err.String()
}

const (
	pushManifest = "push manifest" // there is one to push when there are two platforms
	pullBlob     = "pull config or layer"
	commitBlob   = "commit blob"
)

// stages are the steps at which a registry can go wrong, as the requests that they are.
var stages = []struct {
	name, method, path string
	push               bool
}{
	{"pull index", "GET", "/v2/base/aio/manifests/1$", false},
	{"pull manifest", "GET", "/v2/base/aio/manifests/sha256:", false},
	{pullBlob, "GET", "/v2/base/aio/blobs/", false},
	{"look up tag", "HEAD", "/v2/slim/a/manifests/1$", true},
	{"push blob", "PATCH", "/v2/slim/a/blobs/uploads/", true},
	{commitBlob, "PUT", "/v2/slim/a/blobs/uploads/", true},
	{"start upload", "POST", "/v2/slim/a/blobs/uploads/", true},
	{pushManifest, "PUT", "/v2/slim/a/manifests/sha256:", true},
	{"push tag", "PUT", "/v2/slim/a/manifests/1$", true},
}

// trouble is how a build must end on a registry that goes wrong.
type trouble struct {
	code int
	says string
}

// TestRegistryTrouble plays each trouble at each stage.
func TestRegistryTrouble(t *testing.T) {
	t.Parallel()
	playTroubles(t, map[string]trouble{
		"401": {exitAuth, "401"}, "403": {exitAuth, "403"}, "404": {exitNotFound, "404"}, "429": {exitRegistry, "429"},
		"500": {exitRegistry, "500"}, "cut": {exitRegistry, "EOF|reset|closed|broken"},
	})
}

// TestRegistryHangs: a registry that sends nothing is given up. It isn't parallel with other tests, which would wait as
// shortly.
func TestRegistryHangs(t *testing.T) {
	defer func(d time.Duration) { registrySilence = d }(registrySilence)
	registrySilence = time.Second
	t.Run("", func(t *testing.T) { playTroubles(t, map[string]trouble{"hang": {exitRegistry, "sent nothing for"}}) })
}

// playTroubles plays each trouble at each stage, in parallel.
func playTroubles(t *testing.T, troubles map[string]trouble) {
	for action, want := range troubles {
		for _, stage := range stages {
			t.Run(stage.name+" "+action, func(t *testing.T) {
				if stage.push && (stage.method == "HEAD" || stage.method == "POST" || stage.name == commitBlob) && action == "cut" {
					t.Skip("there is no body to cut")
				}
				if stage.method == "HEAD" && (action == "404" || action == "403") {
					t.Skip("these say that there is no such tag yet")
				}
				t.Parallel()
				s := newSite(t)
				if stage.name == pullBlob {
					s.forget(t)
				}
				fault, err := parseFault(action)
				if err != nil {
					t.Fatal(err)
				}
				s.Fault(faultOn(stage.method, stage.path, fault))
				code, stdout, stderr := slimctl(t.Context(), s.args(stage.push, stage.name == pushManifest)...)
				if code != want.code || !anyIn(stderr, want.says) {
					t.Errorf("exit code %d, want %d with %q:\n%s", code, want.code, want.says, stderr)
				}
				if bad := badFailure(stdout, stderr); bad != "" {
					t.Error(bad)
				}
				if !strings.Contains(stderr, s.Host) {
					t.Errorf("the error doesn't name the registry:\n%s", stderr)
				}
				s.untouched(t)
			})
		}
	}
}

// args builds one platform or both, to a file or to the registry.
func (s *site) args(push, both bool) []string {
	args := []string{"--cache-dir", filepath.Join(s.dir, "cache"), "build", "--base", s.Host + "/base/aio:1", "--progress", "plain"}
	if !both {
		args = append(args, "--platform", "linux/amd64")
	}
	if push {
		return append(args, "-t", s.Host+"/slim/a:1", "--push")
	}
	return append(args, "--output", "type=oci,dest="+filepath.Join(s.dir, "out", "x"))
}

func anyIn(text, words string) bool {
	for _, w := range strings.Split(words, "|") {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// TestCorruptAnswers: what a registry sends isn't what its digest says, at each stage.
func TestCorruptAnswers(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v2/base/aio/manifests/sha256:", "/v2/base/aio/blobs/"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.forget(t)
			s.Fault(faultOn("GET", path, registry.Fault{Corrupt: true}))
			code, stdout, stderr := slimctl(t.Context(), s.args(false, false)...)
			if code != exitIntegrity || !strings.Contains(stderr, "sha256:") {
				t.Errorf("exit code %d, want %d and a digest:\n%s", code, exitIntegrity, stderr)
			}
			if bad := badFailure(stdout, stderr); bad != "" {
				t.Error(bad)
			}
			s.untouched(t)
		})
	}
}

// TestPassingTrouble: what passes by itself doesn't end a build.
func TestPassingTrouble(t *testing.T) {
	t.Parallel()
	for _, stage := range stages {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if stage.name == pullBlob {
				s.forget(t)
			}
			var once onceFault
			s.Fault(once.play(faultOn(stage.method, stage.path, registry.Fault{Status: http.StatusServiceUnavailable})))
			code, _, stderr := slimctl(t.Context(), s.args(stage.push, stage.name == pushManifest)...)
			if code != exitOK {
				t.Errorf("exit code %d:\n%s", code, stderr)
			}
			if !once.played.Load() {
				t.Error("the registry was never asked")
			}
		})
	}
}

// onceFault plays a fault the first time it is due.
type onceFault struct{ played atomic.Bool }

func (o *onceFault) play(f func(*http.Request) *registry.Fault) func(*http.Request) *registry.Fault {
	return func(r *http.Request) *registry.Fault {
		if fault := f(r); fault != nil && o.played.CompareAndSwap(false, true) {
			return fault
		}
		return nil
	}
}

// TestCertificate: an authority that nobody trusts is told as that, also on localhost, where plain HTTP is tried next.
func TestCertificate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	behind := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.Host}))
	t.Cleanup(behind.Close)
	behind.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(s.dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: behind.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append(s.args(false, false), "--base", strings.TrimPrefix(behind.URL, "https://")+"/base/aio:1")
	code, stdout, stderr := slimctl(t.Context(), args...)
	if code != exitRegistry || !anyIn(stderr, "x509: certificate signed by unknown authority") || !anyIn(stderr, "SSL_CERT_FILE") || anyIn(stderr, "400 Bad Request") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
	if bad := badFailure(stdout, stderr); bad != "" {
		t.Error(bad)
	}
	cmd := exec.CommandContext(t.Context(), "slimctl", args...) // a process reads the variable once
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with SSL_CERT_FILE: %v\n%s", err, out)
	}
}

// TestRegistryWithoutArtifacts: a registry that knows images alone gets the image, and the build says that it has no ledger.
func TestRegistryWithoutArtifacts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	build := []string{"--cache-dir", filepath.Join(s.dir, "cache"), "build", "--profile", "l1", "--base", "standin:B", "--platform", "linux/amd64",
		"-t", s.Host + "/small/a:1", "--push"}
	answer := registry.Fault{Status: http.StatusNotFound, Body: `{"errors":[{"code":"BLOB_UNKNOWN","message":"no blob"}]}`}
	s.Fault(func(r *http.Request) *registry.Fault {
		if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/manifests/sha256:") { // of one platform, the ledger's alone
			return nil
		}
		return &answer
	})
	if code, _, stderr := slimctl(t.Context(), build...); code == exitOK {
		t.Errorf("a registry that lost a blob:\n%s", stderr)
	}
	answer = registry.Fault{Status: http.StatusBadRequest, Body: `{"errors":[{"code":"MANIFEST_INVALID","message":"unknown artifactType"}]}`}
	code, stdout, stderr := slimctl(t.Context(), build...)
	if code != exitOK || !strings.Contains(stderr, "ledger: not pushed") || !strings.Contains(stderr, "unknown artifactType") {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	code, stdout, stderr = slimctl(t.Context(), "verify", "--profile", "l1", "--base", "standin:B", strings.TrimSpace(stdout))
	if code != exitOK || !strings.Contains(stdout, "passed: proven") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}
