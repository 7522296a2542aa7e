package output

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// maxDepth limits the nesting of JSON. agent-browser's answers have about 5 levels.
const maxDepth = 200

// node is a JSON value that preserves numbers of any size and the order of keys.
type node struct {
	kind byte     // { [ " or 0 for a number, true, false, null
	text string   // of a string, decoded, or of a scalar
	keys []string // of an object, decoded
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
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	return readNode(d, 0, strict)
}

// readNode reads one value of text that is valid.
func readNode(d *json.Decoder, depth int, strict bool) (node, error) {
	token, err := d.Token()
	if err != nil {
		return node{}, err
	}
	switch t := token.(type) {
	case string:
		return node{kind: '"', text: t}, nil
	case json.Number:
		return node{text: t.String()}, nil
	case bool:
		return node{text: strconv.FormatBool(t)}, nil
	case nil:
		return node{text: "null"}, nil
	}
	if strict && depth >= maxDepth {
		return node{}, errDeep
	}
	n := node{kind: byte(token.(json.Delim))}
	seen := map[string]bool{}
	for d.More() {
		if n.kind == '{' {
			token, err := d.Token()
			if err != nil {
				return node{}, err
			}
			key := token.(string)
			if strict && seen[key] {
				return node{}, errTwice
			}
			seen[key] = true
			n.keys = append(n.keys, key)
		}
		kid, err := readNode(d, depth+1, strict)
		if err != nil {
			return node{}, err
		}
		n.kids = append(n.kids, kid)
	}
	_, err = d.Token() // the closing bracket
	return n, err
}

// write appends the compact form.
func (n *node) write(b *strings.Builder) {
	switch n.kind {
	case 0:
		b.WriteString(n.text)
	case '"':
		writeQuoted(b, n.text)
	default:
		b.WriteByte(n.kind)
		for i := range n.kids {
			if i > 0 {
				b.WriteByte(',')
			}
			if n.kind == '{' {
				writeQuoted(b, n.keys[i])
				b.WriteByte(':')
			}
			n.kids[i].write(b)
		}
		b.WriteByte(n.kind + 2) // the closing bracket, in ASCII
	}
}

func (n *node) String() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

// member returns the value of a key, or nil.
func (n *node) member(key string) *node {
	if i := slices.Index(n.keys, key); i >= 0 {
		return &n.kids[i]
	}
	return nil
}

// drop removes members by name.
func (n *node) drop(names ...string) {
	for i := len(n.keys) - 1; i >= 0; i-- {
		if slices.Contains(names, n.keys[i]) {
			n.keys, n.kids = slices.Delete(n.keys, i, i+1), slices.Delete(n.kids, i, i+1)
		}
	}
}

// quote encodes a string and escapes only the necessary characters.
func quote(s string) string {
	var b strings.Builder
	writeQuoted(&b, s)
	return b.String()
}

func writeQuoted(b *strings.Builder, s string) {
	e := json.NewEncoder(lineWriter{b})
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can be encoded
}

// lineWriter writes what json.Encoder writes at once, without the line end.
type lineWriter struct{ b *strings.Builder }

func (w lineWriter) Write(p []byte) (int, error) {
	w.b.Write(p[:len(p)-1])
	return len(p), nil
}
