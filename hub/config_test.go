package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/hub/guard"
)

// TestConfigSaysWhere: the place is that of the key or the value that is wrong.
func TestConfigSaysWhere(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "1:1: not JSON: the text ends too early"},
		{"{\n]", "2:1: not JSON"},
		{`{}`, `no server; add "mcpServers"`},
		{`{"mcpServers": {}}`, `no server; add "mcpServers"`},
		{`{"servers": {}}`, `1:2: unknown key "servers" in the file; known here: $schema, mcp, mcpServers, naming`},
		{"{\"mcpServers\": {\n \"a\": {\"command\": \"x\", \"Args\": []}}}", `2:24: unknown key "Args" in server a`},
		{`{"mcpServers": {"a": {"command": "x", "command": "y"}}}`, `1:39: key "command" is given twice`},
		{`{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}`, `1:40: key "a" is given twice`},
		{`{"mcpServers": {"a": {"command": "x", "env": {"A": "1", "A": "2"}}}}`, `1:57: key "A" is given twice`},
		{`{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}`, `1:46: server a.env must be an object of strings, not {"A": 1}`},
		{`{"mcpServers": {"a": {"command": "x", "args": "y"}}}`, `1:47: server a.args must be a list of strings, not "y"`},
		{`{"mcpServers": {"a": {"command": null}}}`, `1:34: null says nothing`},
		{`{"mcpServers": {"a.b": {"command": "x"}}}`, `1:17: a server's name has 1 to 32 of A-Z a-z 0-9 _ -, not "a.b"`},
		{`{"mcpServers": {"a": {}}}`, `1:17: server a: give a command or a url, not both`},
		{`{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}`, `1:17: server a: give a command or a url, not both`},
		{`{"mcpServers": {"a": {"command": "x", "type": "sse"}}}`, `1:39: server a: a command speaks stdio, not "sse"`},
		{`{"mcpServers": {"a": {"url": "http://x", "type": "ws"}}}`, `1:42: server a: a url is of type http, streamable-http or sse, not "ws"`},
		{`{"mcpServers": {"a": {"url": "http://x", "type": "sse", "transport": "http"}}}`, `1:57: server a: type and transport differ`},
		{`{"mcpServers": {"a": {"url": "ftp://x"}}}`, `1:23: server a: url must be http:// or https://`},
		{`{"mcpServers": {"a": {"url": "http://u:p@x"}}}`, `1:23: server a: url must be`},
		{`{"mcpServers": {"a": {"url": "http://x", "args": ["y"]}}}`, `1:42: server a: args is for a command`},
		{`{"mcpServers": {"a": {"url": "http://x", "headers": {"a b": "c"}}}}`, `1:42: server a: "a b" can't be a header`},
		{`{"mcpServers": {"a": {"command": "x", "headers": {"a": "c"}}}}`, `1:39: server a: headers is for a url`},
		{`{"mcpServers": {"a": {"command": "x", "cwd": "y"}}}`, `1:39: server a: cwd must be an absolute path`},
		{`{"mcpServers": {"a": {"command": "x", "timeout": 0}}}`, `1:39: server a: timeout must be 0.001 to 3600 seconds`},
		{`{"mcpServers": {"a": {"command": "x", "args": ["\u0000"]}}}`, `1:39: server a: no program can be given a NUL`},
		{`{"mcpServers": {"a": {"command": "x", "env": {"A=B": ""}}}}`, `1:39: server a: env has "A=B"`},
		{`{"mcpServers": {"a": {"command": "x", "env": {"A": "${HUB_TEST_NONE}"}}}}`, `1:39: server a: the variable HUB_TEST_NONE is not set; export it, or write ${HUB_TEST_NONE:-default}`},
		{`{"naming": "a/b", "mcpServers": {"a": {"command": "x"}}}`, `1:12: naming is "a/b"; use "server.tool", "server__tool" or "flat"`},
		{`{"mcp": {"enabled": 1}}`, `1:21: mcp.enabled must be true or false, not 1`},
		{`{"mcp": {"security": {"allowed_tools": [""]}}}`, `1:40: mcp.security.allowed_tools must be at most 256 patterns`},
		{`{"mcp": {"security": {"max_argument_size_bytes": 1.5}}}`, `1:50: mcp.security.max_argument_size_bytes must be a whole number, not 1.5`},
		{`{"mcp": {"security": {"max_argument_size_bytes": 1}}}`, `1:50: mcp.security.max_argument_size_bytes must be from 64 to 16777216`},
		{`{"mcpServers": {"a": {"command": "x", "security": {"allowed_directories": ["docs"]}}}}`, `1:75: server a.security.allowed_directories must be absolute directories`},
		{`{"mcpServers": {"a": {"command": "x", "security": {"audit_all_calls": false}}}}`, `unknown key "audit_all_calls" in server a.security`},
		{`{"mcpServers": {"a": {"command": "x", "security": {"shell_characters": ""}}}}`, `1:72: server a.security.shell_characters must be ASCII punctuation`},
		{strings.Repeat(`{"mcpServers":`, 10000), "nested more than 8 levels"},
	} {
		path := writeFile(t, tt.text)
		_, err := LoadConfig(path)
		if err == nil || !strings.HasPrefix(err.Error(), path+":") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.100q: %v, want %s", tt.text, err, tt.want)
		}
	}
}

// TestConfigForms: what users have in the files of their clients.
func TestConfigForms(t *testing.T) {
	t.Setenv("HUB_TEST_TOKEN", "s3cret")
	c, err := LoadConfig(writeFile(t, `{"mcpServers": {
		"claude": {"command": "npx", "args": ["-y", "x", "${HUB_TEST_NONE:-/home/user}"], "env": {"TOKEN": "${HUB_TEST_TOKEN}"}},
		"cursor": {"type": "stdio", "command": "uvx", "env": {"TOKEN": "${env:HUB_TEST_TOKEN}"}, "timeout": 60},
		"cline": {"disabled": true, "autoApprove": ["x"], "url": "https://example.com/mcp", "type": "streamableHttp", "headers": {"Authorization": "Bearer ${HUB_TEST_TOKEN}"}},
		"document": {"url": "http://remote-host:8080/sse", "transport": "sse", "restart": false}
	}}`))
	if err != nil {
		t.Fatal(err)
	}
	var got []Server
	for _, s := range c.Servers {
		s.Rules.MaxBytes = 0
		got = append(got, Server{s.Name, s.Transport, s.Command, s.Args, s.Env, s.Cwd, s.URL, s.Headers, s.Timeout, s.NoRestart, s.Disabled, Server{}.Rules})
	}
	want := []Server{
		{Name: "claude", Transport: "stdio", Command: "npx", Args: []string{"-y", "x", "/home/user"}, Env: map[string]string{"TOKEN": "s3cret"}, Timeout: 30 * time.Second},
		{Name: "cursor", Transport: "stdio", Command: "uvx", Env: map[string]string{"TOKEN": "s3cret"}, Timeout: time.Minute},
		{Name: "cline", Transport: "http", URL: "https://example.com/mcp", Headers: map[string]string{"Authorization": "Bearer s3cret"}, Timeout: 30 * time.Second, Disabled: true},
		{Name: "document", Transport: "sse", URL: "http://remote-host:8080/sse", Timeout: 30 * time.Second, NoRestart: true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestConfigLayers: a server's rules are those of mcp.security with the keys of its own entry; blocked_tools only grow.
func TestConfigLayers(t *testing.T) {
	servers := writeFile(t, `{"mcpServers": {"a": {"command": "x", "security": {"blocked_tools": ["b"], "sensitive_paths": [".KEY"], "read_only": true, "whitelist_mode": false}}, "b": {"command": "y"}, "c": {"command": "z", "security": {"sensitive_paths": []}}}}`)
	security := writeFile(t, `{"mcp": {"enabled": false, "security": {"whitelist_mode": true, "allowed_tools": ["a.*"], "blocked_tools": ["c"], "audit_all_calls": false}}}`)
	c, err := LoadConfig(servers, security)
	if err != nil {
		t.Fatal(err)
	}
	a, b := c.Servers[0].Rules, c.Servers[1].Rules
	if d := cmp.Diff([]any{[]string{"c", "b"}, []string{".key"}, true, []string{"a.*"}, false}, []any{a.Blocked, a.Sensitive, a.ReadOnly, a.Allowed, *a.Whitelist}); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]any{[]string{"c"}, ".ssh", false, []string{"a.*"}, true, false, true}, []any{b.Blocked, b.Sensitive[0], b.ReadOnly, b.Allowed, *b.Whitelist, c.AuditAll, c.Disabled}); d != "" {
		t.Error(d)
	}
	if d := c.Servers[2].Rules.CheckText("a password"); d != nil {
		t.Errorf("no sensitive paths: %v", d)
	}
	if _, err := LoadConfig(servers, servers); err == nil || !strings.Contains(err.Error(), ":1:2: mcpServers stands in "+servers+" too") {
		t.Errorf("the same key in two files: %v", err)
	}
}

// TestConfigFile: a file names programs to run, so nobody else may have written it.
func TestConfigFile(t *testing.T) {
	open := writeFile(t, "{}")
	if err := os.Chmod(open, 0o646); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		open: "anyone may write", filepath.Dir(open): "not a regular file", open + ".none": "no such file or directory; name another one with --config",
	} {
		if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	foreign := writeFile(t, "{}")
	if err := os.Chown(foreign, 1234, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig(foreign); err == nil || !strings.Contains(err.Error(), "belongs to user 1234") {
		t.Errorf("another user's file: %v", err)
	}
}

// TestDocsNameAll: docs/hub.md names every key and every rule of a denial.
func TestDocsNameAll(t *testing.T) {
	page, err := os.ReadFile(filepath.FromSlash("../docs/hub.md"))
	if err != nil {
		t.Fatal(err)
	}
	words := []string{guard.RuleBlocked, guard.RuleSize, guard.RuleJSON, guard.RulePath, guard.RuleInjection}
	for _, text := range []string{`{"mcpServers": {"a": {"x": 1}}}`, `{"mcpServers": {"a": {"security": {"x": 1}}}}`, `{"mcp": {"security": {"x": 1}}}`} {
		_, err := LoadConfig(writeFile(t, text))
		_, known, ok := strings.Cut(fmt.Sprint(err), "known here: ")
		if !ok {
			t.Fatal(err)
		}
		words = append(words, strings.Split(known, ", ")...)
	}
	for _, w := range words {
		if !strings.Contains(string(page), "`"+w+"`") {
			t.Errorf("docs/hub.md does not name %s", w)
		}
	}
}
