package rawname

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable escapes, in JSON, what encoding/json leaves in strings although it moves a terminal's cursor or turns its writing
// direction. Outside of its strings JSON has none of these.
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
