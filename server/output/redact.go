package output

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Marker replaces a secret.
const Marker = "[redacted]"

// Redactor hides secrets: values whose name indicates a secret, texts in the form of one, and given values in several
// encodings. It never hides a snapshot's refs. It is safe for concurrent use.
//
// It only finds secrets in one text. A secret that a page spreads over several elements, spells out, or encrypts is not
// found.
type Redactor struct {
	keys     map[string]bool // joined words, lower case
	patterns []*regexp.Regexp
	needles  map[string][]string // exact values by their first three bytes, longest first
	start    trigrams            // of needles and shapes
}

// NewRedactor returns a Redactor. keys are further names of secrets, in any case and with any separator ("api key" is
// also apiKey and API_KEY); patterns are RE2 expressions; secrets are values of 8 bytes or more (shorter ones are
// ignored), see Secrets.
func NewRedactor(keys, patterns, secrets []string) (*Redactor, error) {
	r := &Redactor{keys: map[string]bool{}, needles: map[string][]string{}}
	for _, k := range keys {
		joined := strings.Join(split(k), "")
		if joined == "" {
			return nil, fmt.Errorf("redaction key %q has no letters", k)
		}
		r.keys[joined] = true
	}
	for _, expr := range patterns {
		re, err := regexp.Compile(expr)
		if err != nil {
			return nil, fmt.Errorf("redaction pattern: %w", err)
		}
		r.patterns = append(r.patterns, re)
	}
	for prefix := range shapes {
		r.start.add(prefix)
	}
	for _, s := range secrets {
		for _, form := range forms(s) {
			if !slices.Contains(r.needles[form[:3]], form) {
				r.needles[form[:3]] = append(r.needles[form[:3]], form)
				r.start.add(form)
			}
		}
	}
	for _, list := range r.needles {
		slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	}
	return r, nil
}

// String hides the secrets of a text. It is idempotent.
func (r *Redactor) String(s string) string {
	for range 4 { // the rest may match with a marker beside it
		t := r.once(s)
		if t == s {
			break
		}
		s = t
	}
	return s
}

func (r *Redactor) once(s string) string {
	spans := slices.Concat(r.scan(s), r.encoded(s), r.cells(s))
	for _, re := range r.patterns {
		for _, m := range re.FindAllStringIndex(s, -1) {
			if m[0] < m[1] && !touchesMarker(s, m[0], m[1]) {
				spans = append(spans, span{m[0], m[1]})
			}
		}
	}
	return replace(s, spans, Marker)
}

// touchesMarker reports whether the span overlaps a marker.
func touchesMarker(s string, from, to int) bool {
	return strings.Contains(s[max(0, from-len(Marker)+1):min(len(s), to+len(Marker)-1)], Marker)
}

// span is a part of a text to hide.
type span struct{ from, to int }

// replace replaces spans that overlap or touch by one mark.
func replace(s string, spans []span, mark string) string {
	if len(spans) == 0 {
		return s
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var b strings.Builder
	done := 0
	for i := 0; i < len(spans); {
		from, to := spans[i].from, spans[i].to
		for i++; i < len(spans) && spans[i].from <= to; i++ {
			to = max(to, spans[i].to)
		}
		b.WriteString(s[done:from])
		b.WriteString(mark)
		done = to
	}
	b.WriteString(s[done:])
	return b.String()
}

// JSON hides the secrets of a JSON text, keys included. The result is valid JSON, and its other parts are unchanged.
// Strings are decoded before the search. Text that is not JSON is handled by String.
func (r *Redactor) JSON(s string) string {
	n, err := parse(s, false)
	if err != nil {
		return r.String(s)
	}
	if !r.node(&n, plain) {
		return s
	}
	out := n.String()
	if strings.HasSuffix(s, "\n") {
		out += "\n"
	}
	return out
}

// node processes a value whose key has the grade; it reports whether it changed.
func (r *Redactor) node(n *node, g grade) bool {
	changed := false
	switch {
	case n.kind == '"':
		changed = r.text(&n.raw, g)
	case n.kind == 0 && g >= strong && n.raw[0] != 't' && n.raw[0] != 'f' && n.raw[0] != 'n':
		n.raw, changed = quote(Marker), true // a number
	}
	pair := plain // {"name": "sid", "value": "…"}
	for i := range n.kids {
		of := g
		if n.kind == '{' {
			changed = r.text(&n.keys[i], plain) || changed
			key := unquote(n.keys[i])
			of = max(g, r.grade(key))
			if key == "value" {
				of = max(of, pair)
			}
			if (key == "name" || key == "key") && n.kids[i].kind == '"' {
				pair = r.grade(r.String(unquote(n.kids[i].raw)))
			}
		}
		changed = r.node(&n.kids[i], of) || changed
	}
	return changed
}

// text processes a raw string.
func (r *Redactor) text(raw *string, g grade) bool {
	s := unquote(*raw)
	t := r.String(s)
	if s != "" && (g >= strong || g == weak && random(s)) {
		t = Marker
	}
	if t == s {
		return false
	}
	*raw = quote(t)
	return true
}

// Argv hides the secrets of a command's words: in each word, the word after an option that names a secret, and the text
// for a field whose selector names one.
func (r *Redactor) Argv(argv []string) []string {
	out := make([]string, len(argv))
	hide := false
	for i, a := range argv {
		out[i] = r.String(a)
		if hide && a != "" {
			out[i] = Marker
		}
		name, isOption := strings.CutPrefix(a, "-")
		hide = isOption && !strings.ContainsAny(a, "= ") && r.grade(strings.TrimPrefix(name, "-")) >= strong
	}
	if len(argv) > 2 && r.field(argv[1]) {
		switch argv[0] {
		case "fill", "type", "select":
			for i := 2; i < len(argv); i++ {
				out[i] = Marker
			}
		}
	}
	return out
}
