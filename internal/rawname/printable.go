package rawname

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable escapes, in JSON, the characters that encoding/json leaves in strings although they move a terminal's
// cursor or change its writing direction. They can only occur in strings.
func Printable(data []byte) []byte {
	if !bytes.ContainsFunc(data, func(r rune) bool { return r >= 0x7f }) {
		return data
	}
	out := make([]byte, 0, len(data)+1)
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch high, low := utf16.EncodeRune(r); {
		case r < 0x7f || strconv.IsPrint(r):
			out = append(out, data[i:i+n]...)
		case r > 0xffff:
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += n
	}
	return out
}

// Shown returns s if all of it is printable, otherwise s in Go's quotes. Foreign names must not move a terminal's
// cursor, change its writing direction, or hide. A name that begins with a quote is quoted, too, so that the result is
// unambiguous.
func Shown(s string) string {
	if isPlain(s) {
		return s
	}
	if strings.HasPrefix(s, `"`) || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Line returns s with unprintable characters as Go's escapes, without quotes.
func Line(s string) string {
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !strconv.IsPrint(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isPlain reports whether s is printable ASCII, as most names are.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return !strings.HasPrefix(s, `"`)
}
