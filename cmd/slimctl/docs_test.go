package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/docstest"
	"github.com/slimctl/slimctl/internal/registry"
)

// bootPages are the task pages whose commands run containers; package e2e tests them. cmd/mcp-hub tests hub.md.
var bootPages = []string{"hub.md", "troubleshooting.md", "watch.md"}

// TestDocs runs the commands of the task pages and compares what they print. The pages' registry is a private one with the
// stand-in of line B for the base.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range pages {
		name := filepath.Base(page)
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n```console\n") || slices.Contains(bootPages, name) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg, err := registry.Serve(t.Context(), "", registry.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(reg.Stop)
			if err := reg.LoadLayout("agent-infra/sandbox", "latest", layoutOf(t, "B")); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			env, err := privateEnv(dir)
			if err != nil {
				t.Fatal(err)
			}
			work := filepath.Join(dir, "work")
			if err := os.Mkdir(work, 0o755); err != nil {
				t.Fatal(err)
			}
			page, err := filepath.Abs(page)
			if err != nil {
				t.Fatal(err)
			}
			docstest.Run(t, page, docstest.Options{Dir: work, Env: append(env, "NO_COLOR=1", "COLUMNS=100"), Replace: []string{"ghcr.io", reg.Host}})
		})
	}
	if ran < 3 {
		t.Errorf("%d pages have console blocks that run", ran)
	}
}
