package pcre_test

import (
	"strings"
	"testing"

	"github.com/slimctl/slimctl/inspect/nginx/pcre"
)

// TestMatch has what PCRE and Go read differently. Package nginx's tests hold more of it against nginx itself.
func TestMatch(t *testing.T) {
	for _, c := range []struct {
		expr, s  string
		caseless bool
		want     bool
	}{
		{`^/a$`, "/a\n", false, true},
		{`^/a\z`, "/a\n", false, false},
		{`^/A`, "/a", true, true},
		{`^..$`, "é", false, true}, // two bytes
		{`^[]a]$`, "]", false, true},
		{`^(?'name'a)$`, "a", false, true},
		{`^\s$`, "\v", false, true},
		{`^\h$`, "\xa0", false, true},
	} {
		re, err := pcre.Compile(c.expr, c.caseless)
		if err != nil || re.Match(c.s) != c.want {
			t.Errorf("%s of %q: want %v, %v", c.expr, c.s, c.want, err)
		}
	}
}

// TestRefused: what Go doesn't have, or what would cost too much.
func TestRefused(t *testing.T) {
	for _, expr := range []string{`(?=a)`, `(?<!a)`, `(a)\1`, `(*UTF)a`, `(?R)`, `(`, strings.Repeat("a", 3000), `((a{1,100}){1,100}){1,100}`} {
		if _, err := pcre.Compile(expr, false); err == nil {
			t.Errorf("%.50s is taken", expr)
		}
	}
}
