package output

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/server/strictjson"
)

// node is a JSON value that preserves numbers of any size and the order of keys.
type node = strictjson.Node

func parse(s string) (node, error) { return strictjson.ParseData([]byte(s)) }

// format returns the compact form of a value, in which only the necessary characters are escaped.
func format(n node) string {
	var b strings.Builder
	writeNode(&b, n)
	return b.String()
}

func writeNode(b *strings.Builder, n node) {
	text, isText := n.Value.(string)
	switch {
	case isText:
		b.WriteString(quote(text))
	case n.Members != nil:
		before := "{"
		for _, m := range n.Members {
			b.WriteString(before + quote(m.Name) + ":")
			writeNode(b, m.Node)
			before = ","
		}
		b.WriteString(strings.TrimPrefix(before, ",") + "}")
	case n.Items != nil:
		before := "["
		for _, item := range n.Items {
			b.WriteString(before)
			writeNode(b, item)
			before = ","
		}
		b.WriteString(strings.TrimPrefix(before, ",") + "]")
	default:
		b.Write(n.Raw)
	}
}

// findMember returns the value of a key, or nil.
func findMember(n *node, key string) *node {
	for i := range n.Members {
		if n.Members[i].Name == key {
			return &n.Members[i].Node
		}
	}
	return nil
}

// dropMembers removes members by name.
func dropMembers(n *node, names ...string) {
	n.Members = slices.DeleteFunc(n.Members, func(m strictjson.Member) bool { return slices.Contains(names, m.Name) })
}

// quote encodes a string and escapes only the necessary characters.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can be encoded
	return strings.TrimSuffix(b.String(), "\n")
}
