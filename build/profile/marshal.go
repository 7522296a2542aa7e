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

// Marshal returns the effective profile as YAML: merged, without `extends`, with the keys in the order of the types and
// sources relative to the profile's directory. The same files give the same bytes in any directory. Loading these bytes
// in that directory gives the same profile, unless it extends one from outside the directory.
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

// Digest returns "sha256:" and the hex digest of Marshal's result. It covers all texts of the profile, including every
// `why`. It covers neither the content of files and assets that `source` names, nor the profile's directory.
func (p *Profile) Digest() string {
	data, err := p.Marshal()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// encode returns the node of a value, or nil for an absent one. An empty list is present: it replaces the base's list.
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

// text returns a string node, in quotes where YAML 1.1 or 1.2 would read another type. It avoids literal blocks,
// because they can't represent every text.
func text(s string) *yaml.Node {
	n := new(yaml.Node)
	if err := n.Encode(s); err != nil || n.Style&yaml.LiteralStyle != 0 {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
	}
	return n
}
