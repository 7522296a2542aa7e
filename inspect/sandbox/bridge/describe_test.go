package bridge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
)

// TestDescribeByPolicyFile: clients that read the tools once see those of --policy.
func TestDescribeByPolicyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"commands": ["open", "close"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tool, err := Describe(t.Context(), empty.Image, file, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(tool.Description, "open URL") || strings.Contains(tool.Description, "fill") {
		t.Errorf("got %s", tool.Description)
	}
}
