package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func argv(words ...string) []string { return words }

// TestCheckRefuses holds the attacks: each must end in its rule, in both
// generations unless gen is set.
func TestCheckRefuses(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = "x"
	}
	tests := []struct {
		name string
		argv []string
		gen  Generation
		code Code
		rule string
	}{
		// Option smuggling: agent-browser reads options anywhere.
		{"session in a text slot", argv("fill", "@e1", "--session"), "", PolicyBlocked, "option.forced"},
		{"session with a value", argv("fill", "@e1", "--session", "evil"), "", PolicyBlocked, "option.forced"},
		{"session assigned", argv("fill", "@e1", "--session=evil"), "", PolicyBlocked, "option.forced"},
		{"cdp after a URL", argv("open", "https://example.com", "--cdp", "1"), "", PolicyBlocked, "option.forced"},
		{"json off", argv("click", "@e1", "--json", "false"), "", PolicyBlocked, "option.forced"},
		{"pin undone", argv("click", "@e1", "--no-pin-tab"), "", PolicyBlocked, "option.forced"},
		{"help as text", argv("fill", "@e1", "-h"), "", PolicyBlocked, "option.not-allowed"},
		{"full as text", argv("fill", "@e1", "-f"), "", PolicyBlocked, "option.not-allowed"},
		{"restore assigned", argv("type", "@e1", "--restore=x"), "", PolicyBlocked, "option.not-allowed"},
		{"restore assigned with a blank", argv("type", "@e1", "--restore=a b"), "", PolicyBlocked, "option.not-allowed"},
		{"config in select", argv("select", "@e1", "--config"), "", PolicyBlocked, "option.not-allowed"},
		{"headers", argv("open", "https://example.com", "--headers", "{}"), "", PolicyBlocked, "option.not-allowed"},
		{"init script", argv("open", "https://example.com", "--init-script", "/etc/passwd"), "", PolicyBlocked, "option.not-allowed"},
		{"new tab", argv("click", "@e1", "--new-tab"), "", PolicyBlocked, "option.not-allowed"},
		{"close all", argv("close", "--all"), "", PolicyBlocked, "option.not-allowed"},
		{"option before the URL", argv("open", "--x", "https://example.com"), "", PolicyBlocked, "option.not-allowed"},
		{"short option as URL", argv("open", "-x"), "", PolicyBlocked, "option.not-allowed"},
		{"long odd option", argv("fill", "@e1", "--no_such.option"), "", PolicyBlocked, "option.not-allowed"},
		{"option as an option's value", argv("snapshot", "-s", "--json"), "", PolicyBlocked, "option.value"},
		{"option without its value", argv("snapshot", "-d"), "", PolicyBlocked, "option.value"},
		{"option twice", argv("snapshot", "-d", "1", "--depth", "2"), "", PolicyBlocked, "option.twice"},
		{"selector with a dash", argv("click", "-5"), "", PolicyBlocked, "value.dash"},
		{"option first", argv("--session", "x", "open", "https://example.com"), "", PolicyBlocked, "option.forced"},
		{"version first", argv("--version"), "", PolicyBlocked, "command.first"},

		// Code and files.
		{"wait fn", argv("wait", "--fn", "document.title='X'"), "", PolicyBlocked, "wait.script"},
		{"wait fn after a positional", argv("wait", "200", "--fn", "1"), "", PolicyBlocked, "wait.script"},
		{"wait -f", argv("wait", "-f", "1"), "", PolicyBlocked, "wait.script"},
		{"wait fn assigned", argv("wait", "--fn=1"), "", PolicyBlocked, "wait.script"},
		{"wait download", argv("wait", "--download", "/tmp/x"), "", SandboxViolation, "wait.download"},
		{"path wins over option", argv("screenshot", "../x", "--session", "a"), "", SandboxViolation, "screenshot.path"},
		{"path wins over a control character", argv("screenshot", "../x\x01"), "", SandboxViolation, "screenshot.path"},
		{"path wins over a control character elsewhere", argv("screenshot", "a\x1b", "../x"), "", SandboxViolation, "screenshot.path"},
		{"size wins over a path", argv("screenshot", "../"+strings.Repeat("x", 64<<10)), "", BudgetExceeded, "argv.size"},
		{"screenshot home", argv("screenshot", "~x.png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot file URL", argv("screenshot", "FILE:x.png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot backslash", argv("screenshot", "a\\b.png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot path after a double dash", argv("screenshot", "--", "../x"), "", SandboxViolation, "screenshot.path"},
		{"screenshot parent", argv("screenshot", "../x"), "", SandboxViolation, "screenshot.path"},
		{"screenshot absolute", argv("screenshot", "/etc/cron.d/x"), "", SandboxViolation, "screenshot.path"},
		{"screenshot subdirectory", argv("screenshot", "a/b.png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot second path", argv("screenshot", "@e1", "/tmp/x.png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot hidden name", argv("screenshot", ".png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot odd name", argv("screenshot", "a b.png"), "", SandboxViolation, "screenshot.path"},
		{"screenshot upper ending", argv("screenshot", "x.PNG"), "", SandboxViolation, "screenshot.path"},
		{"screenshot two names", argv("screenshot", "a.png", "b.png"), "", InvalidParams, "screenshot.form"},
		{"screenshot dir", argv("screenshot", "--screenshot-dir", "tmp"), "", PolicyBlocked, "option.not-allowed"},

		// Waits.
		{"wait too long", argv("wait", "119001"), "", PolicyBlocked, "value.number"},
		{"wait huge", argv("wait", "99999999999999999999"), "", PolicyBlocked, "value.number"},
		{"wait signed", argv("wait", "+30000"), "", PolicyBlocked, "value.number"},
		{"wait nothing", argv("wait"), "", InvalidParams, "wait.form"},
		{"wait two forms", argv("wait", "@e1", "--text", "x"), "", InvalidParams, "wait.form"},
		{"wait load word", argv("wait", "--load", "idle"), "", PolicyBlocked, "value.word"},
		{"wait state is a file in 0.8", argv("wait", "@e1", "--state", "hidden"), Node, PolicyBlocked, "option.not-allowed"},
		{"wait state as a file", argv("wait", "@e1", "--state", "x.json"), Native, PolicyBlocked, "value.word"},
		{"wait state without a selector", argv("wait", "--text", "x", "--state", "hidden"), Native, InvalidParams, "wait.form"},
		{"wait state alone", argv("wait", "--state", "hidden"), Native, InvalidParams, "wait.form"},
		{"wait timeout in 0.8", argv("wait", "@e1", "--timeout", "5"), Node, PolicyBlocked, "option.not-allowed"},
		{"snapshot urls in 0.8", argv("snapshot", "-u"), Node, PolicyBlocked, "option.not-allowed"},

		// Arity and values.
		{"two URLs", argv("open", "https://example.com", "https://example.com"), "", InvalidParams, "argv.arity"},
		{"two URLs, one of them bad", argv("open", "https://example.com", "http://127.0.0.1"), "", PolicyBlocked, "url.loopback"},
		{"no URL", argv("open"), "", InvalidParams, "argv.arity"},
		{"text in two words", argv("fill", "@e1", "two", "words"), "", InvalidParams, "argv.arity"},
		{"snapshot with a word", argv("snapshot", "x"), "", InvalidParams, "argv.arity"},
		{"close with a word", argv("close", "x"), "", InvalidParams, "argv.arity"},
		{"too many values", append(argv("select", "@e1"), many[:17]...), "", InvalidParams, "argv.arity"},
		{"unknown key", argv("press", "NoSuchKey"), "", PolicyBlocked, "press.key"},
		{"depth no number", argv("snapshot", "-d", "x"), "", PolicyBlocked, "value.number"},
		{"depth too large", argv("snapshot", "-d", "101"), "", PolicyBlocked, "value.number"},
		{"empty selector", argv("click", ""), "", PolicyBlocked, "value.empty"},
		{"long selector", argv("click", strings.Repeat("a", 2049)), "", PolicyBlocked, "value.length"},
		{"a selector of a dot", argv("click", "."), "", PolicyBlocked, "value.selector"},
		{"a picture of a dot", argv("screenshot", "."), "", PolicyBlocked, "value.selector"},
		{"a selector of signs", argv("snapshot", "-s", "#>"), "", PolicyBlocked, "value.selector"},
		{"paste", argv("press", "Control+v"), "", PolicyBlocked, "press.paste"},
		{"paste, spelled otherwise", argv("press", "Shift+Ctrl+V"), "", PolicyBlocked, "press.paste"},
		{"paste on a Mac", argv("press", "cmd+V"), "", PolicyBlocked, "press.paste"},
		{"paste the old way", argv("press", "shift+ins"), "", PolicyBlocked, "press.paste"},
		{"paste the old way, with more", argv("press", "Shift+Control+Insert"), "", PolicyBlocked, "press.paste"},
		{"a modifier alone", argv("press", "Ctrl+"), "", PolicyBlocked, "press.key"},
		{"a key and a plus", argv("press", "a+"), "", PolicyBlocked, "press.key"},
		{"a short form of two keys", argv("press", "Return+Return"), "", PolicyBlocked, "press.key"},
		{"line break in a selector", argv("click", "a\nb"), "", PolicyBlocked, "argv.control"},

		// Characters and size.
		{"NUL", argv("fill", "@e1", "a\x00b"), "", PolicyBlocked, "argv.control"},
		{"escape", argv("fill", "@e1", "a\x1b[0m"), "", PolicyBlocked, "argv.control"},
		{"C1", argv("fill", "@e1", "a\u009bb"), "", PolicyBlocked, "argv.control"},
		{"broken UTF-8", argv("fill", "@e1", "\xff"), "", PolicyBlocked, "argv.encoding"},
		{"replaced character", argv("fill", "@e1", "\ufffd"), "", PolicyBlocked, "argv.encoding"},
		{"nothing", nil, "", InvalidParams, "argv.empty"},
		{"too many words", many, "", BudgetExceeded, "argv.count"},
		{"too large a word", argv("fill", "@e1", strings.Repeat("a", 64<<10+1)), "", BudgetExceeded, "argv.size"},
		{"too large in all", argv("a", strings.Repeat("a", 64<<10), strings.Repeat("a", 64<<10), strings.Repeat("a", 64<<10), strings.Repeat("a", 64<<10)), "", BudgetExceeded, "argv.size"},

		// Subcommands.
		{"eval", argv("eval", "1"), "", PolicyBlocked, "command.not-allowed"},
		{"run_shell", argv("run_shell", "id"), "", PolicyBlocked, "command.not-allowed"},
		{"tab", argv("tab", "2"), "", PolicyBlocked, "command.not-allowed"},
		{"connect", argv("connect", "9333"), "", PolicyBlocked, "command.not-allowed"},
		{"read", argv("read", "http://127.0.0.1"), "", PolicyBlocked, "command.not-allowed"},
		{"batch", argv("batch"), "", PolicyBlocked, "command.not-allowed"},
		{"upper case", argv("OPEN", "https://example.com"), "", PolicyBlocked, "command.not-allowed"},
		{"blank", argv("open ", "https://example.com"), "", PolicyBlocked, "command.not-allowed"},
		{"a whole line", argv("open https://example.com"), "", PolicyBlocked, "command.not-allowed"},
		{"alias of a refused address", argv("goto", "file:///etc/hostname"), "", PolicyBlocked, "url.scheme"},
		{"off by default", argv("get", "url"), "", PolicyBlocked, "command.off"},
		{"off by default, no form", argv("scroll"), "", PolicyBlocked, "command.off"},
		{"file URL", argv("open", "file:///etc/hostname"), "", PolicyBlocked, "url.scheme"},
	}
	p := Default()
	for _, tt := range tests {
		for _, gen := range []Generation{Node, Native} {
			if tt.gen != "" && tt.gen != gen {
				continue
			}
			t.Run(tt.name+"/"+string(gen), func(t *testing.T) {
				cmd, r := p.Check(gen, tt.argv)
				if r == nil {
					t.Fatalf("let through as %q", cmd.Argv(""))
				}
				if r.Code != tt.code || r.Rule != tt.rule {
					t.Errorf("got %s %s (%s), want %s %s", r.Code.Name(), r.Rule, r.Message, tt.code.Name(), tt.rule)
				}
				if !strings.Contains(r.Message, " ") {
					t.Errorf("the message %q does not say what to do", r.Message)
				}
			})
		}
	}
}

func TestCheckAdmits(t *testing.T) {
	tests := []struct {
		argv []string
		gen  Generation // empty: both
		shot string     // path handed to Argv
		want []string
	}{
		{argv("open", "example.com"), "", "", argv("open", "https://example.com/")},
		{argv("goto", "example.com"), "", "", argv("open", "https://example.com/")},
		{argv("key", "Enter"), "", "", argv("press", "Enter")},
		{argv("quit"), "", "", argv("close")},
		{argv("snapshot"), "", "", argv("snapshot")},
		{argv("snapshot", "-d", "3", "-i", "-c", "-s", "#main"), "", "", argv("snapshot", "--depth", "3", "--interactive", "--compact", "--selector", "#main")},
		{argv("snapshot", "-u"), Native, "", argv("snapshot", "--urls")},
		{argv("click", "@e12"), "", "", argv("click", "@e12")},
		{argv("fill", "@e1", ""), "", "", argv("fill", "@e1", "")},
		{argv("fill", "@e1", "-5"), "", "", argv("fill", "@e1", "-5")},
		{argv("fill", "@e1", "--- x"), "", "", argv("fill", "@e1", "--- x")},
		{argv("fill", "@e1", "--json is an option"), "", "", argv("fill", "@e1", "--json is an option")},
		{argv("fill", "@e1", "$(id); `id` | cat\n\tx"), "", "", argv("fill", "@e1", "$(id); `id` | cat\n\tx")},
		{argv("type", "#a > b", "ü€"), "", "", argv("type", "#a > b", "ü€")},
		{argv("press", "Control+Shift+a"), "", "", argv("press", "Control+Shift+a")},
		{argv("press", "-"), "", "", argv("press", "-")},
		{argv("press", "+"), "", "", argv("press", "+")},
		{argv("press", "A"), "", "", argv("press", "A")},
		{argv("press", "v"), "", "", argv("press", "v")},
		{argv("press", "Shift+V"), "", "", argv("press", "Shift+V")},
		{argv("press", "Control+c"), "", "", argv("press", "Control+c")},
		{argv("press", "Insert"), "", "", argv("press", "Insert")},
		{argv("press", "Return"), "", "", argv("press", "Enter")},
		{argv("press", "esc"), "", "", argv("press", "Escape")},
		{argv("press", "Down"), "", "", argv("press", "ArrowDown")},
		{argv("press", " "), "", "", argv("press", "Space")},
		{argv("press", "Ctrl+A"), "", "", argv("press", "Control+a")},
		{argv("press", "Control++"), "", "", argv("press", "Control++")},
		{argv("press", "cmd+shift+T"), "", "", argv("press", "Meta+Shift+T")},
		{argv("press", "CTRL+RETURN"), "", "", argv("press", "Control+Enter")},
		{argv("click", "e5"), "", "", argv("click", "@e5")},
		{argv("fill", "ref=e5", "e5"), "", "", argv("fill", "@e5", "e5")},
		{argv("wait", "e5"), "", "", argv("wait", "@e5")},
		{argv("screenshot", "e5"), "", "/p.png", argv("screenshot", "@e5", "/p.png")},
		{argv("click", "e5 > b"), "", "", argv("click", "e5 > b")},
		{argv("click", "*"), "", "", argv("click", "*")},
		{argv("select", "#c", "a", "b"), "", "", argv("select", "#c", "a", "b")},
		{argv("wait", "0200"), "", "", argv("wait", "200")},
		{argv("wait", "119000"), "", "", argv("wait", "119000")},
		{argv("wait", "@e1"), "", "", argv("wait", "@e1")},
		{argv("wait", "--text", "Hello you"), "", "", argv("wait", "--text", "Hello you")},
		{argv("wait", "--url", "**/done"), "", "", argv("wait", "--url", "**/done")},
		{argv("wait", "--load", "networkidle"), "", "", argv("wait", "--load", "networkidle")},
		{argv("wait", "--timeout", "500", "@e1"), Native, "", argv("wait", "@e1", "--timeout", "500")},
		{argv("wait", "#spinner", "--state", "hidden"), Native, "", argv("wait", "#spinner", "--state", "hidden")},
		{argv("screenshot"), "", "/p.png", argv("screenshot", "/p.png")},
		{argv("screenshot", "--full", "x.png"), "", "/p.png", argv("screenshot", "/p.png", "--full")},
		{argv("screenshot", "#name"), "", "/p.png", argv("screenshot", "#name", "/p.png")},
		{argv("screenshot", "#name", "x.png"), "", "/p.png", argv("screenshot", "#name", "/p.png")},
		{argv("close"), "", "", argv("close")},
	}
	p := Default()
	for _, tt := range tests {
		for _, gen := range []Generation{Node, Native} {
			if tt.gen != "" && tt.gen != gen {
				continue
			}
			t.Run(strings.Join(tt.argv, " ")+"/"+string(gen), func(t *testing.T) {
				cmd, r := p.Check(gen, tt.argv)
				if r != nil {
					t.Fatal(r)
				}
				if d := cmp.Diff(tt.want, cmd.Argv(tt.shot)); d != "" {
					t.Error(d)
				}
			})
		}
	}
}

func TestCheckExtras(t *testing.T) {
	p := Default()
	p.Commands = append(p.Commands, "get", "scroll", "is", "back", "pdf")
	for _, ok := range [][]string{argv("get", "url"), argv("get", "attr", "@e1", "href"), argv("get", "text", "@e1"), argv("scroll", "down"), argv("scroll", "up", "300"), argv("is", "visible", "@e1"), argv("back"), argv("pdf"), argv("pdf", "page.pdf")} {
		if _, r := p.Check(Node, ok); r != nil {
			t.Errorf("%q: %v", ok, r)
		}
	}
	for _, bad := range [][]string{argv("get", "cdp-url"), argv("get"), argv("get", "url", "x"), argv("get", "attr", "@e1", "a b"), argv("scroll", "down", "10001"), argv("scroll", "down", "0"), argv("scroll", "in"), argv("is", "selected", "@e1"), argv("is", "visible"), argv("back", "2"), argv("reload"), argv("pdf", "/tmp/x.pdf"), argv("pdf", "x.png"), argv("pdf", ".pdf"), argv("pdf", "x.PDF"), argv("pdf", "a.pdf", "b.pdf"), argv("pdf", "#main"), argv("pdf", "../x.pdf")} {
		if _, r := p.Check(Node, bad); r == nil {
			t.Errorf("%q was let through", bad)
		}
	}
}

// TestReadGroup: one word of a policy file switches the extras on.
func TestReadGroup(t *testing.T) {
	for text, want := range map[string]string{
		`{"commands":["+read"]}`:                "open snapshot click fill type press wait screenshot close dblclick hover focus check uncheck select get is scroll back forward reload",
		`{"commands":["open","+read"]}`:         "open get is scroll back forward reload",
		`{"commands":["+read","back","close"]}`: "back close get is scroll forward reload",
	} {
		p, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(strings.Fields(want), p.Commands); d != "" {
			t.Errorf("%s: %s", text, d)
		}
	}
	for _, text := range []string{`{"commands":["+read","+read"]}`, `{"commands":["+write"]}`, `{"commands":["read"]}`, `{"commands":["+read","eval"]}`} {
		if p, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s gives %q", text, p.Commands)
		}
	}
}

// TestHints: a near miss is told the right form.
func TestHints(t *testing.T) {
	for word, want := range map[string]string{"Open": "did you mean open?", "clik": "did you mean click?", "sanpshot": "did you mean snapshot?", " open": "did you mean open?", "open https://example.com": "send open and each", "get-title": `["get","title"] is switched off`, "get_url": `["get","url"] is switched off`} {
		_, r := Default().Check(Node, argv(word, "x"))
		if r == nil || !strings.Contains(r.Message, want) {
			t.Errorf("%s: got %v, want a hint %q", word, r, want)
		}
	}
}

func TestHintsOfExtras(t *testing.T) {
	p := Default()
	p.Commands = append(p.Commands, "get")
	for word, want := range map[string]string{"get-title": `did you mean ["get","title"]?`, "get-url": `did you mean ["get","url"]?`, "get-text": `did you mean ["get","text",SELECTOR]?`} {
		_, r := p.Check(Node, argv(word))
		if r == nil || !strings.Contains(r.Message, want) {
			t.Errorf("%s: got %v, want %q", word, r, want)
		}
	}
}

// TestNoHint: what is no near miss gets no guess.
func TestNoHint(t *testing.T) {
	for _, word := range []string{"eval", "x", "", "tab", "run_shell", strings.Repeat("click", 100)} {
		_, r := Default().Check(Node, argv(word, "x"))
		if r == nil || strings.Contains(r.Message, "did you mean") {
			t.Errorf("%s: got %v", word, r)
		}
	}
}

func TestWorst(t *testing.T) {
	byClass := []*Refusal{{Code: Timeout}, {Code: BudgetExceeded}, {Code: SandboxViolation}, {Code: PolicyBlocked}, {Code: InvalidParams}, {Code: Unreachable}}
	for i := range byClass {
		for j := i; j < len(byClass); j++ {
			if got := Worst(nil, byClass[j], nil, byClass[i]); got != byClass[i] {
				t.Errorf("of %s and %s it is %s", byClass[i].Code.Name(), byClass[j].Code.Name(), got.Code.Name())
			}
		}
	}
	first := &Refusal{Code: PolicyBlocked, Rule: "a"}
	if got := Worst(first, &Refusal{Code: PolicyBlocked, Rule: "b"}); got != first {
		t.Errorf("got %s", got.Rule)
	}
	if Worst() != nil || Worst(nil, nil) != nil {
		t.Error("no refusal became one")
	}
}

// TestRefusalHeader: a refusal survives its way through a header, and nothing
// else is taken for one.
func TestRefusalHeader(t *testing.T) {
	for _, r := range []*Refusal{notPublic(), {Code: Unreachable, Rule: "site.timeout", Message: "it did not answer: try again", Retryable: true}} {
		if d := cmp.Diff(r, ParseRefusal(r.Header())); d != "" {
			t.Error(d)
		}
	}
	for _, text := range []string{"", "url.private", "POLICY_BLOCKED (-1) url.private: x", "POLICY_BLOCKED (-32004) url.private:", "POLICY_BLOCKED (-32004) URL: x", "x POLICY_BLOCKED (-32004) a.b: x", "POLICY_BLOCKED (-32004) a.b: x\ny"} {
		if r := ParseRefusal(text); r != nil {
			t.Errorf("%q gives %v", text, r)
		}
	}
}

// TestNoEcho: refusals may be logged, so they hold nothing of the caller's.
func TestNoEcho(t *testing.T) {
	const secret = "hunter2-s3cret"
	for _, a := range [][]string{argv(secret), argv("open", "https://u:"+secret+"@example.com"), argv("fill", "@e1", "--"+secret), argv("press", secret), argv("screenshot", "../"+secret), argv("wait", "--fn", secret)} {
		_, r := Default().Check(Node, a)
		if r == nil || strings.Contains(r.Error(), secret) {
			t.Errorf("%q: %v", a[0], r)
		}
	}
}

func TestDefaultAllowlist(t *testing.T) {
	want := strings.Fields("open snapshot click fill type press wait screenshot close dblclick hover focus check uncheck select")
	if d := cmp.Diff(want, Default().Commands); d != "" {
		t.Error(d)
	}
}

func TestParseVersion(t *testing.T) {
	for out, gen := range map[string]Generation{"agent-browser 0.8.10\n": Node, "agent-browser 0.19.0": Node, "agent-browser 0.34.0": Native, "agent-browser 0.41.2\n": Native} {
		v, err := ParseVersion(out)
		if err != nil || v.Generation() != gen {
			t.Errorf("%q: %v %v %v, want %s", out, v, v.Generation(), err, gen)
		}
	}
	for _, out := range []string{"", "0.8.10", "agent-browser 0.7.9", "agent-browser 0.20.0", "agent-browser 0.33.2", "agent-browser 0.42.0", "agent-browser 1.8.10", "agent-browser 0.8.10-rc1", "agent-browser 0.8.10\nmore"} {
		if v, err := ParseVersion(out); err == nil {
			t.Errorf("%q was read as %s", out, v)
		}
	}
}
