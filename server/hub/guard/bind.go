package guard

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// file is the first level of hub.policy.json.
type file struct {
	def     node
	servers []member
}

// serverName is what mcp-hub.json lets a server be called.
var serverName = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)

// Parse reads the text of a policy file over the built-in policy. A key that a server's entry leaves out keeps what the
// built-in entry of that server says, or else what default says; block is the sum of all. Unknown, doubled and
// differently cased keys and every null are refused; errors begin with line:column. "$schema" may name the JSON Schema.
func Parse(b []byte) (*Policy, error) {
	over, err := readPolicy(b)
	if err != nil {
		return nil, locate(b, err)
	}
	under, err := readPolicy([]byte(builtin))
	if err != nil {
		return nil, fmt.Errorf("built-in policy: %w", err)
	}
	p := &Policy{servers: map[string]rules{}, timeouts: map[string]time.Duration{}}
	for _, def := range []node{under.def, over.def} {
		if err := p.base.bind(def, "default"); err != nil {
			return nil, locate(b, err)
		}
	}
	p.CallTimeout = time.Duration(p.base.CallTimeoutSec) * time.Second
	for _, s := range slices.Concat(under.servers, over.servers) {
		r, ok := p.servers[s.name]
		if !ok {
			r = p.base
		}
		block := r.Block
		if err := r.bind(s.node, "servers."+s.name); err != nil {
			return nil, locate(b, err)
		}
		if slices.ContainsFunc(s.members, func(m member) bool { return m.name == "block" }) {
			r.Block = slices.Concat(block, r.Block)
		}
		if slices.ContainsFunc(s.members, func(m member) bool { return m.name == "call_timeout_sec" }) {
			p.timeouts[s.name] = time.Duration(r.CallTimeoutSec) * time.Second
		}
		p.servers[s.name] = r
	}
	return p, nil
}

func readPolicy(b []byte) (f file, err error) {
	root, err := parseTree(b)
	if err != nil {
		return f, err
	}
	f.def.members = []member{}
	members, err := object(root, "a policy", "$schema", "default", "servers", "version")
	for _, m := range members {
		switch m.name {
		case "$schema":
			if _, ok := m.value.(string); !ok {
				return f, wrong(m.at, "$schema must be a string")
			}
		case "version":
			if m.value != json.Number("1") {
				return f, wrong(m.at, "version must be 1")
			}
		case "default":
			f.def = m.node
		case "servers":
			if f.servers, err = object(m.node, "servers"); err != nil {
				return f, err
			}
		}
	}
	for _, s := range f.servers {
		if !serverName.MatchString(s.name) {
			return f, wrong(s.at, "servers: %q is not a server's name; use 1 to 32 of a-z, 0-9, `_` and `-`", s.name)
		}
	}
	if len(f.servers) > maxNamed {
		return f, wrong(f.servers[maxNamed].at, "servers holds more than %d", maxNamed)
	}
	return f, err
}

// object gives an object's members, each of them once and known. No names: any.
func object(n node, what string, known ...string) ([]member, error) {
	if n.members == nil {
		return nil, wrong(n.at, "%s must be an object", what)
	}
	seen := map[string]bool{}
	for _, m := range n.members {
		if len(known) > 0 && !slices.Contains(known, m.name) {
			return nil, wrong(m.at, "unknown key %q in %s; known here: %s", m.name, what, strings.Join(known, ", "))
		}
		if seen[m.name] {
			return nil, wrong(m.at, "%s: %q is given twice", what, m.name)
		}
		seen[m.name] = true
	}
	return n.members, nil
}

// bind sets the keys that n has.
func (r *rules) bind(n node, what string) error {
	fields := map[string]reflect.StructField{}
	for f := range reflect.TypeFor[rules]().Fields() {
		fields[f.Tag.Get("json")] = f
	}
	members, err := object(n, what, slices.Sorted(maps.Keys(fields))...)
	if err != nil {
		return err
	}
	for _, m := range members {
		f := fields[m.name]
		if err := set(reflect.ValueOf(r).Elem().FieldByIndex(f.Index), m.node, f.Tag, what+"."+m.name); err != nil {
			return err
		}
	}
	for i, p := range r.SensitivePaths {
		r.SensitivePaths[i] = strings.ToLower(p)
	}
	return nil
}

// set puts one value where it belongs if the field's tags let it.
func set(v reflect.Value, n node, tag reflect.StructTag, what string) error {
	switch v.Interface().(type) {
	case bool:
		b, ok := n.value.(bool)
		if !ok {
			return wrong(n.at, "%s must be true or false", what)
		}
		v.SetBool(b)
	case int:
		num, _ := n.value.(json.Number)
		i, err := strconv.Atoi(string(num))
		if least, most := bounds(tag); err != nil || i < least || i > most {
			return wrong(n.at, "%s must be a whole number from %d to %d", what, least, most)
		}
		v.SetInt(int64(i))
	case string:
		s, ok := n.value.(string)
		if !ok || !regexp.MustCompile(tag.Get("pattern")).MatchString(s) {
			return wrong(n.at, "%s must %s", what, tag.Get("must"))
		}
		v.SetString(s)
	case []string:
		if n.items == nil || len(n.items) > maxList {
			return wrong(n.at, "%s must be a list of at most %d", what, maxList)
		}
		list := make([]string, len(n.items))
		for i, item := range n.items {
			if err := set(reflect.ValueOf(&list[i]).Elem(), item, tag, fmt.Sprintf("%s[%d]", what, i)); err != nil {
				return err
			}
		}
		v.Set(reflect.ValueOf(list))
	}
	return nil
}

func bounds(tag reflect.StructTag) (least, most int) {
	least, err1 := strconv.Atoi(tag.Get("least"))
	most, err2 := strconv.Atoi(tag.Get("most"))
	if err1 != nil || err2 != nil {
		return 0, math.MaxInt // a test sees to the tags
	}
	return least, most
}
