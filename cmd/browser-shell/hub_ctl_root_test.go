//go:build linux

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// TestHubCtlAsRoot: `docker exec CONTAINER browser-shell hub ctl` is root with the four capabilities of the container, and
// the hub's directory belongs to the service account.
func TestHubCtlAsRoot(t *testing.T) {
	if os.Getuid() != 0 {
		need.Missing(t, "needs root, because it gives a directory to another account")
	}
	setpriv := need.Program(t, "setpriv")
	l := newLab(t)
	l.hubConfig(t, "browser_shell")
	dir, err := os.MkdirTemp("/tmp", "slimctl-hub-") // the other account reaches no directory of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "hub.sock")
	startHubCommand(t, l.hubCommand(t, "--socket", socket), socket).server(t, "browser_shell")
	for _, path := range []string{socket, dir} {
		if err := os.Chown(path, 1001, 1001); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctl := exec.Command(setpriv, "--inh-caps=-all", "--bounding-set=-all,+chown,+setuid,+setgid,+kill", self, "hub", "ctl", "servers", "--socket", socket)
	ctl.Env = append(os.Environ(), siteVariable+"="+l.site)
	if out, err := ctl.CombinedOutput(); err != nil || !strings.Contains(string(out), "browser_shell") {
		t.Errorf("%v: %s", err, out)
	}
}
