package supervisord

import (
	"errors"
	"slices"
	"strings"
	"unicode"
)

var errQuote = errors.New("a quotation is not closed")

// split splits a command as Python's shlex.split does in POSIX mode, which is what supervisord runs: no shell is in it.
func split(command string) ([]string, error) {
	var (
		words []string
		word  strings.Builder
		in    bool // a word has begun
		quote rune
		runes = []rune(command)
	)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case quote == '\'' && r != '\'', quote == '"' && r != '"' && r != '\\':
			word.WriteRune(r)
		case quote != 0 && r == quote:
			quote = 0
		case r == '\\':
			if i++; i == len(runes) {
				return words, errors.New("nothing follows the last backslash")
			}
			if quote == '"' && runes[i] != '"' && runes[i] != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(runes[i])
			in = true
		case r == '\'' || r == '"':
			quote, in = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 {
		return words, errQuote
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// pairs reads KEY="value",KEY2=value as supervisord does (supervisor/datatypes.py, dict_of_key_value_pairs), which is
// Python's shlex in its older mode: every other sign is a word of its own, and quotes stay until they are stripped.
// A placeholder counts as part of a word here, since supervisord fills it in before it reads this.
func pairs(text string) (map[string]string, error) {
	var tokens []string
	runes := []rune(text)
	isWord := func(r rune) bool {
		return r == '_' || r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("/.+-():%", r)
	}
	for i := 0; i < len(runes); {
		start := i
		switch r := runes[i]; {
		case strings.ContainsRune(" \t\r\n", r):
			i++
			continue
		case r == '#':
			for i < len(runes) && runes[i] != '\n' {
				i++
			}
			continue
		case isWord(r):
			for i < len(runes) && (isWord(runes[i]) || runes[i] == '"' || runes[i] == '\'') {
				i++
			}
		case r == '"' || r == '\'':
			end := slices.Index(runes[i+1:], r)
			if end < 0 {
				return nil, errQuote
			}
			i += end + 2
		default:
			i++
		}
		tokens = append(tokens, string(runes[start:i]))
	}
	out := map[string]string{}
	for i := 0; i < len(tokens); i += 4 {
		if i+2 >= len(tokens) || tokens[i+1] != "=" {
			return out, errors.New("KEY=value is not what it has")
		}
		out[tokens[i]] = strings.Trim(tokens[i+2], `'"`)
	}
	return out, nil
}
