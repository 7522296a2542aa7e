package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/ocitest"
)

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncBuffer) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return s.b.String()
}

var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)

// startDebianRegistry runs the distribution registry that Debian packages, with the stand-in of line B at base/aio:1.
func startDebianRegistry(t *testing.T) (host string, log *syncBuffer) {
	t.Helper()
	program := need.Program(t, "docker-registry")
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {accesslog: {disabled: false}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: \"127.0.0.1:0\"}\n", filepath.Join(dir, "data"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	log = &syncBuffer{}
	cmd := exec.Command(program, "serve", config)
	cmd.Stdout, cmd.Stderr = log, log
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	var m []string
	need.Eventually(t, func() bool { m = listening.FindStringSubmatch(log.String()); return m != nil },
		func() string { return "docker-registry doesn't listen:\n" + log.take() })
	return m[1], log
}

// TestDebianRegistry pushes to a registry that is not ours and pulls back by tools that are not ours.
func TestDebianRegistry(t *testing.T) {
	t.Parallel()
	host, log := startDebianRegistry(t)
	s := &site{dir: t.TempDir()}
	cache := filepath.Join(s.dir, "cache")
	if err := warmCache(cache); err != nil {
		t.Fatal(err)
	}
	base, err := layout.ImageIndexFromPath(layoutOf(t, "B"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := base.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := base.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	n, err := name.ParseReference(host + "/base/aio:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(n, index); err != nil {
		t.Fatal(err)
	}
	log.take()

	push := func() (digest string, ledger map[string]int64) {
		t.Helper()
		meta := filepath.Join(s.dir, "meta.json")
		code, stdout, stderr := slimctl(t.Context(), "--cache-dir", cache, "build", "--base", host+"/base/aio:1",
			"-t", host+"/slim/a:1", "-t", host+"/slim/a:latest", "-t", host+"/slim/other:1", "--push", "--metadata-file", meta)
		if code != exitOK {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		data, err := os.ReadFile(meta)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Ledger map[string]int64 `json:"slimctl.push"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		_, digest, _ = strings.Cut(strings.TrimSpace(stdout), "@")
		return digest, m.Ledger
	}
	first, ledger := push()
	if ledger["Mounted"] == 0 || ledger["BytesDown"] != 0 {
		t.Errorf("base layers were not mounted: %v", ledger)
	}
	if !strings.Contains(log.take(), `"PUT /v2/slim/a/`) {
		t.Error("the registry's log has no PUT: the test would not see one")
	}
	for _, ref := range []string{"/slim/a:1", "/slim/a:latest", "/slim/other:1"} {
		got, err := crane.Digest(host + ref)
		if err != nil {
			t.Fatal(err)
		}
		if got != first {
			t.Errorf("%s is %s, want %s", ref, got, first)
		}
	}
	// All of it comes back, with every digest as it should be.
	images := imagesOf(t, host+"/slim/other:1", "")
	if len(images) != 2 {
		t.Fatalf("%d platforms", len(images))
	}
	for platform, img := range images {
		if _, ok := ocitest.Tree(t, img)["/usr/local/bin/browser-shell"]; !ok {
			t.Errorf("%s has no browser-shell", platform)
		}
	}

	log.take()
	second, ledger := push()
	if second != first {
		t.Errorf("first %s, then %s", first, second)
	}
	for _, key := range []string{"Mounted", "Uploaded", "BytesUp", "BytesDown"} {
		if v, ok := ledger[key]; v != 0 || !ok {
			t.Errorf("second push: %s is %d (%v)", key, v, ok)
		}
	}
	requests := log.take()
	for _, method := range []string{"PUT", "POST", "PATCH"} {
		if strings.Contains(requests, `"`+method+` /v2/`) {
			t.Errorf("the second push sent a %s:\n%s", method, requests)
		}
	}
}
