package guard

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestParseSaysWhere: the place is that of the key or the value that is wrong.
func TestParseSaysWhere(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "1:1: not JSON: the text ends too early"},
		{"{", "1:2: not JSON: the text ends too early"},
		{"{\n  \"default\": {\n    \"alow\": []\n  }\n}", `3:5: unknown key "alow" in default; known here: allow, allowed_directories, block,`},
		{"{\n  \"default\": {\"shell\": true,\n \"shell\": false}}", `3:2: default: "shell" is given twice`},
		{`{"default": {"shell": true}, "default": {}}`, `1:30: a policy: "default" is given twice`},
		{`{"servers": {"a": {}, "a": {}}}`, `1:23: servers: "a" is given twice`},
		{"{\"servers\": {\n\"a\": {\"block\": [\"x\",\n  7]}}}", "3:3: servers.a.block[1] must be 1 to 256 visible ASCII characters"},
		{`{"servers": {"b":{"Shell": true}}}`, `1:19: unknown key "Shell" in servers.b`},
		{`{"servers": {"a b": {}}}`, `1:14: servers: "a b" is not a server's name`},
		{`{"default": {"call_timeout_sec": 0}}`, "1:34: default.call_timeout_sec must be a whole number from 1 to 600"},
		{"{}\n{}", "2:1: there is text after the object"},
		{"{\n]", "2:1: not JSON"},
		{strings.Repeat(`{"servers":`, 100000), "nested more than 8 levels"},
		{strings.Repeat(`[`, 100000), "nested more than 8 levels"},
	} {
		_, err := Parse([]byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60q: %v, not %s", tt.text, err, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for _, tt := range []struct{ path, want string }{
		{missing, "no such file"},
		{dir, "is not a regular file"},
		{fifo, "is not a regular file"},
		{write("open", "{}", 0o646), "anyone may write"},
		{write("huge", "{}"+strings.Repeat(" ", maxFile), 0o600), "larger than"},
		{write("broken", "{\n\"x\":1}", 0o600), "broken:2:1: unknown key"},
	} {
		if _, err := Load(tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, not %s", tt.path, err, tt.want)
		}
	}
	if p, err := load(missing, true); err != nil || p == nil {
		t.Errorf("the default path may be missing: %v", err)
	}
	if _, err := load(write("default", "{", 0o600), true); err == nil {
		t.Error("a broken file at the default path fell back to the built-in policy")
	}
	p, err := Load(write("good", `{"default":{"call_timeout_sec":7}}`, 0o600))
	if err != nil || p.CallTimeout != 7*time.Second {
		t.Errorf("%v %v", p, err)
	}
}

// TestLayers: what an entry leaves out comes from the built-in entry, then from default; block only grows.
func TestLayers(t *testing.T) {
	p, err := Parse([]byte(`{
		"servers": {"files": {"block": ["write_*"], "call_timeout_sec": 30}, "browser_shell": {"max_argument_bytes": 100}, "other": {"path_tools": []}},
		"default": {"block": ["rm"], "max_argument_bytes": 200, "call_timeout_sec": 20, "sensitive_paths": ["/ETC/"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"rm", "write_*"}, p.servers["files"].Block); d != "" {
		t.Error(d)
	}
	b := p.servers["browser_shell"]
	if d := cmp.Diff([]any{100, 130, []string{}, []string{"rm"}}, []any{b.MaxArgumentBytes, b.CallTimeoutSec, b.PathTools, b.Block}); d != "" {
		t.Error(d)
	}
	if r := p.rules("nobody"); r.MaxArgumentBytes != 200 || r.SensitivePaths[0] != "/etc/" {
		t.Errorf("%+v", r)
	}
	if d := cmp.Diff([]string{"files", "browser_shell", "other"}, p.Servers()); d != "" {
		t.Error(d)
	}
	for _, tt := range []struct {
		server     string
		configured time.Duration
		want       time.Duration
	}{
		{"nobody", 0, 20 * time.Second},
		{"nobody", time.Minute, time.Minute},
		{"nobody", time.Hour, 10 * time.Minute},
		{"nobody", -1, 20 * time.Second},
		{"other", time.Minute, time.Minute},
		{"files", time.Minute, 30 * time.Second},
		{"browser_shell", 0, 130 * time.Second},
	} {
		if got := p.Timeout(tt.server, tt.configured); got != tt.want {
			t.Errorf("%s with %v: %v, not %v", tt.server, tt.configured, got, tt.want)
		}
	}
}

// FuzzLoad: whatever is read gives a policy that bounds calls, or an error that says where.
func FuzzLoad(f *testing.F) {
	f.Add(asset(f))
	f.Add([]byte(builtin))
	for _, s := range []string{"", "{", `{"default":{"shell":true,"shell":true}}`, `{"servers":{"a":{"block":["*"]}}}`, `{"servers":{"a":{"call_timeout_sec":1e9}}}`, "{}{}", "\xff"} {
		f.Add([]byte(s))
	}
	place := regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*: `)
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			if !place.MatchString(err.Error()) {
				t.Errorf("%q: no place in %v", text, err)
			}
			return
		}
		for _, s := range append(p.Servers(), "x") {
			if d := p.Timeout(s, 0); d < time.Second || d > maxTimeout {
				t.Errorf("%q: %s may take %v", text, s, d)
			}
			if p.rules(s).MaxArgumentBytes < 64 || p.rules(s).ShellCharacters == "" {
				t.Errorf("%q: %+v", text, p.rules(s))
			}
		}
	})
}
