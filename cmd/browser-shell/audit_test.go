package main_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	main "github.com/slimctl/slimctl/cmd/browser-shell"
	"github.com/slimctl/slimctl/server/audit"
)

func TestAuditVerify(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := audit.Open(path, audit.Limits{MaxBytes: 1 << 20, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := l.Write(audit.Record{Event: audit.ToolFinished, Tool: "browser-shell"}); err != nil {
			t.Fatal(err)
		}
	}
	_, head := l.Head()
	l.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	short := filepath.Join(t.TempDir(), "short")
	gap := filepath.Join(t.TempDir(), "gap")
	if err := os.WriteFile(short, []byte(lines[0]+lines[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gap, []byte(lines[0]+lines[2]), 0o600); err != nil {
		t.Fatal(err)
	}
	// Other logs: the proxy's beside it, and the tool's of another run. That one was rotated.
	write := func(name, text string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	egress := write(filepath.Join(filepath.Dir(path), "egress.jsonl"), lines[0]+lines[1])
	other := t.TempDir()
	rotated := write(filepath.Join(other, "audit.jsonl"), lines[2]) + " " + write(filepath.Join(other, "audit.jsonl.2"), lines[0]+lines[1])
	moved := write(filepath.Join(other, "moved", "egress.jsonl.1"), lines[0]) + " " + write(filepath.Join(other, "egress.jsonl"), lines[1])
	for _, tt := range []struct {
		args string
		code int
		want string // in stdout
	}{
		{path + " " + egress, 0, "\n" + egress + ": whole: 2 lines"},
		{path + " " + rotated, 0, other + "/audit.jsonl: whole: 3 lines"},
		{rotated, 0, "whole: 3 lines"},
		{moved, 0, "whole: 2 lines"},
		{egress + " " + gap, 1, gap + ": " + gap + ":2: removed"},
		{path + " " + egress + " --json", 0, `{"log":"` + egress + `","ok":true`},
		{path + " " + egress + " --anchor 3:" + head, 2, ""},
		{path, 0, "whole: 3 lines"},
		{path, 0, "head: " + head + " (seq 3)"},
		{path + " --anchor " + head, 0, "whole"},
		{"--anchor " + head + " " + path, 0, "whole"},
		{short, 0, "whole: 2 lines"},
		{short + " --anchor " + head, 1, short + ":2: cut:"},
		{gap, 1, gap + ":2: removed: seq 2 to 2 are missing"},
		{gap + " --json", 1, `"kind":"removed"`},
		{path + " --json", 0, `"ok":true`},
		{path + ".none", 1, ""},
		{path + " --anchor x", 1, ""},
		{"", 2, ""},
		{"--no-such-flag " + path, 2, ""},
	} {
		code, out, stderr := main.Run("", append([]string{"audit", "verify"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(out, tt.want) || (stderr != "") != (tt.code != 0) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", tt.args, code, out, stderr)
		}
		for line := range strings.Lines(out) {
			if strings.Contains(tt.args, "--json") && !json.Valid([]byte(line)) {
				t.Errorf("%q: not JSON: %s", tt.args, line)
			}
		}
	}
	if code, _, _ := main.Run("", "audit", "prune"); code == 0 {
		t.Error("an unknown word was taken")
	}
}

// TestAuditNames: a file's name doesn't reach the terminal as it is, be its log good, broken or not there: it may move the
// cursor, or look like a line of the answer.
func TestAuditNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const evil = "\x1b]0;owned\a\u009b31m\u202e\x9b\nwhole: 9 lines\n"
	good := filepath.Join(dir, evil+".jsonl")
	l, err := audit.Open(good, audit.Limits{MaxBytes: 1 << 20, Keep: 2})
	if err == nil {
		err = errors.Join(l.Write(audit.Record{Event: audit.ToolFinished, Tool: "browser-shell"}), l.Close())
	}
	broken := filepath.Join(dir, evil+"broken.jsonl")
	if err = errors.Join(err, os.WriteFile(broken, []byte("{}\n"), 0o600), os.Mkdir(filepath.Join(dir, evil), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"good and broken": {good, broken},
		"broken":          {broken},
		"JSON":            {good, broken, "--json"},
		"missing":         {filepath.Join(dir, evil+"none")},
		"directory":       {filepath.Join(dir, evil)},
		"like a flag":     {"-" + evil},
		"anchor":          {good, "--anchor", evil},
		"other command":   {},
	} {
		t.Run(name, func(t *testing.T) {
			line := append([]string{"audit", "verify"}, args...)
			if len(args) == 0 {
				line = []string{evil}
			}
			_, out, said := main.Run("", line...)
			shown := out + said
			if i := strings.IndexFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 || !utf8.ValidString(shown) {
				t.Errorf("it reaches the terminal: %q", shown)
			}
			if strings.HasPrefix(shown, "whole: 9") || strings.Contains(shown, "\nwhole: 9") || !strings.Contains(shown, "whole: 9") {
				t.Errorf("the name has a line of its own, or none: %q", shown)
			}
		})
	}
}
