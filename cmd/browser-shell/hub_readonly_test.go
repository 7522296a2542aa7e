package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// TestHubReadOnly: of a server that others made, with read_only in hub.policy.json, the reading tools are listed and work.
// Those that write are not listed, and a call of one that the client knows by heart writes nothing.
func TestHubReadOnly(t *testing.T) {
	t.Parallel()
	script := need.FilesystemServer(t)
	l := newLab(t)
	dir := filepath.Join(l.dir, "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l.write(t, "files/a.txt", "what is in it", 0o600)
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
		"files": map[string]any{"command": need.Program(t, "node"), "args": []string{script, dir}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, "mcp-hub.json", string(config), 0o600)
	policy := l.write(t, "hub.policy.json", `{"version":1}`, 0o600)
	h := startHub(t, l, "--hub-policy", policy)
	h.server(t, "files")

	tools := func() (names []string) {
		list, err := h.connect(t).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	call := func(tool string, arguments map[string]any) *mcp.CallToolResult {
		res, err := h.connect(t).CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		return res
	}
	file := func(name string) map[string]any {
		return map[string]any{"path": filepath.Join(dir, name), "content": "written"}
	}
	all := tools()
	write := all[slices.IndexFunc(all, func(s string) bool { return strings.HasSuffix(s, "write_file") })]
	read := all[slices.IndexFunc(all, func(s string) bool { return strings.HasSuffix(s, "read_text_file") })]
	if res := call(write, file("before.txt")); res.IsError {
		t.Fatalf("without read_only: %+v", res)
	}

	l.write(t, "hub.policy.json", `{"version":1,"servers":{"files":{"read_only":true}}}`, 0o600)
	h.reload(t)
	left := tools()
	for _, verb := range []string{"write_", "edit_", "create_", "move_"} {
		if slices.ContainsFunc(left, func(s string) bool { return strings.Contains(s, verb) }) {
			t.Errorf("listed with read_only: %v", left)
		}
	}
	if res := call(read, file("a.txt")); res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "what is in it") {
		t.Errorf("%s: %+v", read, res)
	}
	if res := call(write, file("after.txt")); !res.IsError {
		t.Errorf("%s: %+v", write, res)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 2 {
		t.Errorf("%v in the directory, want a.txt and before.txt: %v", names, err)
	}
}
