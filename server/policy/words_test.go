package policy

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
)

var plainLines = []struct {
	cmd  string
	want []string
}{
	{`open https://example.com/a/b`, argv("open", "https://example.com/a/b")},
	{`agent-browser open https://example.com`, argv("open", "https://example.com")},
	{`'agent-browser' open x`, argv("open", "x")},
	{`agent-browser agent-browser`, argv("agent-browser")},
	{"  snapshot\t -i  -d 3 ", argv("snapshot", "-i", "-d", "3")},
	{`fill @e1 "Hello you"`, argv("fill", "@e1", "Hello you")},
	{`fill @e1 'costs 5$; $(id) | "x" \ * ? # ~ & <'`, argv("fill", "@e1", `costs 5$; $(id) | "x" \ * ? # ~ & <`)},
	{`fill @e1 "it's; # ~ * & < > | ( ) {a,b} [x] !"`, argv("fill", "@e1", "it's; # ~ * & < > | ( ) {a,b} [x] !")},
	{`fill @e1 it'"'s`, argv("fill", "@e1", `it"s`)},
	{`fill @e1 it"'"s`, argv("fill", "@e1", "it's")},
	{`fill @e1 ''`, argv("fill", "@e1", "")},
	{`fill @e1 ""`, argv("fill", "@e1", "")},
	{`fill @e1 a''b""c`, argv("fill", "@e1", "abc")},
	{"fill @e1 'two\nlines'", argv("fill", "@e1", "two\nlines")},
	{"fill @e1 \"two\nlines\"", argv("fill", "@e1", "two\nlines")},
	{"fill @e1 'a\\\nb'", argv("fill", "@e1", "a\\\nb")},
	{`click '#go'`, argv("click", "#go")},
	{`click a#b`, argv("click", "a#b")},
	{`open example.com:8080`, argv("open", "example.com:8080")},
	{`fill @e1 a=b`, argv("fill", "@e1", "a=b")},
	{`fill @e1 --x=y`, argv("fill", "@e1", "--x=y")}, // the grammar's business
	{`press Control+a`, argv("press", "Control+a")},
	{`fill @e1 ü€日本`, argv("fill", "@e1", "ü€日本")},
	{`fill @e1 100%`, argv("fill", "@e1", "100%")},
	{`fill @e1 'a' 'b'`, argv("fill", "@e1", "a", "b")},
	{`'if' x`, argv("if", "x")},
	{`open https://example.com/?a=1#b`, argv("open", "https://example.com/?a=1#b")},
	{`fill @e1 '--json' "--cdp" 9222`, argv("fill", "@e1", "--json", "--cdp", "9222")},
	{`fill @e1 --json'x' --'cdp' 9222`, argv("fill", "@e1", "--jsonx", "--cdp", "9222")},
	{`"open" x`, argv("open", "x")},
}

func TestWords(t *testing.T) {
	for _, tt := range plainLines {
		got, _, r := Words(tt.cmd, 9222)
		if (r == nil) != (tt.want != nil) {
			t.Errorf("%s: %v", tt.cmd, r)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: %s", tt.cmd, d)
		}
	}
}

// TestWordsRefuses: all that a shell gives a meaning to.
func TestWordsRefuses(t *testing.T) {
	attacks := []string{
		// More than one command.
		"open x; id", "open x;", "open x && id", "open x || id", "open x | id", "open x |& id", "open x & id", "open x &", "open x\nid", "open x\n", "\nopen x",
		"open x\r\nid", "open x\rid", "open x;;", "&& id", "; id", "!", "! open x", "open x !", "open x ^ id",
		// Expansion.
		"open $HOME", "open ${HOME}", "open ${x:-$(id)}", "open $(id)", "open `id`", `open "$HOME"`, `open "$(id)"`, "open \"`id`\"", "open $((1+1))", "open $[1+1]", "open $'a\\x41'",
		`open $"a"`, "open $", `open "a$"`, "open ~", "open ~root", "open a:~", "open *", "open 'a'*", "open [a]", "open a[", "open {a,b}", "open {1..3}", "open {", "open }", "open https://example.com/?a=1&b=2",
		"open @(a|b)", "open !(a)", "open +(a)", "open <(id)", "open >(id)", "open x!!", "open !$", "open =(id)",
		// Redirection and here documents.
		"open x > /tmp/x", "open x >> y", "open x < y", "open x 2>&1", "open x >| y", "open x <> y", "open x <<E\na\nE", "open x <<< y", "open x &> y", "> x", "< x open",
		// Assignment.
		"A=b open x", "A=b", "A+=b open x", "A= open x", "PATH=/tmp agent-browser open x", "a[0]=1 open x",
		// Keywords and grouping.
		"(open x)", "{ open x; }", "if true; then open x; fi", "f() { open x; }", "[[ a ]]", "[ a ]", "((1))",
		// Backslashes and comments.
		`open a\ b`, `open \x`, `open "a\"b"`, `open "a\\b"`, "open \\\nx", "open x\\", "# open x", "open x # y", "open x\t#y", "#",
		// Quotes that do not end.
		"open 'x", `open "x`, `open 'x"`, `open "x'`, "'", `"`,
		// Characters.
		"open a\x00b", "open a\x1b[0m", "open a\x7f", "open \xff", "open a\u009bb", "open \ufffd", "open\u00a0x", "open\u3000x", "open a\u200bb", "open a\u2028b", "open\vx", "open\fx", "\ufeffopen x", "open 'a\rb'", "open 'a\x00'", "open \"a\x1b\"",
	}
	if len(attacks) < 100 {
		t.Fatalf("%d attacks only", len(attacks))
	}
	for _, cmd := range attacks {
		got, _, r := Words(cmd, 9222)
		if r == nil {
			t.Errorf("%q gave %q", cmd, got)
			continue
		}
		if r.Rule != "shell.syntax" || r.Code != SandboxViolation || got != nil {
			t.Errorf("%q: %v", cmd, r)
		}
		if !strings.Contains(r.Message, "single quotes") {
			t.Errorf("%q: %s does not teach", cmd, r.Message)
		}
	}
}

func TestWordsBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		cmd  string
		code Code
		rule string
	}{
		"empty":           {"", InvalidParams, "argv.empty"},
		"blank":           {" \t ", InvalidParams, "argv.empty"},
		"only the name":   {"agent-browser", InvalidParams, "argv.empty"},
		"largest":         {"fill @e1 '" + strings.Repeat("a", maxArgvSize-11) + "'", 0, ""},
		"too large":       {"fill @e1 '" + strings.Repeat("a", maxArgvSize-10) + "'", BudgetExceeded, "argv.size"},
		"most words":      {"agent-browser" + strings.Repeat(" a", maxArgs+4), 0, ""},
		"too many words":  {"agent-browser" + strings.Repeat(" ''", maxArgs+5), BudgetExceeded, "argv.count"},
		"deep ifs":        {strings.Repeat("if ", 50000), BudgetExceeded, "argv.count"},
		"deep times":      {strings.Repeat("time\t", 50000), BudgetExceeded, "argv.count"},
		"deep parens":     {strings.Repeat("(", 200000), SandboxViolation, "shell.syntax"},
		"deep expansions": {`"` + strings.Repeat("$(", 100000), SandboxViolation, "shell.syntax"},
		"many quotes":     {"open " + strings.Repeat("''", 100000), 0, ""},
		"quoted blanks":   {"fill @e1 '" + strings.Repeat(" a", 1000) + "'", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, r := Words(tt.cmd, 9222)
			if ruleOf(r) != tt.rule || r != nil && (r.Code != tt.code || got != nil) {
				t.Errorf("got %d words, %v", len(got), r)
			}
		})
	}
}

// TestWordsAsShells: each shell reads an admitted line in the same way.
func TestWordsAsShells(t *testing.T) {
	for _, shell := range []string{"bash", "dash"} {
		t.Run(shell, func(t *testing.T) {
			program := need.Program(t, shell)
			for _, tt := range plainLines {
				if got, _, r := Words("agent-browser "+tt.cmd, 9222); r == nil {
					out, err := exec.Command(program, "-c", `printf '%s\0' `+tt.cmd).Output()
					if d := cmp.Diff(strings.Join(got, "\x00")+"\x00", string(out)); err != nil || d != "" {
						t.Errorf("%s: %v\n%s", tt.cmd, err, d)
					}
				}
			}
		})
	}
}

// TestWordsThenCheck: the string form goes through the same grammar.
func TestWordsThenCheck(t *testing.T) {
	for cmd, rule := range map[string]string{
		"agent-browser snapshot -i":                "",
		"fill @e1 '--session'":                     "option.forced",
		`fill @e1 "--ses"'sion'`:                   "option.forced",
		"eval 1":                                   "command.not-allowed",
		"sh -c id":                                 "command.not-allowed",
		"/usr/local/bin/agent-browser snapshot":    "command.not-allowed",
		"agent-browser --session x snapshot":       "option.forced",
		"agent-browser --json snapshot":            "",
		"snapshot -i --json":                       "",
		"agent-browser --json=true snapshot":       "option.forced",
		"agent-browser '--json' snapshot":          "option.forced",
		"fill @e1 --json":                          "argv.arity",
		"--json":                                   "argv.empty",
		"agent-browser --headed snapshot":          "command.first",
		"agent-browser --cdp 9222 snapshot -i":     "",
		"--cdp 9222 snapshot":                      "",
		"agent-browser --cdp 9223 snapshot":        "option.forced",
		"agent-browser --cdp 09222 snapshot":       "option.forced",
		"agent-browser --cdp ws://127.0.0.1:9222/": "option.forced",
		"agent-browser --cdp=9222 snapshot":        "option.forced",
		"agent-browser --cdp":                      "option.forced",
		"agent-browser --cdp 9222":                 "argv.empty",
		"--cdp 9222 --cdp 9222 snapshot":           "",
		"agent-browser '--cdp' 9222 snapshot":      "option.forced",
		"--cdp 9222 agent-browser snapshot":        "command.not-allowed",
		"agent-browser snapshot --cdp 9222":        "",
		"fill @e1 --cdp 9222":                      "argv.arity",
		"fill @e1 --cdp":                           "option.forced",
		"screenshot ../x":                          "screenshot.path",
		"open http://127.0.0.1/":                   "url.loopback",
		"run_shell id":                             "command.not-allowed",
		"time open x":                              "command.not-allowed",
		"if open x":                                "command.not-allowed",
		"while true":                               "command.not-allowed",
		"coproc open x":                            "command.not-allowed",
		"export a":                                 "command.not-allowed",
		"function f":                               "command.not-allowed",
		"agent-browser agent-browser snapshot":     "command.not-allowed",
		"wait --fn 'alert(1)'":                     "wait.script",
		"open 'https://example.com/?a=1&b=2#frag'": "",
	} {
		words, _, r := Words(cmd, 9222)
		if r == nil {
			_, r = Default().Check(Node, words)
		}
		if ruleOf(r) != rule {
			t.Errorf("%s: got %v, want %q", cmd, r, rule)
		}
	}
}

// TestWordsSession: what such clients write before the command gives the
// session, and nothing else can be set there.
func TestWordsSession(t *testing.T) {
	for cmd, want := range map[string]struct{ session, rule string }{
		"AGENT_BROWSER_SESSION=shop-1 agent-browser --cdp 9222 open x": {"shop-1", ""},
		"AGENT_BROWSER_SESSION='a b' snapshot":                         {"a b", ""}, // validate refuses it
		`AGENT_BROWSER_SESSION="../x" snapshot`:                        {"../x", ""},
		"snapshot":                                                     {"", ""},
		"'AGENT_BROWSER_SESSION=a' snapshot":                           {"", ""}, // a word
		"agent-browser AGENT_BROWSER_SESSION=a snapshot":               {"", ""}, // a word
		"AGENT_BROWSER_SESSION=a":                                      {"", "argv.empty"},
		"AGENT_BROWSER_SESSION= snapshot":                              {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION='' snapshot":                            {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION=a AGENT_BROWSER_SESSION=b snapshot":     {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION+=a snapshot":                            {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION[0]=a snapshot":                          {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION=(a) snapshot":                           {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION=$HOME snapshot":                         {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION=~ snapshot":                             {"", "shell.syntax"},
		"agent_browser_session=a snapshot":                             {"", "shell.syntax"},
		"AGENT_BROWSER_SESSION=a NODE_OPTIONS=b snapshot":              {"", "shell.syntax"},
		"AGENT_BROWSER_CDP=1 snapshot":                                 {"", "shell.syntax"},
		"PATH=/tmp AGENT_BROWSER_SESSION=a snapshot":                   {"", "shell.syntax"},
		"env AGENT_BROWSER_SESSION=a snapshot":                         {"", ""}, // the grammar refuses env
	} {
		words, session, r := Words(cmd, 9222)
		if ruleOf(r) != want.rule || session != want.session || (r == nil) != (len(words) > 0) {
			t.Errorf("%s: got %q, %q, %v", cmd, words, session, r)
		}
	}
}

// quoteAll writes words so that every shell reads them back.
func quoteAll(words []string) string {
	var out []string
	for _, w := range words {
		out = append(out, "'"+strings.ReplaceAll(w, "'", `'"'"'`)+"'")
	}
	return strings.Join(out, " ")
}

// FuzzWords: words that were let through, quoted again, give the same words;
// and what holds nothing but plain words is split at its blanks.
func FuzzWords(f *testing.F) {
	for _, tt := range plainLines {
		f.Add(tt.cmd)
	}
	for _, s := range []string{"open x; id", "open $(id)", "a=b c", "AGENT_BROWSER_SESSION=a agent-browser --cdp 9222 open x", "if x", "open x # y", `open "a$"`, "open a'b'\"c\"d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cmd string) {
		words, session, r := Words(cmd, 9222)
		if r != nil {
			return
		}
		if (session != "") != strings.HasPrefix(strings.TrimLeft(cmd, " \t"), sessionVariable+"=") {
			t.Errorf("%q gives the session %q", cmd, session)
		}
		if len(words) == 0 || len(words) > maxArgs+4 {
			t.Fatalf("%q gave %d words", cmd, len(words))
		}
		quoted := "agent-browser " + quoteAll(words)
		again, _, r := Words(quoted, 9222)
		if r != nil && r.Code == BudgetExceeded {
			return
		}
		if words[0] == "--cdp" {
			return // twice; the grammar refuses it
		}
		if d := cmp.Diff(words, again); r != nil || d != "" {
			t.Errorf("%q: %v\n%s", cmd, r, d)
		}
		if !strings.ContainsAny(cmd, "'\"") && session == "" && !strings.HasPrefix(strings.TrimLeft(cmd, " \t"), "--cdp") {
			if d := cmp.Diff(strings.Fields(cmd), words); d != "" && !strings.HasPrefix(strings.TrimLeft(cmd, " \t"), "agent-browser") {
				t.Errorf("%q: %s", cmd, d)
			}
		}
	})
}
