package packages

import (
	"iter"
	"strings"
)

// stanza is one paragraph of a deb822(5) file.
type stanza struct {
	line   int // of its first field
	fields []field
	// bad are the lines that are neither a field nor a continuation of one.
	bad []int
}

type field struct {
	name string
	// value is what follows the colon, without white space around it. Continuation lines stay as they are, each after a
	// line feed.
	value string
	line  int
}

// get gives the value of a field, whose name has no case; the last one counts, as it does for dpkg.
func (s *stanza) get(name string) string {
	value := ""
	for i := range s.fields {
		if strings.EqualFold(s.fields[i].name, name) {
			value = s.fields[i].value
		}
	}
	return value
}

const blank = " \t\r\n"

// stanzas gives the paragraphs of a deb822 file, which blank lines separate. Nothing of text is copied. A paragraph is
// valid until the next one is asked for.
func stanzas(text string) iter.Seq[*stanza] {
	return func(yield func(*stanza) bool) {
		var s stanza
		var start int // of the last field's value, in text
		line, at := 0, 0
		for at < len(text) {
			line++
			end := at + strings.IndexByte(text[at:], '\n')
			if end < at {
				end = len(text)
			}
			l := strings.TrimSuffix(text[at:end], "\r")
			switch {
			case strings.Trim(l, blank) == "":
				if s.line > 0 && !yield(&s) {
					return
				}
				s = stanza{fields: s.fields[:0], bad: s.bad[:0]}
			case l[0] == ' ' || l[0] == '\t':
				if len(s.fields) == 0 {
					s.broken(line)
					break
				}
				s.fields[len(s.fields)-1].value = strings.Trim(text[start:at+len(l)], blank)
			default:
				name, _, ok := strings.Cut(l, ":")
				if !ok || name == "" || strings.ContainsAny(name, " \t") {
					s.broken(line)
					break
				}
				if s.line == 0 {
					s.line = line
				}
				start = at + len(name) + 1
				s.fields = append(s.fields, field{name, strings.Trim(l[len(name)+1:], blank), line})
			}
			at = end + 1
		}
		if s.line > 0 {
			yield(&s)
		}
	}
}

func (s *stanza) broken(line int) {
	if s.line == 0 {
		s.line = line
	}
	s.bad = append(s.bad, line)
}
