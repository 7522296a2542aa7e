package policy

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// FuzzGrammar: whatever is let through holds no word that agent-browser could
// read as an option, but the row's own in their long form.
func FuzzGrammar(f *testing.F) {
	for _, s := range []string{
		"open\x1fhttps://example.com", "snapshot\x1f-i\x1f-d\x1f3", "fill\x1f@e1\x1f--session", "wait\x1f--fn\x1f1",
		"wait\x1f200", "screenshot\x1f#a\x1fx.png\x1f--full", "screenshot\x1f../x", "select\x1f@e1\x1fa\x1f--restore=a b", "press\x1f-a",
	} {
		f.Add(s, true)
	}
	p := Default()
	f.Fuzz(func(t *testing.T, joined string, native bool) {
		gen := Node
		if native {
			gen = Native
		}
		cmd, r := p.Check(gen, strings.Split(joined, "\x1f"))
		if r != nil {
			return
		}
		known := map[string]bool{}
		for _, o := range rowsOf(cmd.Name)[0].options {
			known[o.long] = o.only == "" || o.only == gen
		}
		for _, word := range cmd.Argv("/private/x.png") {
			if flagLike(word) && !known[word] {
				t.Errorf("%q lets %q through", joined, word)
			}
			if strings.ContainsRune(word, 0) {
				t.Errorf("%q lets a NUL through", joined)
			}
		}
		if cmd.Shot != "" && !shotName.MatchString(cmd.Shot) {
			t.Errorf("%q names the file %q", joined, cmd.Shot)
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
	p := Default()
	f.Fuzz(func(t *testing.T, s string) {
		href, r := p.CheckURL(s)
		if r != nil {
			return
		}
		again, r := p.CheckURL(href)
		if r != nil || again != href {
			t.Errorf("%q gives %q, and that gives %q %v", s, href, again, r)
		}
		u, err := url.Parse(href)
		if err != nil {
			return // for instance a stray % in the path, which browsers take
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Hostname() == "" || strings.HasSuffix(u.Hostname(), "localhost") {
			t.Errorf("%q gives %q", s, href)
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && (a.Unmap().IsLoopback() || a.Unmap().IsPrivate() || !a.IsGlobalUnicast()) {
			t.Errorf("%q gives %q", s, href)
		}
	})
}
