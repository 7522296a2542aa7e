package conf

import (
	"errors"
	"fmt"
	"sort"
	"strings"
)

// text is the content of a file, with the line that each of its bytes is shown at.
type text struct {
	content string
	// starts has the offset of each line's first byte. A value that a template is filled with adds none.
	starts []int
}

func newText(content string) text {
	t := text{content: content, starts: []int{0}}
	for i := range len(content) {
		if content[i] == '\n' {
			t.starts = append(t.starts, i+1)
		}
	}
	return t
}

func (t text) line(offset int) int {
	return sort.Search(len(t.starts), func(i int) bool { return t.starts[i] > offset })
}

// lexer gives the words of a file exactly as ngx_conf_read_token does (nginx, src/core/ngx_conf_file.c). crossplane's own
// lexer splits words at Unicode spaces and at "}", drops carriage returns and keeps backslashes, so a file could be written
// that it reads as something else than nginx does.
type lexer struct {
	text
	pos int
}

// Ends of a statement.
const (
	endStatement = ';'
	startBlock   = '{'
	endBlock     = '}'
	endFile      = 0
)

// MaxWord is the size of nginx's buffer: a longer word is an error there (NGX_CONF_BUFFER).
const MaxWord = 4096

var errEndOfFile = errors.New(`the file ends inside of a statement: ";" or "}" is missing`)

// next gives the words up to the end of a statement or the start of its block, and where each of them starts.
func (l *lexer) next() (words []string, at []int, end byte, err error) {
	lastSpace, needSpace, comment, escaped, variable := true, false, false, false, false
	var quote byte
	start := l.pos
	for l.pos < len(l.content) {
		c := l.content[l.pos]
		l.pos++
		switch {
		case comment:
			comment = c != '\n'
			continue
		case escaped:
			escaped = false
			continue
		}
		if needSpace {
			switch {
			case isSpace(c):
				lastSpace, needSpace = true, false
				continue
			case c == endStatement || c == startBlock:
				return words, at, c, nil
			case c == ')':
				lastSpace, needSpace = true, false
			default:
				return words, at, 0, fmt.Errorf("unexpected %q after a quoted word", c)
			}
		}
		if lastSpace {
			start = l.pos - 1
			if isSpace(c) {
				continue
			}
			switch c {
			case endStatement, startBlock:
				if len(words) == 0 {
					return nil, nil, 0, fmt.Errorf("unexpected %q", c)
				}
				return words, at, c, nil
			case endBlock:
				if len(words) > 0 {
					return words, at, 0, errors.New(`unexpected "}"`)
				}
				return nil, nil, c, nil
			case '#':
				comment = true
				continue
			case '\\':
				escaped = true
			case '"', '\'':
				start++
				quote = c
			case '$':
				variable = true
			}
			lastSpace = false
			continue
		}
		if c == '{' && variable {
			continue
		}
		variable = false
		switch {
		case c == '\\':
			escaped = true
			continue
		case c == '$':
			variable = true
			continue
		case quote != 0:
			if c != quote {
				continue
			}
			quote, needSpace = 0, true
		case isSpace(c) || c == endStatement || c == startBlock:
			lastSpace = true
		default:
			continue
		}
		words, at = append(words, unescape(l.content[start:l.pos-1])), append(at, start)
		if len(words) > maxWords {
			return words, at, 0, fmt.Errorf("a directive of more than %d words", maxWords)
		}
		if l.pos-start > MaxWord {
			return words, at, 0, fmt.Errorf("a word of %d bytes; nginx takes %d at most", l.pos-start, MaxWord)
		}
		if c == endStatement || c == startBlock {
			return words, at, c, nil
		}
	}
	if len(words) > 0 || !lastSpace || needSpace {
		return words, at, 0, errEndOfFile
	}
	return nil, nil, endFile, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return escapes.Replace(s)
}

var escapes = strings.NewReplacer(`\"`, `"`, `\'`, `'`, `\\`, `\`, `\t`, "\t", `\r`, "\r", `\n`, "\n")
