package report

import (
	"math"
	"strings"
	"testing"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1: "1 B", 999: "999 B", 1000: "1.00 kB", 12_345: "12.3 kB", 999_499: "999 kB", 999_950: "1.00 MB", 12_345_678: "12.3 MB",
		999_999_999: "1.00 GB", -410_000: "-410 kB", math.MaxInt64: "9.22 EB", math.MinInt64: "-9.22 EB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		"":                       "",
		"/usr/bin/env":           "/usr/bin/env",
		"naïve 日本 🙂":             "naïve 日本 🙂",
		`back\slash "q"`:         `back\slash "q"`,
		`"looks quoted"`:         `"\"looks quoted\""`,
		"a\nb":                   `"a\nb"`,
		"\x1b[31mred":            `"\x1b[31mred"`,
		"csi\u009b31m":           `"csi\u009b31m"`,
		"txt.\u202eexe":          `"txt.\u202eexe"`,
		"zero\u200bwidth":        `"zero\u200bwidth"`,
		"line\u2028separator":    `"line\u2028separator"`,
		"bad\xff":                `"bad\xff"`,
		"tag\U000e0041":          `"tag\U000e0041"`,
		"no-break\u00a0space":    `"no-break\u00a0space"`,
		"replacement \ufffd one": "replacement \ufffd one",
	} {
		if got := quote(s); got != want {
			t.Errorf("quote(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"\tif x {":          "\tif x {",
		"a\x1b]0;title\a b": `a\x1b]0;title\a b`,
		"carriage\r":        `carriage\r`,
		"half \xe2\x82":     `half \xe2\x82`,
		"it's \u202e":       `it's \u202e`,
	} {
		if got := line(s); got != want {
			t.Errorf("line(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		s    string
		n    int
		want string
	}{
		{"short", 5, "short"},
		{"longer", 5, "long…"},
		{"日本語です", 6, "日本…"},
		{"日本語", 6, "日本語"},
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
		{"anything", 1, "…"},
		{"\xff\xfe\xfd", 2, "\xff…"},
	} {
		if got := cut(tt.s, tt.n); got != tt.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.s, tt.n, got, tt.want)
		}
	}
	if got := cut("x"+strings.Repeat("\u0301", 10_000), 80); len(got) > 1000 {
		t.Errorf("a letter with 10,000 accents takes %d bytes of a column", len(got))
	}
}

func TestArgv(t *testing.T) {
	got := argv([]string{"sh", "-c", "echo $HOME", "", "a'b", "\x1b[0m"})
	if want := `sh -c "echo $HOME" "" "a'b" "\x1b[0m"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCode(t *testing.T) {
	for s, want := range map[string]string{
		"":              "",
		"/etc/passwd":   "`/etc/passwd`",
		"a|b":           "`a\\|b`",
		`a\|b`:          "`a\\\\\\|b`", // one backslash too many is shown; a cell too many would not be
		`a\\|b`:         "`a\\\\\\|b`",
		"tick`tock":     "``tick`tock``",
		"`both`":        "`` `both` ``",
		"``":            "``` `` ```",
		" spaces ":      "`  spaces  `",
		"@team <b> #12": "`@team <b> #12`",
	} {
		if got := code(s); got != want {
			t.Errorf("code(%q) = %s, want %s", s, got, want)
		}
	}
}
