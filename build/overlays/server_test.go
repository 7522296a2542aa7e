package overlays

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

// module writes a source checkout with one program in ./cmd/browser-shell and gives its root.
func module(t *testing.T, program string) string {
	t.Helper()
	root := t.TempDir()
	put(t, filepath.Join(root, "go.mod"), goMod)
	put(t, filepath.Join(root, "cmd", "browser-shell", "main.go"), program)
	return root
}

var goMod = "module " + modulePath + "\n\ngo " + strings.TrimPrefix(runtime.Version(), "go") + "\n"

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
			t.Setenv("GOTOOLCHAIN", "local")
			cache := t.TempDir()
			second, err := compileIn(context.Background(), module(t, program), arch, serverPackage, Options{CacheDir: cache})
			must(t, err)
			if !bytes.Equal(first, second) {
				t.Error("two builds differ")
			}
			kept, err := filepath.Glob(filepath.Join(cache, "server", arch+"-*"))
			must(t, err)
			if len(kept) != 1 {
				t.Fatalf("kept %v", kept)
			}
			noLeftovers(t, cache, "server", filepath.Base(kept[0]))
		})
	}
}

// TestCompileOnce: the same source is compiled once; a change to any file that goes into the binary is seen.
func TestCompileOnce(t *testing.T) {
	need.Program(t, "go")
	root := module(t, "package main\n\nimport \"github.com/slimctl/slimctl/server\"\n\nfunc main() { println(server.Text) }\n")
	put(t, filepath.Join(root, "server", "server.go"), "package server\n\nimport _ \"embed\"\n\n//go:embed text.txt\nvar Text string\n")
	put(t, filepath.Join(root, "server", "text.txt"), "one")
	put(t, filepath.Join(root, "server", "server_test.go"), "package server\n")
	cache := t.TempDir()
	compiled := 0
	o := Options{CacheDir: cache, Log: func(string, ...any) { compiled++ }}
	compileAs := func(what string, want int) []byte {
		t.Helper()
		data, err := compileIn(t.Context(), root, "amd64", serverPackage, o)
		must(t, err)
		if compiled != want {
			t.Errorf("%s: compiled %d times, want %d", what, compiled, want)
		}
		return data
	}
	first := compileAs("at first", 1)
	if again := compileAs("again", 1); !bytes.Equal(first, again) {
		t.Error("what was kept is another binary")
	}
	put(t, filepath.Join(root, "server", "server_test.go"), "package server // changed\n")
	put(t, filepath.Join(root, "README.md"), "changed\n")
	compileAs("what isn't in it has changed", 1)
	put(t, filepath.Join(root, "server", "text.txt"), "two")
	if changed := compileAs("an embedded file has changed", 2); bytes.Equal(first, changed) {
		t.Error("the change isn't in the binary")
	}
	put(t, filepath.Join(root, "server", "more.go"), "package server\n\nfunc init() { Text += \"more\" }\n")
	compileAs("there is one more file", 3)
	put(t, filepath.Join(root, "go.mod"), goMod+"\n// changed\n")
	compileAs("go.mod has changed", 4)
	for i := range keptServers {
		put(t, filepath.Join(root, "server", "text.txt"), strings.Repeat("x", i+9))
		compileAs("more versions", 5+i)
	}
	if files, err := filepath.Glob(filepath.Join(cache, "server", "*")); err != nil || len(files) != keptServers {
		t.Errorf("kept %v, %v; want %d", files, err, keptServers)
	}
}

// TestCompileWithoutHome: where Go finds no place for its caches, they are in slimctl's, and whoever runs it can remove them.
func TestCompileWithoutHome(t *testing.T) {
	need.Program(t, "go")
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "GOCACHE", "GOPATH", "GOMODCACHE"} {
		t.Setenv(name, "")
	}
	cache := t.TempDir()
	var said []string
	o := Options{CacheDir: cache, Log: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	_, err := compileIn(t.Context(), module(t, "package main\n\nfunc main() {}\n"), "amd64", serverPackage, o)
	must(t, err)
	if _, err := os.Stat(filepath.Join(cache, "go-build")); err != nil || !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "--cache-dir DIR") }) {
		t.Errorf("%v, %q", err, said)
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

// taggedCopy copies browser-shell's source into a repository of its own, whose only commit has a version's tag, as where
// a release is made.
func taggedCopy(t *testing.T) string {
	t.Helper()
	root, err := sourceRoot()
	must(t, err)
	files, err := sourceFiles(root, runtime.GOARCH, serverPackage)
	must(t, err)
	repository := t.TempDir()
	for _, name := range append(files, "go.mod", "go.sum", "Makefile") {
		data, err := os.ReadFile(filepath.Join(root, name))
		must(t, err)
		put(t, filepath.Join(repository, name), string(data))
	}
	who := []string{"-c", "user.name=test", "-c", "user.email=test@example.org"}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, slices.Concat(who, []string{"commit", "-qm", "release"}), {"tag", "v9.9.9"}} {
		output(t, repository, "git", args...)
	}
	return repository
}

// output runs a program in dir and returns what it prints.
func output(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	c := exec.Command(need.Program(t, program), args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// TestServer: a release carries the same browser-shell as `go run` compiles, for both architectures, unless another
// program stands in for that of the foreign one: neither tag nor commit nor directory is in it.
func TestServer(t *testing.T) {
	need.Program(t, "go")
	compiled := []string{"amd64", "arm64"}
	if foreign != "" {
		compiled = []string{runtime.GOARCH}
	}
	bin := t.TempDir()
	output(t, taggedCopy(t), "make", "-s", "embed", "BIN="+bin, "ARCHES="+strings.Join(compiled, " "))
	for _, arch := range compiled {
		files, err := Server(context.Background(), arch, Options{CacheDir: t.TempDir(), Log: t.Logf})
		must(t, err)
		f := files[0]
		if len(files) != 1 || f.Path != "/usr/local/bin/browser-shell" || f.Mode != 0o755 || f.Type != image.TypeFile || f.UID != 0 || !f.ModTime.IsZero() {
			t.Errorf("%s: %+v", arch, f.Entry)
		}
		carried, err := os.ReadFile(filepath.Join(bin, "browser-shell-linux-"+arch))
		must(t, err)
		if !bytes.Equal(carried, read(t, f)) {
			t.Errorf("%s: make embed at a tag and serverFlags compile different programs", arch)
		}
	}
	if _, err := Server(context.Background(), "riscv64", Options{}); err == nil || !strings.Contains(err.Error(), "riscv64") {
		t.Errorf("riscv64: error %v", err)
	}
}
