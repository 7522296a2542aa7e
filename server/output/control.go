package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// EscapeControls returns the same JSON with \u00XX for control characters that JSON strings may contain. A terminal may
// interpret them.
func EscapeControls(stdout string) string {
	allowed := func(r rune) bool { return r >= 0x7f && r <= 0x9f }
	if !strings.ContainsFunc(stdout, allowed) {
		return stdout
	}
	var b strings.Builder
	for _, r := range stdout {
		if allowed(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// ReplaceControls returns text with U+FFFD for each control character except line feed and tab.
func ReplaceControls(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, text)
}
