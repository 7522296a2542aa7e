package hub

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// testHub is a hub that has been started.
type testHub struct {
	*Hub
	audit string // path
	url   string // of /mcp
}

// entry is a server's entry in a configuration.
type fields = map[string]any

// child returns the entry of a child of this test, with more keys.
func childEntry(t testing.TB, kind string, more fields) fields {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e := fields{"command": program, "env": map[string]string{childVar: kind}}
	maps.Copy(e, more)
	return e
}

// start starts a hub with these servers and top-level keys.
func startHub(t testing.TB, servers fields, top fields) *testHub {
	t.Helper()
	root := fields{"mcpServers": servers}
	maps.Copy(root, top)
	text, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(writeFile(t, string(text)))
	if err != nil {
		t.Fatal(err)
	}
	h := &testHub{audit: filepath.Join(privateDir(t), "security_audit.jsonl")}
	if h.Hub, err = New(Options{Config: c, Audit: h.audit, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	srv := httptest.NewServer(h.Handler(""))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections) // first: streams never end by themselves
	h.url = srv.URL + "/mcp"
	return h
}

// one starts a hub with one child, whose tools have its own names.
func one(t testing.TB, kind string, more fields) *testHub {
	t.Helper()
	return startHub(t, fields{kind: childEntry(t, kind, more)}, fields{"naming": "flat"})
}

// privateDir returns a directory that nobody else can write.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(privateDir(t), "mcp_server.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (h *testHub) find(t testing.TB, name string) *server {
	t.Helper()
	i := slices.IndexFunc(h.servers, func(s *server) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no server %s", name)
	}
	return h.servers[i]
}

func (h *testHub) awaitState(t testing.TB, name string, want State) Status {
	t.Helper()
	s := h.find(t, name)
	need.Eventually(t, func() bool { return s.Status().State == want }, func() string { return name + " never gets " + string(want) })
	return s.Status()
}

// lines returns the audit log.
func (h *testHub) lines(t testing.TB) (all []map[string]any) {
	t.Helper()
	f, err := os.Open(h.audit)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var line map[string]any
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	return all
}

// client speaks to a hub in one of the eras.
func client(t testing.TB, url, revision string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "7"}, o).
		Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if got := s.InitializeResult().ProtocolVersion; got != revision {
		t.Fatalf("speaks %s, not %s", got, revision)
	}
	return s
}

// run returns the text of a tool's answer.
func run(t testing.TB, s *mcp.ClientSession, tool string, args any) (string, *mcp.CallToolResult) {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return textOf(res), res
}

func textOf(res *mcp.CallToolResult) string {
	if len(res.Content) == 0 {
		return ""
	}
	if c, ok := res.Content[0].(*mcp.TextContent); ok {
		return c.Text
	}
	return ""
}

func names(t testing.TB, s *mcp.ClientSession) (list []string) {
	t.Helper()
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tool.Name)
	}
	return list
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ask sends a request to the management API and returns the status and the answer.
func (h *testHub) ask(t testing.TB, method, path string, change func(*http.Request)) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, strings.TrimSuffix(h.url, "/mcp")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatalf("%s %s: %d %v", method, path, res.StatusCode, err)
	}
	return res.StatusCode, answer
}

func anyText(v any) string { return fmt.Sprint(v) }
