package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

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
