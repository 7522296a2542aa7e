package report

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"golang.org/x/text/width"
)

// Bytes words a number of bytes in powers of 1000, with three digits: "12.3 MB", "-410 kB". Registries and docker count so.
func Bytes(n int64) string {
	sign, size := "", uint64(n) //nolint:gosec // a negative one is turned below
	if n < 0 {
		sign, size = "-", -size
	}
	if size < 1000 {
		return fmt.Sprintf("%s%d B", sign, size)
	}
	s := humanize.BytesN(size, 3)
	if rest, round := strings.CutPrefix(s, "1000 "); round { // 999,950 B
		s = "1.00 " + strings.NewReplacer("k", "M", "M", "G", "G", "T", "T", "P", "P", "E").Replace(rest)
	}
	return sign + s
}

// change is Bytes with its sign.
func change(n int64) string {
	if n > 0 {
		return "+" + Bytes(n)
	}
	return Bytes(n)
}

// signed is number with its sign.
func signed(n int) string {
	if n > 0 {
		return "+" + number(n)
	}
	return number(n)
}

// number writes n with thousands separated.
func number(n int) string { return humanize.Comma(int64(n)) }

// count is "1 layer" or "12,345 layers".
func count(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "switch"):
		what += "es"
	default:
		what += "s"
	}
	return number(n) + " " + what
}

// more says what a list leaves out.
func more(n int) string { return fmt.Sprintf("… and %s more", number(n)) }

// quote gives s as it is when all of it can be printed, and in Go's quotes otherwise: what an image holds must not move a
// terminal's cursor, turn its writing direction, or hide. A name that begins with a quote is quoted, too, so that nothing
// looks like what it is not.
func quote(s string) string {
	if plain(s) {
		return s
	}
	if strings.HasPrefix(s, `"`) || !utf8.ValidString(s) || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// plain is true for most names, and quick.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return !strings.HasPrefix(s, `"`)
}

// hidden is true for what has no look of its own: control characters, those that turn the writing direction, spaces that
// are none, private use.
func hidden(r rune) bool { return !strconv.IsPrint(r) }

// line makes one line of a text file safe: like quote, but without quotes, and with tabs left.
func line(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && hidden(r) }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r != '\t' && hidden(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// argv words a command, so that it can be told where each argument ends.
func argv(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		if words[i] = quote(a); a == "" || words[i] == a && strings.ContainsAny(a, " '\\") {
			words[i] = strconv.Quote(a)
		}
	}
	return strings.Join(words, " ")
}

// columns is how many columns of a terminal s takes.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
		return 2
	}
	return 1
}

// cut shortens s to n columns at most, and at most four runes for each of them.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	at, runes, fits := 0, 0, 0 // s[:fits] leaves room for the dots
	for i, r := range s {
		if at < n {
			fits = i
		}
		if at += runeColumns(r); at > n || runes >= 4*n {
			return s[:fits] + "…"
		}
		runes++
	}
	return s
}

// pad fills s with spaces up to n columns, on the left when right is set.
func pad(s string, n int, right bool) string {
	fill := strings.Repeat(" ", max(0, n-columns(s)))
	if right {
		return fill + s
	}
	return s + fill
}

// short is a digest for lists: its algorithm left out, twelve digits.
func short(digest string) string {
	if _, hex, ok := strings.Cut(digest, ":"); ok {
		digest = hex
	}
	return quote(digest[:min(12, len(digest))])
}
