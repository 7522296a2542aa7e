package profile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// set writes what --set says into the profile that was asked for, before it is decoded, so that every rule holds for it
// too. An assignment is KEY.KEY=VALUE; a key that has dots of its own is put in double quotes. VALUE is text, or a
// whole list or mapping in YAML's flow form: platforms=[linux/amd64]. The nodes of the assignment i have the line -1-i.
func set(root *yaml.Node, assignments []string) *Error {
	for i, a := range assignments {
		if err := setOne(root, a, -1-i); err != nil {
			return &Error{Position: positionOfSet(a), Msg: err.Error()}
		}
	}
	return nil
}

// positionOfSet returns the place of a mistake in an assignment: the flag as it was given.
func positionOfSet(assignment string) Position {
	const limit = 80
	if r := []rune(assignment); len(r) > limit {
		assignment = string(r[:limit]) + "…"
	}
	return Position{File: "--set " + assignment}
}

// setLine sets the line of a node and of all below it.
func setLine(n *yaml.Node, line int) {
	n.Line = line
	for _, c := range n.Content {
		setLine(c, line)
	}
}

func setOne(root *yaml.Node, assignment string, line int) error {
	keys, value, err := parseAssignment(assignment)
	if err != nil {
		return err
	}
	setLine(value, line)
	node := root
	for i, key := range keys {
		if node.Kind != yaml.MappingNode {
			return fmt.Errorf("%s isn't a mapping; a list is set as a whole", strings.Join(keys[:i], "."))
		}
		last := i == len(keys)-1
		child := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: line}
		if last {
			child = value
		}
		node = put(node, key, child, last)
	}
	return nil
}

// put returns the value of key in the mapping; it is child when there is none, or when replace is true.
func put(mapping *yaml.Node, key string, child *yaml.Node, replace bool) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			if replace {
				mapping.Content[i].Line, mapping.Content[i+1] = child.Line, child
			}
			return mapping.Content[i+1]
		}
	}
	name := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: child.Line}
	mapping.Content = append(mapping.Content, name, child)
	return child
}

func parseAssignment(s string) (keys []string, value *yaml.Node, err error) {
	rest := s
	for {
		var key string
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, nil, fmt.Errorf("the quotes around a key don't end")
			}
			if key, err = strconv.Unquote(quoted); err != nil {
				return nil, nil, err
			}
			rest = rest[len(quoted):]
		} else {
			end := strings.IndexAny(rest, ".=")
			if end < 0 {
				return nil, nil, fmt.Errorf("want KEY.KEY=VALUE")
			}
			key, rest = rest[:end], rest[end:]
		}
		if key == "" || rest == "" || rest[0] != '.' && rest[0] != '=' {
			return nil, nil, fmt.Errorf("want KEY.KEY=VALUE")
		}
		keys = append(keys, key)
		sign := rest[0]
		rest = rest[1:]
		if sign == '=' {
			break
		}
	}
	if !strings.HasPrefix(rest, "[") && !strings.HasPrefix(rest, "{") {
		return keys, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: rest}, nil
	}
	doc, perr := parse("--set", []byte(rest))
	if perr != nil {
		return nil, nil, errors.New(perr.Msg)
	}
	return keys, doc, nil
}
