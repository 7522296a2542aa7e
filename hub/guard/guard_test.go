package guard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func rule(d *Denial) string {
	if d == nil {
		return ""
	}
	return d.Rule
}

// rules returns the default rules with a change.
func rules(change func(*Rules)) Rules {
	r := Default()
	if change != nil {
		change(&r)
	}
	return r
}

func TestNames(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		allowed, blocked string
		whitelist        *bool
		server, tool     string
		visible          bool
	}{
		{"", "", nil, "a", "read", true},
		// Blocking wins, by each form of the name.
		{"", "delete_*", nil, "a", "delete_all", false},
		{"", "a__delete_*", nil, "a", "delete_all", false},
		{"", "a.delete_*", nil, "a", "delete_all", false},
		{"", "delete_all", nil, "a", "delete_all", false},
		{"", "a.*", nil, "a", "read", false},
		{"", "a.*", nil, "b", "read", true},
		{"*", "*", nil, "a", "read", false},
		{"*", "x", nil, "a", "x", false},
		// Any case blocks, only the exact one allows.
		{"", "Delete_*", nil, "a", "DELETE_all", false},
		{"", "A.READ", nil, "a", "read", false},
		{"Read", "", nil, "a", "read", false},
		{"read", "", nil, "a", "read", true},
		{"a.read", "", nil, "a", "read", true},
		{"rea?", "", nil, "a", "read", true},
		{"rea??", "", nil, "a", "read", false},
		// The list counts if whitelist_mode is true, or if it is unset and the list isn't empty.
		{"", "", &yes, "a", "read", false},
		{"x", "", &no, "a", "read", true},
		{"x", "", nil, "a", "read", false},
		{"*", "", &yes, "a", "read", true},
		// A pattern is whole.
		{"read", "", nil, "a", "read_write", false},
		{"read", "", nil, "a", "unread", false},
		// A server can't borrow another's name for its tools.
		{"github.*", "", nil, "github", "read", true},
		{"github.*", "", nil, "evil", "github.read", false},
		{"github.*", "", nil, "evil", "x", false},
		{"github__*", "", nil, "github", "read", false},
		{"*.read", "", nil, "a", "read", true},
		// Names that no pattern can speak of.
		{"", "", nil, "a", "delete\u200b", false},
		{"", "", nil, "a", "ｄelete", false},
		{"", "", nil, "a", "ſet", false},
		{"", "", nil, "a", "y\n", false},
		{"", "", nil, "a", "\xff", false},
		{"", "", nil, "a", "", false},
		{"", "", nil, "a.b", "c", false},
		{"", "", nil, "", "c", false},
		{"", "", nil, "a", strings.Repeat("c", 513), false},
		{"", "", nil, "a", "files.read-all_2", true},
	} {
		r := rules(func(r *Rules) {
			r.Whitelist, r.Allowed, r.Blocked = tt.whitelist, strings.Fields(tt.allowed), strings.Fields(tt.blocked)
		})
		if got := r.Visible(tt.server, tt.tool, false); got != tt.visible {
			t.Errorf("%+v is visible: %v", tt, got)
		}
		if d := r.Check(Call{Server: tt.server, Tool: tt.tool}); (rule(d) != RuleBlocked) != tt.visible {
			t.Errorf("%+v: a call: %v", tt, d)
		}
	}
}

// TestReadOnly: with read_only only tools whose hint says so are listed and called; the hint unblocks nothing.
func TestReadOnly(t *testing.T) {
	for _, tt := range []struct {
		change        func(*Rules)
		with, without bool
	}{
		{nil, true, true},
		{func(r *Rules) { r.ReadOnly = true }, true, false},
		{func(r *Rules) { r.ReadOnly, r.Blocked = true, []string{"get"} }, false, false},
		{func(r *Rules) { r.ReadOnly, r.Allowed = true, []string{"put"} }, false, false},
	} {
		r := rules(tt.change)
		for hint, want := range map[bool]bool{true: tt.with, false: tt.without} {
			if got := r.Visible("s", "get", hint); got != want {
				t.Errorf("%+v: readOnlyHint %v: visible %v", r, hint, got)
			}
			if d := r.Check(Call{Server: "s", Tool: "get", ReadOnly: hint}); (rule(d) != RuleBlocked) != want {
				t.Errorf("%+v: readOnlyHint %v: a call: %v", r, hint, d)
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
	for _, tools := range [][]string{{"*"}, {}} { // path_tools
		p := rules(func(r *Rules) { r.PathTools = tools })
		for _, text := range append(denied, fine...) {
			want := RulePath
			if len(tools) == 0 || slices.Contains(fine, text) {
				want = ""
			}
			q, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			forms := []string{`{"path":%s}`, `{"a":[1,{"b":[null,[%s]]}],"c":true}`, `{"a":{},"b":[],"c":1,"d":[{}],"e":%s}`}
			for _, form := range forms {
				args := fmt.Sprintf(form, q)
				if got := p.Check(Call{Server: "files", Tool: "t", Arguments: json.RawMessage(args)}); rule(got) != want {
					t.Errorf("%v %s: %v, not %q", tools, args, got, want)
				}
			}
		}
	}
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
		if got := p.Check(Call{Server: "s", Tool: "t", Arguments: json.RawMessage(args)}); rule(got) != want {
			t.Errorf("%s: %v, not %q", args, got, want)
		}
	}
}

// TestPathTools: where paths are looked for is data.
func TestPathTools(t *testing.T) {
	p := rules(func(r *Rules) {
		r.PathTools, r.Sensitive = []string{"READ_*", "s.open", "s__x"}, []string{".config/gcloud"}
	})
	for _, tt := range []struct{ tool, text, want string }{
		{"read_file", ".config/gcloud", RulePath},
		{"open", ".config/gcloud", RulePath},
		{"x", ".config/gcloud", RulePath},
		{"search", ".config/gcloud", ""},
		{"open", `/home/.CONFIG\gcloud`, RulePath},
		{"open", `/home/.config/x/../gcloud`, RulePath},
		{"open", `/home/.config//gcloud`, RulePath},
		{"open", `/home/.config/./gcloud`, RulePath},
		{"open", `/home/.config%5cx%5c%2e%2e%5cgcloud`, RulePath},
		{"open", `/home/.ssh`, ""},
	} {
		args, _ := json.Marshal(map[string]string{"p": tt.text})
		if got := p.Check(Call{Server: "s", Tool: tt.tool, Arguments: args}); rule(got) != tt.want {
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
	marked := rules(func(r *Rules) { r.Shell = true })
	own := rules(func(r *Rules) { r.Shell, r.ShellCharacters = true, ";" })
	for _, text := range append(denied, fine...) {
		want := RuleInjection
		if slices.Contains(fine, text) {
			want = ""
		}
		q, _ := json.Marshal(text)
		for _, args := range []string{`{"a":%s}`, `{"a":[["b",%s]]}`, `{%s:1}`} {
			args := json.RawMessage(fmt.Sprintf(args, q))
			if got := marked.Check(Call{Server: "s", Tool: "t", Arguments: args}); rule(got) != want {
				t.Errorf("%s: %v, not %q", args, got, want)
			}
			if got := rules(nil).Check(Call{Server: "s", Tool: "t", Arguments: args}); got != nil {
				t.Errorf("not marked, %s: %v", args, got)
			}
		}
	}
	for text, want := range map[string]string{`{"a":"x > y"}`: "", `{"a":"x;y"}`: RuleInjection, `{"a":"x\ny"}`: RuleInjection} {
		if got := own.Check(Call{Server: "own", Tool: "t", Arguments: json.RawMessage(text)}); rule(got) != want {
			t.Errorf("own characters, %s: %v", text, got)
		}
	}
}

func TestArguments(t *testing.T) {
	p := rules(func(r *Rules) { r.MaxBytes = 1000 })
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
		d := p.Check(Call{Server: "s", Tool: "t", Arguments: json.RawMessage(args)})
		if rule(d) != want {
			t.Errorf("%.80q: %v, not %q", args, d, want)
		}
	}
}

func TestCheckText(t *testing.T) {
	small := rules(func(r *Rules) { r.MaxBytes = 100 })
	shell := rules(func(r *Rules) { r.Shell = true })
	prose := rules(func(r *Rules) { r.PathTools = nil })
	for _, tt := range []struct {
		rules      Rules
		text, want string
	}{
		{small, "file:///home/.%73sh/id", RulePath},
		{small, "file:///home/notes;x", ""},
		{shell, "file:///home/notes;x", RuleInjection},
		{shell, "x|y", RuleInjection},
		{small, strings.Repeat("x", 101), RuleSize},
		{prose, "password", ""},
		{small, "password", RulePath},
	} {
		if got := tt.rules.CheckText("first", tt.text); rule(got) != tt.want {
			t.Errorf("%q: %v, not %q", tt.text, got, tt.want)
		}
	}
}

// TestNoArgumentInDenial: a denial is shown and logged, so it may hold no argument.
func TestNoArgumentInDenial(t *testing.T) {
	p := rules(func(r *Rules) { r.Shell = true })
	for _, args := range []string{
		`{"hunter2":"/home/hunter2/.ssh"}`, `{"hunter2/.env":"x"}`, `{"a":"hunter2;"}`, `{"a":hunter2}`, `hunter2`, `{"a":1e999,"b":"hunter2"}`, `{"a":"hunter2"}hunter2`,
		`{"a":"` + strings.Repeat("hunter2", 1<<18) + `"}`,
	} {
		d := p.Check(Call{Server: "s", Tool: "t", Arguments: json.RawMessage(args)})
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
		f.Add([]byte(s), "t")
	}
	p, shell := Default(), rules(func(r *Rules) { r.Shell = true })
	f.Fuzz(func(t *testing.T, args []byte, tool string) {
		call := Call{Server: "s", Tool: tool, Arguments: args}
		d := p.Check(call)
		if p.Visible("s", tool, false) != (rule(d) != RuleBlocked) {
			t.Errorf("%q: visible, but %v", tool, d)
		}
		call.Tool = "t"
		d = p.Check(call)
		sh := shell.Check(call)
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
			for _, path := range p.Sensitive {
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
func deniesText(p Rules, s string) bool {
	args, _ := json.Marshal(map[string]string{"a": s}) // strings always have a JSON form
	return p.Check(Call{Server: "s", Tool: "t", Arguments: args}) != nil
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
				if d := p.Check(Call{Server: "s", Tool: "t", Arguments: args}); d != nil {
					b.Fatal(d)
				}
			}
		})
	}
}

// TestDirectories: system directories are closed to arguments that are paths, however they are written; with a list of
// allowed ones all others are.
func TestDirectories(t *testing.T) {
	by := map[string]Rules{
		"any":   Default(),
		"files": rules(func(r *Rules) { r.AllowedDirs = []string{"/data", "/srv/Pub"} }),
		"open":  rules(func(r *Rules) { r.DeniedDirs = nil }),
		"home":  rules(func(r *Rules) { r.AllowedDirs = []string{"/root/docs"} }), // names a part of a denied one
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
		{"home", "/root/docs/x", false}, {"home", "/ROOT/docs/x", true}, {"home", "/root/x", true}, {"home", "/root/docs/../x", true}, {"home", "/etc/hosts", true},
	} {
		arguments := `{"a":[{"path":"` + tt.path + `"}]}`
		got := by[tt.server].Check(Call{Server: tt.server, Tool: "t", Arguments: []byte(arguments)})
		if (got != nil) != tt.denied || got != nil && got.Rule != RulePath {
			t.Errorf("%s %s: %v, want denied %v", tt.server, arguments, got, tt.denied)
		}
	}
	if d := by["any"].CheckText("file:///etc/hosts"); rule(d) != RulePath {
		t.Errorf("a resource in /etc: %v", d)
	}
}
