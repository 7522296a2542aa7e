package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/build"
)

// TestSingular: one of a kind is told in the singular, and many with their thousands.
func TestSingular(t *testing.T) {
	p := plan{
		Remove: []build.Remove{{Path: "/a"}},
		Keep:   []planComponent{{"browser", 1, 1}, {"system", 12345, 1}},
		Lay:    []planOverlay{{Name: "one", Files: []planFile{{Path: "/b"}}}, {Name: "two", Files: make([]planFile, 2)}},
	}
	var out bytes.Buffer
	if err := p.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"remove 1 path\n", "keep browser: 1 file, ", "keep system: 12,345 files, ", "lay one: 1 file, ", "lay two: 2 files, "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out.String())
		}
	}
}

// TestPlanOfOddNames: what a base names its paths and variables moves no terminal's cursor and makes no line.
func TestPlanOfOddNames(t *testing.T) {
	const evil = "x\x1b[2J\u202e\nset"
	p := plan{
		Remove: []build.Remove{{Path: "/" + evil, With: []build.Gone{{Path: "/a/" + evil}}}},
		Lay:    []planOverlay{{Files: []planFile{{Path: "/b/" + evil, Link: evil}}}},
		Set:    build.ConfigChange{UnsetEnv: []string{evil}},
		New:    []build.Gone{{Path: "env " + evil}},
	}
	var out bytes.Buffer
	if err := p.print(&out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); strings.ContainsAny(s, "\x1b\u202e") || strings.Count(s, "\nset") != 1 {
		t.Errorf("%q", s)
	}
}
