package overlays

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
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
	data, err := embeddedServer(arch)
	if err == nil && data == nil {
		data, err = compile(ctx, arch, pkg, o)
	}
	if err != nil {
		return nil, err
	}
	if err := checkStatic(data, want.machine); err != nil {
		return nil, fmt.Errorf("browser-shell for %s: %w", arch, err)
	}
	return []image.File{image.Bytes(serverPath, 0o755, data)}, nil
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
	// The source this program was built from, and no other: the working directory may be anybody's.
	_, caller, _, _ := runtime.Caller(0)
	root, err := moduleRoot(filepath.Dir(caller))
	if err != nil {
		return nil, err
	}
	return compileIn(ctx, root, arch, pkg, o)
}

func compileIn(ctx context.Context, root, arch, pkg string, o Options) ([]byte, error) {
	room, err := o.room("server")
	if err != nil {
		return nil, err
	}
	sweep(room)
	tmp, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	o.log("compiling browser-shell for %s in %s", arch, root)
	out := filepath.Join(tmp, "browser-shell")
	// Nothing in the image speaks HTTP/2, so nothing of it is in there.
	err = run(ctx, root, goEnv(os.Environ(), arch), "go",
		"build", "-tags", "nethttpomithttp2", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", out, pkg)
	if errors.Is(err, ErrNoTool) {
		return nil, fmt.Errorf("%w: install Go to compile browser-shell, or use a released slimctl, which carries it", err)
	}
	if err != nil {
		return nil, fmt.Errorf("browser-shell for %s: %w", arch, err)
	}
	return os.ReadFile(out)
}

// goEnv is env with everything fixed that would change the binary. A value set by `go env -w` counts when the variable
// is empty, so GOFLAGS gets one that changes nothing.
func goEnv(env []string, arch string) []string {
	fixed := []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-trimpath", "GOWORK=off",
		"GO111MODULE=on", "GOFIPS140=off",
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
