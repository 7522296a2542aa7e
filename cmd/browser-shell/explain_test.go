package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type plan struct {
	Decision, Error, Rule, Message, URL string
	Argv                                []string
}

func explain(t *testing.T, input string, args ...string) []plan {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"explain"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var plans []plan
	for line := range strings.Lines(string(out)) {
		var p plan
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&p); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		plans = append(plans, p)
	}
	return plans
}

func TestExplain(t *testing.T) {
	for _, tt := range []struct{ line, decision, errorName, rule, url, tail string }{
		{`{"session_id":"s","argv":["open","example.com/?q=1"],"timeout_sec":5}`, "deny", "POLICY_BLOCKED", "url.scheme", "", ""},
		{`{"session_id":"s","argv":["open","example.com:8443"],"timeout_sec":5}`, "allow", "", "", "https://example.com:8443/", "open https://example.com:8443/"},
		{`{"url":"HTTPS://Example.COM./a/../b"}`, "allow", "", "", "https://example.com/b", "open https://example.com/b"},
		{`{"url":"http://example.com","resolve":{"example.com":"93.184.216.34,10.0.0.1"}}`, "deny", "POLICY_BLOCKED", "url.private", "", ""},
		{`{"url":"http://example.com","resolve":{"example.com":"::ffff:127.0.0.1"}}`, "deny", "POLICY_BLOCKED", "url.private", "", ""},
		{`{"url":"http://example.com","resolve":{"*":"TIMEOUT"}}`, "deny", "POLICY_BLOCKED", "url.unresolved", "", ""},
		{`{"url":"http://example.com","resolve":{"example.com":"SERVFAIL"}}`, "deny", "POLICY_BLOCKED", "url.unresolved", "", ""},
		{`{"url":"http://example.com","resolve":{"example.com":"EMPTY"}}`, "deny", "POLICY_BLOCKED", "url.unresolved", "", ""},
		{`{"url":"http://gone.example"}`, "deny", "POLICY_BLOCKED", "url.unresolved", "", ""},
		{`{"url":"http://8.8.8.8/"}`, "allow", "", "", "http://8.8.8.8/", ""},
		{`{"url":"http://127.1/"}`, "deny", "POLICY_BLOCKED", "url.address", "", ""},
		{`{"url":7}`, "deny", "POLICY_BLOCKED", "url.address", "", ""},
		{`{"url":"http://example.com","resolve":{"example.com":"here"}}`, "deny", "INVALID_PARAMS", "explain.resolve", "", ""},
		{`{"session_id":"s","argv":["fill","@e1","--cdp"]}`, "deny", "POLICY_BLOCKED", "option.forced", "", ""},
		{`{"session_id":"s","argv":["wait","--download","x"]}`, "deny", "SANDBOX_VIOLATION", "wait.download", "", ""},
		{`{"session_id":"s","argv":["snapshot","-i"]}`, "allow", "", "", "", "--json snapshot --interactive"},
		{`{"session_id":"s","argv":["screenshot","#a","p.png"]}`, "allow", "", "", "", "/.p.png"},
		{`{"session_id":"s","argv":["snapshot"],"argv":["eval","1"]}`, "deny", "INVALID_PARAMS", "explain.line", "", ""},
		{`{"session_id":"s/../t","argv":["snapshot"]}`, "deny", "SANDBOX_VIOLATION", "session.path", "", ""},
		{`{"cmd":"agent-browser fill @e1 'a b'"}`, "allow", "", "", "", "--json fill @e1 a b"},
		{`{"cmd":"snapshot; id"}`, "deny", "SANDBOX_VIOLATION", "shell.syntax", "", ""},
		{`[1]`, "deny", "INVALID_PARAMS", "explain.line", "", ""},
		{`x`, "deny", "INVALID_PARAMS", "explain.line", "", ""},
	} {
		t.Run(tt.line, func(t *testing.T) {
			got := explain(t, tt.line+"\n", "--resolve", "example.com=93.184.216.34")
			if len(got) != 1 {
				t.Fatalf("%d lines", len(got))
			}
			p := got[0]
			if p.Decision != tt.decision || p.Error != tt.errorName || p.Rule != tt.rule || p.URL != tt.url || !strings.HasSuffix(strings.Join(p.Argv, " "), tt.tail) {
				t.Errorf("got %+v", p)
			}
			if (p.Decision == "deny") != (p.Message != "") || (p.Decision == "allow") != (len(p.Argv) > 0) {
				t.Errorf("got %+v", p)
			}
		})
	}
}

// TestExplainGenerations: a flag that one generation has.
func TestExplainGenerations(t *testing.T) {
	const line = `{"session_id":"s","argv":["snapshot","-u"]}`
	if p := explain(t, line); p[0].Decision != "deny" {
		t.Errorf("0.8: %+v", p)
	}
	p := explain(t, line+"\n\n"+line+"\n", "--generation", "native")
	if len(p) != 2 || p[0].Decision != "allow" || !slices.Contains(p[0].Argv, "--pin-tab") {
		t.Errorf("native: %+v", p)
	}
}

// TestNoPolicyEnablesAShell: whatever a policy file says, a general executor
// is refused; the loader takes no file that names one.
func TestNoPolicyEnablesAShell(t *testing.T) {
	for _, text := range []string{
		`{"commands":["run_shell"]}`, `{"commands":["eval"]}`, `{"commands":["open","batch"]}`, `{"tool_name":"run_shell"}`,
		`{"tool_name":"bash"}`, `{"run_shell":true}`, `{"tools":["run_shell"]}`, `{"agent_browser":{"args":["--x"]}}`,
	} {
		file := filepath.Join(t.TempDir(), "policy.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(binary, "mcp", "--policy", file).CombinedOutput()
		if err == nil || !strings.Contains(string(out), file+":1:") {
			t.Errorf("%s: %v %s", text, err, out)
		}
	}
}
