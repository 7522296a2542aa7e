package verify

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
)

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
