package profile

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/slimctl/slimctl/internal/nearest"
)

// source is a profile file being read.
type source struct {
	file string // as errors show it
	dir  string // absolute; "" for an embedded profile
}

// decoder decodes YAML nodes to Go values as the struct tags say, and collects every problem.
type decoder struct {
	source
	assignments []string // of --set; their nodes have negative line numbers

	errs  Errors
	nodes int
	open  map[*yaml.Node]bool
	// seen holds the positions of the keys in sections that `extends` merges, including keys with a wrong value.
	seen map[string]Position
	// opaque holds the sections that aren't mappings, for which missing keys aren't reported.
	opaque map[string]bool
}

// decode decodes a file, changed by assignments, to a Profile that is not yet merged.
func decode(src source, root *yaml.Node, assignments []string) (*Profile, *decoder) {
	d := &decoder{source: src, assignments: assignments, open: map[*yaml.Node]bool{}, seen: map[string]Position{}, opaque: map[string]bool{}}
	p := new(Profile)
	if newer := d.newerVersion(root); newer != nil {
		d.errs, d.opaque[""] = Errors{newer}, true
		return p, d
	}
	d.decodeValue(root, reflect.ValueOf(p).Elem(), field{}, "", true)
	return p, d
}

// newerVersion returns an error for a version that this program doesn't know. Other errors would be meaningless then.
func (d *decoder) newerVersion(root *yaml.Node) *Error {
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		key, val := root.Content[i], root.Content[i+1]
		if v, err := strconv.ParseUint(val.Value, 10, 64); err == nil && key.Value == "version" && val.ShortTag() == "!!int" && v > 1 {
			return &Error{
				Position: d.position(val), Path: "version",
				Msg:  fmt.Sprintf("the profile has version %d, but this slimctl reads version 1 only", v),
				Hint: "use a newer slimctl",
			}
		}
	}
	return nil
}

func (d *decoder) position(n *yaml.Node) Position {
	if n.Line < 0 {
		return positionOfSet(d.assignments[-1-n.Line])
	}
	return Position{d.file, n.Line, n.Column}
}

func (d *decoder) fail(n *yaml.Node, path, msg, hint string) {
	d.errs = append(d.errs, &Error{Position: d.position(n), Path: path, Msg: msg, Hint: hint})
}

// decodeValue decodes n to v. merged reports whether v belongs to a section that `extends` merges.
func (d *decoder) decodeValue(n *yaml.Node, v reflect.Value, f field, path string, merged bool) bool {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.fail(n, path, fmt.Sprintf("the file holds more than %d values", maxNodes), "are its aliases meant?")
		}
		return false
	}
	if n.Kind == yaml.AliasNode {
		if d.open[n.Alias] {
			d.fail(n, path, fmt.Sprintf("the alias *%s holds itself", n.Value), "")
			return false
		}
		d.open[n.Alias] = true
		defer delete(d.open, n.Alias)
		return d.decodeValue(n.Alias, v, f, path, merged)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.fail(n, path, fmt.Sprintf("the YAML tag %s", quote(n.Tag)), "write the value without a tag")
		return false
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return d.decodeText(n, f, path, text.UnmarshalText)
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.decodeStruct(n, v, path, merged)
	case reflect.Map:
		return d.decodeMap(n, v, f, path)
	case reflect.Slice:
		return d.decodeList(n, v, f, path)
	case reflect.Bool:
		v.SetBool(true)
		return d.checkScalar(n, f, path, "!!bool")
	case reflect.Int:
		return d.decodeNumber(n, v, f, path)
	default:
		return d.decodeText(n, f, path, func(b []byte) error { v.SetString(string(b)); return nil })
	}
}

// checkScalar checks the type and the rule of a scalar.
func (d *decoder) checkScalar(n *yaml.Node, f field, path, tag string) bool {
	r := rules[f.check]
	if n.Line < 0 && tag == "!!bool" { // --set has text alone
		tag = "!!str"
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != tag {
		hint := ""
		if msg, _ := r.verdict(n.Value); tag == "!!str" && n.Kind == yaml.ScalarNode && !isNull(n) && msg == "" {
			hint = fmt.Sprintf("write %q, in quotes", n.Value)
		}
		d.fail(n, path, fmt.Sprintf("expected %s, found %s", r.want, found(n)), hint)
		return false
	}
	msg, hint := r.verdict(n.Value)
	if msg != "" {
		d.fail(n, path, msg, hint)
	}
	return msg == ""
}

func (d *decoder) decodeText(n *yaml.Node, f field, path string, set func([]byte) error) bool {
	if !d.checkScalar(n, f, path, "!!str") {
		return false
	}
	if err := set([]byte(n.Value)); err != nil {
		d.fail(n, path, fmt.Sprintf("expected %s, found %s", rules[f.check].want, quote(n.Value)), "")
		return false
	}
	return true
}

func (d *decoder) decodeNumber(n *yaml.Node, v reflect.Value, f field, path string) bool {
	want := fmt.Sprintf("a whole number from %d to %d", f.low, f.high)
	if f.low == f.high {
		want = fmt.Sprintf("the number %d", f.low)
	}
	i, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || i < f.low || i > f.high {
		d.fail(n, path, fmt.Sprintf("expected %s, found %s", want, found(n)), "")
		return false
	}
	v.SetInt(int64(i))
	return true
}

func (d *decoder) decodeList(n *yaml.Node, v reflect.Value, f field, path string) bool {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, fmt.Sprintf("expected a list, found %s", found(n)), "")
		return false
	}
	if f.nonEmpty && len(n.Content) == 0 {
		d.fail(n, path, "the list is empty", "")
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, len(n.Content)))
	first := map[string]int{}
	for i, item := range n.Content {
		one := reflect.New(v.Type().Elem()).Elem()
		at := fmt.Sprintf("%s[%d]", path, i)
		if !d.decodeValue(item, one, f, at, false) {
			continue
		}
		v.Set(reflect.Append(v, one))
		id, word := identityIn(one, f)
		if line, again := first[id]; again && id != "" {
			d.fail(item, at, word+" is here twice"+firstLine(line), "")
		} else {
			first[id] = item.Line
		}
	}
	return true
}

// firstLine returns the suffix ", first in line N", or "" for --set, which has no lines.
func firstLine(line int) string {
	if line < 0 {
		return ""
	}
	return fmt.Sprintf(", first in line %d", line)
}

// identityIn returns the string that may occur only once in a list, and the word for it in errors; "" for an item that
// may be repeated.
func identityIn(item reflect.Value, f field) (id, word string) {
	if k, ok := item.Interface().(keyed); ok {
		return identity(k), quote(k.key())
	}
	if f.unique {
		return item.String(), quote(item.String())
	}
	return "", ""
}

func (d *decoder) decodeMap(n *yaml.Node, v reflect.Value, f field, path string) bool {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, fmt.Sprintf("expected a mapping, found %s", found(n)), "")
		return false
	}
	if f.nonEmpty && len(n.Content) == 0 {
		d.fail(n, path, "the mapping is empty", "")
	}
	v.Set(reflect.MakeMap(v.Type()))
	for key, val := range d.entries(n, path) {
		at := join(path, key.Value)
		if msg, hint := rules[f.keys].verdict(key.Value); msg != "" {
			d.fail(key, at, msg, hint)
			continue
		}
		one := reflect.New(v.Type().Elem()).Elem()
		if d.decodeValue(val, one, f, at, false) {
			v.SetMapIndex(reflect.ValueOf(key.Value), one)
		}
	}
	return true
}

// entries iterates over the keys and values of a mapping. It reports keys that are not plain text or occur twice.
func (d *decoder) entries(n *yaml.Node, path string) func(func(key, val *yaml.Node) bool) {
	return func(yield func(key, val *yaml.Node) bool) {
		first := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, val := n.Content[i], n.Content[i+1]
			switch line, again := first[key.Value]; {
			case key.Kind != yaml.ScalarNode || key.Style&yaml.TaggedStyle != 0:
				d.fail(key, path, "a key that is not plain text", "")
				continue
			case key.Value == "<<":
				d.fail(key, path, "a YAML merge key", "write the keys out, or use extends")
				continue
			case again:
				d.fail(key, join(path, key.Value), "the key is here twice"+firstLine(line), "")
				continue
			}
			first[key.Value] = key.Line
			if !yield(key, val) {
				return
			}
		}
	}
}

func (d *decoder) decodeStruct(n *yaml.Node, v reflect.Value, path string, merged bool) bool {
	if n.Kind != yaml.MappingNode {
		d.opaque[path] = true
		d.fail(n, path, fmt.Sprintf("expected a mapping, found %s", found(n)), "")
		return false
	}
	fields := fieldsOf(v.Type())
	have := map[string]*yaml.Node{}
	before := len(d.errs)
	for key, val := range d.entries(n, path) {
		i, ok := indexOf(fields, key.Value)
		if !ok {
			d.reportUnknownKey(key, path, fields, have, merged)
			continue
		}
		f := fields[i]
		at := join(path, f.key)
		have[f.key] = val
		if merged {
			d.seen[at] = d.position(key)
		}
		_, isSection := section(v.Type().Field(f.index).Type)
		d.decodeValue(val, v.Field(f.index), f, at, merged && isSection)
	}
	d.checkPresence(n, fields, have, path, merged)
	if p := v.FieldByName("Position"); p.IsValid() {
		p.Set(reflect.ValueOf(d.position(n)))
	}
	if c, ok := v.Addr().Interface().(checked); ok {
		c.check(&d.source, func(key, msg, hint string) {
			at := n
			if val := have[key]; val != nil {
				at = val
			}
			d.fail(at, join(path, key), msg, hint)
		})
	}
	return len(d.errs) == before
}

// checked is a type with rules for several keys together, or with rules that need the file system.
type checked interface {
	check(src *source, fail func(key, msg, hint string))
}

// reportUnknownKey reports an unknown key and the key that was probably meant. It marks that one as present, so that one
// mistake causes one error.
func (d *decoder) reportUnknownKey(key *yaml.Node, path string, fields []field, have map[string]*yaml.Node, merged bool) {
	valid := keysOf(fields)
	hint := "valid keys: " + strings.Join(valid, ", ")
	if best := nearest.Word(key.Value, valid); best != "" {
		hint = fmt.Sprintf("did you mean %q?", best)
		if have[best] == nil {
			have[best] = key
		}
		if at := join(path, best); merged {
			if _, ok := d.seen[at]; !ok {
				d.seen[at] = d.position(key)
			}
		}
	} else if place := home(reflect.TypeFor[Profile](), key.Value, ""); place != "" && place != path {
		hint = fmt.Sprintf("%q belongs in %q", key.Value, place)
	}
	d.fail(key, join(path, key.Value), "unknown key", hint)
}

// checkPresence reports missing keys and keys that exclude or need one another.
func (d *decoder) checkPresence(n *yaml.Node, fields []field, have map[string]*yaml.Node, path string, merged bool) {
	for _, f := range fields {
		if f.required && have[f.key] == nil && (f.each || !merged) {
			d.fail(n, join(path, f.key), "the key is missing", "")
		}
		if f.needs != "" && have[f.key] != nil && have[f.needs] == nil {
			d.fail(have[f.key], join(path, f.key), fmt.Sprintf("it makes sense only beside %q", f.needs), "")
		}
	}
	for _, group := range groups(fields) {
		var set []string
		for _, key := range group {
			if have[key] != nil {
				set = append(set, key)
			}
		}
		if all := strings.Join(group, ", "); len(set) == 0 {
			d.fail(n, path, "none of the keys "+all+" is there", "set exactly one")
		} else if len(set) > 1 {
			d.fail(n, path, strings.Join(set, " and ")+" exclude each other", "set exactly one of "+all)
		}
	}
}

func indexOf(fields []field, key string) (int, bool) {
	for i, f := range fields {
		if f.key == key {
			return i, true
		}
	}
	return 0, false
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// join appends a key to a key path: config.env.PATH, or config.labels["org.example.x"].
func join(path, key string) string {
	switch {
	case key == "":
		return path
	case !plainKey.MatchString(key):
		return path + "[" + quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// found describes a node in the terms of YAML's authors.
func found(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	words := map[string]string{
		"!!int": "the number ", "!!float": "the number ", "!!bool": "the truth value ", "!!timestamp": "the date ", "!!str": "",
	}
	word, ok := words[n.ShortTag()]
	switch {
	case isNull(n):
		return "nothing"
	case !ok || word == "":
		return quote(n.Value)
	}
	return word + strings.Trim(quote(n.Value), `"`)
}
