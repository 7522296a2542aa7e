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

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/strictjson"
)

// file is the top level of hub.policy.json.
type file struct {
	def     []strictjson.Node // one, or none
	servers []strictjson.Member
}

// serverName matches the names that mcp-hub.json allows for a server.
var serverName = lazyregexp.New(`^[a-z0-9_-]{1,32}$`)

// Parse parses the text of a policy file over the built-in policy. A missing key of a server's entry has the value of
// the server's built-in entry, or else of default; block is the union of all. It refuses unknown, repeated and
// differently cased keys and every null; errors begin with line:column. "$schema" may name the JSON Schema.
func Parse(b []byte) (*Policy, error) {
	over, err := readPolicy(b)
	if err != nil {
		return nil, strictjson.Locate(b, err)
	}
	under, err := readPolicy([]byte(builtin))
	if err != nil {
		return nil, fmt.Errorf("built-in policy: %w", err)
	}
	p := &Policy{servers: map[string]rules{}, timeouts: map[string]time.Duration{}}
	for _, def := range slices.Concat(under.def, over.def) {
		if err := p.base.setFields(def, "default"); err != nil {
			return nil, strictjson.Locate(b, err)
		}
	}
	for _, s := range over.servers {
		p.named = append(p.named, s.Name)
	}
	p.CallTimeout = time.Duration(p.base.CallTimeoutSec) * time.Second
	for _, s := range slices.Concat(under.servers, over.servers) {
		r, ok := p.servers[s.Name]
		if !ok {
			r = p.base
		}
		block := r.Block
		if err := r.setFields(s.Node, "servers."+s.Name); err != nil {
			return nil, strictjson.Locate(b, err)
		}
		if s.Has("block") {
			r.Block = slices.Concat(block, r.Block)
		}
		if s.Has("call_timeout_sec") {
			p.timeouts[s.Name] = time.Duration(r.CallTimeoutSec) * time.Second
		}
		p.servers[s.Name] = r
	}
	return p, nil
}

func readPolicy(b []byte) (f file, err error) {
	root, err := strictjson.Parse(b)
	if err != nil {
		return f, err
	}
	members, err := root.Object("a policy", "$schema", "default", "servers", "version")
	for _, m := range members {
		switch m.Name {
		case "$schema":
			if _, ok := m.Value.(string); !ok {
				return f, strictjson.Errorf(m.At, "$schema must be a string")
			}
		case "version":
			if m.Value != json.Number("1") {
				return f, strictjson.Errorf(m.At, "version must be 1")
			}
		case "default":
			f.def = append(f.def, m.Node)
		case "servers":
			if f.servers, err = m.Object("servers"); err != nil {
				return f, err
			}
		}
	}
	for _, s := range f.servers {
		if !serverName.MatchString(s.Name) {
			return f, strictjson.Errorf(s.At, "servers: %q is not a server's name; use 1 to 32 of a-z, 0-9, `_` and `-`", s.Name)
		}
	}
	if len(f.servers) > maxNamed {
		return f, strictjson.Errorf(f.servers[maxNamed].At, "servers holds more than %d", maxNamed)
	}
	return f, err
}

// setFields sets the fields for the keys of n.
func (r *rules) setFields(n strictjson.Node, what string) error {
	fields := map[string]reflect.StructField{}
	for f := range reflect.TypeFor[rules]().Fields() {
		fields[f.Tag.Get("json")] = f
	}
	members, err := n.Object(what, slices.Sorted(maps.Keys(fields))...)
	if err != nil {
		return err
	}
	for _, m := range members {
		f := fields[m.Name]
		if err := setField(reflect.ValueOf(r).Elem().FieldByIndex(f.Index), m.Node, f.Tag, what+"."+m.Name); err != nil {
			return err
		}
	}
	for i, p := range r.SensitivePaths {
		r.SensitivePaths[i] = strings.ToLower(p)
	}
	return nil
}

// setField sets one field if its tags admit the value.
func setField(v reflect.Value, n strictjson.Node, tag reflect.StructTag, what string) error {
	switch v.Interface().(type) {
	case bool:
		b, ok := n.Value.(bool)
		if !ok {
			return strictjson.Errorf(n.At, "%s must be true or false", what)
		}
		v.SetBool(b)
	case int:
		num, _ := n.Value.(json.Number)
		i, err := strconv.Atoi(string(num))
		if least, most := readBounds(tag); err != nil || i < least || i > most {
			return strictjson.Errorf(n.At, "%s must be a whole number from %d to %d", what, least, most)
		}
		v.SetInt(int64(i))
	case string:
		s, ok := n.Value.(string)
		if !ok || !regexp.MustCompile(tag.Get("pattern")).MatchString(s) {
			return strictjson.Errorf(n.At, "%s must %s", what, tag.Get("must"))
		}
		v.SetString(s)
	case []string:
		if n.Items == nil || len(n.Items) > maxList {
			return strictjson.Errorf(n.At, "%s must be a list of at most %d", what, maxList)
		}
		list := make([]string, len(n.Items))
		for i, item := range n.Items {
			if err := setField(reflect.ValueOf(&list[i]).Elem(), item, tag, fmt.Sprintf("%s[%d]", what, i)); err != nil {
				return err
			}
		}
		v.Set(reflect.ValueOf(list))
	}
	return nil
}

func readBounds(tag reflect.StructTag) (least, most int) {
	least, err1 := strconv.Atoi(tag.Get("least"))
	most, err2 := strconv.Atoi(tag.Get("most"))
	if err1 != nil || err2 != nil {
		return 0, math.MaxInt // a test checks the tags
	}
	return least, most
}
