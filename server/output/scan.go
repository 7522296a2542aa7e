package output

import (
	"strings"
)

// trigrams is the set of three-byte beginnings of matches, in any case.
type trigrams [1 << 15]bool

// trigram combines five bits of each byte, which distinguish letters regardless of case.
func trigram(a, b, c byte) uint32 {
	return uint32(a&31)<<10 | uint32(b&31)<<5 | uint32(c&31)
}

func (t *trigrams) add(s string) { t[trigram(s[0], s[1], s[2])] = true }

// scanner scans a text once. To stay linear it skips hidden bytes, and remembers failed searches.
type scanner struct {
	r       *Redactor
	s       string
	spans   []span
	covered int // everything before is decided
	runFrom int // the last run of word bytes
	run     int // its end
	noJWT   int // no token of three parts begins before this
	noEnd   bool
}

// hide adds a span, without a snapshot's refs in it.
func (p *scanner) hide(from, to int) {
	p.covered = max(p.covered, to)
	for from < to {
		n := strings.Index(p.s[from:to], "ref=e")
		if n < 0 {
			break
		}
		open, shut := bracket(p.s, from, from+n, to)
		if shut < 0 { // not a snapshot's
			p.add(from, from+n)
			from += n + len("ref=e")
			p.add(from-len("ref=e"), from)
			continue
		}
		p.add(from, open)
		from = shut
	}
	p.add(from, to)
}

func (p *scanner) add(from, to int) {
	if text := strings.TrimSpace(p.s[from:to]); from < to && text != "" && text != Marker && strings.Trim(text, `"'`) != "" {
		p.spans = append(p.spans, span{from, to})
	}
}

// bracket returns the span of the [...] around s[at] if it contains a ref; otherwise -1.
func bracket(s string, from, at, to int) (open, shut int) {
	lo := max(from, at-200)
	open = strings.LastIndexByte(s[lo:at], '[')
	shut = strings.IndexByte(s[at:min(to, at+200)], ']')
	if open < 0 || shut < 0 || !isRef(s[at:at+shut]) || strings.ContainsAny(s[lo+open+1:at], "]\n") {
		return -1, -1
	}
	return lo + open, at + shut + 1
}

// isRef matches ref=e and at most six digits, followed by the end or other attributes.
func isRef(s string) bool {
	s = strings.TrimPrefix(s, "ref=e")
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n > 0 && n <= 6 && (n == len(s) || s[n] == ',' || s[n] == ' ')
}

// refAt reports whether a bracket with a ref begins at i.
func refAt(s string, i int) bool {
	if s[i] != '[' {
		return false
	}
	end := strings.IndexByte(s[i:min(len(s), i+200)], ']')
	if end < 0 {
		return false
	}
	n := strings.Index(s[i:i+end], "ref=e")
	return n > 0 && isRef(s[i+n:i+end])
}

// acts holds the bytes at which a name's value, or a line, may begin.
var acts = func() (t [256]bool) {
	for _, c := range []byte(":=>% \n") {
		t[c] = true
	}
	return t
}()

func (r *Redactor) scan(s string) []span {
	p := scanner{r: r, s: s}
	if len(s) > 2 && (s[0] == '-' || s[0] == ' ') {
		p.field(0)
		p.option(0)
	}
	for i := range len(s) {
		if i+2 < len(s) && r.start[trigram(s[i], s[i+1], s[i+2])] {
			p.begin(i)
		}
		if acts[s[i]] && i >= p.covered {
			p.act(i)
		}
	}
	return p.spans
}

// begin looks for a given value or a shape at i.
func (p *scanner) begin(i int) {
	for _, n := range p.r.needles[p.s[i:i+3]] {
		if strings.HasPrefix(p.s[i:], n) {
			p.hide(i, i+len(n))
			break
		}
	}
	if i < p.covered {
		return
	}
	for _, sh := range shapesAt[trigram(p.s[i], p.s[i+1], p.s[i+2])] {
		if has(p.s[i:], sh) {
			if from, to := sh.match(p, i); from < to {
				p.hide(from, to)
				return
			}
		}
	}
}

func has(s string, sh shape) bool {
	if sh.anyCase {
		return len(s) >= len(sh.prefix) && strings.EqualFold(s[:len(sh.prefix)], sh.prefix)
	}
	return strings.HasPrefix(s, sh.prefix)
}

// act looks for a name that ends before i and its value after i.
func (p *scanner) act(i int) {
	s := p.s
	switch s[i] {
	case '\n':
		p.field(i + 1)
	case ':', '=':
		p.named(i, i+1, s[i])
	case '%': // = or : in a URL inside a URL
		if i+2 < len(s) && s[i+1] == '3' && strings.IndexByte("DdAa", s[i+2]) >= 0 {
			p.named(i, i+3, '=')
		}
	case '>':
		p.element(i)
	case ' ':
		if rest := s[i+1:]; strings.HasPrefix(rest, "--") {
			p.option(i + 1)
		} else if strings.HasPrefix(rest, "is") {
			p.prose(i)
		}
	}
}

// named handles NAME=value, "name": "value", Name: value. The name ends before at.
func (p *scanner) named(at, value int, sep byte) {
	s := p.s
	if value < len(s) && (s[value] == ':' || s[value] == '/' && sep == ':') || at > 0 && s[at-1] == ':' {
		return // :: and ://
	}
	name, from := nameBefore(s, at)
	g := p.r.grade(name)
	if g == plain {
		return
	}
	if value < len(s) && (s[value] == '=' || s[value] == '>') {
		value++
	}
	spaces := value
	for value < len(s) && (s[value] == ' ' || s[value] == '\t') {
		value++
	}
	if sep == '=' && value > spaces && from > 0 && strings.IndexByte("?&", s[from-1]) >= 0 {
		return // an empty parameter at the end of a URL
	}
	p.value(from, value, g, sep, value > spaces)
}

// value hides the value that begins at i.
func (p *scanner) value(name, i int, g grade, sep byte, spaced bool) {
	s := p.s
	if i >= len(s) || s[i] == '\n' || refAt(s, i) {
		return
	}
	if q, n := quoteAt(s, i); n > 0 {
		from := i + n
		if from >= len(s) || s[from] == ' ' || s[from] == '\n' || s[from] == ']' || s[from] == '}' {
			return // closes something that began before the name
		}
		if to := closing(s, from, q); to > from && (g >= strong || random(s[from:to])) {
			p.hide(from, to)
		}
		return
	}
	query := name > 0 && (s[name-1] == '?' || s[name-1] == '&')
	if g == weak {
		if head := s[:min(len(s), i+256)]; !random(s[i:wordEnd(head, i, query)]) {
			return
		}
	}
	var to int
	if g == header && sep == ':' {
		to = i + len(strings.TrimRight(s[i:lineEnd(s, i, quoteBefore(s, name))], " "))
	} else {
		to = wordEnd(s, i, query)
	}
	if !ordinary(s[i:to], spaced) {
		p.hide(i, to)
	}
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

// quoteAt reads an opening quote, possibly escaped.
func quoteAt(s string, i int) (quote string, n int) {
	j := i
	for j < len(s) && s[j] == '\\' && j-i < 3 {
		j++
	}
	if j < len(s) && strings.IndexByte("\"'`", s[j]) >= 0 {
		return s[i : j+1], j + 1 - i
	}
	return "", 0
}

func quoteBefore(s string, i int) byte {
	if i > 0 && strings.IndexByte("\"'`", s[i-1]) >= 0 {
		return s[i-1]
	}
	return 0
}

// closing returns the end of a quoted value, or of its line.
func closing(s string, i int, quote string) int {
	for j := i; j < len(s); j++ {
		switch {
		case s[j] == '\n' || s[j] == '[' && refAt(s, j):
			return j
		case strings.HasPrefix(s[j:], quote):
			return j
		case s[j] == '\\':
			j++
		}
	}
	return len(s)
}

// lineEnd returns the end of a header's value.
func lineEnd(s string, i int, quote byte) int {
	for j := i; j < len(s); j++ {
		switch {
		case s[j] == '\n', s[j] == '\r', quote != 0 && s[j] == quote, s[j] == '[' && refAt(s, j):
			return j
		case s[j] == '\\' && j+1 < len(s) && (s[j+1] == 'n' || s[j+1] == 'r' || s[j+1] == '"'):
			return j
		case s[j] == '"' && strings.HasPrefix(s[j:], `" [`) && refAt(s, j+2):
			return j
		}
	}
	return len(s)
}

// wordEnd returns the end of an unquoted value; in a URL's query & ends it.
func wordEnd(s string, i int, query bool) int {
	j := i
loop:
	for ; j < len(s); j++ {
		switch c := s[j]; c {
		case ' ', '\t', '\n', '\r', '"', '\'', '`', '<', '>':
			break loop
		case '&', '#':
			if query {
				break loop
			}
		case ';':
			if j+1 == len(s) || s[j+1] == ' ' || s[j+1] == '\n' {
				break loop
			}
		case '[':
			if refAt(s, j) {
				break loop
			}
		}
	}
	first := i
	if strings.HasPrefix(s[i:j], Marker) {
		first += len(Marker)
	}
	for j > first && strings.IndexByte(")]},.;:!?\\", s[j-1]) >= 0 {
		if open := strings.IndexByte(")]}", s[j-1]); open >= 0 && strings.IndexByte(s[first:j], "([{"[open]) >= 0 {
			break // the bracket was opened in the value
		}
		j--
	}
	return j
}

// ordinary lists values that documentation and forms have in place of a secret.
var ordinaryWords = words(`null nil none true false undefined`)

var proseWords = words(`string number boolean bytes str int any required optional must should is are was the a an your yes no not n/a
	please enter change reset show hide forgot minimum at least and or for we you this that what how why when with of to in use uses used`)

func ordinary(v string, spaced bool) bool {
	if v == "" || v == Marker || len(v) > 12 {
		return v == "" || v == Marker
	}
	v = strings.ToLower(v)
	return ordinaryWords[v] || spaced && proseWords[v]
}

// option handles --name value.
func (p *scanner) option(i int) {
	s := p.s
	end := i
	for end < len(s) && end-i < 64 && isWord(s[end]) {
		end++
	}
	if end < len(s) && s[end] == ' ' && p.r.grade(s[i:end]) >= strong {
		p.value(i, end+1, strong, ' ', true)
	}
}

// prose handles "password is value1", where the value is not a word. The space after the name is at i.
func (p *scanner) prose(i int) {
	s := p.s
	rest, ok := strings.CutPrefix(s[i:], " is ")
	if !ok {
		if rest, ok = strings.CutPrefix(s[i:], " is: "); !ok {
			return
		}
	}
	name, from := nameBefore(s, i)
	if p.r.grade(name) < strong {
		return
	}
	value := len(s) - len(rest)
	v := s[value:wordEnd(s[:min(len(s), value+256)], value, false)]
	if len(v) >= 6 && random(v+"..") {
		p.value(from, value, strong, ' ', true)
	}
}

// element handles <name>value</name>.
func (p *scanner) element(i int) {
	name, from := nameBefore(p.s, i)
	if from == 0 || p.s[from-1] != '<' || p.r.grade(name) < strong {
		return
	}
	if n := strings.IndexAny(p.s[i+1:min(len(p.s), i+1+4096)], "<\n"); n > 0 {
		p.hide(i+1, i+1+n)
	}
}

// field handles a line of a snapshot at i with the content of a field for a secret: `- textbox "Password" [ref=e2]:
// value`, or the content in the lines below.
func (p *scanner) field(i int) {
	line, indent := p.line(i)
	role, rest, ok := strings.Cut(line, ` "`)
	if !ok || role != "- textbox" && role != "- searchbox" && role != "- spinbutton" && role != "- combobox" {
		return
	}
	end := closing(rest, 0, `"`)
	if end >= len(rest) || end > 512 || !p.r.field(rest[:end]) {
		return
	}
	colon := strings.Index(rest[end:], ": ")
	at := i + indent + len(role) + 2 + end
	if colon >= 0 {
		p.hide(at+colon+2, i+indent+len(line))
	}
	for base := indent; ; {
		i += indent + len(line) + 1
		if i >= len(p.s) {
			return
		}
		if line, indent = p.line(i); indent <= base {
			return
		}
		for _, kind := range []string{"- text: ", "- StaticText "} {
			if strings.HasPrefix(line, kind) {
				p.hide(i+indent+len(kind), i+indent+len(line))
			}
		}
	}
}

// line returns the line at i without its indentation.
func (p *scanner) line(i int) (line string, indent int) {
	line = p.s[i:]
	if n := strings.IndexByte(line, '\n'); n >= 0 {
		line = line[:n]
	}
	bare := strings.TrimLeft(line, " ")
	return bare, len(line) - len(bare)
}
