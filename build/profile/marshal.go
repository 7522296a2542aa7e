package profile

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"gopkg.in/yaml.v3"
)

// Marshal gives the effective profile as YAML: `extends` is merged and left out, keys come in the order of the types,
// sources relative to the profile's directory. Two loads of the same files give the same bytes, wherever they lie, and a
// load of these bytes in that directory gives the same profile unless it extends one from outside that directory.
func (p *Profile) Marshal() ([]byte, error) {
	flat := *p
	flat.Extends = ""
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(encode(reflect.ValueOf(flat))); err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	return b.Bytes(), enc.Close()
}

// Digest gives "sha256:" and the hex digest of what Marshal gives. It covers everything the profile says, the texts of
// `why` too; it does not cover the content of the files and assets that `source` names, nor where the profile lies.
func (p *Profile) Digest() string {
	data, err := p.Marshal()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// encode gives the node of a value; nil for an absent one. An empty list is not absent: it replaces the base's list.
func encode(v reflect.Value) *yaml.Node {
	if f, ok := v.Interface().(File); ok && f.Written != "" {
		f.Source = f.Written
		v = reflect.ValueOf(f)
	}
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return nil
	case v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.String:
		return text(v.Elem().String())
	case v.Kind() == reflect.Pointer:
		return encode(v.Elem())
	case v.IsZero():
		return nil
	}
	if t, ok := v.Interface().(encoding.TextMarshaler); ok {
		s, _ := t.MarshalText()
		return text(string(s))
	}
	switch v.Kind() {
	case reflect.Struct:
		return encodeStruct(v)
	case reflect.Map:
		return encodeMap(v)
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			item := encode(v.Index(i))
			if item == nil {
				item = text("")
			}
			n.Content = append(n.Content, item)
		}
		return n
	case reflect.Bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"}
	case reflect.Int:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(v.Int(), 10)}
	default:
		return text(v.String())
	}
}

func encodeStruct(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fieldsOf(v.Type()) {
		if item := encode(v.Field(f.index)); item != nil {
			n.Content = append(n.Content, text(f.key), item)
		}
	}
	return n
}

func encodeMap(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	byName := map[string]reflect.Value{}
	for key, val := range v.Seq2() {
		byName[key.String()] = val
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		item := encode(byName[name])
		if item == nil {
			item = text("")
		}
		n.Content = append(n.Content, text(name), item)
	}
	return n
}

// text makes a string node, quoted where YAML 1.1 or 1.2 would read something else. Literal blocks are left out: not every
// text survives one.
func text(s string) *yaml.Node {
	n := new(yaml.Node)
	if err := n.Encode(s); err != nil || n.Style&yaml.LiteralStyle != 0 {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
	}
	return n
}
