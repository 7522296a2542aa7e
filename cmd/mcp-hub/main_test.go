package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/docstest"
	"github.com/slimctl/slimctl/internal/need"
)

// roleVar makes the test binary another program.
const roleVar = "MCP_HUB_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVar); role {
	case "":
		os.Exit(m.Run())
	case "mcp-hub":
		main()
	default:
		if err := newServer(role).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			os.Exit(1)
		}
	}
}

type file struct {
	Path string `json:"path"`
}

type words struct {
	Text string `json:"text"`
}

type command struct {
	SessionID string   `json:"session_id"`
	Argv      []string `json:"argv"`
}

type move struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// newServer returns a stand-in of a server of docs/hub.md.
func newServer(name string) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, nil)
	text := func(format string, args ...any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
	}
	switch name {
	case "npx":
		mcp.AddTool(s, &mcp.Tool{Name: "read_file", Description: "Stand-in"}, func(_ context.Context, _ *mcp.CallToolRequest, in file) (*mcp.CallToolResult, any, error) {
			b, err := os.ReadFile(in.Path)
			return text("%s", b), nil, err
		})
		mcp.AddTool(s, &mcp.Tool{Name: "move_file", Description: "Stand-in"}, func(_ context.Context, _ *mcp.CallToolRequest, in move) (*mcp.CallToolResult, any, error) {
			return text("moved"), nil, os.Rename(in.Source, in.Destination)
		})
	case "slimctl":
		mcp.AddTool(s, &mcp.Tool{Name: "browser-shell", Description: "Stand-in"}, func(_ context.Context, _ *mcp.CallToolRequest, in command) (*mcp.CallToolResult, any, error) {
			return text("opened %s", in.Argv[1]), nil, nil
		})
	case "search":
		mcp.AddTool(s, &mcp.Tool{Name: "find", Description: "Stand-in"}, func(_ context.Context, _ *mcp.CallToolRequest, in words) (*mcp.CallToolResult, any, error) {
			return text("found %s", in.Text), nil, nil
		})
	}
	return s
}

// environment returns one in which these programs are this test.
func environment(t *testing.T, programs ...string) (home string, env []string) {
	t.Helper()
	home, self := t.TempDir(), ""
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		script := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s \"$@\"\n", roleVar, name, self)
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return home, []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH")}
}

// TestDocs is the walk of docs/hub.md: two servers on stdio and one over SSE; stop, start, kill, a blocked tool, a
// sensitive path, and the audit line of each.
func TestDocs(t *testing.T) {
	need.Program(t, "curl")
	home, env := environment(t, "mcp-hub", "npx", "slimctl")
	docs := filepath.Join(home, "docs")
	if err := os.Mkdir(docs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(docs, "readme.md"), []byte("# README\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	far := httptest.NewServer(mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return newServer("search") }, nil))
	t.Cleanup(far.Close)
	t.Cleanup(far.CloseClientConnections)
	page, err := filepath.Abs("../../docs/hub.md")
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(home, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	docstest.Run(t, page, docstest.Options{Dir: work, Env: env, Replace: []string{
		"/home/you/docs", docs, "127.0.0.1:9000", far.Listener.Addr().String(), "127.0.0.1:8787", fmt.Sprintf("127.0.0.1:%d", need.FreePort(t)),
	}})
}

// program is a running mcp-hub.
type program struct {
	*exec.Cmd
	words *bytes.Buffer
}

func start(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{exec.Command(self, args...), &bytes.Buffer{}}
	p.Env, p.Stderr = append(env, roleVar+"=mcp-hub"), p.words
	return p
}

// TestStdio: one client on stdin and stdout; the end of input ends the hub and its servers.
func TestStdio(t *testing.T) {
	home, env := environment(t, "npx")
	config := filepath.Join(home, "mcp_server.json")
	if err := os.WriteFile(config, []byte(`{"mcpServers": {"fs": {"command": "npx"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, env, "stdio", "--config", config)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: p.Cmd}, nil)
	if err != nil {
		t.Fatal(err, p.words)
	}
	need.Eventually(t, func() bool {
		list, err := s.ListTools(t.Context(), nil)
		return err == nil && len(list.Tools) == 2
	}, func() string { return "the tools are never listed" })
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "fs.read_file", Arguments: map[string]any{"path": config}})
	if err != nil || res.IsError {
		t.Errorf("%+v %v", res, err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("%v\n%s", err, p.words)
	}
	f, err := os.Open(filepath.Join(home, ".local/state/mcp-hub/security_audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var events []string
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var line struct{ Event string }
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		events = append(events, line.Event)
	}
	if got := strings.Join(events, " "); got != "START SERVER_RUNNING TOOL_FINISHED SERVER_STOPPED STOP" {
		t.Errorf("events %s", got)
	}
}

// TestServe: SIGTERM ends the hub and its servers with status 0.
func TestServe(t *testing.T) {
	home, env := environment(t, "npx")
	config := filepath.Join(home, "mcp_server.json")
	if err := os.WriteFile(config, []byte(`{"mcpServers": {"fs": {"command": "npx"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))
	p := start(t, env, "serve", "--config", config, "--listen", address)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var status struct{ PID int }
	need.Eventually(t, func() bool {
		res, err := http.Get("http://" + address + "/v1/mcp/servers/fs")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(&status) == nil && status.PID != 0
	}, func() string { return "the server never runs" })
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.words)
	}
	if err := syscall.Kill(status.PID, 0); err == nil {
		t.Errorf("process %d runs on", status.PID)
	}
}

// TestUsage: what is wrong with a command line, and what to type.
func TestUsage(t *testing.T) {
	home, env := environment(t)
	short := filepath.Join(home, "short")
	if err := os.WriteFile(short, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "--config", "none.json"}, "error: configuration: stat none.json: no such file or directory; name another one with --config\n"},
		{[]string{"serve", "--listen", "0.0.0.0:8787"}, "error: --listen 0.0.0.0:8787: want a loopback address and a port, for instance 127.0.0.1:8787\n"},
		{[]string{"serve", "--token-file", short}, "fewer than 16 characters; make one with `openssl rand -hex 32`\n"},
		{[]string{"serve", "more"}, `error: unknown command "more" for "mcp-hub serve"` + "\n"},
		{[]string{"verify", short}, "error: "},
	} {
		p := start(t, env, tt.args...)
		p.Dir = home
		if err := p.Run(); err == nil || p.ProcessState.ExitCode() != 1 || !strings.Contains(p.words.String(), tt.want) {
			t.Errorf("%v: %v, %s, want %s", tt.args, err, p.words, tt.want)
		}
	}
}
