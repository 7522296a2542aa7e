package nginx

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

// maxWord is the size of nginx's buffer: a longer word is an error there (NGX_CONF_BUFFER).
const maxWord = 4096

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
		if l.pos-start > maxWord {
			return words, at, 0, fmt.Errorf("a word of %d bytes; nginx takes %d at most", l.pos-start, maxWord)
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

// skipLua passes over the body of a Lua block, whose first brace is read. Lua's strings and comments may hold braces.
func (l *lexer) skipLua() error {
	for depth := 1; l.pos < len(l.content); l.pos++ {
		rest := l.content[l.pos:]
		switch {
		case strings.HasPrefix(rest, "--"):
			if n := longBracket(rest[2:]); n > 0 {
				l.pos += 1 + n
			} else if n := strings.IndexByte(rest, '\n'); n > 0 {
				l.pos += n
			} else {
				l.pos = len(l.content)
			}
		case rest[0] == '[':
			if n := longBracket(rest); n > 0 {
				l.pos += n - 1
			}
		case rest[0] == '"' || rest[0] == '\'':
			for l.pos++; l.pos < len(l.content) && l.content[l.pos] != rest[0]; l.pos++ {
				if l.content[l.pos] == '\\' {
					l.pos++
				}
			}
		case rest[0] == '{':
			depth++
		case rest[0] == '}':
			if depth--; depth == 0 {
				l.pos++
				return nil
			}
		}
	}
	return errEndOfFile
}

// longBracket gives the length of the long bracket that s starts with ("[==[ … ]==]"), or 0.
func longBracket(s string) int {
	if !strings.HasPrefix(s, "[") {
		return 0
	}
	level := len(s[1:]) - len(strings.TrimLeft(s[1:], "="))
	if !strings.HasPrefix(s[1+level:], "[") {
		return 0
	}
	end := "]" + strings.Repeat("=", level) + "]"
	n := strings.Index(s, end)
	if n < 0 {
		return len(s)
	}
	return n + len(end)
}

// statement is a directive, or a line of a block that holds values, such as map's.
type statement struct {
	words   []string
	block   []*statement
	isBlock bool
	file    string
	line    int
}

func (s *statement) name() string { return s.words[0] }

// arg gives an argument, counted from 1; empty when there are fewer.
func (s *statement) arg(n int) string {
	if n < len(s.words) {
		return s.words[n]
	}
	return ""
}

// last gives the last argument.
func (s *statement) last() string { return s.arg(len(s.words) - 1) }

// String is the statement on one line, for people.
func (s *statement) String() string { return strings.Join(s.words, " ") }

// brief is the beginning of it, as cut gives it: what is inherited is written for each location.
func (s *statement) brief() string {
	n, size := 0, 0
	for n < len(s.words) && size <= maxBrief {
		size += len(s.words[n]) + 1
		n++
	}
	return cut(strings.Join(s.words[:n], " "))
}

// only gives the statements with one of the names.
func only(block []*statement, names ...string) []*statement {
	var out []*statement
	for _, s := range block {
		for _, name := range names {
			if s.name() == name {
				out = append(out, s)
			}
		}
	}
	return out
}
