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

	versions "golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/version"
)

// serverPath is where our binary lies in the image.
const serverPath = "/usr/local/bin/browser-shell"

const (
	modulePath    = "github.com/slimctl/slimctl"
	serverPackage = "./cmd/browser-shell"
)

// Server gives the browser-shell binary for an architecture ("amd64" or "arm64"), static, as the image's
// /usr/local/bin/browser-shell: the embedded one in a release build (build tag embedserver), else compiled from the
// source checkout that slimctl was built from or is run in. The same source and Go version give the same bytes.
func Server(ctx context.Context, arch string, o Options) ([]image.File, error) {
	return server(ctx, arch, serverPackage, o)
}

func server(ctx context.Context, arch, pkg string, o Options) ([]image.File, error) {
	want, ok := arches[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q: browser-shell comes for amd64 and arm64", arch)
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

// ServerOrigin returns where Server has browser-shell from: the build information of the embedded program, or the
// directory of the source that it is compiled from.
func ServerOrigin() (source string, carried *debug.BuildInfo, err error) {
	if data := embeddedServer(runtime.GOARCH); data != nil {
		carried, err = buildinfo.Read(bytes.NewReader(data))
		return "", carried, err
	}
	source, err = sourceRoot()
	return source, nil, err
}

// checkStatic refuses another machine's program and one that needs a loader of the base.
func checkStatic(data []byte, want elf.Machine) error {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("not a Linux program: %w", err)
	}
	if f.Machine != want {
		return fmt.Errorf("an ELF file of %s, want %s", f.Machine, want)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("dynamically linked")
	}
	return nil
}

// compile builds pkg of the source checkout.
func compile(ctx context.Context, arch, pkg string, o Options) ([]byte, error) {
	root, err := sourceRoot()
	if err != nil {
		return nil, err
	}
	return compileIn(ctx, root, arch, pkg, o)
}

// checkout is the root of the source if the linker was told of it (scripts/test): a program built with -trimpath doesn't know.
var checkout string

// sourceRoot returns the root of the source that this program was built from, and of no other: the working directory may
// be anybody's.
func sourceRoot() (string, error) {
	_, caller, _, _ := runtime.Caller(0)
	return moduleRoot(cmp.Or(checkout, filepath.Dir(caller)))
}

// stampFlag is what the linker is told of the version. A tagged slimctl (go install …@v1.2.3) passes it on. Any other
// stamps nothing, so that the same source gives the same bytes at every commit.
func stampFlag(slimctl string) string {
	if !semver.IsValid(slimctl) || versions.IsPseudoVersion(slimctl) || semver.Build(slimctl) != "" {
		return ""
	}
	return " -X main.stamp=" + slimctl
}

// serverFlags are the flags of go build. Nothing in the image speaks HTTP/2, so nothing of it is in there. Debug information, which
// isn't linked anyway, takes a tenth of the time.
var serverFlags = []string{"-tags", "nethttpomithttp2", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w -buildid=" + stampFlag(version.Read("").Version)}

// keptServers is how many compiled binaries of one architecture stay in the cache.
const keptServers = 4

// compileIn builds pkg of the checkout at root, or returns what an earlier call built of the same source.
func compileIn(ctx context.Context, root, arch, pkg string, o Options) ([]byte, error) {
	room, err := o.room("server")
	if err != nil {
		return nil, err
	}
	sweep(room)
	key, err := sourceKey(ctx, root, arch, pkg)
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
	out := filepath.Join(tmp, "browser-shell")
	if err := run(ctx, root, goEnv(os.Environ(), arch), nil, "go", slices.Concat([]string{"build"}, serverFlags, []string{"-o", out, pkg})...); err != nil {
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

// sourceKey returns a digest of all that pkg is compiled from: the files of this module's packages, the versions of the other
// modules, the flags, and Go itself. It reads the imports itself: `go list` takes as long as the rest of a small build.
func sourceKey(ctx context.Context, root, arch, pkg string) (string, error) {
	var version bytes.Buffer
	if err := run(ctx, root, goEnv(os.Environ(), arch), &version, "go", "env", "GOVERSION"); err != nil {
		return "", err
	}
	files, err := sourceFiles(root, arch, pkg)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q\n", version.Bytes(), pkg, serverFlags)
	for _, file := range append(files, "go.mod", "go.sum") {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && file == "go.sum") {
			return "", err
		}
		fmt.Fprintf(h, "%s %x\n", filepath.ToSlash(file), sha256.Sum256(data))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sourceFiles returns the files of pkg and of all packages of this module that it imports, relative to root and sorted: Go
// files but tests, also those of other platforms, and all that may be embedded.
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

// removeOldServers leaves the newest binaries of an architecture. One that can't be removed stays.
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

// goEnv is env with everything fixed that would change the binary. A value set by `go env -w` counts when the variable
// is empty, so GOFLAGS gets one that changes nothing. With GOGC the compiler takes a quarter less
// time, for more memory.
func goEnv(env []string, arch string) []string {
	fixed := []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-trimpath", "GOWORK=off",
		"GO111MODULE=on", "GOFIPS140=off", "GOGC=400",
	}
	drop := []string{"GOEXPERIMENT", "GODEBUG", "GOCOVERDIR"}
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, name)
	})
	return append(out, fixed...) // the last value of a name wins (os/exec)
}

var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+(\S+)`)

// moduleRoot gives the first directory, going up from dir, whose go.mod is slimctl's. A dir that isn't there (a path from
// another machine or of -trimpath) has none.
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
