package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

func wantOneTool(t *testing.T, s *mcp.ClientSession) {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 1 || list.Tools[0].Name != "browser-shell" {
		t.Fatalf("tools: %+v", list.Tools)
	}
	a := list.Tools[0].Annotations
	if a == nil || a.ReadOnlyHint || a.IdempotentHint || a.DestructiveHint == nil || !*a.DestructiveHint || a.OpenWorldHint == nil || !*a.OpenWorldHint {
		t.Errorf("annotations: %+v", a)
	}
}

func TestListsOneTool(t *testing.T) {
	t.Parallel()
	s := newLab(t).connect(t)
	wantOneTool(t, s.ClientSession)
	caps := s.InitializeResult().Capabilities
	if caps.Prompts != nil || caps.Resources != nil || caps.Completions != nil || caps.Tools == nil {
		t.Errorf("capabilities: %+v", caps)
	}
}

func TestUnknownTool(t *testing.T) {
	t.Parallel()
	s := newLab(t).connect(t)
	for _, name := range []string{"Browser-Shell", "browser_shell", "browser_navigate", ""} {
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{"cmd": "id"}})
		var coded *jsonrpc.Error
		if !errors.As(err, &coded) || coded.Code != jsonrpc.CodeInvalidParams || !strings.Contains(err.Error(), "unknown tool; tools/list shows browser-shell") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoGeneralExecutor: what runs anything elsewhere is refused here by name,
// and the refusal is on record.
func TestNoGeneralExecutor(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.connect(t)
	for _, name := range []string{"run_shell", "sandbox_execute_bash", "bash"} {
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{"session_id": "s", "argv": []string{"snapshot"}, "cmd": "id"}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := read(res)
		if err != nil || a.ExitCode != 126 || a.rule() != "tool.executor" || !strings.HasPrefix(a.Stderr, "POLICY_BLOCKED (-32004) tool.executor: ") {
			t.Errorf("%s: %+v %v", name, a, err)
		}
	}
	log, err := os.ReadFile(filepath.Join(l.state, "audit.jsonl"))
	if err != nil || strings.Count(string(log), `"event":"POLICY_BLOCKED"`) != 3 || !strings.Contains(string(log), `"tool":"run_shell"`) {
		t.Errorf("audit: %s %v", log, err)
	}
}

// TestCompatibilityName: the base's tool name is the same chain in other
// clothes, and still the only tool.
func TestCompatibilityName(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["tool_name"] = "sandbox_execute_bash"
	s := l.connect(t)
	list, err := s.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "sandbox_execute_bash" {
		t.Fatalf("%+v %v", list, err)
	}
	for _, tt := range []struct{ cmd, rule string }{
		{"agent-browser open https://example.com", ""},
		{`fill '#a b' "x y"`, ""},
		{"snapshot | sh", "shell.syntax"},
		{"open $(id)", "shell.syntax"},
		{"ls -la", "command.not-allowed"},
		{"wait --fn 1", "wait.script"},
		{"open file:///etc/passwd", "url.scheme"},
		{"agent-browser --cdp 1 snapshot", "option.forced"},
		{"PATH=/tmp agent-browser snapshot", "shell.syntax"},
		{"AGENT_BROWSER_SESSION=../x agent-browser snapshot", "session.path"},
	} {
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_execute_bash", Arguments: map[string]any{"cmd": tt.cmd, "timeout": 20}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := read(res)
		rule, _ := a.rule().(string)
		if err != nil || rule != tt.rule || a.SessionID != "default" {
			t.Errorf("%s: %+v %v", tt.cmd, a, err)
		}
	}
	if words := l.note(t, "argv"); !strings.HasSuffix(words, "|fill|#a b|x y|") {
		t.Errorf("argv %s", words)
	}
	taught := fmt.Sprintf("AGENT_BROWSER_SESSION=shop-1 agent-browser --cdp %s open https://example.com --json", l.cdpPort())
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_execute_bash", Arguments: map[string]any{"cmd": taught}})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := read(res); err != nil || a.ExitCode != 0 || a.SessionID != "shop-1" {
		t.Errorf("%s: %+v %v", taught, a, err)
	}
	if words := l.note(t, "argv"); strings.Count(words, "--cdp") != 1 || strings.Count(words, "--json") != 1 || strings.Contains(words, "shop-1") {
		t.Errorf("argv %s", words)
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{}}); err == nil {
		t.Error("a second tool answers")
	}
}

// TestHandover: what agent-browser gets is built by browser-shell alone.
func TestHandover(t *testing.T) {
	l := newLab(t)
	l.write(t, "version", "agent-browser 0.8.10\n", 0o644)
	for name, value := range map[string]string{"AGENT_BROWSER_SESSION": "evil", "NODE_OPTIONS": "--require=/evil", "SECRET_TOKEN": "s3cret-of-the-environment"} {
		t.Setenv(name, value)
	}
	s := l.opened(t)
	a := s.do(t, "fill", "#a b", "$(id) `id` \"'\n;|&")
	if a.ExitCode != 0 || a.Stdout != "{\"done\":true}\n" || a.Stderr != "" || a.SessionID != "s" {
		t.Fatalf("got %+v", a)
	}
	words := strings.Split(l.note(t, "argv"), "|")
	name := words[1]
	want := []string{"--session", name, "--cdp", l.cdpPort(), "--json", "fill", "#a b", "$(id) `id` \"'\n;", "&", ""}
	if d := cmp.Diff(want, words); d != "" {
		t.Error(d)
	}
	if got := l.note(t, "stdin"); got != "/dev/null" {
		t.Errorf("stdin is %s", got)
	}
	if cwd := strings.Split(l.note(t, "cwd"), "\n"); len(cwd) != 1 || !strings.HasPrefix(cwd[0], l.state) {
		t.Errorf("working directory and its content: %q", cwd)
	}
	var names []string
	for _, e := range strings.Split(l.note(t, "environ"), "\n") {
		key, value, _ := strings.Cut(e, "=")
		names = append(names, key)
		if strings.Contains(value, "evil") || strings.Contains(value, "s3cret") {
			t.Errorf("inherited %s", e)
		}
	}
	slices.Sort(names)
	wantNames := strings.Fields("AGENT_BROWSER_ACTION_POLICY AGENT_BROWSER_CONFIG AGENT_BROWSER_IDLE_TIMEOUT_MS AGENT_BROWSER_NO_VERSION_CHECK AGENT_BROWSER_SOCKET_DIR BROWSER_SHELL_RUN BROWSER_SHELL_SESSION HOME LANG PATH TMPDIR")
	if d := cmp.Diff(wantNames, names); d != "" {
		t.Error(d)
	}
}

// TestDaemonLate: agent-browser gives its daemon 5 s to start, and then 5 tries to listen at its socket; a busy machine takes longer.
func TestDaemonLate(t *testing.T) {
	t.Parallel()
	said := []string{
		"Daemon failed to start (socket: /x.sock)\n", "Failed to connect: Connection refused (os error 111) (after 5 retries - daemon may be busy or unresponsive)\n",
		"Daemon failed to start (socket: /x.sock)\n",
	}
	for _, version := range []string{"0.8.10", "0.41.2"} {
		for late, exit := range map[int]int{2: 0, 3: 1} {
			l := newLab(t)
			l.write(t, "version", "agent-browser "+version+"\n", 0o644)
			l.write(t, "daemon-late", strings.Join(said[:late], ""), 0o644)
			a := l.connect(t).do(t, "open", "https://example.com")
			if a.ExitCode != exit || exit != 0 && !strings.Contains(a.Stderr, "Daemon failed to start") {
				t.Errorf("%s, %d times too late: %+v", version, late, a)
			}
			if n := strings.Count(l.note(t, "calls"), "open https"); version == "0.8.10" && n != 3 || version != "0.8.10" && n != 1-exit {
				t.Errorf("%s, %d times too late: opened %d times", version, late, n)
			}
		}
	}
	// The native one attaches to all tabs when it starts; one that another session closes meanwhile isn't there.
	l := newLab(t)
	l.write(t, "daemon-late", "CDP error (Target.attachToTarget): No target with given id found\nCDP error (Page.enable): Session with given id not found.\n", 0o644)
	if a := l.connect(t).do(t, "open", "https://example.com"); a.ExitCode != 0 {
		t.Errorf("a tab that another session closes: %+v", a)
	}
}

// TestPageMovesOn: a snapshot of a page that moves on meanwhile, as after a click on a link, or shows a dialog, is taken again.
func TestPageMovesOn(t *testing.T) {
	t.Parallel()
	for _, said := range []string{
		"CDP error (Accessibility.getFullAXTree): Inspected target navigated or closed",
		"A JavaScript confirm dialog is blocking the page: x. Resolve it with `dialog accept` or `dialog dismiss`, then retry `snapshot`.",
	} {
		for moves, exit := range map[int]int{2: 0, 3: 1} {
			l := newLab(t)
			s := l.opened(t)
			l.write(t, "moving", strings.Repeat(said+"\n", moves), 0o644)
			a := s.do(t, "snapshot")
			if a.ExitCode != exit || exit != 0 && !strings.Contains(a.Stderr, said[:20]) {
				t.Errorf("%s, %d times: %+v", said, moves, a)
			}
			if n := strings.Count(l.note(t, "calls"), "snapshot"); n != 3 {
				t.Errorf("%s, %d times: %d snapshots are taken, want 3", said, moves, n)
			}
		}
	}
}

// TestDaemonSlow: a daemon that is still starting when agent-browser gives up
// is waited for, not ended and started anew: on a machine that has just booted
// the first page would never open.
func TestDaemonSlow(t *testing.T) {
	t.Parallel()
	for version, calls := range map[string]int{"0.8.10": 2, "0.41.2": 3} {
		l := newLab(t)
		l.write(t, "version", "agent-browser "+version+"\n", 0o644)
		l.write(t, "daemon-slow", "", 0o644)
		if a := l.connect(t).do(t, "open", "https://example.com"); a.ExitCode != 0 {
			t.Errorf("%s: %+v", version, a)
		}
		if n := len(strings.Split(l.note(t, "calls"), "\n")); n != calls {
			t.Errorf("%s: %d calls, want %d", version, n, calls)
		}
		l.wantProcesses(t, 1)
	}
}

// TestDaemonSlowAfterDeath: the socket of a daemon that was killed is not taken for that of the next one, which is waited for, too.
func TestDaemonSlowAfterDeath(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write(t, "version", "agent-browser 0.8.10\n", 0o644)
	l.write(t, "daemon-slow", "", 0o644)
	s := l.opened(t)
	if !killOne(l, "sleep") {
		t.Fatal("no daemon to kill")
	}
	pids, err := filepath.Glob(filepath.Join(l.state, "run-*", "s", "*.pid"))
	if err != nil || len(pids) != 1 {
		t.Fatal(pids, err)
	}
	if err := os.Remove(pids[0]); err != nil { // the fake takes it for a daemon's
		t.Fatal(err)
	}
	if a := s.do(t, "snapshot"); a.ExitCode != 0 {
		t.Errorf("%+v", a)
	}
	l.wantProcesses(t, 1)
}

// TestNative: a newer version gets its own tab, and its HTTP port is closed
// before the daemon's first command, or there is no command.
func TestNative(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.connect(t)
	l.write(t, "stream-fails", "", 0o644)
	if a := s.do(t, "open", "https://example.com"); a.ExitCode != 1 || !strings.Contains(a.Stderr, "no stream") {
		t.Errorf("got %+v", a)
	}
	if err := os.Remove(filepath.Join(l.dir, "stream-fails")); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"open", "https://example.com"}, {"snapshot", "-u"}} {
		if a := s.do(t, argv...); a.ExitCode != 0 {
			t.Errorf("got %+v", a)
		}
	}
	var got []string
	for _, line := range strings.Split(l.note(t, "calls"), "\n") {
		_, rest, _ := strings.Cut(line, " --cdp ")
		got = append(got, rest)
	}
	forced := l.cdpPort() + " --json --pin-tab "
	want := []string{forced + "stream disable", forced + "stream disable", forced + "open https://example.com/", forced + "snapshot --urls"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestRefusals: a refusal is a result, says its rule to people and programs,
// and runs nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.connect(t)
	for _, tt := range []struct {
		args string
		exit int
		code float64
		name string
		rule string
	}{
		{`{"session_id":"s","argv":["eval","1"]}`, 126, -32004, "POLICY_BLOCKED", "command.not-allowed"},
		{`{"session_id":"s","argv":["fill","@e1","--session"]}`, 126, -32004, "POLICY_BLOCKED", "option.forced"},
		{`{"session_id":"s","argv":["wait","--fn","1"]}`, 126, -32004, "POLICY_BLOCKED", "wait.script"},
		{`{"session_id":"s","argv":["open","file:///etc/passwd"]}`, 126, -32004, "POLICY_BLOCKED", "url.scheme"},
		{`{"session_id":"s","argv":["open","http://127.0.0.1:9222/"]}`, 126, -32004, "POLICY_BLOCKED", "url.loopback"},
		{`{"session_id":"s","argv":["screenshot","../x"]}`, 126, -32006, "SANDBOX_VIOLATION", "screenshot.path"},
		{`{"session_id":"../x","argv":["close"]}`, 126, -32006, "SANDBOX_VIOLATION", "session.path"},
		{`{"session_id":"s","argv":["fill","@e1","` + strings.Repeat("a", 64<<10+1) + `"]}`, 75, -32005, "BUDGET_EXCEEDED", "argv.size"},
		{`{"session_id":"s","argv":["close"],"x":1}`, 64, -32602, "INVALID_PARAMS", "args.unknown-key"},
		{`{"session_id":"s","argv":[]}`, 64, -32602, "INVALID_PARAMS", "argv.empty"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			a := s.raw(t, json.RawMessage(tt.args))
			want := mcp.Meta{"code": tt.code, "name": tt.name, "rule": tt.rule, "retryable": false, "retry_after_ms": 0.0}
			meta := mcp.Meta{}
			for k := range want {
				meta[k] = a.raw.Meta[k]
			}
			if d := cmp.Diff(want, meta); d != "" {
				t.Error(d)
			}
			if a.ExitCode != tt.exit || a.Stdout != "" || !strings.HasPrefix(a.Stderr, tt.name+" (-32") || !strings.Contains(a.Stderr, ") "+tt.rule+": ") {
				t.Errorf("got %+v", a)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(l.dir, "argv")); err == nil {
		t.Error("agent-browser was run")
	}
}

// TestFaults: nothing but the promised JSON passes as data, and a success is
// the only way to exit code 0.
func TestFaults(t *testing.T) {
	t.Parallel()
	s := newLab(t).opened(t)
	for selector, want := range map[string]struct {
		exit  int
		words string
	}{
		"#exit0":   {1, "it failed"},
		"#exit3":   {3, "exited with 3"},
		"#text":    {70, "no valid answer"},
		"#nothing": {70, "no valid answer"},
		"#endless": {75, "output.size"},
	} {
		t.Run(selector, func(t *testing.T) {
			a := s.do(t, "click", selector)
			if a.ExitCode != want.exit || !strings.Contains(a.Stderr, want.words) {
				t.Errorf("got %d %s", a.ExitCode, a.Stderr)
			}
		})
	}
	if a := s.do(t, "open", "https://example.com"); a.ExitCode != 0 {
		t.Errorf("the next call: %+v", a)
	}
	if a := s.do(t, "click", "#large"); a.ExitCode != 0 || len(a.Stdout) > 30000 || !strings.Contains(a.Stdout, "truncated") || !json.Valid([]byte(a.Stdout)) {
		t.Errorf("a long answer: exit %d, %d bytes", a.ExitCode, len(a.Stdout))
	}
}

func TestTimeoutEndsEverything(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.connect(t)
	for _, selector := range []string{"#hang", "#late"} {
		if a := s.do(t, "open", "https://example.com"); a.ExitCode != 0 {
			t.Fatalf("open: %+v", a)
		}
		start := time.Now()
		var a answer
		for sec := 3; a.raw == nil || a.rule() == "timeout.ready" && sec < 30; sec *= 2 { // a busy machine may not start it in time
			a = s.raw(t, map[string]any{"session_id": "s", "argv": []string{"click", selector}, "timeout_sec": sec})
		}
		if a.ExitCode != 124 || a.rule() != "timeout.run" || a.raw.Meta["retryable"] != true {
			t.Errorf("%s: got %+v", selector, a)
		}
		if d := time.Since(start); d > need.Patience/2 { // the program runs for 10 minutes
			t.Errorf("%s: the answer took %s", selector, d)
		}
		l.wantProcesses(t, 0) // the CLI, its children and the daemon
	}
	if a := s.do(t, "click", "#fine"); a.ExitCode != 0 {
		t.Errorf("the next call: %+v", a)
	}
}

func TestCancelEndsTheProgram(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := call(ctx, s.ClientSession, map[string]any{"session_id": "s", "argv": []string{"click", "#hang"}})
		done <- err
	}()
	l.wantProcesses(t, 3) // the daemon, the command line and its child
	cancel()
	if err := <-done; err == nil {
		t.Error("a cancelled call was answered")
	}
	l.wantProcesses(t, 0)
	if a := s.do(t, "click", "#fine"); a.ExitCode != 0 {
		t.Errorf("the next call: %+v", a)
	}
}

// together runs the same argv in several sessions at once.
func together(t *testing.T, s *client, argv []string, sessions ...string) []answer {
	t.Helper()
	answers := make([]answer, len(sessions))
	var wg sync.WaitGroup
	for i, id := range sessions {
		wg.Go(func() {
			a, err := call(t.Context(), s.ClientSession, map[string]any{"session_id": id, "argv": argv})
			if err != nil {
				t.Error(err)
			}
			answers[i] = a
		})
	}
	wg.Wait()
	return answers
}

func TestOneCallAtATimePerSession(t *testing.T) {
	t.Parallel()
	s := newLab(t).connect(t)
	together(t, s, []string{"open", "https://example.com"}, "s", "one", "two")
	for _, a := range together(t, s, []string{"hover", "#alone"}, "s", "s", "s", "s") {
		if a.ExitCode != 0 {
			t.Errorf("got %+v", a)
		}
	}
	for _, a := range together(t, s, []string{"hover", "#meet"}, "one", "two") {
		if a.ExitCode != 0 {
			t.Errorf("two sessions do not run at the same time: %+v", a)
		}
	}
}

func TestSessionLimit(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["limits"] = map[string]any{"max_sessions": 2}
	s := l.connect(t)
	open := func(id string) answer {
		return s.raw(t, map[string]any{"session_id": id, "argv": []string{"open", "https://example.com"}})
	}
	open("a")
	open("b")
	if a := open("c"); a.ExitCode != 75 || a.rule() != "sessions.count" {
		t.Errorf("got %+v", a)
	}
	if a := s.raw(t, map[string]any{"session_id": "a", "argv": []string{"close"}}); a.Stdout != "{\"closed\":true}\n" {
		t.Errorf("close: %+v", a)
	}
	l.wantProcesses(t, 1)
	if a := open("c"); a.ExitCode != 0 {
		t.Errorf("after close: %+v", a)
	}
}

func TestScreenshot(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	a := s.do(t, "screenshot", "#x", "shot.png")
	var data struct{ Path string }
	if err := json.Unmarshal([]byte(a.Stdout), &data); err != nil {
		t.Fatalf("%v in %+v", err, a)
	}
	if !strings.HasPrefix(data.Path, filepath.Join(l.state, "artifacts")+"/") || filepath.Base(data.Path) != "shot.png" {
		t.Errorf("path %s", data.Path)
	}
	file, err := os.ReadFile(data.Path)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.raw.Content) != 2 {
		t.Fatalf("content: %+v", a.raw.Content)
	}
	if image, ok := a.raw.Content[1].(*mcp.ImageContent); !ok || image.MIMEType != "image/png" || !bytes.Equal(image.Data, file) {
		t.Errorf("content[1]: %+v", a.raw.Content[1])
	}
	for _, selector := range []string{"#link", "#none"} { // a link to a file, a path elsewhere
		if a := s.do(t, "screenshot", selector); a.ExitCode != 70 || len(a.raw.Content) != 1 {
			t.Errorf("%s: %+v", selector, a)
		}
	}
}

// TestPDF: a PDF is kept as a screenshot is, when the policy names the command.
func TestPDF(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	without := l.opened(t)
	if a := without.do(t, "pdf"); a.rule() != "command.off" {
		t.Errorf("without the policy: %+v", a)
	}
	without.Close()
	l.policy["commands"] = []string{"open", "pdf"}
	s := l.opened(t)
	a := s.do(t, "pdf", "page.pdf")
	var data struct{ Path string }
	if err := json.Unmarshal([]byte(a.Stdout), &data); err != nil {
		t.Fatalf("%v in %+v", err, a)
	}
	if file, err := os.ReadFile(data.Path); err != nil || string(file) != "%PDF-1.4\n" || filepath.Base(data.Path) != "page.pdf" || len(a.raw.Content) != 1 {
		t.Errorf("%+v: %q %v", a, file, err)
	}
	evidence, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(data.Path)), "evidence.json"))
	if err != nil || !strings.Contains(string(evidence), `"application/pdf"`) {
		t.Errorf("evidence: %s %v", evidence, err)
	}
	if a := s.do(t, "pdf", "other.pdf"); a.ExitCode != 70 || !strings.Contains(a.Stderr, "not a PDF") {
		t.Errorf("what is no PDF: %+v", a)
	}
	if a := s.do(t, "pdf", "../page.pdf"); a.rule() != "pdf.path" {
		t.Errorf("a path: %+v", a)
	}
}

// TestDescription: an agent reads of the commands that the policy allows, and
// of no others.
func TestDescription(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		commands  []string
		has, lack []string
	}{
		"default": {nil, []string{"open URL", "screenshot [SELECTOR]", "new_tabs", "UNREACHABLE"}, []string{"scroll up", "get url", "pdf", "COMMANDS", "FORM"}},
		"+read":   {[]string{"+read"}, []string{"open URL", "get url|title", "is visible", "scroll up", "back", "forward", "reload"}, []string{"pdf"}},
		"few":     {[]string{"open", "close", "pdf"}, []string{"open URL", "close", "pdf [NAME.pdf]"}, []string{"fill SELECTOR", "scroll up"}},
	} {
		l := newLab(t)
		if tt.commands != nil {
			l.policy["commands"] = tt.commands
		}
		list, err := l.connect(t).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range tt.has {
			if !strings.Contains(list.Tools[0].Description, word) {
				t.Errorf("%s: no %q in %s", name, word, list.Tools[0].Description)
			}
		}
		for _, word := range tt.lack {
			if strings.Contains(list.Tools[0].Description, word) {
				t.Errorf("%s: %q in %s", name, word, list.Tools[0].Description)
			}
		}
	}
}

func TestNoAgentBrowser(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["agent_browser"].(map[string]any)["path"] = filepath.Join(l.dir, "missing")
	s := l.connect(t)
	if a := s.do(t, "snapshot"); a.ExitCode != 127 || !strings.Contains(a.Stderr, "install it") {
		t.Errorf("got %+v", a)
	}
	if a := s.do(t, "eval", "1"); a.ExitCode != 126 {
		t.Errorf("a refusal does not need the program: %+v", a)
	}
}

func TestUnknownVersion(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write(t, "version", "agent-browser 0.99.0\n", 0o644)
	s := l.connect(t)
	if a := s.do(t, "snapshot"); a.ExitCode != 127 || !strings.Contains(a.Stderr, "0.99.0 has no known grammar") {
		t.Errorf("got %+v", a)
	}
	l.write(t, "version", "agent-browser 0.19.0\n", 0o644)
	if a := s.do(t, "open", "https://example.com"); a.ExitCode != 0 {
		t.Errorf("after it was replaced: %+v", a)
	}
}

// TestEnds: end of input, SIGTERM and SIGINT end it with 0, with no process
// and no directory left; what a killed one leaves, the next one ends.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*client) error{
		"end of input": func(c *client) error { return c.Close() },
		"SIGTERM":      func(c *client) error { return c.cmd.Process.Signal(syscall.SIGTERM) },
		"SIGINT":       func(c *client) error { return c.cmd.Process.Signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			s := l.start(t, os.Stderr)
			s.do(t, "open", "https://example.com")
			l.wantProcesses(t, 1)
			if err := end(s); err != nil {
				t.Fatal(err)
			}
			s.Close()
			if code := s.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			l.wantProcesses(t, 0)
			l.wantClean(t)
		})
	}
	t.Run("SIGKILL", func(t *testing.T) {
		l := newLab(t)
		s := l.start(t, os.Stderr)
		s.do(t, "open", "https://example.com")
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		l.wantProcesses(t, 1)
		next := l.start(t, os.Stderr)
		next.do(t, "open", "https://example.com")
		l.wantProcesses(t, 1) // the new one's
		next.Close()
		l.wantProcesses(t, 0)
		l.wantClean(t)
	})
}

// TestTwoAtOnce: a second browser-shell with the same state directory leaves
// the first one's daemons alone.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := l.start(t, os.Stderr)
	first.do(t, "open", "https://example.com")
	l.policy["audit"] = map[string]any{"file": filepath.Join(l.dir, "second.jsonl")}
	second := l.start(t, os.Stderr)
	second.do(t, "open", "https://example.com")
	l.wantProcesses(t, 2)
	second.Close()
	l.wantProcesses(t, 1)
}

func TestStartRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{"commands":["open"],}`), 0o600); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "shared.json")
	if err := os.WriteFile(open, []byte(`{"audit":{"file":""},"state_dir":"`+shared+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"mcp", "--policy", broken}, 1, "broken.json:1:"},
		{[]string{"mcp", "--policy", filepath.Join(dir, "missing.json")}, 1, "missing.json"},
		{[]string{"mcp", "--policy", open}, 1, "mode 0700"},
		{[]string{"serve", "--no-such"}, 2, "no-such"},
		{[]string{"mcp", "extra"}, 2, "unexpected argument"},
		{[]string{"mcp", "--no-such"}, 2, "no-such"},
		{[]string{"shell"}, 2, "no command"},
		{nil, 2, "browser-shell mcp"},
	} {
		cmd := exec.Command(binary, tt.args...)
		cmd.Env = append(os.Environ(), "TMPDIR="+dir)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != tt.code || stdout.Len() > 0 || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", tt.args, code, &stdout, &stderr)
		}
	}
}

func TestVersionAndSize(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(binary, "version").Output()
	if line := regexp.MustCompile(`^browser-shell \(devel\) \(commit unknown, go[^,]+, linux/\w+\)\n$`); err != nil || !line.Match(out) {
		t.Errorf("%q %v", out, err)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 12<<20 {
		t.Errorf("the binary has %d bytes, more than 12 MiB", info.Size())
	}
}
