// Package deb822 parses the paragraphs of a deb822(5) file, such as dpkg's status.
package deb822

import (
	"iter"
	"strings"
)

// Stanza is one paragraph of a deb822(5) file.
type Stanza struct {
	// Line is the number of its first line, counted from 1.
	Line   int
	Fields []Field
	// Bad holds the numbers of lines that are neither a field nor a continuation.
	Bad []int
}

// Field is one field of a paragraph.
type Field struct {
	Name string
	// Value is the text after the colon, without surrounding white space. Continuation lines follow unchanged, each
	// after a line feed.
	Value string
	Line  int
}

// Get returns the value of a field, whose name is case-insensitive. The last one counts, as for dpkg.
func (s *Stanza) Get(name string) string {
	value := ""
	for i := range s.Fields {
		if strings.EqualFold(s.Fields[i].Name, name) {
			value = s.Fields[i].Value
		}
	}
	return value
}

const blank = " \t\r\n"

// All iterates over the paragraphs of a deb822 file, which blank lines separate. It copies nothing of text. A paragraph
// is valid until the next iteration.
func All(text string) iter.Seq[*Stanza] {
	return func(yield func(*Stanza) bool) {
		var s Stanza
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
				if s.Line > 0 && !yield(&s) {
					return
				}
				s = Stanza{Fields: s.Fields[:0], Bad: s.Bad[:0]}
			case l[0] == ' ' || l[0] == '\t':
				if len(s.Fields) == 0 {
					s.broken(line)
					break
				}
				s.Fields[len(s.Fields)-1].Value = strings.Trim(text[start:at+len(l)], blank)
			default:
				name, _, ok := strings.Cut(l, ":")
				if !ok || name == "" || strings.ContainsAny(name, " \t") {
					s.broken(line)
					break
				}
				if s.Line == 0 {
					s.Line = line
				}
				start = at + len(name) + 1
				s.Fields = append(s.Fields, Field{name, strings.Trim(l[len(name)+1:], blank), line})
			}
			at = end + 1
		}
		if s.Line > 0 {
			yield(&s)
		}
	}
}

func (s *Stanza) broken(line int) {
	if s.Line == 0 {
		s.Line = line
	}
	s.Bad = append(s.Bad, line)
}
