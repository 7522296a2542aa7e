package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/inspect"
)

// TestTextOfLineB holds the text to what somebody reads: a page or two that has every part of the surface, and with --all
// nothing left out that the JSON has.
func TestTextOfLineB(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	read := func(args ...string) string {
		t.Helper()
		args = append([]string{"inspect", "standin:B", "--platform", "linux/amd64", "--progress", "quiet"}, args...)
		code, stdout, stderr := slimctl(t.Context(), args...)
		if code != exitOK {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		return stdout
	}
	short := read()
	if n := strings.Count(short, "\n"); n > 96 {
		t.Errorf("%d lines are no summary:\n%s", n, short)
	}
	for line := range strings.Lines(short) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	for _, want := range []string{
		"\nprograms  19\n", "\nlisteners  19\n", "  public    *:8080 nginx, [::]:8080 nginx\n", "\nroutes  61, 29 answer to the outside\n",
		"  127.0.0.1:9222 ", " /json, /devtools/, ~ ^/cdp/devtools/\n", "\ntools  32\n", "\nhooks  9\n", "\nswitches  85\n", "\nsudo  5\n",
		"\npackages  5\n", "\nsize by component\n", "\nnotes  4\n", "--all has everything",
	} {
		if !strings.Contains(short, want) {
			t.Errorf("no %q in\n%s", want, short)
		}
	}
	var doc struct{ Platforms []inspect.Surface }
	if err := json.Unmarshal([]byte(read("--format", "json")), &doc); err != nil {
		t.Fatal(err)
	}
	s := doc.Platforms[0]
	var names []string
	for _, p := range s.Programs {
		names = append(names, p.Name, p.Place.String())
	}
	for _, r := range s.Routes {
		names = append(names, r.Path, r.Place.String())
	}
	for _, w := range s.Start.Switches {
		names = append(names, w.Name)
	}
	for _, u := range s.Privilege.Users {
		names = append(names, u.Name)
	}
	for _, d := range s.Size.Directories {
		names = append(names, d.Path)
	}
	for _, l := range s.Listeners {
		names = append(names, l.String(), l.Place.String())
	}
	all := read("--all")
	if strings.Contains(all, "…") || strings.Contains(all, "--all") {
		t.Errorf("something is left out:\n%s", all)
	}
	for _, n := range names {
		if !strings.Contains(all, n) {
			t.Errorf("%q is left out", n)
		}
	}
}
