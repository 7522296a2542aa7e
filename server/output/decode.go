package output

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

// minEncoded and maxEncoded limit the length of the tokens that are decoded.
const (
	minEncoded = 16
	maxEncoded = 16 << 10
	maxCells   = 64 // values from cells that are searched in the whole text
)

// encoded finds tokens that contain a secret after percent- or base64-decoding.
func (r *Redactor) encoded(s string) (found []span) {
	for i := 0; i < len(s); {
		j := i
		percent := false
		for j < len(s) && (isWord(s[j]) || strings.IndexByte("%+/=._~", s[j]) >= 0) {
			percent = percent || s[j] == '%'
			j++
		}
		if n := j - i; n >= minEncoded && n <= maxEncoded {
			found = append(found, r.decoded(s, i, j, percent)...)
		}
		i = j + 1
	}
	return found
}

func (r *Redactor) decoded(s string, from, to int, percent bool) []span {
	token := s[from:to]
	if touchesMarker(s, from, to) {
		return nil
	}
	if percent {
		plain, at := unescape(token)
		spans := r.scan(plain)
		for i, sp := range spans {
			spans[i] = span{from + at[sp.from], from + at[sp.to]}
		}
		return spans
	}
	if eq := strings.IndexByte(token, '='); eq > 0 && strings.Trim(token[eq:], "=") != "" { // name=value
		from, token = from+eq+1, token[eq+1:]
	}
	bare := strings.TrimRight(token, "=")
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if plain, err := enc.DecodeString(bare); err == nil && len(bare) >= minEncoded && utf8.Valid(plain) && len(r.scan(string(plain))) > 0 {
			return []span{{from, from + len(token)}}
		}
	}
	return nil
}

// unescape decodes percent-encoding, and returns the original offset of each byte.
func unescape(s string) (string, []int) {
	var b strings.Builder
	var at []int
	for i := 0; i < len(s); i++ {
		at = append(at, i)
		if i+2 < len(s) && s[i] == '%' {
			if c, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.WriteByte(c[0])
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), append(at, len(s))
}

// cells finds values beside the name of a secret in a table or a list of terms. In a snapshot that is the cell after
// the one with the name; the row's own name contains the value, too.
func (r *Redactor) cells(s string) (found []span) {
	var name bool
	var depth int
	var values []string
	for line := range strings.Lines(s) {
		bare := strings.TrimLeft(line, " ")
		indent := len(line) - len(bare)
		role, rest, ok := strings.Cut(strings.TrimSuffix(bare, "\n"), ` `)
		if role == "-" {
			role, rest, ok = strings.Cut(rest, " ")
		}
		if !ok || !slices.Contains([]string{"rowheader", "columnheader", "cell", "gridcell", "term", "definition"}, strings.TrimSuffix(role, ":")) {
			continue
		}
		text := rest
		if q, ok := strings.CutPrefix(rest, `"`); ok {
			text = q[:closing(q, 0, `"`)]
		}
		if name && indent == depth && len(text) >= 4 && text != Marker && role != "columnheader" && !ordinary(text, true) {
			if values = append(values, text); len(values) == maxCells {
				break
			}
		}
		name, depth = len(text) <= 64 && r.field(text), indent
	}
	for _, v := range values {
		for from := 0; ; {
			n := strings.Index(s[from:], v)
			if n < 0 {
				break
			}
			found = append(found, span{from + n, from + n + len(v)})
			from += n + len(v)
		}
	}
	return found
}

// With returns a Redactor that also hides these values, of 4 bytes or more.
func (r *Redactor) With(values []string) *Redactor {
	own := *r
	own.needles = make(map[string][]string, len(r.needles)+len(values))
	for k, list := range r.needles {
		own.needles[k] = slices.Clone(list)
	}
	for _, v := range values {
		if len(v) < 4 {
			continue
		}
		quoted := quote(v)
		for _, form := range append(forms(v), v, quoted[1:len(quoted)-1]) {
			own.needles[form[:3]] = append(own.needles[form[:3]], form)
			own.start.add(form)
		}
	}
	for _, list := range own.needles {
		slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	}
	return &own
}
