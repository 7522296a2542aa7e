package report

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"golang.org/x/text/width"

	"github.com/slimctl/slimctl/internal/rawname"
)

// Bytes formats a number of bytes in powers of 1000, with three digits: "12.3 MB", "-410 kB", like registries and
// docker.
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

// change formats bytes with a sign.
func change(n int64) string {
	if n > 0 {
		return "+" + Bytes(n)
	}
	return Bytes(n)
}

// signed formats a number with a sign.
func signed(n int) string {
	if n > 0 {
		return "+" + number(n)
	}
	return number(n)
}

// number formats n with thousands separators.
func number(n int) string { return humanize.Comma(int64(n)) }

// count returns "1 layer" or "12,345 layers".
func count(n int, what string) string { return english.Plural(n, what, "") }

// more returns a note about the omitted part of a list.
func more(n int) string { return fmt.Sprintf("… and %s more", number(n)) }

func quote(s string) string { return rawname.Shown(s) }

// line makes one line of a text file safe; it keeps tabs.
func line(s string) string {
	if !strings.Contains(s, "\t") {
		return rawname.Line(s)
	}
	fields := strings.Split(s, "\t")
	for i, f := range fields {
		fields[i] = rawname.Line(f)
	}
	return strings.Join(fields, "\t")
}

// argv formats a command so that the boundaries of its arguments are visible.
func argv(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		if words[i] = quote(a); a == "" || words[i] == a && strings.ContainsAny(a, " '\\") {
			words[i] = strconv.Quote(a)
		}
	}
	return strings.Join(words, " ")
}

// columns returns the width of s on a terminal.
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

// cut shortens s to n columns at most, and to four runes for each of them.
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

// pad fills s with spaces to n columns, on the left if right is set.
func pad(s string, n int, right bool) string {
	fill := strings.Repeat(" ", max(0, n-columns(s)))
	if right {
		return fill + s
	}
	return s + fill
}

// short returns a digest for lists: twelve digits without its algorithm.
func short(digest string) string {
	if _, hex, ok := strings.Cut(digest, ":"); ok {
		digest = hex
	}
	return quote(digest[:min(12, len(digest))])
}
