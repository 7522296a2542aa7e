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

// file is the first level of hub.policy.json.
type file struct {
	def     []strictjson.Node // one, or none
	servers []strictjson.Member
}

// serverName is what mcp-hub.json lets a server be called.
var serverName = lazyregexp.New(`^[a-z0-9_-]{1,32}$`)

// Parse reads the text of a policy file over the built-in policy. A key that a server's entry leaves out keeps what the
// built-in entry of that server says, or else what default says; block is the sum of all. Unknown, doubled and
// differently cased keys and every null are refused; errors begin with line:column. "$schema" may name the JSON Schema.
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
		if err := p.base.bind(def, "default"); err != nil {
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
		if err := r.bind(s.Node, "servers."+s.Name); err != nil {
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

// bind sets the keys that n has.
func (r *rules) bind(n strictjson.Node, what string) error {
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
		if err := set(reflect.ValueOf(r).Elem().FieldByIndex(f.Index), m.Node, f.Tag, what+"."+m.Name); err != nil {
			return err
		}
	}
	for i, p := range r.SensitivePaths {
		r.SensitivePaths[i] = strings.ToLower(p)
	}
	return nil
}

// set puts one value where it belongs if the field's tags let it.
func set(v reflect.Value, n strictjson.Node, tag reflect.StructTag, what string) error {
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
		if least, most := bounds(tag); err != nil || i < least || i > most {
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
