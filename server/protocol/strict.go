package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// checkValue reads a value of valid JSON. It finds a repeated key, which parsers interpret differently, and excessive
// depth. own reports that it is a key of the frame itself.
func checkValue(dec *json.Decoder, depth int) (fault string, own bool) {
	token, _ := dec.Token() // valid JSON has no errors
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
		if fault, own = checkValue(dec, depth+1); fault != "" {
			return fault, own
		}
	}
	_, _ = dec.Token() // the closing bracket
	return "", false
}

// countValues returns the number of values in the objects and arrays of valid JSON, or a few more. Each has a comma
// before it or is the first. It allocates nothing.
func countValues(text []byte) int {
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

// findBadEscape finds in valid JSON a \u0000, which no program's argument can contain, or half a surrogate pair, which
// is not a character.
func findBadEscape(text []byte) string {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		r := parseEscape(text[i:])
		switch {
		case r == 0:
			return `the frame has a \u0000`
		case utf16.IsSurrogate(r):
			if utf16.DecodeRune(r, parseEscape(text[i+6:])) == utf8.RuneError {
				return `the frame has half a surrogate pair`
			}
			i += 6
		}
		i++ // the escaped character may be a backslash
	}
	return ""
}

// parseEscape parses a \uXXXX; it returns -1 for any other text.
func parseEscape(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
