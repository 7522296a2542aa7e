package shell

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Variable is one that the scripts give to the programs.
type Variable struct {
	Name string `json:"name"`
	// Value is what it is when the container is started with the image's own environment, if Known.
	Value string `json:"value,omitempty"`
	Known bool   `json:"known,omitempty"`
	// From are the variables of the environment that decide on it, sorted.
	From []string `json:"from,omitempty"`
}

// Reading is where a variable of the environment is read.
type Reading struct {
	// Places are at most 50.
	Places []tree.Place
	// Live is false when it is read only in branches that the image's files rule out.
	Live bool
}

// variable is a value with a name.
type variable struct {
	value
	exported bool
	// outer is true when it may be what the environment has.
	outer bool
}

// store holds variables, above those of up. Its "@" are the arguments.
type store struct {
	up   *store
	vars map[string]variable
}

func (s *store) get(name string) (variable, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return variable{}, false
}

func (s *store) set(name string, v variable) {
	if s.vars == nil {
		s.vars = map[string]variable{}
	}
	s.vars[name] = v
}

// all flattens the store.
func (s *store) all() map[string]variable {
	out := map[string]variable{}
	for ; s != nil; s = s.up {
		for k, v := range s.vars {
			if _, ok := out[k]; !ok {
				out[k] = v
			}
		}
	}
	return out
}

// meet joins what two ways leave in a variable: a if c, and b.
func meet(c answer, a, b variable) variable {
	out, other := a, b
	if c.is == no {
		out, other = b, a
	}
	if c.sure(yes) || c.sure(no) { // the other way is never taken
		return out
	}
	out.from = a.from.with(begins, b.from).with(decides, c.why)
	out.exported, out.outer = a.exported || b.exported, a.outer || b.outer
	if c.is == maybe {
		if a.text != b.text || a.unset != b.unset || !other.known {
			out.known, out.text = false, ""
		}
		if a.list != nil || b.list != nil {
			out.known, out.list = false, slices.Concat(a.list, b.list)
			out.value = out.bounded()
		}
	}
	return out
}

// read marks that a variable of the environment is read.
func (sh *Walk) read(f *frame, name string, at tree.Place) {
	r := sh.Reads[name]
	if r == nil {
		r = &Reading{}
		sh.Reads[name] = r
	}
	r.Live = r.Live || !f.dormant
	if len(r.Places) < maxPlaces && !slices.Contains(r.Places, at) {
		r.Places = append(r.Places, at)
	}
}

// own are variables that bash sets itself, whatever the environment says.
var own = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(`BASH BASHPID BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_REMATCH BASH_SOURCE BASH_SUBSHELL
		BASH_VERSINFO BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HOSTNAME HOSTTYPE IFS LINENO
		MACHTYPE OLDPWD OPTARG OPTIND OSTYPE PIPESTATUS PPID PWD RANDOM REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _ ? - $ !`) {
		m[name] = true
	}
	return m
}()

// peek is the variable or parameter without it being read.
func (sh *Walk) peek(f *frame, name string) variable {
	if v, ok := f.vars.get(name); ok {
		return v
	}
	if own[name] {
		return variable{}
	}
	if name == "0" {
		return variable{value: literal(f.name)}
	}
	if name == "*" || name == "#" || name != "" && name[0] >= '0' && name[0] <= '9' {
		return variable{value: sh.parameter(f, name)}
	}
	if sh.clean || f.bare {
		return variable{value: value{known: true, unset: true}}
	}
	text, set := sh.env[name]
	v := value{text: text, known: len(text) <= maxText, unset: !set, from: origin{{name, begins}}}
	return variable{value: v, exported: set, outer: true}
}

// parameter is $*, $# or one argument.
func (sh *Walk) parameter(f *frame, name string) value {
	args, _ := f.vars.get("@")
	switch n, err := strconv.Atoi(name); {
	case name == "*":
		return args.value
	case !args.known:
		return unknown(args.value)
	case name == "#":
		return literal(strconv.Itoa(len(args.list)))
	case err == nil && n <= len(args.list):
		return args.list[n-1]
	}
	return value{known: true, unset: true}
}

// args are the arguments of the script or function, setArgs others.
func (sh *Walk) args(f *frame) []value {
	v, _ := f.vars.get("@")
	return v.list
}

func (sh *Walk) setArgs(f *frame, args []value) {
	f.vars.set("@", variable{value: value{known: len(args) <= maxNames, list: append([]value{}, args...)}.bounded()})
}

// get reads a variable.
func (sh *Walk) get(f *frame, name string, pos syntax.Pos) variable {
	v := sh.peek(f, name)
	if v.outer {
		sh.read(f, name, sh.place(f, pos))
	}
	return v
}

func (sh *Walk) set(f *frame, name string, v value) {
	v.from = v.from.with(decides, f.why)
	f.vars.set(name, variable{value: v, exported: sh.peek(f, name).exported})
}

// declare is export, local, readonly, declare and typeset.
func (sh *Walk) declare(f *frame, c *syntax.DeclClause) answer {
	kind := c.Variant.Value
	export := kind == "export"
	local := f.saved != nil && (kind == "local" || kind == "declare" || kind == "typeset")
	one := func(name string, v *value) {
		if _, ok := f.saved[name]; local && !ok {
			f.saved[name] = sh.peek(f, name)
		}
		if local && v == nil {
			v = &value{known: true, unset: true}
		}
		if v != nil {
			sh.set(f, name, *v)
		}
		if export {
			w := sh.peek(f, name)
			w.exported = true
			f.vars.set(name, w)
		}
	}
	for _, a := range c.Args {
		if a.Name != nil && a.Naked {
			one(a.Name.Value, nil)
			continue
		}
		if a.Name != nil {
			v := sh.assigned(f, a)
			one(a.Name.Value, &v)
			continue
		}
		v := sh.text(f, a.Value)
		name, rest, ok := strings.Cut(v.text, "=")
		switch {
		case strings.HasPrefix(name, "-"):
			export = export && !strings.Contains(name, "n") || kind != "export" && strings.Contains(name, "x")
		case !syntax.ValidName(name) || !ok && !v.known:
			sh.Note(sh.place(f, a.Pos()), "%s of a name that isn't known", kind)
		case ok:
			v.text, v.from = rest, origin(nil).with(inside, v.from)
			one(name, &v)
		default:
			one(name, nil)
		}
	}
	return done
}

// assigned is what an assignment puts into its variable.
func (sh *Walk) assigned(f *frame, a *syntax.Assign) value {
	v := literal("")
	switch {
	case a.Array != nil:
		v = value{known: true, list: []value{}}
		for _, e := range a.Array.Elems {
			if e.Value != nil {
				v.list = append(v.list, sh.fields(f, []*syntax.Word{e.Value})...)
			}
			v = v.bounded()
		}
	case a.Value != nil:
		v = sh.text(f, a.Value)
	}
	switch old := sh.peek(f, a.Name.Value).value; {
	case a.Index != nil:
		v.from = v.from.with(decides, sh.arithmetic(f, a.Index).from)
		return value{list: append(slices.Clone(old.list), v)}.bounded()
	case !a.Append:
	case v.list == nil && old.list == nil:
		return sh.get(f, a.Name.Value, a.Pos()).and(v)
	default:
		v.list = slices.Concat(old.elements(), v.elements())
		return v.bounded()
	}
	return v
}
