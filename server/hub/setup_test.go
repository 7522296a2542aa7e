package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/hub/guard"
)

// fakePolicy denies and hides by name.
type fakePolicy struct {
	deny, hide map[string]bool // by the server's name of the tool
}

func (p fakePolicy) Check(c guard.Call) *guard.Denial {
	if p.deny[c.Tool] || p.hide[c.Tool] {
		return &guard.Denial{Rule: "tool.blocked", Message: "the tool is blocked"}
	}
	return nil
}

func (p fakePolicy) Visible(_, tool, _ string, _ bool) bool { return !p.hide[tool] }

func (p fakePolicy) CheckText(_ string, _ bool, texts ...string) *guard.Denial {
	for _, text := range texts {
		if p.deny[text] {
			return &guard.Denial{Rule: "arguments.path", Message: "the text is denied"}
		}
	}
	return nil
}

func (p fakePolicy) ChecksArguments(string) bool { return true }

func (p fakePolicy) Servers() []string { return nil }

func (p fakePolicy) Timeout(_ string, configured time.Duration) time.Duration {
	return cmp.Or(configured, 30*time.Second)
}

// fakeMeter keeps what it is told.
type fakeMeter struct {
	mu     sync.Mutex
	ops    []string
	denied []string
}

func (m *fakeMeter) Operation(client bool, method, tool, errorType string, _ time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	side := "server"
	if client {
		side = "client"
	}
	m.ops = append(m.ops, side+" "+method+" "+tool+" "+errorType)
}

func (m *fakeMeter) Denied(server, tool, rule string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denied = append(m.denied, server+" "+tool+" "+rule)
}

// testHub is a hub that has been started.
type testHub struct {
	*Hub
	dir   string
	meter *fakeMeter
}

func newTestHub(t testing.TB, config string, change ...func(*Options)) *testHub {
	t.Helper()
	dir := t.TempDir()
	h := &testHub{dir: dir, meter: &fakeMeter{}}
	h.write(t, config)
	o := Options{
		Config: h.config(), Audit: filepath.Join(dir, "audit.jsonl"), Lock: filepath.Join(dir, "hub.lock"), Version: "test",
		policy:  func() (checker, error) { return fakePolicy{}, nil },
		metrics: h.meter,
	}
	for _, f := range change {
		f(&o)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.Hub, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.StartAll(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *testHub) config() string { return filepath.Join(h.dir, "mcp-hub.json") }

func (h *testHub) write(t testing.TB, config string) {
	t.Helper()
	if err := os.WriteFile(h.config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serve returns the endpoint.
func (h *testHub) serve(t testing.TB) string {
	t.Helper()
	l, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-done // slow clients are cut off
	})
	return "http://" + l.Addr().String() + Path
}

// servers is a configuration of children by name, with more keys of an entry.
func servers(t testing.TB, kinds ...string) string {
	t.Helper()
	all := map[string]any{}
	for _, kind := range kinds {
		all[kind] = entryOf(t, kind)
	}
	text, err := json.Marshal(map[string]any{"mcpServers": all})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func entryOf(t testing.TB, kind string) map[string]any {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{"command": program, "env": map[string]string{childVar: kind}}
}

// with returns a configuration of one child with more keys.
func with(t testing.TB, kind string, more map[string]any) string {
	t.Helper()
	e := entryOf(t, kind)
	maps.Copy(e, more)
	text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{kind: e}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
	c, _ := res.Content[0].(*mcp.TextContent)
	if c == nil {
		return ""
	}
	return c.Text
}

func names(t testing.TB, s *mcp.ClientSession) []string {
	t.Helper()
	var list []string
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tool.Name)
	}
	return list
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	need.Eventually(t, ok, func() string { return "waited in vain: " + what })
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
