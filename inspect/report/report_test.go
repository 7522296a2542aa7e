package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/mcp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s is another (run with -update when that is meant):\n%s", name, d)
	}
}

func TestGolden(t *testing.T) {
	surfaces := []*inspect.Surface{sampleSurface("linux/amd64")}
	other := sampleSurface("linux/arm64")
	other.Programs = other.Programs[1:]
	diffs := []*diff.Diff{sampleDiff("linux/amd64")}
	for _, tt := range []struct {
		file  string
		write func(*bytes.Buffer) error
	}{
		{"surface.txt", func(b *bytes.Buffer) error { return Surfaces(b, Text, surfaces, Options{}) }},
		{"surface-all.txt", func(b *bytes.Buffer) error {
			return Surfaces(b, Text, surfaces, Options{All: true, Width: 160, Color: true})
		}},
		{"surfaces.txt", func(b *bytes.Buffer) error { return Surfaces(b, Text, append(surfaces, other), Options{}) }},
		{"surface.json", func(b *bytes.Buffer) error { return Surfaces(b, JSON, surfaces, Options{}) }},
		{"surface.md", func(b *bytes.Buffer) error { return Surfaces(b, Markdown, surfaces, Options{}) }},
		{"diff.md", func(b *bytes.Buffer) error { return Diffs(b, Markdown, diffs, Options{}) }},
		{"diff.txt", func(b *bytes.Buffer) error { return Diffs(b, Text, diffs, Options{}) }},
		{"diff-layers.txt", func(b *bytes.Buffer) error { return Diffs(b, Text, diffs, Options{Layers: true, Depth: 2, Width: 80}) }},
		{"diff-all.txt", func(b *bytes.Buffer) error { return Diffs(b, Text, diffs, Options{All: true, Color: true}) }},
		{"diff.json", func(b *bytes.Buffer) error { return Diffs(b, JSON, diffs, Options{}) }},
	} {
		t.Run(tt.file, func(t *testing.T) {
			var b bytes.Buffer
			if err := tt.write(&b); err != nil {
				t.Fatal(err)
			}
			golden(t, tt.file, b.Bytes())
		})
	}
}

// The template of a file that the image has rendered already is the same servers, not others.
func TestTemplateIsNoSecondServer(t *testing.T) {
	server := mcp.Server{Name: "browser_shell", Type: "stdio", Command: "/usr/local/bin/browser-shell", Args: []string{"mcp"}, Tools: []string{"browser-shell"}}
	other := server
	other.Args = []string{"mcp", "--policy", "/tmp/p"}
	for want, template := range map[string][]mcp.Server{
		"1 tool of 1 MCP server":   {server},
		"2 tools of 2 MCP servers": {other},
	} {
		s := &inspect.Surface{MCP: mcp.Report{Configs: []mcp.Config{
			{Path: "/opt/gem/mcp-hub.json", Servers: []mcp.Server{server}},
			{Path: "/opt/gem/mcp-hub.json.template", Template: true, Servers: template},
		}}}
		s.MCP.Configs[1].Servers[0].Place = at("/opt/gem/mcp-hub.json.template", 3)
		if got := exposes(s); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestDiffLeadsWithWhatAnswers(t *testing.T) {
	got := diffPage(sampleDiff("linux/amd64")).Summary[:2]
	want := []string{
		"Routes that answer from outside: 3 → 2. Tools: 33 → 1. Programs: 6 → 3.",
		"Download: 1.20 MB if you have the base, 3.21 GB if not.",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
