package output

import (
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// findNamed finds the values of NAME=value, "name": "value" and Name: value whose name indicates a secret.
func (r *Redactor) findNamed(s string) (found []span) {
	for at := 0; at < len(s); {
		n := strings.IndexAny(s[at:], ":=%")
		if n < 0 {
			break
		}
		at += n
		value, sep := at+1, s[at]
		if sep == '%' { // = or : in a URL inside a URL
			if value, sep = at+3, '='; value > len(s) || s[at+1] != '3' || strings.IndexByte("DdAa", s[at+2]) < 0 {
				at++
				continue
			}
		}
		sp := r.findValue(s, at, value, sep)
		if sp.from < sp.to {
			found = append(found, sp)
		}
		at = max(value, sp.to)
	}
	return found
}

// findValue returns the value at position value, if the name that ends before at indicates a secret.
func (r *Redactor) findValue(s string, at, value int, sep byte) (none span) {
	if value < len(s) && (s[value] == ':' || s[value] == '/' && sep == ':') || at > 0 && s[at-1] == ':' && sep == ':' {
		return none // :: and ://
	}
	name, from := nameBefore(s, at)
	g := r.grade(name)
	if g == plain {
		return none
	}
	if value < len(s) && (s[value] == '=' || s[value] == '>') {
		value++
	}
	i := value + len(s[value:]) - len(strings.TrimLeft(s[value:], " \t"))
	inQuery := from > 0 && strings.IndexByte("?&", s[from-1]) >= 0
	switch {
	case i >= len(s) || s[i] == '\n' || sep == '=' && i > value && inQuery: // an empty parameter at the end of a URL
		return none
	case isReferenceAt(s[i:]):
		return none
	}
	if g == weak {
		s = s[:min(len(s), i+256)]
	}
	if quote := openingQuote(s[i:]); quote != "" {
		to := quotedEnd(s, i+len(quote), quote)
		i += len(quote)
		if to <= i || strings.IndexByte(" \n]}", s[i]) >= 0 || g == weak && !random(s[i:to]) { // closes what began before the name
			return none
		}
		return span{i, to}
	}
	to := i + wordLength(s[i:], inQuery)
	if g == header && sep == ':' {
		to = i + headerLength(s[i:], from > 0 && strings.IndexByte("\"'`", s[from-1]) >= 0)
	}
	if v := s[i:to]; isPlaceholder(v, i > value) || g == weak && !random(v) {
		return none
	}
	return span{i, to}
}

// nameBefore returns the name that ends before at, skipping spaces, a quote and a bracket.
func nameBefore(s string, at int) (name string, from int) {
	end := at
	for end > 0 && s[end-1] == ' ' && at-end < 3 {
		end--
	}
	for end > 0 && strings.IndexByte("\"'`\\]", s[end-1]) >= 0 && at-end < 6 {
		end--
	}
	from = wordStart(s, end)
	if strings.EqualFold(s[from:end], "key") && from > 1 && s[from-1] == ' ' {
		from = wordStart(s, from-1) // "API key"
	}
	return s[from:end], from
}

func wordStart(s string, end int) int {
	from := end
	for from > 0 && end-from < 64 && (isWord(s[from-1]) || s[from-1] == '.') {
		from--
	}
	return from
}

// openingQuote returns the quote, possibly escaped, with which s begins.
func openingQuote(s string) string {
	bare := strings.TrimLeft(s[:min(len(s), 4)], `\`)
	if n := min(len(s), 4) - len(bare); bare != "" && strings.IndexByte("\"'`", bare[0]) >= 0 {
		return s[:n+1]
	}
	return ""
}

// quotedEnd returns the end of a quoted value at i, or of its line.
func quotedEnd(s string, i int, quote string) int {
	for ; i < len(s); i++ {
		if s[i] == '\n' || strings.HasPrefix(s[i:], quote) || isReferenceAt(s[i:]) {
			return i
		}
		if s[i] == '\\' {
			i++
		}
	}
	return min(i, len(s))
}

// headerLength returns the length of a header's value; an escaped line end also ends it.
func headerLength(s string, quoted bool) int {
	for i := range len(s) {
		rest := s[i:]
		if s[i] == '\n' || s[i] == '\r' || quoted && strings.IndexByte("\"'`", s[i]) >= 0 || isReferenceAt(rest) ||
			strings.HasPrefix(rest, `\n`) || strings.HasPrefix(rest, `\r`) || strings.HasPrefix(rest, `\"`) ||
			strings.HasPrefix(rest, `" `) && isReferenceAt(rest[2:]) {
			return len(strings.TrimRight(s[:i], " "))
		}
	}
	return len(s)
}

// wordLength returns the length of an unquoted value; in a URL's query & ends it.
func wordLength(s string, inQuery bool) int {
	end := 0
	for ; end < len(s); end++ {
		c := s[end]
		last := end+1 == len(s) || s[end+1] == ' ' || s[end+1] == '\n'
		if strings.IndexByte(" \t\r\n\"'`<>", c) >= 0 || inQuery && (c == '&' || c == '#') || c == ';' && last || isReferenceAt(s[end:]) {
			break
		}
	}
	value := s[:end]
	for {
		bare := strings.TrimRight(value, ",.;:!?\\")
		if n := len(bare) - 1; n >= 0 && !strings.HasPrefix(value, Marker) || n >= len(Marker) {
			if open := strings.IndexByte(")]}", bare[n]); open >= 0 && strings.IndexByte(bare, "([{"[open]) < 0 {
				bare = bare[:n] // the bracket was not opened in the value
			}
		}
		if len(bare) == len(value) {
			return len(value)
		}
		value = bare
	}
}

// isReferenceAt reports whether s begins with a snapshot's ref in its bracket.
func isReferenceAt(s string) bool {
	if s == "" || s[0] != '[' {
		return false
	}
	end := strings.IndexByte(s[:min(len(s), 200)], ']')
	return end > 0 && references.MatchString(s[:end+1])
}

var placeholders = words(`null nil none true false undefined`)

var proseWords = words(`string number boolean bytes str int any required optional must should is are was the a an your yes no not n/a
	please enter change reset show hide forgot minimum at least and or for we you this that what how why when with of to in use uses used`)

// isPlaceholder matches what documentation and forms have in place of a secret.
func isPlaceholder(v string, spaced bool) bool {
	if v == "" || v == Marker || len(v) > 12 {
		return v == "" || v == Marker
	}
	v = strings.ToLower(v)
	return placeholders[v] || spaced && proseWords[v]
}

var fieldLine = lazyregexp.New(`^- (?:textbox|searchbox|spinbutton|combobox) "((?:[^"\\]|\\.){1,512})"[^:]*(?:: (.*))?`)

// findFields finds in a snapshot the content of fields for secrets: `- textbox "Password" [ref=e2]: value`, or the content
// in the lines below.
func (r *Redactor) findFields(s string) (found []span) {
	if !strings.Contains(s, "box \"") && !strings.Contains(s, "spinbutton \"") {
		return nil
	}
	inside := -1 // the indentation of the field to which the lines belong
	end := 0
	for line := range strings.Lines(s) {
		end += len(line)
		line, ended := strings.CutSuffix(line, "\n")
		to := end
		if ended {
			to--
		}
		text := strings.TrimLeft(line, " ")
		indent := len(line) - len(text)
		if indent > inside && inside >= 0 {
			for _, role := range []string{"- text: ", "- StaticText "} {
				if content, ok := strings.CutPrefix(text, role); ok {
					found = append(found, span{to - len(content), to})
				}
			}
			continue
		}
		inside = -1
		if m := fieldLine.FindStringSubmatch(text); m != nil && r.isSecretField(m[1]) {
			found = append(found, span{to - len(m[2]), to})
			inside = indent
		}
	}
	return found
}
