package overlays

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	gobuild "go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/image"
)

// serverPath is the path of our binary in the image.
const serverPath = "/usr/local/bin/browser-shell"

const (
	modulePath    = "github.com/slimctl/slimctl"
	serverPackage = "./cmd/browser-shell"
)

// Server returns the static browser-shell binary for an architecture ("amd64" or "arm64"), at its path in the image. A
// release build (build tag embedserver) has it embedded; any other compiles it from the checkout that slimctl was built
// from. The same source gives the same bytes.
func Server(ctx context.Context, arch string, o Options) ([]image.File, error) {
	return makeServer(ctx, arch, serverPackage, o)
}

func makeServer(ctx context.Context, arch, pkg string, o Options) ([]image.File, error) {
	want, ok := arches[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q: browser-shell exists for amd64 and arm64 only", arch)
	}
	data := embeddedServer(arch)
	if data == nil {
		var err error
		if data, err = compile(ctx, arch, pkg, o); err != nil {
			return nil, err
		}
	}
	if err := checkStatic(data, want.machine); err != nil {
		return nil, fmt.Errorf("browser-shell for %s: %w", arch, err)
	}
	return []image.File{image.Bytes(serverPath, 0o755, data)}, nil
}

// ServerOrigin returns the origin of Server's binary: the build information of the embedded program, or the source
// directory that it is compiled from.
func ServerOrigin() (source string, carried *debug.BuildInfo, err error) {
	if data := embeddedServer(runtime.GOARCH); data != nil {
		carried, err = buildinfo.Read(bytes.NewReader(data))
		return "", carried, err
	}
	source, err = sourceRoot()
	return source, nil, err
}

// checkStatic refuses a program for another machine, and one that needs the base's loader.
func checkStatic(data []byte, want elf.Machine) error {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("it is not a Linux program: %w", err)
	}
	if f.Machine != want {
		return fmt.Errorf("it is an ELF file of %s, not %s", f.Machine, want)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("it is dynamically linked, but the image's loader may be another: build it with CGO_ENABLED=0")
	}
	return nil
}

// compile builds pkg from the source checkout.
func compile(ctx context.Context, arch, pkg string, o Options) ([]byte, error) {
	root, err := sourceRoot()
	if err != nil {
		return nil, err
	}
	if foreign != "" && arch != runtime.GOARCH {
		pkg = foreign
	}
	return compileIn(ctx, root, arch, pkg, o)
}

// foreign is the package to compile for other architectures than this one, set by the linker in scripts/test. Tests
// don't run those programs, and compiling browser-shell again takes a minute.
var foreign string

// checkout is the root of the source, set by the linker in scripts/test, because -trimpath removes it from the binary.
var checkout string

// sourceRoot returns the root of the source that this program was built from. It never takes the working directory,
// which anyone may have written.
func sourceRoot() (string, error) {
	_, caller, _, _ := runtime.Caller(0)
	return moduleRoot(cmp.Or(checkout, filepath.Dir(caller)))
}

// serverFlags are the flags of go build, those of the Makefile too. No version, commit or path is in the binary, so the
// same source gives the same bytes. HTTP/2 is left out because nothing in the image speaks it. Debug information isn't
// linked anyway, and omitting it saves a tenth of the time.
var serverFlags = []string{"-tags", "nethttpomithttp2", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w -buildid="}

// keptServers is the number of compiled binaries per architecture that stay in the cache.
const keptServers = 4

// compileIn builds pkg of the checkout at root, or returns the cached binary of the same source.
func compileIn(ctx context.Context, root, arch, pkg string, o Options) ([]byte, error) {
	room, err := o.makeRoom("server")
	if err != nil {
		return nil, err
	}
	removeStale(room)
	env, homeless := goEnv(os.Environ(), arch, filepath.Dir(room))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	if m := goLine.FindSubmatch(mod); m != nil {
		env = append(env, "GOTOOLCHAIN=go"+string(m[1])) // a newer Go makes other bytes
	}
	key, err := sourceKey(root, arch, pkg)
	if err != nil {
		return nil, compileError(arch, err)
	}
	kept := filepath.Join(room, arch+"-"+key)
	if data, err := os.ReadFile(kept); err == nil {
		return data, nil
	}
	tmp, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	o.log("compiling browser-shell for %s in %s", arch, root)
	if homeless {
		o.log("HOME is not set: Go's own caches are in %s; --cache-dir DIR names a place that stays", filepath.Dir(room))
	}
	out := filepath.Join(tmp, "browser-shell")
	if err := run(ctx, root, env, nil, "go", slices.Concat([]string{"build"}, serverFlags, []string{"-o", out, pkg})...); err != nil {
		return nil, compileError(arch, err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(out, kept); err != nil {
		return nil, err
	}
	removeOldServers(room, arch)
	return data, nil
}

func compileError(arch string, err error) error {
	if errors.Is(err, ErrNoTool) {
		return fmt.Errorf("%w: install Go to compile browser-shell, or use a released slimctl, which carries it", err)
	}
	return fmt.Errorf("browser-shell for %s: %w", arch, err)
}

// sourceKey returns a digest of all inputs of the compilation: this module's files, the versions of the other modules
// and of Go, and the flags. It parses imports itself, because `go list` takes as long as the rest of a small build.
func sourceKey(root, arch, pkg string) (string, error) {
	files, err := sourceFiles(root, arch, pkg)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %q\n", pkg, serverFlags)
	for _, file := range append(files, "go.mod", "go.sum") {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && file == "go.sum") {
			return "", err
		}
		fmt.Fprintf(h, "%s %x\n", filepath.ToSlash(file), sha256.Sum256(data))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sourceFiles returns the files of pkg and of this module's packages that it imports, relative to root and sorted: Go
// files of all platforms, without tests, and files that may be embedded.
func sourceFiles(root, arch, pkg string) ([]string, error) {
	gc := gobuild.Default
	gc.GOOS, gc.GOARCH, gc.CgoEnabled, gc.BuildTags = "linux", arch, false, []string{"nethttpomithttp2"}
	files, seen := []string{}, map[string]bool{}
	var add func(dir string) error
	add = func(dir string) error {
		if seen[dir] {
			return nil
		}
		seen[dir] = true
		p, err := gc.ImportDir(filepath.Join(root, dir), 0)
		if err != nil {
			return err
		}
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles) {
			if !strings.HasSuffix(name, "_test.go") {
				files = append(files, filepath.Join(dir, name))
			}
		}
		for _, pattern := range p.EmbedPatterns {
			found, err := filepath.Glob(filepath.Join(p.Dir, filepath.FromSlash(strings.TrimPrefix(pattern, "all:"))))
			if err != nil {
				return err
			}
			for _, top := range found {
				err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
					if err == nil && d.Type().IsRegular() {
						name, err = filepath.Rel(root, name)
						files = append(files, name)
					}
					return err
				})
				if err != nil {
					return err
				}
			}
		}
		for _, path := range p.Imports {
			if below, ok := strings.CutPrefix(path, modulePath+"/"); ok {
				if err := add(filepath.FromSlash(below)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := add(filepath.Clean(pkg)); err != nil {
		return nil, err
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// removeOldServers removes all but the newest binaries of an architecture. It ignores errors.
func removeOldServers(room, arch string) {
	files, err := filepath.Glob(filepath.Join(room, arch+"-*"))
	if err != nil || len(files) <= keptServers {
		return
	}
	modified := map[string]time.Time{}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			modified[f] = info.ModTime()
		}
	}
	slices.SortFunc(files, func(a, b string) int { return modified[b].Compare(modified[a]) })
	for _, f := range files[keptServers:] {
		_ = os.Remove(f)
	}
}

// goEnv returns env with fixed values for every variable that would change the binary. GOFLAGS is never empty, because
// a value set by `go env -w` replaces an empty one. GOGC saves a quarter of the compiler's time, for more memory. If
// env has no home, Go's caches go to dir, and homeless is true.
func goEnv(env []string, arch, dir string) (out []string, homeless bool) {
	fixed := []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-trimpath", "GOWORK=off",
		"GO111MODULE=on", "GOFIPS140=off", "GOGC=400",
	}
	lacks := func(names ...string) bool {
		return !slices.ContainsFunc(env, func(kv string) bool {
			name, value, _ := strings.Cut(kv, "=")
			return value != "" && slices.Contains(names, name)
		})
	}
	if lacks("HOME", "XDG_CACHE_HOME", "GOCACHE") {
		fixed, homeless = append(fixed, "GOCACHE="+filepath.Join(dir, "go-build")), true
	}
	if lacks("HOME", "GOPATH", "GOMODCACHE") {
		fixed, homeless = append(fixed, "GOPATH="+filepath.Join(dir, "go"), "GOFLAGS=-trimpath -modcacherw"), true // writable, so that they can be removed
	}
	drop := []string{"GOEXPERIMENT", "GODEBUG", "GOCOVERDIR"}
	out = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, name)
	})
	return append(out, fixed...), homeless // the last value of a name wins (os/exec)
}

var (
	moduleLine = regexp.MustCompile(`(?m)^module[ \t]+(\S+)`)
	goLine     = regexp.MustCompile(`(?m)^go[ \t]+(\S+)`)
)

// moduleRoot returns the first directory, from dir upwards, whose go.mod is slimctl's. It fails if dir doesn't exist,
// as with a path from another machine or with -trimpath.
func moduleRoot(dir string) (string, error) {
	for ; filepath.IsAbs(dir); dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if m := moduleLine.FindSubmatch(data); err == nil && m != nil && string(m[1]) == modulePath {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			break
		}
	}
	return "", fmt.Errorf("this slimctl carries no browser-shell binary, and the source of %s that it was built from isn't here: "+
		"use a released slimctl, or `go run ./cmd/slimctl` in a checkout", modulePath)
}
