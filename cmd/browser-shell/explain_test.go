package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	main "github.com/slimctl/slimctl/cmd/browser-shell"
	"github.com/slimctl/slimctl/server/policy"
)

type plan struct {
	Decision, Error, Rule, Message, URL string
	Argv                                []string
}

func explain(t *testing.T, input string, args ...string) []plan {
	t.Helper()
	code, out, said := main.Run(input, append([]string{"explain"}, args...)...)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, said)
	}
	var plans []plan
	for line := range strings.Lines(out) {
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
	t.Parallel()
	for _, tt := range []struct{ line, decision, errorName, rule, url, tail string }{
		{`{"session_id":"s","argv":["open","example.com/?q=1"],"timeout_sec":5}`, "allow", "", "", "https://example.com/?q=1", ""},
		{`{"session_id":"s","argv":["screenshot","."]}`, "deny", "POLICY_BLOCKED", "value.selector", "", ""},
		{`{"session_id":"s","argv":["open","example.com:8443"],"timeout_sec":5}`, "allow", "", "", "https://example.com:8443/", "open https://example.com:8443/"},
		{`{"url":"HTTPS://Example.COM./a/../b"}`, "allow", "", "", "https://example.com/b", "open https://example.com/b"},
		{`{"url":"http://example.com","resolve":{"example.com":"93.184.216.34,10.0.0.1"}}`, "deny", "POLICY_BLOCKED", "url.private", "", ""},
		{`{"url":"http://example.com","resolve":{"example.com":"::ffff:127.0.0.1"}}`, "deny", "POLICY_BLOCKED", "url.private", "", ""},
		{`{"url":"http://example.com","resolve":{"*":"TIMEOUT"}}`, "deny", "UNREACHABLE", "url.unresolved", "", ""},
		{`{"url":"http://gone.example"}`, "deny", "UNREACHABLE", "url.unresolved", "", ""},
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
		{`{"session_id":"s","cmd":"snapshot"}`, "deny", "INVALID_PARAMS", "args.unknown-key", "", ""},
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

// TestExplainLongLine: a line that is too long is an answer, and the next one is
// read.
func TestExplainLongLine(t *testing.T) {
	t.Parallel()
	const good = `{"session_id":"s","argv":["snapshot"]}`
	long := `{"session_id":"s","argv":["fill","@e1","` + strings.Repeat("a", 3<<20) + `"]}`
	got := explain(t, good+"\n"+long+"\n"+good+"\n"+long)
	if len(got) != 4 || got[0].Decision != "allow" || got[2].Decision != "allow" {
		t.Fatalf("got %+v", got)
	}
	for _, p := range []plan{got[1], got[3]} {
		if p.Decision != "deny" || p.Error != "INVALID_PARAMS" || p.Rule != "explain.line" || !strings.Contains(p.Message, "longer than") {
			t.Errorf("got %+v", p)
		}
	}
}

// TestExplainToolName: a line is read as the tool that the policy names reads
// it, and an address under both names.
func TestExplainToolName(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"tool_name":"sandbox_execute_bash"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]plan{
		`{"cmd":"agent-browser fill @e1 'a b'"}`:                                           {Decision: "allow"},
		`{"cmd":"AGENT_BROWSER_SESSION=s agent-browser --cdp 9222 snapshot","timeout":20}`: {Decision: "allow"},
		`{"cmd":"snapshot; id"}`:                                                           {Decision: "deny", Rule: "shell.syntax"},
		`{"cmd":"AGENT_BROWSER_SESSION=../s snapshot"}`:                                    {Decision: "deny", Rule: "session.path"},
		`{"cmd":"AGENT_BROWSER_SESSION='a b' snapshot"}`:                                   {Decision: "deny", Rule: "session.format"},
		`{"cmd":"AGENT_BROWSER_SESSION=s snapshot","session_id":"t"}`:                      {Decision: "deny", Rule: "session.twice"},
		`{"cmd":"AGENT_BROWSER_SESSION=s snapshot","session_id":"s"}`:                      {Decision: "allow"},
		`{"cmd":"agent-browser --cdp 9223 snapshot"}`:                                      {Decision: "deny", Rule: "option.forced"},
		`{"session_id":"s","argv":["snapshot"]}`:                                           {Decision: "deny", Rule: "args.unknown-key"},
		`{"url":"https://example.com/it's?a=1&b=2"}`:                                       {Decision: "allow", URL: "https://example.com/it's?a=1&b=2"},
	} {
		got := explain(t, line, "--policy", file, "--resolve", "*=93.184.216.34")
		if len(got) != 1 || got[0].Decision != want.Decision || got[0].Rule != want.Rule || want.URL != "" && got[0].URL != want.URL {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// TestExplainGenerations: a flag that one generation has.
func TestExplainGenerations(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	for _, text := range []string{
		`{"commands":["run_shell"]}`, `{"commands":["eval"]}`, `{"commands":["open","batch"]}`, `{"tool_name":"run_shell"}`,
		`{"tool_name":"bash"}`, `{"run_shell":true}`, `{"tools":["run_shell"]}`, `{"agent_browser":{"args":["--x"]}}`,
	} {
		file := filepath.Join(t.TempDir(), "policy.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := policy.Load(file); err == nil || !strings.Contains(err.Error(), file+":1:") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
