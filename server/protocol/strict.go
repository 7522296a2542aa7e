package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// walk reads a value of valid JSON and finds what two readers could understand
// differently, a key that an object has twice, or what one could choke on, too
// much depth. own tells that it is a key of the frame itself.
func walk(dec *json.Decoder, depth int) (fault string, own bool) {
	token, _ := dec.Token() // JSON that is valid has no errors
	open, ok := token.(json.Delim)
	if !ok {
		return "", false
	}
	if depth == MaxDepth {
		return fmt.Sprintf("the frame is nested deeper than %d", MaxDepth), false
	}
	keys := map[json.Token]bool{}
	for dec.More() {
		if open == '{' {
			key, _ := dec.Token()
			if keys[key] {
				return fmt.Sprintf("a key occurs twice in one object; the second ends at byte %d of the frame", dec.InputOffset()), depth == 0
			}
			keys[key] = true
		}
		if fault, own = walk(dec, depth+1); fault != "" {
			return fault, own
		}
	}
	_, _ = dec.Token() // the end of what was opened
	return "", false
}

// values is how many values valid JSON has in its objects and arrays, or a few
// more: each has a comma before it or is the first. It allocates nothing.
func values(text []byte) int {
	n := 0
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case !inString && (c == ',' || c == '[' || c == '{'):
			n++
		}
	}
	return n
}

// badEscape looks through valid JSON for \u0000, which no argument of a
// program can carry, and for half a surrogate pair, which is no character.
func badEscape(text []byte) string {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		r := escaped(text[i:])
		switch {
		case r == 0:
			return `the frame has a \u0000`
		case utf16.IsSurrogate(r):
			if utf16.DecodeRune(r, escaped(text[i+6:])) == utf8.RuneError {
				return `the frame has half a surrogate pair`
			}
			i += 6
		}
		i++ // what is escaped may be a backslash
	}
	return ""
}

// escaped reads a \uXXXX; -1 for anything else.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
