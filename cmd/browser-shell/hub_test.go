package main_test

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// startHub gives the endpoint of a running hub.
func startHub(t *testing.T, l *lab) (string, *exec.Cmd) {
	t.Helper()
	cmd := l.command(t, "hub", "--listen", "127.0.0.1:0")
	cmd.Stderr = nil
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(pipe)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, lines)
	_, url, ok := strings.Cut(strings.TrimSpace(line), "serving ")
	if !ok {
		t.Fatalf("stderr: %s", line)
	}
	return url, cmd
}

func TestHub(t *testing.T) {
	l := newLab(t)
	url, cmd := startHub(t, l)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
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

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	l.wantProcesses(t, 0)
	l.wantClean(t)
}

func TestHubRequests(t *testing.T) {
	url, _ := startHub(t, newLab(t))
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
		{"a rebound name", "POST", "", list, nil, "evil.example", 403, ""},
		{"no stream", "GET", "", "", map[string]string{"Accept": "text/event-stream"}, "", 405, ""},
		{"another path", "POST", "/x", list, nil, "", 404, ""},
		{"root", "GET", "/..", "", nil, "", 404, ""},
		{"not JSON", "POST", "", "x", nil, "", 400, ""},
		{"too large", "POST", "", strings.Repeat(" ", 2<<20), nil, "", 413, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, url+tt.path, strings.NewReader(tt.body))
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
