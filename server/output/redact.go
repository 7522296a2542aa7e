package output

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Marker replaces a secret.
const Marker = "[redacted]"

// Redactor hides secrets: given values in several encodings, tokens with a known prefix, and values beside a name that
// indicates a secret. It never hides a snapshot's refs. It is safe for concurrent use.
//
// It protects transcripts. A secret in prose, in a table, in an encoding of its own or in a screenshot is not found.
type Redactor struct {
	keys     map[string]bool // joined words, lower case
	patterns []*regexp.Regexp
	values   []string // exact values in all their forms
}

// NewRedactor returns a Redactor. keys are further names of secrets, in any case and with any separator ("api key" is
// also apiKey and API_KEY); patterns are RE2 expressions; secrets are values of 8 bytes or more (shorter ones are
// ignored), see Secrets.
func NewRedactor(keys, patterns, secrets []string) (*Redactor, error) {
	r := &Redactor{keys: map[string]bool{}}
	for _, k := range keys {
		joined := strings.ReplaceAll(splitName(k), "-", "")
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
	for _, s := range secrets {
		r.values = append(r.values, forms(s)...)
	}
	return r, nil
}

// With returns a Redactor that also hides these values, of 4 bytes or more.
func (r *Redactor) With(values []string) *Redactor {
	own := *r
	own.values = slices.Clone(r.values)
	for _, v := range values {
		if len(v) >= 4 {
			own.values = append(own.values, append(forms(v), escape(v)[:2]...)...)
		}
	}
	return &own
}

// String hides the secrets of a text. It is idempotent.
func (r *Redactor) String(s string) string {
	for range 4 { // the rest may match with a marker beside it
		t := replace(s, r.findSecrets(s), Marker)
		if t == s {
			break
		}
		s = t
	}
	return s
}

// span is a part of a text to hide.
type span struct{ from, to int }

func (r *Redactor) findSecrets(s string) []span {
	spans := slices.Concat(findValues(s, r.values), findTokens(s), findUsers(s), r.findNamed(s), r.findFields(s))
	for _, re := range r.patterns {
		for _, m := range re.FindAllStringIndex(s, -1) {
			if !strings.Contains(s[max(0, m[0]-len(Marker)+1):min(len(s), m[1]+len(Marker)-1)], Marker) {
				spans = append(spans, span{m[0], m[1]})
			}
		}
	}
	return slices.DeleteFunc(spans, func(sp span) bool {
		text := strings.Trim(s[sp.from:sp.to], " \t\r\n\"'")
		return text == "" || text == Marker
	})
}

// references matches the refs of a snapshot, with other attributes of the element.
var references = lazyregexp.New(`\[(?:[a-z-]+(?:=[a-z0-9]+)?, )*ref=e[0-9]{1,6}(?:, [a-z-]+(?:=[a-z0-9]+)?)*\]`)

// replace replaces spans that overlap or touch by one mark, followed by the refs in them.
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
		if strings.Contains(s[from:to], "ref=e") {
			for _, m := range references.FindAllStringSubmatch(s[from:to], -1) {
				b.WriteString(" " + m[0])
			}
		}
		done = to
	}
	b.WriteString(s[done:])
	return b.String()
}

func findValues(s string, values []string) (found []span) {
	for _, v := range values {
		for from := 0; ; {
			at := strings.Index(s[from:], v)
			if at < 0 {
				break
			}
			found = append(found, span{from + at, from + at + len(v)})
			from += at + len(v)
		}
	}
	return found
}

// JSON hides the secrets of a JSON text, keys included. The result is valid JSON of the same meaning but for them.
// Strings are decoded before the search. Text that is not JSON is handled by String.
func (r *Redactor) JSON(s string) string {
	n, err := parse(s)
	if err != nil {
		return r.String(s)
	}
	if !r.redactNode(&n, plain) {
		return s
	}
	out := format(n)
	if strings.HasSuffix(s, "\n") {
		out += "\n"
	}
	return out
}

// redactNode processes a value whose key has the grade; it reports whether it changed.
func (r *Redactor) redactNode(n *node, g grade) (changed bool) {
	switch v := n.Value.(type) {
	case string:
		t := r.redactText(v, g)
		n.Value, changed = t, t != v
	case json.Number:
		if g >= strong {
			n.Value, changed = Marker, true
		}
	}
	for i := range n.Items {
		changed = r.redactNode(&n.Items[i], g) || changed
	}
	pair := plain // {"name": "sid", "value": "…"}
	for i := range n.Members {
		m := &n.Members[i]
		name := r.String(m.Name)
		changed = changed || name != m.Name
		m.Name = name
		of := max(g, r.grade(name))
		if name == "value" {
			of = max(of, pair)
		}
		if text, isText := m.Value.(string); isText && (name == "name" || name == "key") {
			pair = r.grade(r.String(text))
		}
		changed = r.redactNode(&m.Node, of) || changed
	}
	return changed
}

func (r *Redactor) redactText(text string, g grade) string {
	if text != "" && (g >= strong || g == weak && isRandom(text)) {
		return Marker
	}
	return r.String(text)
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
	if len(argv) > 2 && slices.Contains([]string{"fill", "type", "select"}, argv[0]) && r.isSecretField(argv[1]) {
		for i := 2; i < len(argv); i++ {
			out[i] = Marker
		}
	}
	return out
}
