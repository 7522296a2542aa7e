package compose

import (
	"bytes"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// document is a typed value and the comments that say why its fields are as they are, by path: the keys from the
// outermost in, and the index of an element of a list, with slashes between.
type document struct {
	value    any
	comments map[string]string
}

// encode writes documents, with words of the whole file first.
func encode(head string, docs ...document) ([]byte, error) {
	var b bytes.Buffer
	for line := range strings.Lines(head) {
		b.WriteString("# " + line)
	}
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	for _, d := range docs {
		var root yaml.Node
		if err := root.Encode(d.value); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		for path, text := range d.comments {
			n := find(&root, strings.Split(path, "/"))
			if n == nil {
				return nil, fmt.Errorf("a comment is for %s, which isn't there", path)
			}
			n.HeadComment = text
		}
		if err := e.Encode(&root); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
	}
	if err := e.Close(); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return b.Bytes(), nil
}

// find gives the node that a comment stands above: a key of a mapping, or an element of a list.
func find(n *yaml.Node, path []string) *yaml.Node {
	for i, step := range path {
		var at, next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for k := 0; k+1 < len(n.Content); k += 2 {
				if n.Content[k].Value == step {
					at, next = n.Content[k], n.Content[k+1]
				}
			}
		case yaml.SequenceNode:
			for k, c := range n.Content {
				if fmt.Sprint(k) == step {
					at, next = c, c
				}
			}
		}
		if at == nil {
			return nil
		}
		if i == len(path)-1 {
			return at
		}
		n = next
	}
	return nil
}
