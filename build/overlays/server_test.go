package overlays

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

// module writes a source checkout with one program in ./cmd/browser-shell and gives its root.
func module(t *testing.T, program string) string {
	t.Helper()
	root := t.TempDir()
	put(t, filepath.Join(root, "go.mod"), "module "+modulePath+"\n\ngo 1.26\n")
	put(t, filepath.Join(root, "cmd", "browser-shell", "main.go"), program)
	return root
}

const program = "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n"

// TestCompileReproducible: other directories, other times, another user's settings: the same bytes.
func TestCompileReproducible(t *testing.T) {
	need.Program(t, "go")
	for arch, want := range arches {
		t.Run(arch, func(t *testing.T) {
			first, err := compileIn(context.Background(), module(t, program), arch, serverPackage, Options{CacheDir: t.TempDir()})
			must(t, err)
			must(t, checkStatic(first, want.machine))
			t.Setenv("GOFLAGS", "-tags=other")
			t.Setenv("CGO_ENABLED", "1")
			t.Setenv("GOAMD64", "v3")
			if arch == "amd64" { // once is enough: a cold cache compiles the standard library
				t.Setenv("GOCACHE", t.TempDir()+"/go")
			}
			cache := t.TempDir()
			second, err := compileIn(context.Background(), module(t, program), arch, serverPackage, Options{CacheDir: cache})
			must(t, err)
			if !bytes.Equal(first, second) {
				t.Error("two builds differ")
			}
			noLeftovers(t, cache, "server")
		})
	}
}

func TestCompileErrors(t *testing.T) {
	need.Program(t, "go")
	cache := t.TempDir()
	_, err := compileIn(context.Background(), module(t, "package main\nfunc main() { wrong }\n"), "amd64", serverPackage, Options{CacheDir: cache})
	if err == nil || !strings.Contains(err.Error(), "main.go:2") {
		t.Errorf("error %v, want the compiler's words", err)
	}
	noLeftovers(t, cache, "server")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err = compileIn(ctx, module(t, program), "amd64", serverPackage, Options{CacheDir: cache}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v", err)
	}
	t.Setenv("PATH", "")
	if _, err = compileIn(context.Background(), module(t, program), "amd64", serverPackage, Options{CacheDir: cache}); !errors.Is(err, ErrNoTool) {
		t.Errorf("without go: error %v", err)
	}
	noLeftovers(t, cache, "server")
}

func TestCheckStatic(t *testing.T) {
	p := fetched(t, nodeVersion, nodeSum)
	dynamic, err := os.ReadFile(filepath.Join(p.dir, arches["amd64"].binary))
	must(t, err)
	for name, c := range map[string]struct {
		data []byte
		arch string
		says string
	}{
		"dynamic":         {dynamic, "amd64", "dynamically linked"},
		"another machine": {dynamic, "arm64", "EM_X86_64"},
		"a script":        {[]byte("#!/bin/sh\n"), "amd64", "not a Linux program"},
	} {
		if err := checkStatic(c.data, arches[c.arch].machine); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		}
	}
}

func TestModuleRoot(t *testing.T) {
	root := module(t, program)
	deep := filepath.Join(root, "a", "b")
	must(t, os.MkdirAll(deep, 0o755))
	foreign := t.TempDir()
	put(t, filepath.Join(foreign, "go.mod"), "module example.test/github.com/slimctl/slimctl\n")
	for name, c := range map[string]struct {
		start, want string
	}{
		"here":             {root, root},
		"above":            {deep, root},
		"gone":             {filepath.Join(foreign, "gone"), ""},
		"a trimmed caller": {modulePath + "/build/overlays", ""},
		"another module":   {foreign, ""},
	} {
		got, err := moduleRoot(c.start)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestServer: the real browser-shell, for both architectures.
func TestServer(t *testing.T) {
	need.Program(t, "go")
	for _, arch := range []string{"amd64", "arm64"} {
		files, err := Server(context.Background(), arch, Options{CacheDir: t.TempDir(), Log: t.Logf})
		must(t, err)
		f := files[0]
		if len(files) != 1 || f.Path != "/usr/local/bin/browser-shell" || f.Mode != 0o755 || f.Type != image.TypeFile || f.UID != 0 || !f.ModTime.IsZero() {
			t.Errorf("%s: %+v", arch, f.Entry)
		}
		read(t, f)
	}
	if _, err := Server(context.Background(), "riscv64", Options{}); err == nil || !strings.Contains(err.Error(), "riscv64") {
		t.Errorf("riscv64: error %v", err)
	}
}
