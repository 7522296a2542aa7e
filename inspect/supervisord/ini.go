package supervisord

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slimctl/slimctl/image/tree"
)

// ini is the content of supervisord's configparser after reading files: no interpolation, comments that start with ";"
// or "#" also at the end of a line, duplicates allowed (supervisor/options.py, UnhosedConfigParser).
type ini struct {
	sections map[string]*section
	order    []*section
	defaults *section // [DEFAULT]
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

// get looks up an option in the section and then in [DEFAULT].
func (c *ini) get(s *section, name string) (option, bool) {
	if o, ok := s.options[name]; ok {
		return o, true
	}
	o, ok := c.defaults.options[name]
	return o, ok
}

var (
	comment = regexp.MustCompile(`(^|\s)[;#].*$`)
	header  = regexp.MustCompile(`^\[(.+)\]`)
)

// readFile adds a file of the directory dir. place returns the place of a line; note receives errors.
func (c *ini) readFile(text, dir string, place func(line int) tree.Place, note func(line int, format string, args ...any)) {
	if !utf8.ValidString(text) {
		note(0, "the file is not UTF-8, so supervisord may not start")
	}
	var (
		at     *section
		name   string // option of a continuation line; empty for none
		indent int
	)
	for i, line := range strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text), "\n") {
		value := strings.TrimSpace(comment.ReplaceAllString(line, ""))
		if value == "" {
			continue
		}
		depth := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsSpace(r) })
		header := header.FindStringSubmatch(value)
		switch key, v, ok := cutOption(value); {
		case name != "" && depth > indent:
			o := at.options[name]
			if o.value += "\n" + strings.ReplaceAll(value, here, dir); len(o.value) > maxValue {
				note(i+1, "%s has more than %d bytes, which are not read", name, maxValue)
				o.value = ""
			}
			at.options[name] = o
			continue
		case header != nil:
			if at, name = c.section(header[1]), ""; at == nil {
				note(i+1, "there are more than %d sections: what follows is not read", maxSections)
				return
			}
			at.headers = append(at.headers, place(i+1))
		case at == nil:
			note(i+1, "%q comes before any section: supervisord does not start", value)
			return // configparser stops here
		case !ok:
			note(i+1, "%q is no option: supervisord does not start", value)
		case len(v) > maxValue:
			note(i+1, "%s has more than %d bytes, which are not read", key, maxValue)
		default:
			name = key
			at.options[name] = option{strings.ReplaceAll(v, here, dir), place(i + 1)}
		}
		indent = depth
	}
}

const here = "%(here)s"

// cutOption splits "name = value" or "name: value".
func cutOption(line string) (name, value string, ok bool) {
	sep := strings.IndexAny(line, "=:")
	if sep <= 0 {
		return "", "", false
	}
	return strings.ToLower(strings.TrimSpace(line[:sep])), strings.TrimSpace(line[sep+1:]), true
}

// section returns a section, creating it if necessary; nil if there are too many.
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

// placeholder matches supervisord's references: %(name)s and %(process_num)02d. Python accepts more forms, which nobody
// uses.
var placeholder = regexp.MustCompile(`%%|%\(([^)]*)\)[0-9]{0,2}[sdr]|%`)

// expand replaces %(name)s. References unknown to lookup stay as written.
func expand(text string, lookup func(name string) (string, bool)) (string, error) {
	var err error
	out := placeholder.ReplaceAllStringFunc(text, func(m string) string {
		if m == "%%" {
			return "%"
		}
		if m == "%" {
			err = fmt.Errorf("%q is badly formatted", text)
			return m
		}
		name, _, _ := strings.Cut(m[2:], ")")
		if v, ok := lookup(name); ok {
			return v
		}
		return m
	})
	return out, err
}
