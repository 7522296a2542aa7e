// Package buildkitd provides a real BuildKit for tests on Linux: it builds buildkitd and buildctl once, from the Go
// module proxy, and starts private daemons. slimctl itself doesn't import it.
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

// The cache directory is determined before any test can change HOME or XDG_CACHE_HOME.
var cacheDir, cacheErr = os.UserCacheDir()

// Ensure returns the paths of buildkitd and buildctl. The first call on a machine builds both (about a minute) into
// slimctl/tools/buildkit-VERSION of the user's cache directory; a file lock prevents concurrent builds. If the build
// fails, the test is skipped, or fails in CI.
func Ensure(t testing.TB) (buildkitd, buildctl string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		need.Missing(t, "buildkitd runs on linux, not on %s", runtime.GOOS)
	}
	dir, err := toolsDir()
	if err == nil {
		err = build(t.Context(), dir)
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

// build makes buildctl first and buildkitd last, so that an existing buildkitd means that both exist.
func build(ctx context.Context, dir string) error {
	if present(dir) {
		return nil
	}
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
	overlay, err := writeOverlay(ctx, src)
	if err != nil {
		return err
	}
	for _, name := range []string{"buildctl", "buildkitd"} {
		tmp := filepath.Join(dir, name+".tmp")
		if _, err := output(ctx, src, "go", "build", "-trimpath", "-mod=mod", "-overlay="+overlay,
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

// writeModule writes a module to build BuildKit in. It is separate, so that the daemon's dependencies stay out of
// slimctl's, and needed because `go install PKG@VERSION` refuses BuildKit's exclude directives. It starts from
// slimctl's go.mod, so that packages of the same version are compiled only once. GOFLAGS stays for the same reason.
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

// output runs a program in dir and returns its output without the final line end.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=", "GOARCH=", "GOGC=400", "PWD="+dir)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args[:2], " "), err, tail(stderr.String(), 20))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// tail returns the last n lines of out.
func tail(out string, n int) string {
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
