package main_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// running is `browser-shell serve` of this test binary.
type running struct {
	cmd  *exec.Cmd
	url  string
	on   map[string]string // the addresses of what else it serves
	said said
	out  said // standard output
}

// said is what a process writes.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// serveCommand is a server of the lab's that listens where it likes to.
func (l *lab) serveCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return l.command(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
}

func startServe(t *testing.T, l *lab, args ...string) *running {
	t.Helper()
	return startServeCommand(t, l.serveCommand(t, args...))
}

func startServeCommand(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	h := &running{cmd: cmd, on: map[string]string{}}
	h.cmd.Stderr, h.cmd.Stdout = &h.said, &h.out
	if err := need.Start(t, h.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.cmd.Process.Signal(syscall.SIGTERM)
		_ = h.cmd.Wait()
		if t.Failed() {
			t.Logf("it said: %s", &h.said)
		}
	})
	need.Eventually(t, func() bool {
		_, after, ok := strings.Cut(h.said.String(), "browser-shell: serving ")
		h.url, _, _ = strings.Cut(after, "\n")
		return ok && strings.Contains(after, "\n")
	}, h.said.String)
	for lines := bufio.NewScanner(strings.NewReader(h.said.String())); lines.Scan(); {
		if what, address, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "browser-shell: "), " on "); ok {
			h.on[what] = address
		}
	}
	return h
}

func (h *running) connect(t *testing.T) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: h.url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// stop ends the server as supervisord does.
func (h *running) stop(t *testing.T) {
	t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v and said %s", err, &h.said)
	}
}

// output runs a command that ends by itself and gives all that it writes.
func output(cmd *exec.Cmd) (string, error) {
	cmd.Stderr = nil
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestServe(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := startServe(t, l)
	s := h.connect(t)
	wantOneTool(t, s)
	a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}})
	if err != nil || a.ExitCode != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"eval", "1"}}); err != nil || a.rule() != "command.not-allowed" {
		t.Errorf("%+v %v", a, err)
	}
	s.Close()
	l.wantProcesses(t, 1) // the daemon outlives the HTTP request

	h.stop(t)
	l.wantProcesses(t, 0)
	l.wantClean(t)
	if out, err := exec.Command(binary, "audit", "verify", filepath.Join(l.state, "audit.jsonl")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestServeRequests(t *testing.T) {
	t.Parallel()
	h := startServe(t, newLab(t))
	const (
		list = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
		init = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	)
	for _, tt := range []struct {
		name, method, path, body string
		header                   map[string]string
		host                     string
		status                   int
		want                     string
	}{
		{"older era, first request", "POST", "", init, nil, "", 200, `"protocolVersion":"2025-03-26"`},
		{"older era, no session", "POST", "", list, map[string]string{"Mcp-Protocol-Version": "2025-06-18"}, "", 200, `"browser-shell"`},
		{"a page of another site", "POST", "", list, map[string]string{"Origin": "https://evil.example"}, "", 403, ""},
		{"a page, by fetch metadata", "POST", "", list, map[string]string{"Sec-Fetch-Site": "cross-site"}, "", 403, ""},
		{"a page that opens a stream", "GET", "", "", map[string]string{"Origin": "https://evil.example"}, "", 403, ""},
		{"a rebound name", "POST", "", list, nil, "evil.example", 403, ""},
		{"no stream wanted", "GET", "", "", map[string]string{"Accept": "application/json"}, "", 405, ""},
		{"no stream without a session in the newer era", "GET", "", "", map[string]string{"Mcp-Protocol-Version": "2026-07-28"}, "", 405, ""},
		{"another path", "POST", "/x", list, nil, "", 404, ""},
		{"root", "GET", "/..", "", nil, "", 404, ""},
		{"not JSON", "POST", "", "x", nil, "", 400, ""},
		{"too large", "POST", "", strings.Repeat(" ", 2<<20), nil, "", 413, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, h.url+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
			for k, v := range tt.header {
				req.Header.Set(k, v)
			}
			if tt.host != "" {
				req.Host = tt.host
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != tt.status || !strings.Contains(string(body), tt.want) {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
		})
	}
}

// TestServeStartRefused: what is wrong is told before anything runs, and nothing
// is left that a second attempt would meet.
func TestServeStartRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	gate := l.write(t, "gate.json", gateAnonymous, 0o600)
	open := l.write(t, "open.json", gateAnonymous, 0o600)
	if err := os.Chmod(open, 0o622); err != nil {
		t.Fatal(err)
	}
	other := l.write(t, "other.json", `{"mcpServers":{"x":{"command":"/bin/cat"}}}`, 0o600)
	socket := filepath.Join(l.dir, "mcp.sock")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, "not loopback"},
		{[]string{"--listen", "localhost:0"}, "IP address"},
		{[]string{"--config", other}, "other.json:1:16: unknown key \"x\" in mcpServers; known here: browser_shell"},
		{[]string{"--config", filepath.Join(l.dir, "none.json")}, "none.json"},
		{[]string{"--listen", "unix:mcp.sock"}, "absolute path"},
		{[]string{"--gate", open, "--listen", "unix:" + socket}, "may write"},
		{[]string{"--gate", filepath.Join(l.dir, "none.json")}, "none.json"},
		{[]string{"--gate", gate, "--gate-listen", "0.0.0.0:0"}, "not loopback"},
	} {
		out, err := output(l.serveCommand(t, tt.args...))
		if err == nil || !strings.Contains(out, tt.want) || strings.Contains(out, "serving") {
			t.Errorf("%q: %v, said %s", tt.args, err, out)
		}
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left")
	}
	h := startServe(t, l)
	if out, err := output(l.serveCommand(t)); err == nil || !strings.Contains(out, "audit.jsonl: another process writes it") {
		t.Errorf("a second server: %v, said %s", err, out)
	}
	wantOneTool(t, h.connect(t)) // and the first does not mind
}
