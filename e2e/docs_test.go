package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/docstest"
	"github.com/slimctl/slimctl/internal/need"
)

// TestDocs runs the README and the task pages whose commands boot an image, as cmd/slimctl's test of that name does with the others.
func TestDocs(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	bin, err := slimctl()
	if err != nil {
		t.Fatal(err)
	}
	slim := buildL0(t, "standin-live:B")
	for _, name := range []string{"README.md", "docs/troubleshooting.md", "docs/watch.md"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if name != "README.md" { // which builds it
				if err := os.Symlink(slim[len("oci:"):], filepath.Join(dir, "slim")); err != nil {
					t.Fatal(err)
				}
			}
			page, err := filepath.Abs(filepath.Join("..", name))
			if err != nil {
				t.Fatal(err)
			}
			port := strconv.Itoa(need.FreePort(t))
			docstest.Run(t, page, docstest.Options{
				Dir:     dir,
				Env:     append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"), "NO_COLOR=1", "COLUMNS=100"),
				Replace: []string{"go install ./cmd/slimctl", ": installed", "linux/amd64", "linux/" + runtime.GOARCH, "--profile l0 ", "--profile " + profile() + " ", "8080:8080", port + ":8080", "127.0.0.1:8080", "127.0.0.1:" + port},
			})
		})
	}
}

// TestFirstHour does what README and docs say as a new user, with Docker and no other right: scripts/first-hour.
func TestFirstHour(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	for _, name := range []string{"mmdebstrap", "ip", "curl", "python3", "openssl"} {
		need.Program(t, name)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "scripts", "first-hour"))
	cmd.Env = append(os.Environ(), "RUNTIME=docker", "DOCKER_HOST="+dockerd.Host(t))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it removes what it made
	cmd.WaitDelay = need.Patience
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
