package buildkitd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Rm compiles a static rm for platform, such as "linux/arm64". It supports only `rm -rf -- PATH...`, the one program
// that a generated Dockerfile runs from the base. Put it at /bin/rm.
func Rm(t testing.TB, platform string) []byte {
	t.Helper()
	_, arch, _ := strings.Cut(platform, "/")
	out := filepath.Join(t.TempDir(), "rm")
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", out,
		"github.com/slimctl/slimctl/internal/buildkitd/testdata/rm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile rm for %s: %v\n%s", platform, err, msg)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
