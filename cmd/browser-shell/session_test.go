package main_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/cdp/cdptest"
)

// tab returns the one page that a session has.
func (l *lab) tab(t *testing.T) cdptest.Page {
	t.Helper()
	var found []cdptest.Page
	for _, p := range l.browser.Pages() {
		if p.Context != "default" {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d tabs: %+v", len(found), found)
	}
	return found[0]
}

// TestSessionTab: a session's tab is in a context of its own behind the proxy,
// without downloads, and is gone after close.
func TestSessionTab(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["egress"] = map[string]any{"proxy": "127.0.0.1:8199"}
	s := l.opened(t)
	tab := l.tab(t)
	if proxy, denied := l.browser.Proxy(tab.Context); proxy != "127.0.0.1:8199" || !denied {
		t.Errorf("proxy %q, downloads denied %v", proxy, denied)
	}
	if a := s.do(t, "close"); a.ExitCode != 0 {
		t.Errorf("close: %+v", a)
	}
	if n := l.browser.Contexts(); n != 0 {
		t.Errorf("%d contexts are left", n)
	}
	if a := s.do(t, "snapshot"); a.ExitCode != 1 || !strings.Contains(a.Stderr, "no page") {
		t.Errorf("after close: %+v", a)
	}
}

// TestPasswordFields: what stands in the page's password fields is hidden also where nothing around it says what it is.
func TestPasswordFields(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	l.write(t, "snapshot", `{"snapshot":"- textbox [ref=e2]: correct horse"}`, 0o600)
	if a := s.do(t, "snapshot"); !strings.Contains(a.Stdout, "correct horse") {
		t.Fatalf("%+v", a)
	}
	l.browser.SetPasswords("correct horse")
	if a := s.do(t, "snapshot"); a.ExitCode != 0 || strings.Contains(a.Stdout, "horse") || !strings.Contains(a.Stdout, "[ref=e2]: [redacted]") {
		t.Errorf("%+v", a)
	}
}

// TestForbiddenPage: a page that went where it may not go is left, and nothing
// of it is read.
func TestForbiddenPage(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	for url, rule := range map[string]string{
		"http://127.0.0.1:9222/json":      "url.loopback",
		"http://10.0.0.1/":                "url.private",
		"file:///etc/passwd":              "page.forbidden",
		"chrome://version/":               "page.forbidden",
		"data:text/html,x":                "page.forbidden",
		"blob:http://192.168.0.1/0-0-0-0": "url.private",
		"http://127.1/":                   "url.address",
	} {
		t.Run(url, func(t *testing.T) {
			l.browser.Navigate(l.tab(t).ID, url)
			s.settle(t) // later, the page is caught after the run
			calls := l.note(t, "calls")
			a := s.do(t, "snapshot")
			if a.ExitCode != 126 || a.rule() != rule || strings.Contains(a.Stderr, url) {
				t.Errorf("got %+v", a)
			}
			if l.note(t, "calls") != calls {
				t.Error("agent-browser was run on that page")
			}
			if now := l.tab(t).URL; now != "about:blank" {
				t.Errorf("the tab is at %s", now)
			}
			if a := s.do(t, "snapshot"); a.ExitCode != 0 {
				t.Errorf("the next call: %+v", a)
			}
			popup := l.browser.Popup(l.tab(t).ID, url)
			if a := s.do(t, "snapshot"); a.rule() != rule {
				t.Errorf("a popup: %+v", a)
			}
			for _, p := range l.browser.Pages() {
				if p.ID == popup {
					t.Error("the popup is still open")
				}
			}
		})
	}
}

// TestAllowedHosts: with a list of hosts, a page elsewhere is left too.
func TestAllowedHosts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["open"] = map[string]any{"allow_hosts": []string{"example.com"}}
	s := l.opened(t)
	if a := s.do(t, "open", "https://example.org"); a.rule() != "url.host-not-allowed" {
		t.Errorf("got %+v", a)
	}
	l.browser.Navigate(l.tab(t).ID, "https://example.org/")
	if a := s.do(t, "snapshot"); a.rule() != "url.host-not-allowed" {
		t.Errorf("got %+v", a)
	}
}

// TestBrowserGone: a tab that is closed and a browser that is restarted are
// told, and the next open starts over.
func TestBrowserGone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *lab){
		"tab closed":  func(t *testing.T, l *lab) { l.browser.ClosePage(l.tab(t).ID) },
		"tab crashed": func(t *testing.T, l *lab) { l.browser.Crash(l.tab(t).ID) },
		"restarted":   func(_ *testing.T, l *lab) { l.browser.Drop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			s := l.opened(t)
			end(t, l)
			s.settle(t)
			if a := s.do(t, "snapshot"); a.ExitCode != 1 || !strings.Contains(a.Stderr, "no page") {
				t.Errorf("got %+v", a)
			}
			l.wantProcesses(t, 0)
			if a := s.do(t, "open", "https://example.com"); a.ExitCode != 0 {
				t.Errorf("open again: %+v", a)
			}
		})
	}
	t.Run("ended", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		s := l.opened(t)
		l.browser.Stop()
		open := map[string]any{"session_id": "settle", "argv": []string{"open", "https://example.com"}, "timeout_sec": 4} // it waits for a browser
		s.raw(t, open)
		open["session_id"] = "s"
		a := s.raw(t, open)
		for began := time.Now(); a.rule() == "timeout.ready" && time.Since(began) < need.Patience; a = s.raw(t, open) { // a busy machine's
		}
		if a.ExitCode != 69 || !strings.Contains(a.Stderr, "Chromium does not answer") {
			t.Errorf("got %+v", a)
		}
		l.wantProcesses(t, 0)
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		s := l.opened(t)
		l.browser.Hang(true)
		start := time.Now()
		a := s.raw(t, map[string]any{"session_id": "s", "argv": []string{"snapshot"}, "timeout_sec": 2})
		if a.ExitCode == 0 || a.Stdout != "" {
			t.Errorf("got %+v", a)
		}
		if d := time.Since(start); d > need.Patience/2 {
			t.Errorf("the answer took %s", d)
		}
	})
}

// TestDaemonIsHeld: a daemon that came up in another's place has its port open;
// it is ended before the next command, and does not answer for it.
func TestDaemonIsHeld(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	if !killOne(l, "sleep") {
		t.Fatal("no daemon to kill")
	}
	if a := s.do(t, "snapshot"); a.ExitCode != 0 {
		t.Errorf("got %+v", a)
	}
	calls := strings.Split(l.note(t, "calls"), "\n")
	if n := len(calls); !strings.HasSuffix(calls[n-2], "stream disable") || !strings.HasSuffix(calls[n-1], "snapshot") {
		t.Errorf("calls: %q", calls)
	}
	if a := s.do(t, "click", "#replaced"); a.ExitCode != 1 || !strings.Contains(a.Stderr, "daemon ended") {
		t.Errorf("got %+v", a)
	}
	l.wantProcesses(t, 0)
	if a := s.do(t, "snapshot"); a.ExitCode != 0 {
		t.Errorf("the next call: %+v", a)
	}
}

// TestOneOldSession: agent-browser 0.8 to 0.19 has one session at a time, over
// all browser-shells of a state directory, and no other page beside it.
func TestOneOldSession(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write(t, "version", "agent-browser 0.8.10\n", 0o644)
	first := l.opened(t)
	if n := len(l.browser.Pages()); n != 1 {
		t.Errorf("%d pages", n)
	}
	l.policy["audit"] = map[string]any{"file": filepath.Join(l.dir, "second.jsonl")}
	second := l.connect(t)
	open := map[string]any{"session_id": "other", "argv": []string{"open", "https://example.com"}}
	for _, c := range []*client{first, second} {
		if a := c.raw(t, open); a.ExitCode != 75 || a.rule() != "sessions.count" {
			t.Errorf("got %+v", a)
		}
	}
	if a := first.do(t, "close"); a.ExitCode != 0 {
		t.Errorf("close: %+v", a)
	}
	if a := second.raw(t, open); a.ExitCode != 0 {
		t.Errorf("after close: %+v", a)
	}
}

// TestIdleSession: a session that nobody uses is closed.
func TestIdleSession(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["limits"] = map[string]any{"session_idle_sec": 10}
	s := l.opened(t)
	need.Eventually(t, func() bool { return l.browser.Contexts() == 0 }, func() string { return "the session is still open" })
	l.wantProcesses(t, 0)
	if a := s.do(t, "open", "https://example.com"); a.ExitCode != 0 {
		t.Errorf("open again: %+v", a)
	}
}

// TestReload: SIGHUP brings a new policy; a broken one or one that needs a
// restart leaves the old one as it is.
func TestReload(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	r, stderr := io.Pipe()
	s := l.start(t, stderr)
	said := make(chan string, 100)
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			said <- lines.Text()
		}
	}()
	if a := s.do(t, "open", "https://example.com"); a.ExitCode != 0 {
		t.Fatalf("open: %+v", a)
	}
	const reloaded, stays = "policy reloaded", "the old one stays"
	for _, tt := range []struct {
		change  func()
		says    string
		refused bool // hover, afterwards
	}{
		{func() { l.policy["commands"] = []string{"open", "close"} }, reloaded, true},
		{func() { l.policy["commands"] = []string{"open", "close", "run_shell"} }, stays, true},
		{func() { l.policy["commands"] = []string{"hover"}; l.policy["state_dir"] = "/elsewhere" }, stays, true},
		{func() { l.policy["state_dir"] = l.state }, reloaded, false},
	} {
		tt.change()
		text, err := json.Marshal(l.policy)
		if err != nil {
			t.Fatal(err)
		}
		l.write(t, "policy.json", string(text), 0o600)
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for text := ""; !strings.Contains(text, tt.says); {
			select {
			case text = <-said:
			case <-time.After(need.Patience):
				t.Fatalf("it did not say %q", tt.says)
			}
		}
		if a := s.do(t, "hover", "#x"); (a.ExitCode != 0) != tt.refused {
			t.Errorf("%s: %+v", text, a)
		}
	}
}

// TestNoAuditNoRun: a call that cannot be recorded is not run, and its answer
// is not given.
func TestNoAuditNoRun(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	calls := l.note(t, "calls")
	if err := os.Rename(filepath.Join(l.state, "audit.jsonl"), filepath.Join(l.dir, "stolen.jsonl")); err != nil {
		t.Fatal(err)
	}
	if a := s.do(t, "snapshot"); a.ExitCode != 126 || a.rule() != "audit.unavailable" || a.Stdout != "" {
		t.Errorf("got %+v", a)
	}
	if l.note(t, "calls") != calls {
		t.Error("agent-browser was run")
	}
}

// TestAuditLines: each call has a line that says what became of it.
func TestAuditLines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	s.do(t, "fill", "#password", "a text that nobody should read")
	s.do(t, "screenshot")
	s.do(t, "wait", "--fn", "1")
	s.do(t, "open", "http://10.0.0.1/?q=secret")
	s.Close()
	b, err := os.ReadFile(filepath.Join(l.state, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(b)) {
		var r struct {
			Event, Decision, Subcommand, Rule string
			Events, Argv                      []string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s %v %v", r.Event, r.Decision, r.Rule, r.Events, r.Argv))
	}
	want := []string{
		"START [] []",
		"TOOL_FINISHED allow  [MCP_TOOL_CALL SANDBOX_EXEC TOOL_FINISHED] [open [address]]",
		"TOOL_FINISHED allow  [MCP_TOOL_CALL SANDBOX_EXEC TOOL_FINISHED] [fill #password [30 characters]]",
		"TOOL_FINISHED allow  [MCP_TOOL_CALL SANDBOX_EXEC MCP_FILE_WRITE TOOL_FINISHED] [screenshot]",
		"POLICY_BLOCKED deny wait.script [MCP_TOOL_CALL POLICY_BLOCKED MCP_COMMAND_BLOCKED TOOL_FINISHED] [wait --fn 1]",
		"POLICY_BLOCKED deny url.private [MCP_TOOL_CALL POLICY_BLOCKED MCP_NETWORK_BLOCKED TOOL_FINISHED] [open [address]]",
		"STOP [] []",
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || strings.Join(strings.Fields(got[i]), " ") != strings.Join(strings.Fields(want[i]), " ") {
			t.Fatalf("line %d: got %q, want %q", i+1, got[min(i, len(got)-1):], want[min(i, len(want)-1):])
		}
	}
}

// TestEvidence: evidence.json lists what is there.
func TestEvidence(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	for _, name := range []string{"a.png", "b.png", "a.png"} {
		if a := s.do(t, "screenshot", name); a.ExitCode != 0 {
			t.Fatalf("got %+v", a)
		}
	}
	s.Close()
	files, _ := filepath.Glob(filepath.Join(l.state, "artifacts", "*", "evidence.json"))
	if len(files) != 1 {
		t.Fatalf("%q", files)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var evidence struct {
		RunID string `json:"run_id"`
		Files []struct {
			Path, SHA256, Type string
			Size               int64
		}
	}
	if err := json.Unmarshal(b, &evidence); err != nil {
		t.Fatal(err)
	}
	if evidence.RunID != filepath.Base(filepath.Dir(files[0])) || len(evidence.Files) != 2 {
		t.Errorf("%s", b)
	}
	for _, f := range evidence.Files {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(files[0]), f.Path))
		sum := sha256.Sum256(data)
		if err != nil || f.SHA256 != hex.EncodeToString(sum[:]) || f.Size != int64(len(data)) || f.Type != "image/png" {
			t.Errorf("%+v %v", f, err)
		}
	}
}
