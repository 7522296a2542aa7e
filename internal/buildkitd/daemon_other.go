//go:build !linux

package buildkitd

import (
	"runtime"
	"testing"

	"github.com/moby/buildkit/client"

	"github.com/slimctl/slimctl/internal/need"
)

// Daemon is a private buildkitd for one test.
type Daemon struct {
	Addr, Root string
	CanRun     bool
}

// Start ends the test, because buildkitd runs on Linux only.
func Start(t testing.TB, _ ...string) *Daemon {
	t.Helper()
	Ensure(t)
	return nil
}

// RequireRun ends the test.
func (d *Daemon) RequireRun(t testing.TB) {
	t.Helper()
	need.Missing(t, "no RUN on %s", runtime.GOOS)
}

// Client ends the test.
func (d *Daemon) Client(t testing.TB) *client.Client {
	t.Helper()
	need.Missing(t, "no buildkitd on %s", runtime.GOOS)
	return nil
}

// RegisterArm64 ends the test.
func RegisterArm64(t testing.TB) {
	t.Helper()
	need.Missing(t, "no binfmt_misc on %s", runtime.GOOS)
}
