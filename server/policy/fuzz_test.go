package policy

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// FuzzGrammar: whatever is let through holds no word that agent-browser could
// read as an option, but the row's own in their long form.
func FuzzGrammar(f *testing.F) {
	for _, s := range []string{
		"open\x1fhttps://example.com", "snapshot\x1f-i\x1f-d\x1f3", "fill\x1f@e1\x1f--session", "wait\x1f--fn\x1f1",
		"wait\x1f200", "screenshot\x1f#a\x1fx.png\x1f--full", "screenshot\x1f../x", "select\x1f@e1\x1fa\x1f--restore=a b", "press\x1f-a", "get\x1fattr\x1f@e1\x1fhref", "scroll\x1fdown\x1f1",
		"wait\x1f@e1\x1f--state\x1fhidden", "snapshot\x1f-s\x1f-x",
	} {
		f.Add(s, true)
	}
	p := Default()
	p.Commands = allCommands()
	f.Fuzz(func(t *testing.T, joined string, native bool) {
		gen := Node
		if native {
			gen = Native
		}
		cmd, r := p.Check(gen, strings.Split(joined, "\x1f"))
		if r != nil {
			return
		}
		row, known := rowFor(t, p, cmd), map[string]bool{}
		for _, o := range row.options {
			known[o.long] = o.only == "" || o.only == gen
		}
		words := len(cmd.Args)
		if cmd.File != "" {
			words++
		}
		if words < len(row.args)-row.optional || words > len(row.args)+row.repeat {
			t.Errorf("%q lets %d words through", joined, words)
		}
		for i, word := range cmd.Args {
			// Only the text slots of fill, type, select and press ("-") may begin with a dash.
			inText := i > 0 && slices.Contains([]string{"fill", "type", "select"}, cmd.Name) || cmd.Name == "press" && word == "-"
			if strings.HasPrefix(word, "-") && !inText || word == "" && !inText {
				t.Errorf("%q lets %q through as a selector", joined, word)
			}
		}
		for _, word := range cmd.Argv("/private/x.png") {
			if isFlagLike(word) && !known[word] {
				t.Errorf("%q lets %q through", joined, word)
			}
			if strings.ContainsRune(word, 0) {
				t.Errorf("%q lets a NUL through", joined)
			}
		}
		if cmd.File != "" && !shotName.MatchString(cmd.File) {
			t.Errorf("%q names the file %q", joined, cmd.File)
		}
	})
}

// rowFor finds the row that a command went through.
func rowFor(t *testing.T, p *Policy, cmd Command) command {
	t.Helper()
	if !slices.Contains(p.Commands, cmd.Name) {
		t.Fatalf("%s was let through", cmd.Name)
	}
	for _, row := range findRows(cmd.Name) {
		if len(findRows(cmd.Name)) == 1 {
			return row
		}
		if len(cmd.Args) > 0 {
			if _, r := row.args[0](p, "", cmd.Args[0]); r == nil {
				return row
			}
		}
	}
	t.Fatalf("%s %q has no row", cmd.Name, cmd.Args)
	return command{}
}

// FuzzPolicy: what the loader takes has every value within its bounds, fits
// the schema, and says the same when it is written and read again; what it
// refuses, it refuses with a place.
func FuzzPolicy(f *testing.F) {
	for _, file := range []string{"../../assets/policy/browser-shell.policy.json"} {
		b, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{
		"{}", "[]", "null", `{"limits":{"max_calls":8}}`, `{"commands":["open",null]}`, `{"open":{"allow_hosts":["a.b"]}}`, `{"Open":{}}`,
		`{"egress":{"proxy":"[::1]:1","allow_ports":[443]}}`, `{"redaction":{"patterns":["a+"]}}`, `{"$schema":"x","state_dir":"/x"}`,
		`{"limits":{"session_bytes":1e400}}`, "{\"\\u0063ommands\":[]}",
	} {
		f.Add([]byte(s))
	}
	schema, place := compileSchema(f), regexp.MustCompile(`^[0-9]+:[0-9]+: .`)
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			if p != nil || !place.MatchString(err.Error()) {
				t.Errorf("%q: %v %v", text, p, err)
			}
			return
		}
		if p.Version != 1 || p.Limits.TimeoutSec > p.Limits.MaxTimeoutSec || p.Limits.MaxTimeoutSec > 120 || p.Limits.SessionQueue > p.Limits.MaxCalls {
			t.Errorf("%q gives %+v", text, p)
		}
		if ap, err := netip.ParseAddrPort(p.Egress.Proxy); err != nil || !ap.Addr().IsLoopback() {
			t.Errorf("%q gives the proxy %q", text, p.Egress.Proxy)
		}
		for _, c := range p.Commands {
			if len(findRows(c)) == 0 {
				t.Errorf("%q gives the subcommand %q", text, c)
			}
		}
		for _, s := range p.Open.AllowSchemes {
			if s != "http" && s != "https" {
				t.Errorf("%q gives the scheme %q", text, s)
			}
		}
		if v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text)); err != nil || schema.Validate(v) != nil {
			t.Errorf("the schema does not take %q: %v", text, schema.Validate(v))
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(b)
		if d := cmp.Diff(p, again); err != nil || d != "" {
			t.Errorf("%q: %v\n%s", text, err, d)
		}
	})
}

// FuzzURL: whatever is let through is http(s), has no user, and net/url, an
// independent parser, sees a public-looking host in it; checking the canonical
// form again changes nothing.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"https://example.com/a?b#c", "http://127.0.0.1/", "http://[::1]/", "example.com:80", "http://0x7f.1/", "http://a@b.example/", "https://8.8.8.8"} {
		f.Add(s)
	}
	for _, s := range urlCorpus(f) {
		f.Add(s)
	}
	p := Default()
	f.Fuzz(func(t *testing.T, s string) {
		p.CheckPage(s)
		checked, r := p.CheckURL(s)
		if r != nil {
			return
		}
		href := checked.Href
		if !plainHost.MatchString(checked.Host) {
			t.Errorf("%q gives the host %q", s, checked.Host)
		}
		again, r := p.CheckURL(href)
		if r != nil || again != checked {
			t.Errorf("%q gives %q, and that gives %q %v", s, href, again, r)
		}
		u, err := url.Parse(href)
		if err != nil {
			return // for instance a stray % in the path, which browsers take
		}
		if port := u.Port(); u.Hostname() != trimBrackets(checked.Host) || port != "" && strings.Trim(port, "0123456789") != "" {
			t.Errorf("%q gives %q, where net/url sees %q", s, href, u.Host)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Hostname() == "" || u.Hostname() == "localhost" || strings.HasSuffix(u.Hostname(), ".localhost") {
			t.Errorf("%q gives %q", s, href)
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && (a.Unmap().IsLoopback() || a.Unmap().IsPrivate() || !a.IsGlobalUnicast()) {
			t.Errorf("%q gives %q", s, href)
		}
	})
}
