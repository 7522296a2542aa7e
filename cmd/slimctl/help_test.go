package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

// everyCommand is all that a user sees, with what cobra adds.
func everyCommand(t *testing.T) (out []*cobra.Command) {
	t.Helper()
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "completion" || c.Name() == "help" { // cobra's own words
			return
		}
		out = append(out, c)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	return out
}

func helpOf(t *testing.T, c *cobra.Command) string {
	t.Helper()
	var out bytes.Buffer
	c.InitDefaultHelpFlag()
	c.SetOut(&out)
	if err := c.Help(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// verb is what a Short begins with.
var verb = regexp.MustCompile(`^(Build|Check|Compare|Explain|Fetch|List|Manage|Pin|Print|Remove|Render|Run|Serve|Show|Turn|Write) `)

var (
	badStart    = regexp.MustCompile(`(?i)^(of|what|with|who|then|where) `)
	endOfPhrase = regexp.MustCompile(`[.;](\s+|$)`)
)

// findBadSentences returns what STYLE.md refuses in a help text: sentences that are long or begin without a subject. Lines that
// begin with a space are tables.
func findBadSentences(text string) (bad []string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		words := slices.DeleteFunc(strings.Split(paragraph, "\n"), func(line string) bool { return strings.HasPrefix(line, " ") })
		for _, sentence := range endOfPhrase.Split(strings.Join(words, " "), -1) {
			if n := len(strings.Fields(sentence)); n > 25 {
				bad = append(bad, fmt.Sprintf("%d words, want at most 25: %s", n, sentence))
			}
			if badStart.MatchString(sentence) {
				bad = append(bad, "begins with Of, What or With: "+sentence)
			}
		}
	}
	return bad
}

// TestHelpText holds what STYLE.md promises a reader of --help.
func TestHelpText(t *testing.T) {
	for _, c := range everyCommand(t) {
		path := c.CommandPath()
		if n := utf8.RuneCountInString(c.Short); n > 60 {
			t.Errorf("%s: Short has %d characters, want at most 60: %s", path, n, c.Short)
		}
		if c.Runnable() && !verb.MatchString(c.Short) {
			t.Errorf("%s: Short begins with no verb: %s", path, c.Short)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if n := utf8.RuneCountInString(strings.ReplaceAll(f.Usage, "`", "")); n > 70 {
				t.Errorf("%s --%s: the text has %d characters, want at most 70: %s", path, f.Name, n, f.Usage)
			}
			if badStart.MatchString(f.Usage) {
				t.Errorf("%s --%s begins with Of, What or With: %s", path, f.Name, f.Usage)
			}
		})
		for _, bad := range findBadSentences(c.Long) {
			t.Errorf("%s: %s", path, bad)
		}
		for line := range strings.Lines(helpOf(t, c)) {
			if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > helpWidth {
				t.Errorf("%s --help: more than %d columns: %s", path, helpWidth, line)
			}
		}
	}
}

// TestChoices: a flag that takes one of a few words has them in its text, and the default among them.
func TestChoices(t *testing.T) {
	n := 0
	for _, c := range everyCommand(t) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			v, ok := f.Value.(interface{ choices() []string })
			if !ok {
				return
			}
			n++
			for _, word := range append(v.choices(), f.DefValue) {
				if !strings.Contains(f.Usage, word) || !slices.Contains(v.choices(), word) {
					t.Errorf("%s --%s: %s isn't in %q, or is none of %q", c.CommandPath(), f.Name, word, f.Usage, v.choices())
				}
			}
		})
	}
	if n < 20 {
		t.Errorf("only %d flags", n)
	}
}

// TestCommandReference: docs/cli.md has the help of every command. `make generate` writes it.
func TestCommandReference(t *testing.T) {
	t.Setenv("BUILDKIT_HOST", "")
	var b strings.Builder
	fmt.Fprint(&b, "# Command reference\n\nWhat `--help` prints. Written by `make generate`: change the commands, not this page.\n\n")
	commands := everyCommand(t)
	for _, c := range commands {
		fmt.Fprintf(&b, "- [`%s`](#%s): %s\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	for _, c := range commands {
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s\n```\n", c.CommandPath(), strings.TrimSpace(helpOf(t, c)))
	}
	const file = "../../docs/cli.md"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Error("docs/cli.md isn't what the commands' --help prints; run `make generate`")
	}
	if home, err := os.UserHomeDir(); err == nil && home != "/" && strings.Contains(b.String(), home) {
		t.Errorf("the help has this user's home directory %s in it", home)
	}
}
