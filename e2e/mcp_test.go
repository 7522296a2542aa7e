package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/need"
)

// TestMCPOnStdio guards `slimctl mcp` as a client's configuration starts it: two clients side by side have a container each,
// the tool inside answers and refuses, and what stays is whole. By runc and by Docker.
func TestMCPOnStdio(t *testing.T) {
	t.Parallel()
	image := buildL0(t, "standin-live:B")
	bin, err := slimctl()
	if err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{"runc", "docker"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			env := os.Environ()
			if engine == "docker" {
				env = append(env, "DOCKER_HOST="+dockerd.Host(t))
			}
			artifacts := t.TempDir()
			connect := func() (*mcp.ClientSession, *bytes.Buffer) {
				cmd := exec.Command(bin, "mcp", image, "--runtime", engine, "--artifacts", artifacts)
				said := &bytes.Buffer{}
				cmd.Env, cmd.Stderr = env, said
				client := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil)
				s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: need.Patience}, nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				return s, said
			}
			call := func(s *mcp.ClientSession, argv ...string) *mcp.CallToolResult {
				for {
					res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": "e2e", "argv": argv}})
					if err != nil {
						t.Fatalf("%q: %v", argv, err)
					}
					if res.Meta["rule"] != "container.starting" { // Docker unpacks the image first, which takes a busy machine its time
						return res
					}
				}
			}
			one, said := connect()
			two, _ := connect()
			for _, s := range []*mcp.ClientSession{one, two} {
				list, err := s.ListTools(t.Context(), nil)
				if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "browser-shell" {
					t.Fatalf("%+v, %v", list, err)
				}
				if res := call(s, "close"); res.IsError {
					t.Errorf("close: %+v", res)
				}
				res := call(s, "open", "http://127.0.0.1:9222/")
				if !res.IsError || res.Meta["rule"] != "url.loopback" || res.Meta["code"] != -32004.0 {
					t.Errorf("a loopback address: %+v", res)
				}
			}
			runs, _ := filepath.Glob(filepath.Join(artifacts, "*"))
			if len(runs) != 2 {
				t.Fatalf("%d containers left their evidence, want 2: %s", len(runs), said)
			}
			for _, run := range runs { // as soon as the calls are answered
				logs, _ := filepath.Glob(filepath.Join(run, "audit", "*.jsonl"))
				text := ""
				for _, log := range logs {
					lines, err := os.ReadFile(log)
					if err != nil {
						t.Error(err)
					}
					text += string(lines)
				}
				for _, want := range []string{`"close"`, "url.loopback"} {
					if !strings.Contains(text, want) {
						t.Errorf("%s: the call's line is not in the audit log: %s", want, text)
					}
				}
			}
			one.Close()
			two.Close()
			for _, run := range runs {
				for _, want := range []string{"MCP_CONTAINER_SPAWN", "MCP_CONTAINER_EXEC", "MCP_CONTAINER_CLEANUP", `"reason": "stopped"`} {
					var text []byte
					need.Eventually(t, func() bool { // the container's end goes on after the client's
						text, _ = os.ReadFile(filepath.Join(run, "evidence.json"))
						return strings.Contains(string(text), want)
					}, func() string { return want + " is not in " + string(text) })
				}
				if logs, _ := filepath.Glob(filepath.Join(run, "audit", "*.jsonl")); len(logs) == 0 {
					t.Errorf("%s has no audit log", run)
				}
			}
			if strings.Contains(said.String(), "not as its files had them") {
				t.Errorf("the tool that was shown at first is not the image's: %s", said)
			}
		})
	}
}
