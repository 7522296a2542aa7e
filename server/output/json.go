package output

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth limits the nesting of JSON. agent-browser's answers have about 5 levels.
const maxDepth = 200

// node is a JSON value that preserves unchanged parts exactly: numbers of any size, the order of keys, escapes.
type node struct {
	kind byte     // { [ " or 0 for a number, true, false, null
	raw  string   // of a string (with quotes) or a scalar
	keys []string // of an object: raw, with quotes
	kids []node
}

var (
	errNotJSON = errors.New("not one JSON value")
	errTwice   = errors.New("a key is given twice")
	errDeep    = errors.New("nested too deep")
)

// parse parses one JSON value. strict refuses a repeated key and more than maxDepth levels.
func parse(s string, strict bool) (node, error) {
	if !json.Valid([]byte(s)) {
		return node{}, errNotJSON
	}
	p := parser{s: s, strict: strict}
	return p.value(0)
}

// parser parses text that json.Valid accepted.
type parser struct {
	s      string
	i      int
	strict bool
}

func (p *parser) space() byte {
	for {
		switch c := p.s[p.i]; c {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return c
		}
	}
}

func (p *parser) str() string {
	from := p.i
	for {
		p.i++
		p.i += strings.IndexByte(p.s[p.i:], '"')
		escapes := p.i
		for p.s[escapes-1] == '\\' {
			escapes--
		}
		if (p.i-escapes)%2 == 0 {
			p.i++
			return p.s[from:p.i]
		}
	}
}

func (p *parser) value(depth int) (node, error) {
	c := p.space()
	if (c == '{' || c == '[') && p.strict && depth >= maxDepth {
		return node{}, errDeep
	}
	switch c {
	case '"':
		return node{kind: '"', raw: p.str()}, nil
	case '{', '[':
		return p.container(c, depth)
	}
	from := p.i
	for p.i < len(p.s) && strings.IndexByte(" \t\r\n,]}", p.s[p.i]) < 0 {
		p.i++
	}
	return node{raw: p.s[from:p.i]}, nil
}

func (p *parser) container(open byte, depth int) (node, error) {
	n := node{kind: open}
	var seen keySet
	for p.i++; ; p.i++ { // past the bracket or comma
		if c := p.space(); c == '}' || c == ']' {
			p.i++
			return n, nil
		}
		if open == '{' {
			key := p.str()
			if p.strict && !seen.add(unquote(key)) {
				return node{}, errTwice
			}
			n.keys = append(n.keys, key)
			p.space()
			p.i++ // the colon
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return node{}, err
		}
		n.kids = append(n.kids, v)
		if p.space() != ',' {
			p.i++
			return n, nil
		}
	}
}

// keySet finds repeated keys; most objects are small.
type keySet struct {
	few  []string
	many map[string]bool
}

func (k *keySet) add(key string) bool {
	if k.many != nil {
		known := k.many[key]
		k.many[key] = true
		return !known
	}
	if slices.Contains(k.few, key) {
		return false
	}
	if k.few = append(k.few, key); len(k.few) > 16 {
		k.many = map[string]bool{}
		for _, s := range k.few {
			k.many[s] = true
		}
	}
	return true
}

// write appends the compact form.
func (n *node) write(b *strings.Builder) {
	switch n.kind {
	case '{', '[':
		b.WriteByte(n.kind)
		for i := range n.kids {
			if i > 0 {
				b.WriteByte(',')
			}
			if n.kind == '{' {
				b.WriteString(n.keys[i])
				b.WriteByte(':')
			}
			n.kids[i].write(b)
		}
		b.WriteByte(n.kind + 2) // the closing bracket, in ASCII
	default:
		b.WriteString(n.raw)
	}
}

func (n *node) String() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

// size returns the length of String's result.
func (n *node) size() int {
	if n.kind != '{' && n.kind != '[' {
		return len(n.raw)
	}
	total := 2 + max(0, len(n.kids)-1)
	for i := range n.kids {
		total += n.kids[i].size()
	}
	for _, k := range n.keys {
		total += len(k) + 1
	}
	return total
}

// member returns the value of a key, or nil.
func (n *node) member(key string) *node {
	for i, k := range n.keys {
		if unquote(k) == key {
			return &n.kids[i]
		}
	}
	return nil
}

// drop removes members by name.
func (n *node) drop(names ...string) {
	n.keep(func(key string) bool { return !slices.Contains(names, key) })
}

// keep removes all members except the named ones.
func (n *node) keep(wanted func(key string) bool) {
	var keys []string
	var kids []node
	for i, k := range n.keys {
		if wanted(unquote(k)) {
			keys, kids = append(keys, k), append(kids, n.kids[i])
		}
	}
	if n.kind == '{' {
		n.keys, n.kids = keys, kids
	}
}

// eachString calls f for every string, keys included, and replaces it by the result.
func (n *node) eachString(f func(raw string) string) {
	if n.kind == '"' {
		n.raw = f(n.raw)
	}
	for i, k := range n.keys {
		n.keys[i] = f(k)
	}
	for i := range n.kids {
		n.kids[i].eachString(f)
	}
}

// unquote decodes a raw string.
func unquote(raw string) string {
	if !utf8.ValidString(raw) {
		raw = string([]rune(raw)) // U+FFFD for each bad byte
	}
	raw = raw[1:]
	at := strings.IndexByte(raw, '\\')
	if at < 0 {
		return raw[:len(raw)-1]
	}
	b := make([]byte, 0, len(raw))
	for ; at >= 0; at = strings.IndexByte(raw, '\\') {
		b, raw = append(b, raw[:at]...), raw[at:]
		if raw[1] != 'u' {
			b, raw = append(b, escaped[raw[1]]), raw[2:]
			continue
		}
		r := escape(raw)
		raw = raw[6:]
		if utf16.IsSurrogate(r) {
			if r = utf16.DecodeRune(r, escape(raw)); r != utf8.RuneError {
				raw = raw[6:]
			}
		}
		b = utf8.AppendRune(b, r)
	}
	return string(append(b, raw[:len(raw)-1]...))
}

var escaped = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/'}

// quote encodes a string and escapes only the necessary characters.
func quote(s string) string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, len(s)+len(s)/16+2)
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r) // U+FFFD for invalid UTF-8
			i += n
			continue
		}
		i++
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// wholeRunes replaces unpaired surrogates in a raw string.
func wholeRunes(raw string) string {
	for i := 0; i+6 <= len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if r := escape(raw[i:]); utf16.IsSurrogate(r) {
			if i+12 > len(raw) || utf16.DecodeRune(r, escape(raw[i+6:])) == utf8.RuneError {
				return quote(unquote(raw))
			}
			i += 6
		}
		i++ // skips the escaped character
	}
	return raw
}

// escape parses \uXXXX at the beginning of s; it returns -1 if there is none.
func escape(s string) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range []byte(s[2:6]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}
