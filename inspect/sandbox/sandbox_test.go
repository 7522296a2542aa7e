//go:build linux

package sandbox

import (
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/need"
)

// build makes an image of layers.
func build(t testing.TB, config v1.Config, layers ...[]byte) Image {
	t.Helper()
	return Image{Reference: "test:" + t.Name(), Image: sandboxtest.Image(t, config, layers...)}
}

// guestImage is an image whose entrypoint is the guest.
func guestImage(t testing.TB, more ...[]byte) Image {
	t.Helper()
	return build(t, sandboxtest.Guest, append([][]byte{sandboxtest.GuestLayer(t)}, more...)...)
}

// needRunc ends a test that can't run containers here.
func needRunc(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "runc needs root")
	}
	need.Program(t, "runc")
}
