package nginx

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// variable holds the possible sources of a variable's value.
type variable struct {
	// exprs are the values that directives assign; constant is false if there are others, too.
	exprs    []string
	constant bool
	// sources are expressions that select among exprs, or that contain a capture.
	sources []string
	capture bool
	// part is the part of the request, such as "server_name capture $port".
	part []string
	// free is true if the request supplies the value.
	free bool

	expanding bool
	all       []string // refs of exprs and sources, cached
	values    []string // refs of exprs, cached
}

// refs returns the variables on which this one depends, valueRefs those in its values.
func (d *variable) refs() []string {
	d.valueRefs()
	return d.all
}

func (d *variable) valueRefs() []string {
	if d.all == nil {
		d.values = refs(d.exprs)
		d.all = append(append([]string{}, d.values...), refs(d.sources)...)
	}
	return d.values
}

// variables holds those of http or of stream.
type variables struct {
	of       map[string]*variable
	unfilled map[string]bool
	uses     map[string][]string // by variable, the uses of its value
	rewrites bool                // there is a rewrite, so $uri may be anything
}

func (v *variables) define(name string) *variable {
	name = strings.ToLower(strings.TrimPrefix(name, "$"))
	d := v.of[name]
	if d == nil {
		d = &variable{constant: true}
		v.of[name] = d
	}
	return d
}

// segment is a piece of an expression: literal text, or a variable by its name; at is its offset.
type segment struct {
	text, name string
	at         int
}

// split splits an expression like ngx_http_script_compile. Names of variables become lower case, since nginx ignores
// the case.
func split(expr string) (out []segment, err error) {
	for i := 0; i < len(expr); {
		if expr[i] != '$' {
			n := strings.IndexByte(expr[i:], '$')
			if n < 0 {
				n = len(expr) - i
			}
			out = append(out, segment{text: expr[i : i+n], at: i})
			i += n
			continue
		}
		rest, braces := expr[i+1:], 0
		if strings.HasPrefix(rest, "{") {
			rest, braces = rest[1:], 2
		}
		n := 0
		for n < len(rest) && conf.IsNameByte(rest[n]) {
			n++
		}
		switch {
		case braces == 0 && n > 0 && isCapture(rest[:1]):
			n = 1
		case braces > 0 && (n == len(rest) || rest[n] != '}'):
			return out, fmt.Errorf("the closing bracket in %q variable is missing", conf.Cut(rest[:n]))
		case n == 0:
			return out, errors.New("invalid variable name")
		}
		out = append(out, segment{name: strings.ToLower(rest[:n]), at: i})
		i += 1 + braces + n
	}
	return out, nil
}

// names returns the variables of expr.
func names(expr string) []string {
	if !strings.Contains(expr, "$") {
		return nil
	}
	segments, _ := split(expr)
	var out []string
	for _, s := range segments {
		if s.name != "" {
			out = append(out, s.name)
		}
	}
	return out
}

func isCapture(name string) bool { return len(name) == 1 && name[0] >= '1' && name[0] <= '9' }

// refs returns the variables in exprs, each once.
func refs(exprs []string) []string {
	var out []string
	for _, e := range exprs {
		out = append(out, names(e)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxSteps limits the steps through maps and set for one query.
const maxSteps = 500

// walk visits the variables in expr, and those on which they depend, each once; visit returns the next ones. It returns
// false beyond the limit.
func (v *variables) walk(expr string, visit func(name string, d *variable) (next []string)) bool {
	seen := map[string]bool{}
	pending := names(expr)
	for steps := 0; len(pending) > 0; steps++ {
		if steps > maxSteps {
			return false
		}
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if !seen[name] {
			seen[name] = true
			pending = append(pending, visit(name, v.of[name])...)
		}
	}
	return true
}

// parts returns the parts of the request on which the value of expr depends, sorted. captures are the sources of $1 to
// $9.
func (v *variables) parts(expr string, captures []string) []string {
	var out []string
	if !v.walk(expr, func(name string, d *variable) []string {
		switch {
		case isCapture(name):
			for _, c := range captures {
				out = append(out, c+" capture $"+name)
			}
			if len(captures) == 0 {
				out = append(out, "capture $"+name)
			}
		case conf.FromRequest(name), d == nil && !v.unfilled[name] && !conf.KnownVariable(name):
			out = append(out, "$"+name)
		}
		if d == nil {
			return nil
		}
		out = append(out, d.part...)
		return d.refs()
	}) {
		out = append(out, "more variables than are followed")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// free reports whether the request supplies a part of expr's value, rather than only selecting among constants.
func (v *variables) free(expr string) bool {
	free := false
	all := v.walk(expr, func(name string, d *variable) []string {
		switch {
		case isCapture(name), conf.FromRequest(name), d != nil && d.free, d == nil && !v.unfilled[name] && !conf.KnownVariable(name):
			free = true
		case d != nil && d.capture:
			return d.refs()
		case d != nil:
			return d.valueRefs()
		}
		return nil
	})
	return free || !all
}

// maxValues limits the result of expand.
const maxValues = 64

// maxValueSize limits a value of expand, in bytes.
const maxValueSize = 4096

// expand returns every possible value of expr if all of them are in the configuration. It returns false if not, or if
// they are too many.
func (v *variables) expand(expr string) ([]string, bool) {
	steps := 0
	return v.expandIn(expr, &steps)
}

func (v *variables) expandIn(expr string, steps *int) ([]string, bool) {
	segments, err := split(expr)
	if *steps++; err != nil || *steps > maxSteps {
		return nil, false
	}
	out := []string{""}
	for _, s := range segments {
		options := []string{s.text}
		if s.name != "" {
			d := v.of[s.name]
			if d == nil || !d.constant || d.expanding || conf.FromRequest(s.name) {
				return nil, false
			}
			d.expanding = true
			options = nil
			for _, e := range d.exprs {
				values, ok := v.expandIn(e, steps)
				if !ok || len(options)+len(values) > maxValues {
					d.expanding = false
					return nil, false
				}
				options = append(options, values...)
			}
			d.expanding = false
		}
		if len(out)*len(options) > maxValues {
			return nil, false
		}
		var next []string
		for _, o := range out {
			for _, option := range options {
				if len(o)+len(option) > maxValueSize {
					return nil, false
				}
				next = append(next, o+option)
			}
		}
		out = next
	}
	slices.Sort(out)
	return slices.Compact(out), true
}

// use records a use of expr's value.
func (v *variables) use(expr, decides string) {
	for pending := names(expr); len(pending) > 0; {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if slices.Contains(v.uses[name], decides) {
			continue
		}
		v.uses[name] = append(v.uses[name], decides)
		if d := v.of[name]; d != nil {
			pending = append(pending, d.refs()...)
		}
	}
}

var namedGroup = regexp.MustCompile(`\(\?(?:P?<|')([A-Za-z_][A-Za-z0-9_]*)[>']`)

// groups defines the named groups of a regular expression.
func (v *variables) groups(pattern, from string) {
	for _, m := range namedGroup.FindAllStringSubmatch(pattern, -1) {
		d := v.define(m[1])
		d.constant, d.free = false, true
		if p := from + " capture $" + strings.ToLower(m[1]); !slices.Contains(d.part, p) {
			d.part = append(d.part, p)
		}
	}
}

// collect collects the definitions in a block and its nested blocks.
func (v *variables) collect(block []*conf.Statement) {
	for _, s := range block {
		switch s.Name() {
		case "map":
			v.collectMap(s)
			continue
		case "set":
			if len(s.Words) == 3 {
				d := v.define(s.Arg(1))
				d.exprs = append(d.exprs, s.Arg(2))
				// A variable that is set in one place and used in another may be empty there, or come from $1.
				if slices.ContainsFunc(names(s.Arg(2)), isCapture) {
					d.free = true
				}
			}
		case "auth_request_set":
			d := v.define(s.Arg(1))
			d.exprs, d.constant = append(d.exprs, s.Arg(2)), false
		case "geo", "split_clients": // a note reports these, like code
			d := v.define(s.Last())
			d.constant, d.free = false, true
			continue
		case "perl_set", "js_set", "js_var", "set_by_lua", "set_by_lua_block", "set_by_lua_file":
			d := v.define(s.Arg(1))
			d.constant, d.free = false, true
		case "location":
			v.groups(s.Last(), "location")
		case "server_name":
			for _, name := range s.Words[1:] {
				v.groups(name, "server_name")
			}
		case "rewrite", "if":
			v.rewrites = v.rewrites || s.Name() == "rewrite"
			for _, w := range s.Words[1:] {
				v.groups(w, s.Name())
			}
		}
		v.collect(s.Block)
	}
}

func (v *variables) collectMap(s *conf.Statement) {
	if len(s.Words) != 3 {
		return
	}
	d := v.define(s.Arg(2))
	d.sources = append(d.sources, s.Arg(1))
	hasDefault := false
	for _, e := range s.Block {
		if len(e.Words) != 2 {
			continue
		}
		hasDefault = hasDefault || e.Name() == "default"
		d.exprs = append(d.exprs, e.Arg(1))
		if slices.ContainsFunc(names(e.Arg(1)), isCapture) {
			d.capture = true
		}
		for _, m := range namedGroup.FindAllStringSubmatch(e.Name(), -1) {
			g := v.define(m[1])
			g.sources, g.constant, g.capture = append(g.sources, s.Arg(1)), false, true
		}
	}
	if !hasDefault {
		d.exprs = append(d.exprs, "")
	}
	if d.capture {
		d.constant = false
		for i, e := range d.exprs { // a capture is a piece of the source, which is named already
			if slices.ContainsFunc(names(e), isCapture) {
				d.exprs[i] = withoutCaptures(e)
			}
		}
	}
}

func withoutCaptures(expr string) string {
	segments, _ := split(expr)
	var out strings.Builder
	for _, s := range segments {
		out.WriteString(s.text)
		if s.name != "" && !isCapture(s.name) {
			out.WriteString("${" + s.name + "}")
		}
	}
	return out.String()
}

// number parses a status; it returns -1 for an invalid one.
func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}
