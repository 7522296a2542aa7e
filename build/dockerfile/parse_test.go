package dockerfile

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// command is one instruction as BuildKit's parser reads it.
type command struct {
	name  string
	flags []string
	args  []string
	json  bool
}

// parse reads text with BuildKit's own parser and, where the frontend expands variables, with its own lexer.
func parse(t testing.TB, text string) []command {
	t.Helper()
	result, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if result.EscapeToken != '\\' {
		t.Errorf("escape token %q", result.EscapeToken)
	}
	if len(result.Warnings) > 0 {
		t.Errorf("warnings: %v", result.Warnings)
	}
	var out []command
	for _, n := range result.AST.Children {
		c := command{name: strings.ToUpper(n.Value), flags: n.Flags, json: n.Attributes["json"]}
		if len(n.Heredocs) > 0 {
			t.Errorf("%s has a here-document", n.Original)
		}
		for a := n.Next; a != nil; a = a.Next {
			c.args = append(c.args, a.Value)
			c.json = c.json || a.Attributes["json"]
		}
		if slices.Contains([]string{"ENV", "LABEL", "WORKDIR", "EXPOSE", "USER", "COPY", "ADD"}, c.name) {
			c.args = expand(t, c.args)
		}
		if c.name == "ENV" || c.name == "LABEL" {
			if len(c.args) != 3 || c.args[2] != "=" { // key, value, separator
				t.Fatalf("%s: %q", n.Original, c.args)
			}
			c.args = c.args[:2]
		}
		out = append(out, c)
	}
	return out
}

// hostile is the environment of a build that would show an expansion.
var hostile = shell.EnvsFromSlice([]string{"HOME=/expanded", "PATH=/expanded", "x=expanded", "BASE=expanded"})

func expand(t testing.TB, args []string) []string {
	t.Helper()
	out := make([]string, len(args))
	for i, a := range args {
		var err error
		if out[i], _, err = shell.NewLex('\\').ProcessWord(a, hostile); err != nil {
			t.Fatalf("%q: %v", a, err)
		}
	}
	return out
}

// only returns the commands of one name.
func only(commands []command, name string) []command {
	return slices.DeleteFunc(slices.Clone(commands), func(c command) bool { return c.name != name })
}
