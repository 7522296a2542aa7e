package verify

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
)

// What nginx 1.22.1 does with the path of a request line: each was tried with a location that returns $uri.
func TestNormalise(t *testing.T) {
	for _, tt := range []struct {
		raw       string
		merge     bool
		want      string
		malformed bool
	}{
		{raw: "/mcp", want: "/mcp"},
		{raw: "/mcp?x=/v1#y", want: "/mcp"},
		{raw: "/mcp#/v1", want: "/mcp"},
		{raw: "/%6dcp", want: "/mcp"},
		{raw: "/mcp/../v1", want: "/v1"},
		{raw: "/mcp/%2e%2e/v1", want: "/v1"},
		{raw: "/mcp%2f..%2fv1", want: "/v1"},
		{raw: "/mcp/.", want: "/mcp/"},
		{raw: "/mcp/./x", want: "/mcp/x"},
		{raw: "/vnc/..", want: "/"},
		{raw: "//mcp", merge: true, want: "/mcp"},
		{raw: "//mcp", want: "//mcp"},
		{raw: "/mcp//", merge: true, want: "/mcp/"},
		{raw: "/mcp%20", want: "/mcp "},
		{raw: "/%2f", want: "//"},
		{raw: "/%2f", merge: true, want: "/"},
		{raw: "/a//../b", want: "/a/b"},
		{raw: "/a//../b", merge: true, want: "/b"},
		{raw: "/a/..//", want: "//"},
		{raw: "/a/..//", merge: true, want: "/"},
		{raw: "/a/b/../../..", malformed: true},
		{raw: "/..", malformed: true},
		{raw: "/%00", malformed: true},
		{raw: "/%zz", malformed: true},
		{raw: "/%6", malformed: true},
		{raw: "mcp", malformed: true},
	} {
		got, ok := normalise(tt.raw, tt.merge)
		if ok == tt.malformed || ok && got != tt.want {
			t.Errorf("%s, merged %v: %q, %v; want %q", tt.raw, tt.merge, got, ok, tt.want)
		}
	}
}

func TestBraces(t *testing.T) {
	for glob, want := range map[string][]string{
		"/a":                  {"/a"},
		"/{a,b}/c":            {"/a/c", "/b/c"},
		"/a/{b,}{c,d}":        {"/a/bc", "/a/bd", "/a/c", "/a/d"},
		"/{a,{b,c}d}":         {"/a", "/bd", "/cd"},
		`/\{a,b\}`:            {`/\{a,b\}`},
		"/{a":                 {"/{a"},
		"/{usr/lib,lib}/**/x": {"/usr/lib/**/x", "/lib/**/x"},
	} {
		got := braces(glob)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", glob, got, want)
		}
	}
	if n := len(braces(strings.Repeat("{a,b}", 40))); n > mostBraces {
		t.Errorf("%d patterns", n)
	}
}

// FuzzBraces: what a glob matches, one of the patterns that it is written out as matches, and the other way round.
func FuzzBraces(f *testing.F) {
	for _, s := range []string{"/{a,b}/c\x00/a/c", "/{a,{b,c}d}\x00/bd", "/a*{,x}\x00/ax", "/{a\x00/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		glob, p, _ := strings.Cut(s, "\x00")
		if !doublestar.ValidatePattern(glob) || len(glob) > 60 || !strings.HasPrefix(glob, "/") || p != path.Clean("/"+p) || p == "/" {
			return
		}
		want, err := doublestar.Match(glob, p)
		if err != nil {
			return
		}
		if got := matchesAny(braces(glob), p); got != want {
			t.Errorf("%q %q: %v, written out as %q %v", glob, p, want, braces(glob), got)
		}
	})
}

// FuzzSafe: nothing that a terminal acts on is left, whatever an image says.
func FuzzSafe(f *testing.F) {
	f.Add("\x1b[2J\u009b\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range safe(s) {
			if r != ' ' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0x2066) {
				t.Errorf("%q: %q", s, safe(s))
			}
		}
	})
}
