package hub

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

func TestParseConfig(t *testing.T) {
	got, err := ParseConfig([]byte(`{
	"$schema": "x",
	"mcpServers": {
		"b": {"command": "/bin/b", "args": ["-x"], "env": {"K": "v"}, "cwd": "/tmp", "type": "stdio", "timeout": 1.5, "shell": true, "perSession": true},
		"a": {"url": "https://h/mcp", "type": "http"},
		"c": {"url": "http://127.0.0.1:1/sse", "transport": "sse", "type": "sse"}
	}}`))
	want := &Config{Naming: Prefixed, Servers: []Server{
		{PerSession: new(true), Config: upstream.Config{Name: "b", Command: "/bin/b", Args: []string{"-x"}, Env: map[string]string{"K": "v"}, Cwd: "/tmp", CallTimeout: 1500 * time.Millisecond, Shell: true}},
		{Config: upstream.Config{Name: "a", URL: "https://h/mcp", Transport: "streamable-http"}},
		{Config: upstream.Config{Name: "c", URL: "http://127.0.0.1:1/sse", Transport: "sse"}},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v %v", got, err)
	}
	for text, naming := range map[string]Naming{
		`{"mcpServers": {"a": {"command": "/a"}}}`:                                                       Flat,
		`{"naming": "server__tool", "mcpServers": {"a": {"command": "/a"}}}`:                             Prefixed,
		`{"mcpServers": {"a": {"command": "/a"}, "b": {"command": "/b"}}}`:                               Prefixed,
		`{"mcpServers": {"a": {"command": "/a"}, "b": {"command": "/b"}}, "naming": "flat"}` + "\n\t \n": Flat,
	} {
		if c, err := ParseConfig([]byte(text)); err != nil || c.Naming != naming {
			t.Errorf("%s: %+v %v", text, c, err)
		}
	}
}

// TestDocsConfig: the configurations that docs/hub.md shows are ones.
func TestDocsConfig(t *testing.T) {
	doc, err := os.ReadFile(filepath.FromSlash("hub.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i, part := range strings.Split(string(doc), "```json\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		if !strings.Contains(text, "mcpServers") {
			continue
		}
		seen++
		if c, err := ParseConfig([]byte(text)); err != nil {
			t.Errorf("example %d: %v", i+1, err)
		} else if i == 1 && len(c.Servers) != 2 { // one of three is not enabled
			t.Errorf("example %d: %+v", i+1, c.Servers)
		}
	}
	if seen != 2 {
		t.Errorf("%d examples", seen)
	}
}

func TestBadConfig(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{``, "1:1: not JSON: the text ends too early"},
		{`[]`, "1:1: the file must be an object"},
		{`{`, "1:2: not JSON: the text ends too early"},
		{`{"mcpServers": {"a": {"command": "/a", "enabled": false}}}`, "no server"},
		{`{"mcpServers": {"a": {"command": "npx", "path": ["bin"]}}}`, "absolute directories"},
		{`{"mcpServers": {"a": {"command": "../npx", "path": ["/bin"]}}}`, "or a name with a list"},
		{`{"mcpServers": {"a": {"command": "/a", "headers": {"X": {"env": "A"}}}}}`, "headers is for a url"},
		{`{"mcpServers": {"a": {"url": "http://h/", "headers": {"X": "v"}}}}`, "headers must be an object"},
		{`{"mcpServers": {"a": {"url": "http://h/", "headers": {"X": {"file": "a"}}}}}`, `header "X" must be`},
		{`{"mcpServers": {"a": {"url": "http://h/", "headers": {"X": {"value": "a"}}}}}`, `header "X" must be`},
		{`{"mcpServers": {"a": {"url": "http://h/", "headers": {"X Y": {"env": "A"}}}}}`, `header "X Y" must be`},
		{`{"mcpServers": {"a": {"url": "http://h/", "path": ["/bin"]}}}`, "path is for a command"},
		{`{}`, "no server"},
		{`{"mcpServers": {}}`, "no server"},
		{`{"mcpServers": null}`, "null says nothing"},
		{"{\n  \"mcpServer\": {}}", `2:3: unknown key "mcpServer" in the file`},
		{"{\"mcpServers\": {\n\t\"a\": {\"Command\": \"/a\"}}}", `2:8: unknown key "Command" in server a`},
		{"{\"mcpServers\": {\n\"a\": {\"command\": \"/a\",\n \"command\": \"/b\"}}}", `3:2: server a: "command" is given twice`},
		{`{"mcpServers": {"a": {"command": "/a"}, "a": {"command": "/b"}}}`, `mcpServers: "a" is given twice`},
		{`{"mcpServers": {"a": {"command": 5}}}`, "command must be a string, found number"},
		{`{"mcpServers": {"a": {"command": null}}}`, "null says nothing"},
		{`{"mcpServers": {"a": {"command": "/a", "args": ["x", null]}}}`, "1:54: null says nothing"},
		{`{"mcpServers": {"a": {"command": "/a", "env": {"A": "1", "A": "2"}}}}`, `env: "A" is given twice`},
		{`{"mcpServers": {"a": {"command": "/a", "env": []}}}`, "env must be an object"},
		{`{"mcpServers": {"a": {"command": "/a", "args": [1]}}}`, "args must be a list of strings"},
		{`{"mcpServers": {"a": {"command": "npx"}}}`, "absolute path"},
		{`{"mcpServers": {"a": {"command": "./a"}}}`, "absolute path"},
		{`{"mcpServers": {"a": {"command": "/a", "cwd": "x"}}}`, "cwd must be an absolute path"},
		{`{"mcpServers": {"a": {"command": "/a\u0000"}}}`, "NUL"},
		{`{"mcpServers": {"a": {"command": "/a", "args": ["\u0000"]}}}`, "NUL"},
		{`{"mcpServers": {"a": {"command": "/a", "env": {"A=B": "x"}}}}`, "can't be a variable"},
		{`{"mcpServers": {"a": {"command": "/a", "env": {"A": "\u0000"}}}}`, "can't be a variable"},
		{`{"mcpServers": {"a": {"command": "/a", "timeout": 0}}}`, "timeout must be"},
		{`{"mcpServers": {"a": {"command": "/a", "timeout": -1}}}`, "timeout must be"},
		{`{"mcpServers": {"a": {"command": "/a", "timeout": 1e300}}}`, "timeout must be"},
		{`{"mcpServers": {"a": {"command": "/a", "type": "sse"}}}`, "speaks stdio"},
		{`{"mcpServers": {"a": {"command": "/a", "url": "http://h"}}}`, "not both"},
		{`{"mcpServers": {"a": {}}}`, "give a command or a url"},
		{`{"mcpServers": {"a": {"url": "ftp://h"}}}`, "http:// or https://"},
		{`{"mcpServers": {"a": {"url": "http://u:p@h"}}}`, "without a user"},
		{`{"mcpServers": {"a": {"url": "http://h", "type": "stdio"}}}`, "streamable-http, http or sse"},
		{`{"mcpServers": {"a": {"url": "http://h", "type": "sse", "transport": "http"}}}`, "differ"},
		{`{"mcpServers": {"a": {"url": "http://h", "env": {}}}}`, "env is for a command"},
		{`{"mcpServers": {"A": {"command": "/a"}}}`, "a server's name"},
		{`{"mcpServers": {"": {"command": "/a"}}}`, "a server's name"},
		{`{"mcpServers": {"` + strings.Repeat("a", 33) + `": {"command": "/a"}}}`, "a server's name"},
		{`{"naming": "x", "mcpServers": {"a": {"command": "/a"}}}`, `use "flat" or "server__tool"`},
		{`{"mcpServers": {"a": {"command": "/a"}}} {}`, "text after the object"},
		{`{"mcpServers": {"a": {"command": "/a"}}`, "ends too early"},
		{`{"mcpServers": {"a": {"command": "/a",}}}`, "invalid character"},
		{`{"mcpServers": {"a": {"env": ` + strings.Repeat("[", 20000), "nested more than 8 levels"},
	} {
		_, err := ParseConfig([]byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.100s:\n got %v\nwant %s", tt.text, err, tt.want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"mcpServers": {"a": {"command": "/a", "env": {"A": "b"}, "timeout": 3}}, "naming": "flat"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(text)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v %v", c, err)
		}
		if err == nil {
			for _, s := range c.Servers {
				if s.URL == "" && !filepath.IsAbs(s.Command) {
					t.Errorf("runs %q", s.Command)
				}
			}
		}
	})
}

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mcp-hub.json")
	if _, err := LoadConfig(path); err == nil {
		t.Error("no file, no error")
	}
	if err := os.WriteFile(path, []byte("{\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), path+":1:1: mcpServers has no server") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"mcpServers": {"a": {"command": "/a"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o602); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), "anyone may write") {
		t.Errorf("got %v", err)
	}
	if _, err := LoadConfig(dir); err == nil {
		t.Error("reads a directory")
	}
}
