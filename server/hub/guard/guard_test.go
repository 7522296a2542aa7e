package guard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

func parse(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func rule(d *Denial) string {
	if d == nil {
		return ""
	}
	return d.Rule
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		policy              string
		server, tool, alias string
		visible             bool
	}{
		{`{}`, "a", "read", "read", true},
		// Block wins, by each name that a tool has.
		{`{"default":{"block":["delete_*"]}}`, "a", "delete_all", "a__delete_all", false},
		{`{"default":{"block":["a__delete_*"]}}`, "a", "delete_all", "a__delete_all", false},
		{`{"default":{"block":["delete_all_2"]}}`, "a", "delete_all", "delete_all_2", false},
		{`{"default":{"block":["delete_all"]}}`, "a", "delete_all", "delete_all_2", false},
		{`{"default":{"block":["a/*"]}}`, "a", "read", "read", false},
		{`{"default":{"block":["a/*"]}}`, "b", "read", "read", true},
		{`{"default":{"allow":["*"],"block":["*"]}}`, "a", "read", "read", false},
		{`{"default":{"block":["x"]},"servers":{"a":{"block":[],"allow":["*"]}}}`, "a", "x", "x", false},
		{`{"servers":{"a":{"block":["x"]}}}`, "b", "x", "x", true},
		// Any case blocks, only the exact one allows.
		{`{"default":{"block":["Delete_*"]}}`, "a", "DELETE_all", "a__DELETE_all", false},
		{`{"default":{"block":["A/READ"]}}`, "a", "read", "read", false},
		{`{"default":{"allow":["Read"]}}`, "a", "read", "read", false},
		{`{"default":{"allow":["read"]}}`, "a", "read", "a__read", true},
		{`{"default":{"allow":["a__read"]}}`, "a", "read", "a__read", true},
		{`{"default":{"allow":["rea?"]}}`, "a", "read", "read", true},
		{`{"default":{"allow":["rea??"]}}`, "a", "read", "read", false},
		{`{"default":{"allow":[]}}`, "a", "read", "read", false},
		// A pattern is whole.
		{`{"default":{"allow":["read"]}}`, "a", "read_write", "read_write", false},
		{`{"default":{"allow":["read"]}}`, "a", "unread", "unread", false},
		// A server can't borrow another's name for its tools.
		{`{"default":{"allow":["github/*"]}}`, "github", "read", "read", true},
		{`{"default":{"allow":["github/*"]}}`, "evil", "github/read", "github/read", false},
		{`{"default":{"allow":["github/*"]}}`, "evil", "x", "github/x", false},
		{`{"default":{"allow":["*/read"]}}`, "a", "read", "read", true},
		{`{"servers":{"github":{"allow":["read"]},"evil":{"allow":[]}}}`, "evil", "read", "read", false},
		// Names that no glob can speak of.
		{`{}`, "a", "delete\u200b", "x", false},
		{`{}`, "a", "ｄelete", "x", false},
		{`{}`, "a", "ſet", "x", false},
		{`{}`, "a", "x", "y\n", false},
		{`{}`, "a", "\xff", "y", false},
		{`{}`, "a", "", "y", false},
		{`{}`, "a/b", "c", "c", false},
		{`{}`, "", "c", "c", false},
		{`{}`, "a", strings.Repeat("c", 513), "c", false},
		{`{}`, "a", "files.read-all_2", "files.read-all_2", true},
		// The image's own.
		{`{}`, "browser_shell", "browser-shell", "browser-shell", true},
		{`{}`, "browser_shell", "sandbox_execute_bash", "sandbox_execute_bash", true},
		{`{}`, "browser_shell", "eval", "eval", false},
	} {
		p := parse(t, tt.policy)
		if got := p.Visible(tt.server, tt.tool, tt.alias, false); got != tt.visible {
			t.Errorf("%s: %q/%q (%q) is visible: %v", tt.policy, tt.server, tt.tool, tt.alias, got)
		}
		d := p.Check(Call{Server: tt.server, Tool: tt.tool, Alias: tt.alias})
		if (rule(d) != RuleBlocked) != tt.visible {
			t.Errorf("%s: a call of %q/%q: %v", tt.policy, tt.server, tt.tool, d)
		}
	}
}

// TestReadOnly: with read_only only tools whose hint says so are listed and called; the hint unblocks nothing.
func TestReadOnly(t *testing.T) {
	for _, tt := range []struct {
		policy        string
		with, without bool
	}{
		{`{}`, true, true},
		{`{"servers":{"s":{"read_only":true}}}`, true, false},
		{`{"default":{"read_only":true}}`, true, false},
		{`{"default":{"read_only":true},"servers":{"s":{"read_only":false}}}`, true, true},
		{`{"servers":{"other":{"read_only":true}}}`, true, true},
		{`{"servers":{"s":{"read_only":true,"block":["get"]}}}`, false, false},
		{`{"servers":{"s":{"read_only":true,"allow":["put"]}}}`, false, false},
	} {
		p := parse(t, tt.policy)
		for hint, want := range map[bool]bool{true: tt.with, false: tt.without} {
			if got := p.Visible("s", "get", "s__get", hint); got != want {
				t.Errorf("%s: readOnlyHint %v: visible %v", tt.policy, hint, got)
			}
			if d := p.Check(Call{Server: "s", Tool: "get", Alias: "s__get", ReadOnly: hint}); (rule(d) != RuleBlocked) != want {
				t.Errorf("%s: readOnlyHint %v: a call: %v", tt.policy, hint, d)
			}
		}
	}
}

func TestGlobIsNotExponential(t *testing.T) {
	if matchGlob(strings.Repeat("*a", 128)+"b", strings.Repeat("a", 512)) {
		t.Error("it matches")
	}
}

func TestPaths(t *testing.T) {
	denied := []string{
		`/home/.ssh/id_rsa`, `.ssh`, `~/.SSH/`, `C:\Users\x\.ssh\id`, `file:///home/.ssh/id`, `/x/../home/.ssh`, `/home/.ssh/../x`,
		`/home/%2essh`, `/home/%2Essh/`, `%2e%73%73%68`, `/home/%252essh`, `/home/%25252525252essh`, `%2%65ssh`, `%c0%aessh`, `%25c0%25aessh`,
		"/home/.ｓｓｈ", "/home/．ssh", "/home/․ssh", "%ef%bc%8essh", "/x/.ſſh", "/home/.s\u200bsh", "/home/.s\u00adsh", "/home/.s\tsh", "/home/.s\u0000sh", "\ufeff.ssh",
		"/home/.s\ufe0fsh", "/home/.s\u3164sh", "/.s%09sh",
		"/home/.aws/config", "CREDENTIALS.json", "credentİals", "credentıals", "crédentials", "/app/.env.local", "prod.env", "PASSWORD.txt", "client_ſecret.json", "/.gnupg", "passwords.K",
	}
	fine := []string{"/home/x/notes.txt", "ssh", "/srv/hosts", "100%", "%zz", "a%2", "envelope", "", ".", "日本語", "\u200b"}
	for _, server := range []string{"files", "browser_shell"} {
		p := Default()
		tool := "browser-shell"
		for _, text := range append(denied, fine...) {
			want := RulePath
			if server == "browser_shell" || contains(fine, text) {
				want = ""
			}
			q, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			forms := []string{`{"path":%s}`, `{"a":[1,{"b":[null,[%s]]}],"c":true}`, `{"a":{},"b":[],"c":1,"d":[{}],"e":%s}`}
			for _, form := range forms {
				args := fmt.Sprintf(form, q)
				if got := p.Check(Call{Server: server, Tool: tool, Alias: tool, Arguments: json.RawMessage(args)}); rule(got) != want {
					t.Errorf("%s %s: %v, not %q", server, args, got, want)
				}
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, have := range list {
		if have == s {
			return true
		}
	}
	return false
}

// TestNamesOfArguments: a key says what an argument is for; it is a path only if it looks like one.
func TestNamesOfArguments(t *testing.T) {
	p := Default()
	for args, want := range map[string]string{
		`{"password":"x"}`:                        "",
		`{"client_secret":{"credentials":["x"]}}`: "",
		`{"x":[{"password":1}]}`:                  "",
		`{"/home/.ssh/id":"x"}`:                   RulePath,
		`{"files":[{"%2fx%2f.env":"x"}]}`:         RulePath,
		`{".env":1}`:                              RulePath,
		`{"~secret":1}`:                           RulePath,
		`{"a\\password":1}`:                       RulePath,
		`{"a":{"b":1},"c":"password"}`:            RulePath,
	} {
		if got := p.Check(Call{Server: "s", Tool: "t", Alias: "t", Arguments: json.RawMessage(args)}); rule(got) != want {
			t.Errorf("%s: %v, not %q", args, got, want)
		}
	}
}

// TestPathTools: where paths are looked for is data.
func TestPathTools(t *testing.T) {
	p := parse(t, `{"servers":{"s":{"path_tools":["READ_*","s/open","alias_*"],"sensitive_paths":[".config/gcloud"]}}}`)
	for _, tt := range []struct{ tool, alias, text, want string }{
		{"read_file", "x", ".config/gcloud", RulePath},
		{"open", "x", ".config/gcloud", RulePath},
		{"x", "alias_1", ".config/gcloud", RulePath},
		{"search", "search", ".config/gcloud", ""},
		{"open", "x", `/home/.CONFIG\gcloud`, RulePath},
		{"open", "x", `/home/.config/x/../gcloud`, RulePath},
		{"open", "x", `/home/.config//gcloud`, RulePath},
		{"open", "x", `/home/.config/./gcloud`, RulePath},
		{"open", "x", `/home/.config%5cx%5c%2e%2e%5cgcloud`, RulePath},
		{"open", "x", `/home/.ssh`, ""},
	} {
		args, _ := json.Marshal(map[string]string{"p": tt.text})
		if got := p.Check(Call{Server: "s", Tool: tt.tool, Alias: tt.alias, Arguments: args}); rule(got) != tt.want {
			t.Errorf("%s %s: %v, not %q", tt.tool, args, got, tt.want)
		}
	}
}

func TestInjection(t *testing.T) {
	denied := []string{
		"x; rm -rf /", "a|b", "a&b", "a && b", "$HOME", "$(id)", "`id`", "(a)", "a\nb", "a\rb", "a > b", "a<b", `a\b`, "it's", `"`, "*.txt", "?", "[a]", "{a,b}", "!x", "a #", "~root",
		"a\u0000b", "a\x1b[0m", "a\tb", "a\u0085b", "a；b", "＄(id)", "a\u037eb", // U+037E is ; in its compatibility form
	}
	fine := []string{"x", "-la", "/home/x/a-b_c.txt", "a b", "a=b,c:d@e%f+g", "naïve", "日本語", ""}
	p := parse(t, `{"servers":{"marked":{"shell":true},"own":{"shell":true,"shell_characters":";"}}}`)
	for _, text := range append(denied, fine...) {
		want := RuleInjection
		if contains(fine, text) {
			want = ""
		}
		q, _ := json.Marshal(text)
		for _, args := range []string{`{"a":%s}`, `{"a":[["b",%s]]}`, `{%s:1}`} {
			args := json.RawMessage(fmt.Sprintf(args, q))
			for _, c := range []Call{{Server: "s", Shell: true}, {Server: "marked"}} {
				c.Tool, c.Alias, c.Arguments = "t", "t", args
				if got := p.Check(c); rule(got) != want {
					t.Errorf("%s %s: %v, not %q", c.Server, args, got, want)
				}
			}
			if got := p.Check(Call{Server: "s", Tool: "t", Alias: "t", Arguments: args}); got != nil {
				t.Errorf("not marked, %s: %v", args, got)
			}
		}
	}
	for text, want := range map[string]string{`{"a":"x > y"}`: "", `{"a":"x;y"}`: RuleInjection, `{"a":"x\ny"}`: RuleInjection} {
		if got := p.Check(Call{Server: "own", Tool: "t", Alias: "t", Arguments: json.RawMessage(text)}); rule(got) != want {
			t.Errorf("own characters, %s: %v", text, got)
		}
	}
}

func TestArguments(t *testing.T) {
	p := parse(t, `{"default":{"max_argument_bytes":1000}}`)
	nest := func(n int) string { return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	for args, want := range map[string]string{
		"": "", "null": "", " {} ": "", `{"a":1}`: "",
		"[]": RuleJSON, `"x"`: RuleJSON, "1": RuleJSON, "{": RuleJSON, "{}{}": RuleJSON, `{"a"}`: RuleJSON, `{"a":1,}`: RuleJSON, `{a:1}`: RuleJSON, "\xff": RuleJSON, "nul": RuleJSON,
		`{"a" "b"}`: RuleJSON, `{"a":[1 2]}`: RuleJSON, `{"a":]}`: RuleJSON, `{"a":[1}`: RuleJSON,
		nest(63): "", nest(64): RuleJSON,
		`{"a":1e308}`: "", `{"a":1e309}`: RuleJSON, `{"a":-1e999999999}`: RuleJSON, `{"a":1e-999999999}`: "",
		`{"a":` + strings.Repeat("9", 128) + `}`:   "",
		`{"a":` + strings.Repeat("9", 129) + `}`:   RuleJSON,
		`{"a":0.` + strings.Repeat("0", 127) + `}`: RuleJSON,
		`{"a":"` + strings.Repeat("x", 992) + `"}`: "",
		`{"a":"` + strings.Repeat("x", 993) + `"}`: RuleSize,
		`{"a":"x","a":"/home/.ssh"}`:               RulePath,
		`{"a":"\u002essh"}`:                        RulePath,
		`{"a":".s\ud800sh"}`:                       RulePath, // half a pair is dropped by some
		"{\"a\":\".s\xffsh\"}":                     RulePath,
	} {
		d := p.Check(Call{Server: "s", Tool: "t", Alias: "t", Arguments: json.RawMessage(args)})
		if rule(d) != want {
			t.Errorf("%.80q: %v, not %q", args, d, want)
		}
	}
}

func TestCheckText(t *testing.T) {
	p := parse(t, `{"servers":{"files":{"max_argument_bytes":100},"sh":{"shell":true}}}`)
	for _, tt := range []struct {
		server string
		marked bool
		text   string
		want   string
	}{
		{"files", false, "file:///home/.%73sh/id", RulePath},
		{"files", false, "file:///home/notes;x", ""},
		{"files", true, "file:///home/notes;x", RuleInjection},
		{"sh", false, "x|y", RuleInjection},
		{"files", false, strings.Repeat("x", 101), RuleSize},
		{"browser_shell", false, "password", ""},
		{"other", false, "password", RulePath},
	} {
		if got := p.CheckText(tt.server, tt.marked, "first", tt.text); rule(got) != tt.want {
			t.Errorf("%s %q: %v, not %q", tt.server, tt.text, got, tt.want)
		}
	}
}

// TestNoArgumentInDenial: a denial is shown and logged, so it may hold no argument.
func TestNoArgumentInDenial(t *testing.T) {
	p := Default()
	for _, args := range []string{
		`{"hunter2":"/home/hunter2/.ssh"}`, `{"hunter2/.env":"x"}`, `{"a":"hunter2;"}`, `{"a":hunter2}`, `hunter2`, `{"a":1e999,"b":"hunter2"}`, `{"a":"hunter2"}hunter2`,
		`{"a":"` + strings.Repeat("hunter2", 1<<18) + `"}`,
	} {
		d := p.Check(Call{Server: "s", Tool: "t", Alias: "t", Arguments: json.RawMessage(args), Shell: true})
		if d == nil || strings.Contains(d.Message, "hunter2") {
			t.Errorf("%.60s: %v", args, d)
		}
	}
}

// FuzzCheck: nothing panics; what holds a sensitive path or a shell's character as plain text is denied, also when it is
// percent-encoded twice; and a denial repeats no argument.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		`{"path":"/home/.ssh/id_rsa"}`, `{"a":"%252essh"}`, `{"a":["x; rm",{"b":1e999}]}`, `{"a":"．ｓｓｈ"}`, `{`, `null`, `{"a":"%c0%ae"}`, `{"%":"%25%32%65env"}`,
		`{"a":"` + strings.Repeat(`%25`, 50) + `"}`, `{"a":"\u0344\u0344"}`, `{"password":"x"}`,
	} {
		f.Add([]byte(s), "t", "s__t")
	}
	p := parse(f, `{"servers":{"sh":{"shell":true}}}`)
	f.Fuzz(func(t *testing.T, args []byte, tool, alias string) {
		call := Call{Server: "s", Tool: tool, Alias: alias, Arguments: args}
		d := p.Check(call)
		if p.Visible("s", tool, alias, false) != (rule(d) != RuleBlocked) {
			t.Errorf("%q: visible, but %v", tool, d)
		}
		call.Tool, call.Alias = "t", "t"
		d = p.Check(call)
		call.Server = "sh"
		sh := p.Check(call)
		if d != nil && sh == nil {
			t.Errorf("%q: denied (%v), but not for a shell", args, d)
		}
		var v any
		if json.Unmarshal(args, &v) != nil {
			if rule(d) != RuleJSON && len(strings.TrimSpace(string(args))) > 0 && rule(d) != RulePath {
				t.Errorf("%q is no JSON: %v", args, d)
			}
			return
		}
		each(v, func(s string) {
			for _, path := range p.base.SensitivePaths {
				if strings.Contains(strings.ToLower(s), path) && d == nil {
					t.Errorf("%q passes %q", args, s)
				}
			}
			if strings.ContainsAny(s, "|&;<>()$`\n\r") && sh == nil {
				t.Errorf("%q passes %q to a shell", args, s)
			}
			// More encoding never helps. (Of other than ASCII, what is dropped may join what stands around it.)
			again := url.PathEscape(url.PathEscape(s))
			if isASCII(s) && deniesText(p, s) && !deniesText(p, again) {
				t.Errorf("%q is denied, %q is not", s, again)
			}
		})
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// deniesText checks one string as an argument.
func deniesText(p *Policy, s string) bool {
	args, _ := json.Marshal(map[string]string{"a": s}) // strings always have a JSON form
	return p.Check(Call{Server: "s", Tool: "t", Alias: "t", Arguments: args}) != nil
}

// each calls do for each string value.
func each(v any, do func(string)) {
	switch v := v.(type) {
	case string:
		do(v)
	case []any:
		for _, e := range v {
			each(e, do)
		}
	case map[string]any:
		for _, e := range v {
			each(e, do)
		}
	}
}

// BenchmarkCheck: the largest arguments that the image lets through, plain and at their worst.
func BenchmarkCheck(b *testing.B) {
	p := Default()
	for name, unit := range map[string]string{"plain": "/home/user/notes ", "percent": "%25", "compat": "\ufdfa", "dots": "../", "near": ".ss"} {
		args, err := json.Marshal(map[string]string{"a": strings.Repeat(unit, (1<<20-16)/len(unit))})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(args)))
			for b.Loop() {
				if d := p.Check(Call{Server: "s", Tool: "t", Alias: "t", Arguments: args}); d != nil {
					b.Fatal(d)
				}
			}
		})
	}
}

// TestDirectories: system directories are closed to arguments that are paths, however they are written; with a list of
// allowed ones all others are.
func TestDirectories(t *testing.T) {
	p, err := Parse([]byte(`{"servers": {"files": {"allowed_directories": ["/data", "/srv/Pub"]}, "open": {"denied_directories": []}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		server, path string
		denied       bool
	}{
		{"any", "/etc/hosts", true}, {"any", "/etc", true}, {"any", "/ETC/hosts", true}, {"any", "//etc//hosts", true},
		{"any", "/data/../proc/self/environ", true}, {"any", "file:///etc/hosts", true}, {"any", "file://localhost/etc/hosts", true},
		{"any", "FILE:/etc/hosts", true}, {"any", "../../../etc/hosts", true}, {"any", "a/../../sys/x", true}, {"any", `\\etc\\hosts`, true},
		{"any", "/%65tc/hosts", true}, {"any", "--config=/etc/hosts", true}, {"any", " /root/x", true}, {"any", "/\u0435tc/x", false},
		{"any", "/etcetera", false}, {"any", "/data/etc/x", false}, {"any", "etc/x", false}, {"any", "see /etc/hosts", false},
		{"any", "/home/x", false}, {"any", "https://example.com/etc/x", false},
		{"files", "/data/x", false}, {"files", "/data", false}, {"files", "/srv/Pub/x", false}, {"files", "x/y", false}, {"files", "text", false},
		{"files", "/srv/pub/x", true}, {"files", "/d\u00e1ta/x", true}, {"files", "/database", true}, {"files", "/data/../home", true},
		{"files", "/", true}, {"files", "~/x", true}, {"files", "../x", true}, {"files", "/etc/hosts", true}, {"files", "/data/%2e%2e/home", true},
		{"open", "/etc/hosts", false},
	} {
		arguments := `{"a":[{"path":"` + tt.path + `"}]}`
		got := p.Check(Call{Server: tt.server, Tool: "t", Alias: "t", Arguments: []byte(arguments)})
		if (got != nil) != tt.denied || got != nil && got.Rule != RulePath {
			t.Errorf("%s %s: %v, want denied %v", tt.server, arguments, got, tt.denied)
		}
	}
	if d := p.CheckText("any", false, "file:///etc/hosts"); rule(d) != RulePath {
		t.Errorf("a resource in /etc: %v", d)
	}
	if d := p.Check(Call{Server: "browser_shell", Tool: "browser-shell", Alias: "browser-shell", Arguments: []byte(`{"argv":["fill","@e1","/etc/hosts"]}`)}); d != nil {
		t.Errorf("what is typed into a page is no path: %v", d)
	}
}
