package buildkitd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// less maps packages of the daemon that no test uses, and files of its main package, to replacements. With their
// dependencies (cloud clients, signature checks) they take half of the time to compile buildkitd.
var less = map[string]string{
	"github.com/moby/buildkit/cache/remotecache/azblob": "package azblob\n" + noCache,
	"github.com/moby/buildkit/cache/remotecache/gha":    "package gha\n" + noCache,
	"github.com/moby/buildkit/cache/remotecache/s3":     "package s3\n" + noCache,
	"github.com/moby/buildkit/util/gitutil/gitsign": `package gitsign
func VerifySignature(...any) error { panic("left out") }
`,
	"github.com/moby/buildkit/util/pgpsign": `package pgpsign
type VerifyPolicy struct { RejectExpiredKeys bool }
func VerifyArmoredDetachedSignature(...any) error { panic("left out") }
`,
	"github.com/moby/buildkit/util/profiler": `package profiler
func Attach(any) {}
`,
	"github.com/moby/buildkit/util/tracing/detect/jaeger":  "package jaeger\n",
	"github.com/moby/buildkit/util/tracing/detect/otlp.go": "package detect\n",
	"github.com/moby/policy-helpers": `package verifier
type (
	Verifier struct{}
	Config struct { StateDir string; RequireOnline bool }
)
func NewVerifier(Config) (*Verifier, error) { panic("left out") }
`,
	"github.com/containerd/stargz-snapshotter/fs": `package fs
import "github.com/containerd/stargz-snapshotter/snapshot"
func NewFilesystem(...any) (snapshot.FileSystem, error) { panic("left out") }
func WithGetSources(any) any { return nil }
func WithMetricsLogLevel(any) any { return nil }
func WithOverlayOpaqueType(any) any { return nil }
`,
	"github.com/containerd/stargz-snapshotter/fs/layer": `package layer
const OverlayOpaqueTrusted, OverlayOpaqueUser = 0, 1
`,
	"github.com/moby/buildkit/cmd/buildkitd/main_containerd_worker_unix.go": "package main\n",
	"github.com/moby/buildkit/cmd/buildkitd/main_containerd_worker.go": `package main
import (
	"github.com/moby/buildkit/worker"
	"github.com/urfave/cli/v3"
)
func init() {
	registerWorkerInitializer(workerInitializer{
		fn: func(*cli.Command, workerInitializerOpt) ([]worker.Worker, error) { return nil, nil },
	}, &cli.BoolFlag{Name: "containerd-worker"})
}
`,
}

const noCache = `import "github.com/moby/buildkit/cache/remotecache"
func ResolveCacheExporterFunc(...any) remotecache.ResolveCacheExporterFunc { return nil }
func ResolveCacheImporterFunc(...any) remotecache.ResolveCacheImporterFunc { return nil }
`

// lessModules are the modules of the replaced packages. A build overlay can't replace files in the module cache, but it
// can in a link to a directory there.
var lessModules = []string{"github.com/moby/buildkit", "github.com/moby/policy-helpers", "github.com/containerd/stargz-snapshotter"}

// writeOverlay writes overlay.json for `go build -overlay` to the module's directory dir, and returns its path.
func writeOverlay(ctx context.Context, dir string) (string, error) {
	replace := map[string]string{}
	for i, module := range lessModules {
		if _, err := output(ctx, dir, "go", "mod", "download", module); err != nil { // go list knows only downloaded modules
			return "", err
		}
		cached, err := output(ctx, dir, "go", "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module)
		if err != nil {
			return "", err
		}
		link := filepath.Join(dir, fmt.Sprintf("module%d", i))
		if err := os.Symlink(cached, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if _, err := output(ctx, dir, "go", "mod", "edit", "-replace", module+"="+link); err != nil {
			return "", err
		}
		for path, source := range less {
			below, ok := strings.CutPrefix(path, module)
			if !ok {
				continue
			}
			file := link + below
			if filepath.Ext(file) != ".go" { // one file replaces the whole package
				names, err := filepath.Glob(filepath.Join(file, "*.go"))
				if err != nil || len(names) == 0 {
					return "", fmt.Errorf("BuildKit's daemon has no package %s any more: %w", path, err)
				}
				for _, name := range names {
					replace[name] = ""
				}
				file = names[0]
			}
			stub := filepath.Join(dir, strings.ReplaceAll(path, "/", "_")+".txt")
			if err := os.WriteFile(stub, []byte(source), 0o644); err != nil {
				return "", err
			}
			replace[file] = stub
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, data, 0o644)
}
