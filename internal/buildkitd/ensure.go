// Package buildkitd gives tests a real BuildKit: it builds buildkitd and buildctl once, from the Go module proxy, and
// starts private daemons. It is for tests on Linux only; nothing of slimctl's product imports it.
package buildkitd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/slimctl/slimctl/internal/need"
)

// Version is the BuildKit release that tests run: the one in go.mod.
const Version = "v0.33.1"

// buildTimeout is in minutes what a first build needs on two busy cores, three times over.
const buildTimeout = 15 * time.Minute

// The cache directory is read before any test can set HOME or XDG_CACHE_HOME to a directory of its own.
var cacheDir, cacheErr = os.UserCacheDir()

// Ensure gives the paths of buildkitd and buildctl. The first call on a machine builds both (about two minutes) into
// slimctl/tools/buildkit-VERSION of the user's cache directory; a file lock keeps test packages that run at the same
// time from building twice. When they can't be had the test is skipped, or fails when CI is "true".
func Ensure(t testing.TB) (buildkitd, buildctl string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		need.Missing(t, "buildkitd runs on linux, not on %s", runtime.GOOS)
	}
	dir, err := toolsDir()
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		need.Missing(t, "no buildkitd: %v", err)
	}
	return filepath.Join(dir, "buildkitd"), filepath.Join(dir, "buildctl")
}

func toolsDir() (string, error) {
	if cacheErr != nil {
		return "", cacheErr
	}
	dir := filepath.Join(cacheDir, "slimctl", "tools", "buildkit-"+Version)
	return dir, os.MkdirAll(dir, 0o755)
}

// build makes buildctl first and buildkitd last, so that a buildkitd tells that both are there.
func build(dir string) error {
	if present(dir) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	lock := flock.New(filepath.Join(dir, "lock"))
	if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer lock.Unlock()
	if present(dir) {
		return nil
	}
	src := filepath.Join(dir, "src")
	if err := writeModule(ctx, src); err != nil {
		return err
	}
	for _, name := range []string{"buildctl", "buildkitd"} {
		tmp := filepath.Join(dir, name+".tmp")
		if err := run(ctx, src, "go", "build", "-trimpath", "-mod=mod", "-gcflags=all=-dwarf=false",
			"-ldflags", "-s -w -X github.com/moby/buildkit/version.Version="+Version,
			"-o", tmp, "github.com/moby/buildkit/cmd/"+name); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func present(dir string) bool {
	for _, name := range []string{"buildkitd", "buildctl"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// writeModule writes a module that BuildKit is built in. One of its own keeps the daemon's dependencies out of slimctl's, and
// `go install PKG@VERSION` can't build it because BuildKit's go.mod has exclude directives. It begins with slimctl's go.mod:
// what both compile is compiled once, if the versions are the same.
func writeModule(ctx context.Context, dir string) error {
	ours, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	root := filepath.Dir(strings.TrimSpace(string(ours)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS=", "GOARCH=", "GOGC=400", "PWD="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args[:2], " "), err, tail(out, 20))
	}
	return nil
}

// tail gives the last n lines of out.
func tail(out []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
