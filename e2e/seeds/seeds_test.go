// Package seeds holds slimctl to the words of those who asked for it: the five documents from which it was made. Their
// JSON, commands and acceptance lists are below and in testdata, verbatim. Each has its expected answer; where that is
// another one than asked for, docs/decisions.md has a row that says why.
//
// 000 is bash-mcp-server, 001 the AIO Sandbox slimming plan (and the README of its server), 002 Minimal AIO +
// agent-browser (frozen), 003 MCP write phase 2B, 004 MCP servers and security boundaries.
package seeds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// programs compiles slimctl and browser-shell once and returns their directory.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "slimctl-seeds-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir, "github.com/slimctl/slimctl/cmd/slimctl", "github.com/slimctl/slimctl/cmd/browser-shell", "github.com/slimctl/slimctl/cmd/mcp-hub")
	cmd.Stderr = os.Stderr
	return dir, cmd.Run()
})

func TestMain(m *testing.M) {
	// Having looked at the source of the programs, `go test` runs these tests again when that has changed.
	for _, dir := range []string{"cmd", "hub", "server", "slim", "build", "inspect", "assets", "profiles", "docs"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil && !os.IsNotExist(err) { // another room's test made it, and has removed it
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if dir, err := programs(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// run runs slimctl or browser-shell and returns what it printed.
func run(t *testing.T, stdin, name string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	var out, words bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &words
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), words.String(), cmd.ProcessState.ExitCode()
}

// file returns the path of a new file.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func testdata(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// plan is an answer of `browser-shell explain`.
type plan struct {
	Decision, Error, Rule, Message, URL string
	Argv                                []string
}

// explain returns what the tool with this policy would do with a call. Names are on the public internet, but for
// inside.example.com.
func explain(t *testing.T, policyText string, call any) plan {
	t.Helper()
	line, err := json.Marshal(call)
	if raw, ok := call.(string); ok {
		line = bytes.ReplaceAll([]byte(raw), []byte("\n"), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, words, status := run(t, string(line), "browser-shell", "explain", "--policy", file(t, "policy.json", policyText), "--generation", "native",
		"--resolve", "*=93.184.216.34", "--resolve", "inside.example.com=10.0.0.1")
	var p plan
	if status != 0 || json.Unmarshal([]byte(out), &p) != nil {
		t.Fatalf("%s: %d %s%s", line, status, out, words)
	}
	return p
}

// argv explains a call of the structured form.
func argv(t *testing.T, words ...string) plan {
	t.Helper()
	return explain(t, "{}", map[string]any{"session_id": "u1", "argv": words})
}

const compat = `{"tool_name": "sandbox_execute_bash"}`

// cmd explains a call of the string form.
func cmd(t *testing.T, text string) plan {
	t.Helper()
	return explain(t, compat, map[string]any{"cmd": text})
}

// want checks a decision: rule is empty for one that allows.
func want(t *testing.T, what string, p plan, rule string) {
	t.Helper()
	if p.Rule != rule || (p.Decision == "allow") != (rule == "") {
		t.Errorf("%s: %s %s %s; want %q", what, p.Decision, p.Rule, p.Message, rule)
	}
}

// connect starts the tool with this policy, which needs no browser for a refusal.
func connect(t *testing.T, policyText string) *mcp.ClientSession {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(policyText), &keys); err != nil {
		t.Fatal(err)
	}
	state, err := os.MkdirTemp("", "seeds-") // a short name: sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	maps.Copy(keys, map[string]any{"state_dir": state, "artifacts_dir": t.TempDir(), "audit": map[string]any{"file": filepath.Join(t.TempDir(), "audit.jsonl")}})
	text, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "browser-shell"), "mcp", "--policy", file(t, "policy.json", string(text)))
	cmd.Stderr = os.Stderr
	s, err := mcp.NewClient(&mcp.Implementation{Name: "seeds", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func call(t *testing.T, s *mcp.ClientSession, name string, arguments any) *mcp.CallToolResult {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// wantOneTool checks tools/list.
func wantOneTool(t *testing.T, s *mcp.ClientSession, name string) *mcp.Tool {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != name {
		t.Fatalf("tools/list: %+v %v", list, err)
	}
	return list.Tools[0]
}

// row is one requirement.
type row struct {
	ask  string // document, section, requirement
	kept string // the row of docs/decisions.md that declines it or meets it differently; empty: it is met as asked
	test func(t *testing.T)
}

var rows = slices.Concat(rows000, rows001, rows002, rows003, rows004)

func TestSeeds(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash("../../docs/decisions.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Run(r.ask, func(t *testing.T) {
			t.Parallel()
			if r.kept != "" && !strings.Contains(string(text), "\n| "+r.kept) {
				t.Errorf("docs/decisions.md has no row %q", r.kept)
			}
			r.test(t)
		})
	}
}

// TestDecisionsAreWhole: each row has a requirement with its section, an answer, a reason and an effect.
func TestDecisionsAreWhole(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash("../../docs/decisions.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| 00") {
			continue
		}
		n++
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "| \n"), `\|`, ""), " | ")
		if len(cells) != 4 || slices.ContainsFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "" }) {
			t.Errorf("%q has %d cells, want 4", line, len(cells))
		}
	}
	if n < 30 {
		t.Errorf("%d rows only", n)
	}
}

// examples has a call of each subcommand that the documents name.
var examples = map[string][]string{
	"open": {"open", "http://example.com"}, "snapshot": {"snapshot", "-i"}, "click": {"click", "@e3"}, "dblclick": {"dblclick", "@e3"},
	"fill": {"fill", "@e3", "x"}, "type": {"type", "@e3", "x"}, "press": {"press", "Enter"}, "hover": {"hover", "@e3"}, "focus": {"focus", "@e3"},
	"check": {"check", "@e3"}, "uncheck": {"uncheck", "@e3"}, "select": {"select", "@e3", "x"}, "wait": {"wait", "1000"},
	"screenshot": {"screenshot"}, "close": {"close"}, "pdf": {"pdf"}, "back": {"back"}, "forward": {"forward"}, "reload": {"reload"},
}

func wantAdmitted(subcommands string) func(t *testing.T) {
	return func(t *testing.T) {
		for sub := range strings.FieldsSeq(subcommands) {
			want(t, sub, argv(t, examples[sub]...), "")
			want(t, sub, cmd(t, "agent-browser "+strings.Join(examples[sub], " ")), "")
		}
	}
}

func wantForbidden(subcommands string) func(t *testing.T) {
	return func(t *testing.T) {
		for sub := range strings.FieldsSeq(subcommands) {
			want(t, sub, argv(t, sub, "x"), "command.not-allowed")
			want(t, sub, cmd(t, "agent-browser "+sub+" x"), "command.not-allowed")
		}
	}
}

var rows000 = []row{
	{"000 §3.2 allowed subcommands", "", wantAdmitted("open snapshot click dblclick fill type press wait screenshot close")},
	{"000 §3.2 back forward reload pdf", "000 §3.2: `back`, `forward`, `reload`, `pdf` on by default", func(t *testing.T) {
		for _, sub := range []string{"back", "forward", "reload", "pdf"} {
			want(t, sub, argv(t, examples[sub]...), "command.off")
			want(t, sub, explain(t, `{"commands": ["+read", "pdf"]}`, map[string]any{"session_id": "u1", "argv": examples[sub]}), "")
		}
	}},
	{"000 §3.2 get-title get-url", "000 §3.2: `get-title`, `get-url`", func(t *testing.T) {
		for word, right := range map[string]string{"get-title": `["get","title"]`, "get-url": `["get","url"]`} {
			p := explain(t, `{"commands": ["+read"]}`, map[string]any{"session_id": "u1", "argv": []string{word}})
			if want(t, word, p, "command.not-allowed"); !strings.Contains(p.Message, right) {
				t.Errorf("%s: %s", word, p.Message)
			}
		}
	}},
	{"000 §3.2 blocked subcommands", "", wantForbidden("eval evaluate upload download route unroute")},
	{"000 §3.3 tool bash", "000 §3.3: tool `bash`", func(t *testing.T) {
		res := call(t, connect(t, "{}"), "bash", map[string]any{"command": "agent-browser open http://example.com"})
		if !res.IsError || res.Meta["rule"] != "tool.executor" || res.Meta["code"] != -32004.0 {
			t.Errorf("%+v", res)
		}
	}},
	{"000 §3.1 quotes", "000 §3.1: words are split at blanks", func(t *testing.T) {
		p := cmd(t, "agent-browser fill @e2 'two words'")
		if want(t, "quotes", p, ""); p.Argv[len(p.Argv)-1] != "two words" {
			t.Errorf("%q", p.Argv)
		}
	}},
	{"000 §5 mcp-hub.json", "000 §5: `mcp-hub.json`", func(t *testing.T) {
		_, said, status := run(t, "", "browser-shell", "serve", "--config", file(t, "hub.json", testdata(t, "000-5.mcp-hub.json")))
		if status == 0 || !strings.Contains(said, "hub.json:3:5: ") || !strings.Contains(said, "bash_tool") {
			t.Errorf("%d %s", status, said)
		}
	}},
	{"000 §6 a legal command, with --cdp 9222", "", func(t *testing.T) {
		p := cmd(t, "agent-browser open http://example.com")
		if want(t, "open", p, ""); strings.Count(strings.Join(p.Argv, " "), "--cdp 9222 --json") != 1 {
			t.Errorf("%q", p.Argv)
		}
	}},
	{"000 §6 rm -rf /", "", func(t *testing.T) {
		want(t, "rm", cmd(t, "rm -rf /"), "command.not-allowed")
		want(t, "eval", cmd(t, `agent-browser eval "alert(1)"`), "command.not-allowed")
	}},
}

var rows001 = []row{
	{"001 §5.2 subcommands", "", wantAdmitted("open snapshot click dblclick type fill press hover focus check uncheck select wait screenshot close")},
	{"001 README four commands", "", func(t *testing.T) {
		for line := range strings.Lines(testdata(t, "001-README.commands")) {
			p := cmd(t, strings.TrimSpace(line))
			if want(t, line, p, ""); strings.Count(strings.Join(p.Argv, " "), "--cdp") != 1 || strings.Count(strings.Join(p.Argv, " "), "--json") != 1 {
				t.Errorf("%s: %q", line, p.Argv)
			}
		}
	}},
	{"001 §5.1 session, cdpPort, subcommand, args, timeoutSec", "001 §5.1: `session`", func(t *testing.T) {
		want(t, "old keys", explain(t, "{}", map[string]any{"session": "u1", "subcommand": "open", "args": []string{"https://example.com"}}), "session.format")
		want(t, "old keys", explain(t, "{}", map[string]any{"session_id": "u1", "argv": []string{"close"}, "cdpPort": 9222}), "args.unknown-key")
	}},
	{"001 §9.1 timeout is a number, at most 120", "", func(t *testing.T) {
		for timeout, rule := range map[float64]string{30: "", 30.5: "", 1: "", 120: "", 121: "args.timeout", 0: "args.timeout"} {
			want(t, fmt.Sprint(timeout), explain(t, compat, map[string]any{"cmd": "close", "timeout": timeout}), rule)
		}
	}},
	{"001 §9.1 only agent-browser, only AGENT_BROWSER_SESSION in front", "", func(t *testing.T) {
		want(t, "another program", cmd(t, "AGENT_BROWSER_SESSION=u1 bash -c id"), "command.not-allowed")
		want(t, "another variable", cmd(t, "PATH=/tmp agent-browser close"), "shell.syntax")
		want(t, "another port", cmd(t, "agent-browser --cdp 9223 close"), "option.forced")
		want(t, "another option", cmd(t, "agent-browser --headed close"), "command.first")
	}},
	{"001 §9.1 signs of a shell", "", func(t *testing.T) {
		for _, sign := range []string{";", "|", "&", ">", "<", "\n", "`", "$(", "&&"} {
			want(t, sign, cmd(t, "agent-browser open https://example.com "+sign+" id"), "shell.syntax")
		}
		want(t, "an address with ? and =", cmd(t, "agent-browser open https://example.com/?a=b"), "")
	}},
	{"001 §9.3.1 one tool, described in its own form", "", func(t *testing.T) {
		tool := wantOneTool(t, connect(t, compat), "sandbox_execute_bash")
		if strings.Contains(tool.Description, `["`) || !strings.Contains(tool.Description, "snapshot -i lists") {
			t.Errorf("it shows the other form: %s", tool.Description)
		}
	}},
	{"001 §9.3.2 snapshot -i, click @e3, close", "", func(t *testing.T) {
		for _, text := range []string{"snapshot -i", "click @e3", "close"} {
			want(t, text, cmd(t, text), "")
		}
	}},
	{"001 §9.3.2 open http://127.0.0.1:8080/", "001 §9.3: `open http://127.0.0.1:8080/`", func(t *testing.T) {
		want(t, "open", cmd(t, "open http://127.0.0.1:8080/"), "url.loopback")
	}},
	{"001 §9.3.3 bash, and signs in arguments", "001 §9.3: arguments with `;`", func(t *testing.T) {
		want(t, "bash", argv(t, "bash"), "command.not-allowed")
		for _, sign := range []string{";", "&&", "|"} {
			want(t, sign, cmd(t, "click @e3"+sign+" rm"), "shell.syntax")
			if p := argv(t, "click", "@e3"+sign+" rm"); p.Argv[len(p.Argv)-1] != "@e3"+sign+" rm" {
				t.Errorf("%s is more than a selector: %+v", sign, p)
			}
		}
	}},
	{"001 §9.3.3 a path outside /tmp", "001 §9.3: a path outside `/tmp` fails", func(t *testing.T) {
		want(t, "outside", argv(t, "screenshot", "/etc/x.png"), "screenshot.path")
	}},
	{"001 §5.2 screenshot in /tmp", "001 §5.2: screenshot below `/tmp`", func(t *testing.T) {
		want(t, "inside", argv(t, "screenshot", "/tmp/x.png"), "screenshot.path")
		want(t, "a name", argv(t, "screenshot", "x.png"), "")
	}},
}

var rows002 = []row{
	{"002 §3.1 one tool", "", func(t *testing.T) { wantOneTool(t, connect(t, "{}"), "browser-shell") }},
	{"002 §3.2 arguments", "", func(t *testing.T) {
		want(t, "example", explain(t, "{}", testdata(t, "002-3.2.arguments.json")), "")
		want(t, "number and boolean", explain(t, "{}", `{"session_id": "a.B_9-", "argv": ["fill", "@e1", true], "timeout_sec": 120}`), "")
		want(t, "wait 60000", explain(t, "{}", `{"session_id": "u1", "argv": ["wait", 60000], "timeout_sec": 120}`), "")
		want(t, "too long", explain(t, "{}", `{"session_id": "u1", "argv": ["close"], "timeout_sec": 121}`), "args.timeout")
		want(t, "id", explain(t, "{}", map[string]any{"session_id": strings.Repeat("a", 65), "argv": []string{"close"}}), "session.format")
		for _, word := range []string{"--cdp", "--cdp=1", "--json", "--session", "--session=x"} {
			want(t, word, argv(t, "close", word), "option.forced")
			want(t, word, argv(t, word, "close"), "option.forced")
		}
	}},
	{"002 §3.2 session_id is --session", "002 §3.2: `session_id`", func(t *testing.T) {
		if p := argv(t, "close"); len(p.Argv) < 2 || p.Argv[0] != "--session" || !strings.HasPrefix(p.Argv[1], "bs-") {
			t.Errorf("%q", p.Argv)
		}
	}},
	{"002 §3.3 four keys, in order, without the arguments", "", func(t *testing.T) {
		res := call(t, connect(t, "{}"), "browser-shell", map[string]any{"session_id": "u1", "argv": []string{"open", "file:///etc/passwd"}})
		text := res.Content[0].(*mcp.TextContent).Text
		if !strings.HasPrefix(text, `{"session_id":"u1","exit_code":126,"stdout":"","stderr":"`) || strings.Contains(text, "passwd") || !res.IsError {
			t.Error(text)
		}
	}},
	{"002 §3.4 P0 and P1", "", wantAdmitted("open snapshot click fill type press wait screenshot close dblclick hover focus check uncheck select")},
	{"002 §3.4 forbidden", "", wantForbidden("eval evaluate upload download route unroute")},
	{"002 §4.1 --cdp 9222 and --json are forced", "", func(t *testing.T) {
		if p := argv(t, "snapshot", "-i"); !strings.Contains(strings.Join(p.Argv, " "), "--cdp 9222 --json") {
			t.Errorf("%q", p.Argv)
		}
	}},
	{"002 §4.4 schemes and addresses without a file", "", func(t *testing.T) {
		for address, rule := range map[string]string{
			"https://example.com": "", "http://example.com": "", "about:blank": "url.scheme", "file:///etc/passwd": "url.scheme", "data:text/html,x": "url.scheme",
			"chrome://version": "url.scheme", "devtools://x": "url.scheme", "http://localhost": "url.loopback", "http://127.0.0.1": "url.loopback",
			"http://[::1]": "url.loopback", "http://10.1.2.3": "url.private", "http://192.168.0.1": "url.private", "http://172.16.0.1": "url.private",
			"http://169.254.169.254": "url.private", "http://[fd00::1]": "url.private", "http://[fe80::1]": "url.private", "http://inside.example.com": "url.private",
		} {
			want(t, address, argv(t, "open", address), rule)
		}
	}},
	{"002 §4.4 the example's file: what it allows", "002 §4.4: `allow_host_suffixes`", func(t *testing.T) {
		text := testdata(t, "002-4.4.policy.json")
		for address, rule := range map[string]string{
			"https://example.com": "", "https://www.example.com": "", "http://a.b.example.com/?q=1": "", "about:blank": "",
			"https://example.org": "url.host-not-allowed", "https://evilexample.com": "url.host-not-allowed", "http://inside.example.com": "url.private",
			"ftp://example.com": "url.scheme",
		} {
			p := explain(t, text, map[string]any{"session_id": "u1", "argv": []string{"open", address}})
			if want(t, address, p, rule); rule == "url.host-not-allowed" && !strings.HasSuffix(p.Message, "it allows example.com, *.example.com") {
				t.Errorf("%s: %s", address, p.Message)
			}
		}
		wantOneTool(t, connect(t, text), "browser-shell")
	}},
	{"002 §4.4 the example's file: everything that reads one", "", func(t *testing.T) {
		dir := t.TempDir()
		at := func(name, text string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			return path
		}
		policyFile := at("policy.json", testdata(t, "002-4.4.policy.json"))
		profile := at("seed.yaml", "version: 1\nname: seed\nextends: l0\noverlays:\n  - name: tool\n    why: the hosts of 002\n    files:\n"+
			"      - path: /etc/agent-browser/browser-shell.policy.json\n        source: policy.json\n")
		out := filepath.Join(dir, "out")
		for _, args := range [][]string{
			{"profile", "validate", profile},
			{"build", "--profile", profile, "--base", "standin:B", "--platform", "linux/amd64", "--output", "type=oci,dest=" + out},
			{"verify", "--profile", profile, "--base", "standin:B", "--platform", "linux/amd64", "oci:" + out},
			{"compose", "--policy", policyFile, "registry.example/slim@sha256:" + strings.Repeat("0", 64)},
		} {
			if _, words, status := run(t, "", "slimctl", args...); status != 0 {
				t.Errorf("slimctl %q: %d %s", args, status, words)
			}
		}
		// A plain stand-in has no program that could run: that, and not the file, is what run complains of.
		if _, words, _ := run(t, "", "slimctl", "run", "--policy", policyFile, "oci:"+out); !strings.Contains(words, "plain stand-in") {
			t.Errorf("slimctl run --policy: %s", words)
		}
		if out, words, status := run(t, "", "browser-shell", "chromium-policy", "--policy", policyFile); status != 0 || !strings.Contains(out, ".example.com") && !strings.Contains(out, "example.com") {
			t.Errorf("chromium-policy: %d %s%s", status, out, words)
		}
	}},
	{"002 §6.3 what is refused", "", func(t *testing.T) {
		want(t, "another subcommand", argv(t, "frobnicate"), "command.not-allowed")
		want(t, "no address", argv(t, "open"), "argv.arity")
		want(t, "goto, agent-browser's other name of open", argv(t, "goto", "https://example.com"), "")
	}},
}

var rows003 = []row{
	{"003 error codes", "", func(t *testing.T) {
		for name, code := range map[string]int{"POLICY_BLOCKED": -32004, "BUDGET_EXCEEDED": -32005, "SANDBOX_VIOLATION": -32006, "TIMEOUT": -32007} {
			if got := policy.Code(code).Name(); got != name {
				t.Errorf("%d is %s", code, got)
			}
		}
	}},
	{"003 names of events", "", func(t *testing.T) {
		for want, got := range map[string]string{
			"MCP_TOOL_CALL": audit.ToolCall, "POLICY_BLOCKED": audit.PolicyBlocked, "SANDBOX_EXEC": audit.SandboxExec, "TOOL_FINISHED": audit.ToolFinished,
			"MCP_CONTAINER_SPAWN": sandbox.EventSpawn, "MCP_CONTAINER_EXEC": sandbox.EventExec, "MCP_CONTAINER_CLEANUP": sandbox.EventCleanup,
			"MCP_NETWORK_BLOCKED": audit.NetworkBlocked, "MCP_COMMAND_BLOCKED": audit.CommandBlocked, "MCP_FILE_WRITE": audit.FileWrite,
		} {
			if got != want {
				t.Errorf("%s is %s", want, got)
			}
		}
	}},
	{"003 run_playwright: 1024m, 1.0, 120 s, no privileges", "003: `sandbox:` block in YAML", func(t *testing.T) {
		s := sandbox.Default()
		if s.Memory != 1024<<20 || s.CPUs != 1 || s.Timeout != 120*time.Second || !s.NoNewPrivileges || !s.ReadOnly {
			t.Errorf("%+v", s)
		}
	}},
	{"003 run_shell", "003: `run_shell` behind four conditions", func(t *testing.T) {
		res := call(t, connect(t, "{}"), "run_shell", map[string]any{"cmd": "id"})
		if !res.IsError || res.Meta["code"] != -32004.0 {
			t.Errorf("%+v", res)
		}
		for _, key := range []string{"feature_flag", "mcp_shell_enabled", "explicit_approval", "tools", "shell"} {
			if _, err := policy.Parse([]byte(`{"` + key + `": true}`)); err == nil {
				t.Errorf("a policy may hold %s", key)
			}
		}
	}},
	{"003 evidence.json.files[]", "", func(t *testing.T) { // EXEC of a command: inspect/sandbox, TestEvents
		var text strings.Builder
		if err := (sandbox.Evidence{Files: []sandbox.File{{Path: "a.png"}}}).Write(&text); err != nil || !strings.Contains(text.String(), "\n  \"files\": [\n    {\n      \"path\": \"a.png\"") {
			t.Errorf("%v: %s", err, text.String())
		}
	}},
	{"003 network: none, readonly_rootfs, user, cap_drop, memory, cpus: as flags", "", func(t *testing.T) {
		help, _, _ := run(t, "", "slimctl", "run", "--help")
		for _, flag := range []string{"--memory", "--cpus", "--timeout", "--network", "--work", "--artifacts", "--user"} {
			if !strings.Contains(help, flag+" ") {
				t.Errorf("slimctl run has no %s", flag)
			}
		}
	}},
}

// withoutComment drops the first line, with the file's name.
func withoutComment(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}

// hostHub is mcp-hub with the document's own files. Its uvx and npx are on the PATH, and are browser-shell.
type hostHub struct{ url, audit string }

func startHostHub(t *testing.T) hostHub {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	bin, state := t.TempDir(), t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uvx", "npx"} {
		short, err := os.MkdirTemp("", "seeds-") // a short name: sockets are below it
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(short) })
		policy := file(t, "policy.json", fmt.Sprintf(`{"state_dir": %q, "artifacts_dir": %q, "audit": {"file": ""}}`, short, t.TempDir()))
		script := fmt.Sprintf("#!/bin/sh\nexec %s mcp --policy %s\n", filepath.Join(dir, "browser-shell"), policy)
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := hostHub{fmt.Sprintf("127.0.0.1:%d", need.FreePort(t)), filepath.Join(state, "security_audit.jsonl")}
	hub := exec.Command(filepath.Join(dir, "mcp-hub"), "serve", "--listen", h.url, "--audit", h.audit,
		"--config", file(t, "mcp_server.json", strings.Replace(withoutComment(testdata(t, "004-5.2.mcp_server.json")), `"env": {}`, `"env": {}, "security": {"allowed_directories": ["/home/user/docs"], "read_only": false}`, 1)),
		"--config", file(t, "canonical_config.json", withoutComment(testdata(t, "004-9.1.canonical_config.json"))))
	hub.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HTTP_PROXY=http://127.0.0.1:1") // nobody asks for remote-host
	hub.Stderr = t.Output()
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = hub.Process.Signal(os.Interrupt)
		_ = hub.Wait()
	})
	need.Eventually(t, func() bool { return h.state(t, "filesystem") == "running" && h.state(t, "git") == "running" }, func() string { return "the servers don't run" })
	return h
}

// ask returns the status and the answer of a management route.
func (h hostHub) ask(t *testing.T, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (h hostHub) state(t *testing.T, name string) string {
	_, text := h.ask(t, "GET", "/v1/mcp/servers/"+name)
	var status struct{ State string }
	_ = json.Unmarshal([]byte(text), &status) // not yet
	return status.State
}

// connect returns a client's session.
func (h hostHub) connect(t *testing.T) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "seeds", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: "http://" + h.url + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var rows004 = []row{
	{"004 §5.2, §9.1, §9.2 mcp_server.json with security, canonical_config.json", "", func(t *testing.T) {
		h := startHostHub(t)
		_, all := h.ask(t, "GET", "/v1/mcp/servers")
		for _, want := range []string{`{"name":"filesystem","transport":"stdio","state":"running"`, `{"name":"git","transport":"stdio","state":"running"`, `{"name":"remote-server","transport":"sse","state":"`} {
			if !strings.Contains(all, want) {
				t.Errorf("%s isn't in %s", want, all)
			}
		}
		list, err := h.connect(t).ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != 2 || list.Tools[0].Name != "filesystem.browser-shell" || list.Tools[1].Name != "git.browser-shell" {
			t.Errorf("%+v %v", list, err)
		}
	}},
	{"004 §5.3, §8 a call, and what is denied", "004 §8.4: `event_logs", func(t *testing.T) {
		h := startHostHub(t)
		s := h.connect(t)
		for path, rule := range map[string]string{"/home/user/docs/readme.md": "", "/home/user/.ssh/id_rsa": "arguments.path", "/etc/passwd": "arguments.path", "/home/user/other": "arguments.path"} {
			res := call(t, s, "filesystem.browser-shell", map[string]any{"session_id": "u1", "argv": []string{"eval", path}})
			if got, _ := res.Meta["rule"].(string); (rule != "" || strings.HasPrefix(got, "arguments.path")) && got != rule {
				t.Errorf("%s: rule %q, want %q", path, got, rule)
			}
		}
		text, err := os.ReadFile(h.audit)
		if err != nil || !strings.Contains(string(text), `"tool":"filesystem.browser-shell","decision":"deny","rule":"arguments.path"`) || !strings.Contains(string(text), `"tool":"filesystem.browser-shell","decision":"allow"`) {
			t.Errorf("%s %v", text, err)
		}
	}},
	{"004 §5.1 management, §6.2 states", "", func(t *testing.T) {
		h := startHostHub(t)
		for _, r := range []struct{ method, path, want string }{
			{"GET", "/v1/mcp/servers", `"state":"running"`}, {"GET", "/v1/mcp/servers/filesystem", `"state":"running"`}, {"GET", "/v1/mcp/tools", "filesystem.browser-shell"},
			{"POST", "/v1/mcp/servers/filesystem/stop", `"state":"stopped"`}, {"POST", "/v1/mcp/servers/filesystem/start", `"state":"starting"`}, {"POST", "/v1/mcp/servers/git/restart", `"state":"starting"`},
		} {
			if status, text := h.ask(t, r.method, r.path); status != 200 || !strings.Contains(text, r.want) {
				t.Errorf("%s %s: %d %s", r.method, r.path, status, text)
			}
		}
		need.Eventually(t, func() bool { return h.state(t, "remote-server") == "error" }, func() string { return "an address that is none isn't an error" })
		if status, _ := h.ask(t, "POST", "/v1/runs"); status != 404 { // docs/decisions.md, first table
			t.Errorf("POST /v1/runs: %d", status)
		}
	}},
}
