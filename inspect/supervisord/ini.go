package supervisord

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slimctl/slimctl/image/tree"
)

// ini is what Python's configparser holds after it has read some files, set up as supervisord sets it up: no interpolation,
// comments that start with ";" or "#" also at the end of a line, duplicates allowed (supervisor/options.py,
// UnhosedConfigParser; Lib/configparser.py, RawConfigParser._read of Python 3.10 and 3.11).
type ini struct {
	sections map[string]*section
	order    []*section
	defaults *section // [DEFAULT]
	here     int      // how many of order have had %(here)s put in for what they have of [DEFAULT]
}

type section struct {
	name    string
	options map[string]option
	headers []tree.Place
}

type option struct {
	value string // lines joined by "\n"
	place tree.Place
}

func newINI() *ini {
	return &ini{sections: map[string]*section{}, defaults: &section{name: "DEFAULT", options: map[string]option{}}}
}

// get looks an option up in the section and then in [DEFAULT].
func (c *ini) get(s *section, name string) (option, bool) {
	if o, ok := s.options[name]; ok {
		return o, true
	}
	o, ok := c.defaults.options[name]
	return o, ok
}

// read adds a file of the directory dir. place gives the place of a line; what is wrong is told to note, and supervisord starts
// with none of it.
func (c *ini) read(text, dir string, place func(line int) tree.Place, note func(line int, format string, args ...any)) {
	if !utf8.ValidString(text) {
		note(0, "it is not UTF-8, so supervisord may not start")
	}
	var (
		at     *section
		name   string // of the option that continuation lines belong to
		open   bool   // there is one
		indent int
		read   = map[*section]map[string][]string{} // lines, by section and option, of this file
	)
	set := func(s *section, name string, lines []string) {
		if read[s] == nil {
			read[s] = map[string][]string{}
		}
		read[s][name] = lines
	}
	for i, line := range splitLines(text) {
		value, commented := stripComment(line)
		if value == "" {
			if !commented && open {
				set(at, name, append(read[at][name], ""))
			}
			continue
		}
		depth := utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeftFunc(line, isSpace))
		if open && depth > indent {
			set(at, name, append(read[at][name], value))
			continue
		}
		indent = depth
		if header, ok := header(value); ok {
			if at, open = c.section(header), false; at == nil {
				note(i+1, "there are more than %d sections: what follows is not read", maxSections)
				break
			}
			at.headers = append(at.headers, place(i+1))
			continue
		}
		if at == nil {
			note(i+1, "%q comes before any section: supervisord does not start", value)
			return // configparser reads no further
		}
		sep := strings.IndexAny(value, "=:")
		if sep < 0 {
			note(i+1, "%q is no option: supervisord does not start", value)
			continue
		}
		name = lower(strings.TrimRightFunc(value[:sep], isSpace))
		if name == "" {
			note(i+1, "%q has no name: supervisord does not start", value)
		}
		if _, known := at.options[name]; at == c.defaults && !known && len(at.options) == maxDefaults {
			note(i+1, "[DEFAULT] has more than %d options: what follows is not read", maxDefaults)
			break
		}
		at.options[name] = option{place: place(i + 1)}
		set(at, name, []string{strings.TrimFunc(value[sep+1:], isSpace)})
		open = true
	}
	for s, options := range read {
		for name, lines := range options {
			o := s.options[name]
			o.value = strings.TrimRightFunc(strings.Join(lines, "\n"), isSpace)
			most := maxValue
			if s == c.defaults {
				most = maxDefault
			}
			if len(o.value) > most {
				note(o.place.Line, "%s has %d bytes; more than %d are not read", name, len(o.value), most)
				o.value = ""
			}
			if s != c.defaults {
				o.value = strings.ReplaceAll(o.value, here, dir)
			}
			s.options[name] = o
		}
	}
	c.fill(dir, len(read[c.defaults]) > 0)
}

const here = "%(here)s"

// fill puts the directory in for %(here)s in what sections have of [DEFAULT], as supervisord does after each file: it becomes
// their own by it. The sections are those that the file brought, or all when it changed [DEFAULT].
func (c *ini) fill(dir string, all bool) {
	sections := c.order[c.here:]
	if all {
		sections = c.order
	}
	c.here = len(c.order)
	for name, o := range c.defaults.options {
		if !strings.Contains(o.value, here) {
			continue
		}
		o.value = strings.ReplaceAll(o.value, here, dir)
		for _, s := range sections {
			if _, own := s.options[name]; !own {
				s.options[name] = o
			}
		}
	}
}

// section finds a section or makes it; nil when there are too many.
func (c *ini) section(name string) *section {
	if name == c.defaults.name {
		return c.defaults
	}
	s := c.sections[name]
	if s == nil && len(c.order) == maxSections {
		return nil
	}
	if s == nil {
		s = &section{name: name, options: map[string]option{}}
		c.sections[name] = s
		c.order = append(c.order, s)
	}
	return s
}

// header matches \[(.+)\] at the start of a line: the name reaches to the last bracket, and what follows is passed over.
func header(value string) (string, bool) {
	end := strings.LastIndexByte(value, ']')
	if value[0] != '[' || end < 2 {
		return "", false
	}
	return value[1:end], true
}

// stripComment gives a line without its comment and without space around it.
//
// An inline comment starts at a prefix that is first or has space before it. Each round looks at the next place of each
// prefix, and the first round that finds one ends the search: so in "a;b #c ;d" it is " #c" that counts, and in
// "a;b ;c #d" it is "#d", though ";c" comes before it.
func stripComment(line string) (value string, commented bool) {
	if t := strings.TrimFunc(line, isSpace); strings.HasPrefix(t, ";") || strings.HasPrefix(t, "#") {
		return "", true
	}
	from := map[byte]int{';': 0, '#': 0}
	start := -1
	for start < 0 && len(from) > 0 {
		for _, prefix := range []byte(";#") {
			begin, ok := from[prefix]
			if !ok {
				continue
			}
			i := strings.IndexByte(line[begin:], prefix)
			if i < 0 {
				delete(from, prefix)
				continue
			}
			i += begin
			from[prefix] = i + 1
			before, _ := utf8.DecodeLastRuneInString(line[:i])
			if (i == 0 || isSpace(before)) && (start < 0 || i < start) {
				start = i
			}
		}
	}
	if start >= 0 {
		line = line[:start]
	}
	return strings.TrimFunc(line, isSpace), start >= 0
}

// splitLines splits as Python does in files: at \n, \r and \r\n.
func splitLines(text string) []string {
	lines := strings.Split(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n"), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// isSpace is Python's str.isspace.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// lower is Python's str.lower; Go's makes an ASCII i of the Turkish İ.
func lower(s string) string { return strings.ToLower(strings.ReplaceAll(s, "İ", "i\u0307")) }

// expand fills %(name)s in, as Python's % operator does with a mapping. What lookup doesn't know stays as it is written.
func expand(text string, lookup func(name string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "%")
		b.WriteString(before)
		if !ok {
			return b.String(), nil
		}
		if after, ok := strings.CutPrefix(rest, "%"); ok {
			b.WriteByte('%')
			text = after
			continue
		}
		// %(name)s and %(process_num)02d; Python takes more, which nobody writes.
		name, rest, ok := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		verb := strings.IndexAny(rest, "sdr")
		plain := ok && verb >= 0 && verb <= 2 && strings.Trim(rest[:verb], "0123456789") == ""
		if !plain || !strings.HasPrefix(text[len(before):], "%(") {
			return b.String() + text[len(before):], fmt.Errorf("%q is badly formatted after %q", text, before)
		}
		written := "%(" + name + ")" + rest[:verb+1]
		if value, ok := lookup(name); ok {
			b.WriteString(value)
		} else {
			b.WriteString(written)
		}
		text = rest[verb+1:]
	}
}
