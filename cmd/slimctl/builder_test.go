package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/slimctl/slimctl/internal/buildkitd"
)

// TestBuilderGivesTheSameDigest builds with and without a BuildKit daemon, through the command line.
func TestBuilderGivesTheSameDigest(t *testing.T) {
	bin, _ := buildkitd.Ensure(t)
	t.Setenv("PATH", filepath.Dir(bin)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var digests []string
	for i, args := range [][]string{nil, {"--builder", "auto", "--progress", "plain"}} {
		dest := filepath.Join(t.TempDir(), "out")
		var stdout, stderr bytes.Buffer
		args = append([]string{"build", "--base", "standin:A", "--output", "type=oci,dest=" + dest, "--progress", "quiet"}, args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
			t.Fatalf("slimctl %q: exit %d\n%s", args, code, &stderr)
		}
		if i == 1 && !bytes.Contains(stderr.Bytes(), []byte("[linux/arm64] overlay of l0")) {
			t.Errorf("BuildKit's progress isn't shown:\n%s", &stderr)
		}
		if _, err := os.Stat(filepath.Join(dest, "index.json")); err != nil {
			t.Error(err)
		}
		digests = append(digests, stdout.String())
	}
	if digests[0] != digests[1] || digests[0] == "" {
		t.Errorf("the engines print %q and %q", digests[0], digests[1])
	}
}
