package shell

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Variable is a variable that the scripts set for the programs.
type Variable struct {
	Name string `json:"name"`
	// Value is its value when the container is started with the image's own environment, if Known.
	Value string `json:"value,omitempty"`
	Known bool   `json:"known,omitempty"`
	// From are the variables of the environment that its value depends on, sorted.
	From []string `json:"from,omitempty"`
}

// Reading lists the places at which a variable of the environment is read.
type Reading struct {
	// Places are at most 50.
	Places []tree.Place
	// Live is false when it is read only in branches that the image's files rule out.
	Live bool
}

// variable is the value of a variable, and whether programs get it.
type variable struct {
	value
	exported bool
	// outer is true when its value may be the environment's.
	outer bool
}

// store holds the variables of a scope, above those of up. Its "@" holds the positional parameters.
type store struct {
	up   *store
	vars map[string]variable
}

// getVariable returns the variable name of s or of the nearest scope below it.
func (s *store) getVariable(name string) (variable, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return variable{}, false
}

// setVariable sets the variable name in s, and not in the scopes below.
func (s *store) setVariable(name string, v variable) {
	if s.vars == nil {
		s.vars = map[string]variable{}
	}
	s.vars[name] = v
}

// allVariables returns the variables of s and of the scopes below it.
func (s *store) allVariables() map[string]variable {
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

// mergeVariables returns a variable after a choice: a if c, otherwise b.
func mergeVariables(c answer, a, b variable) variable {
	out, other := a, b
	if c.is == no {
		out, other = b, a
	}
	if c.isCertain(yes) || c.isCertain(no) { // the other branch is never taken
		return out
	}
	out.from = a.from.addOrigins(begins, b.from).addOrigins(decides, c.why)
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

// recordRead records that a variable of the environment is read.
func (sh *Walk) recordRead(f *frame, name string, at tree.Place) {
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

// shellOwned has the variables that bash sets itself, whatever the environment holds.
var shellOwned = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(`BASH BASHPID BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_REMATCH BASH_SOURCE BASH_SUBSHELL
		BASH_VERSINFO BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HOSTNAME HOSTTYPE IFS LINENO
		MACHTYPE OLDPWD OPTARG OPTIND OSTYPE PIPESTATUS PPID PWD RANDOM REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _ ? - $ !`) {
		m[name] = true
	}
	return m
}()

// peekVariable returns a variable or parameter without recording that it is read.
func (sh *Walk) peekVariable(f *frame, name string) variable {
	if v, ok := f.vars.getVariable(name); ok {
		return v
	}
	if shellOwned[name] {
		return variable{}
	}
	if name == "0" {
		return variable{value: literal(f.name)}
	}
	if name == "*" || name == "#" || name != "" && name[0] >= '0' && name[0] <= '9' {
		return variable{value: sh.parameterOf(f, name)}
	}
	if sh.clean || f.bare {
		return variable{value: value{known: true, unset: true}}
	}
	text, set := sh.env[name]
	v := value{text: text, known: len(text) <= maxText, unset: !set, from: origin{{name, begins}}}
	return variable{value: v, exported: set, outer: true}
}

// parameterOf returns $*, $# or one positional parameter.
func (sh *Walk) parameterOf(f *frame, name string) value {
	args, _ := f.vars.getVariable("@")
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

// positionals returns the arguments of the script or function.
func (sh *Walk) positionals(f *frame) []value {
	v, _ := f.vars.getVariable("@")
	return v.list
}

// setPositionals sets the arguments of the script or function, as set -- does.
func (sh *Walk) setPositionals(f *frame, args []value) {
	f.vars.setVariable("@", variable{value: value{known: len(args) <= maxNames, list: append([]value{}, args...)}.bounded()})
}

// readVariable returns a variable and records that it is read, if its value may be the environment's.
func (sh *Walk) readVariable(f *frame, name string, pos syntax.Pos) variable {
	v := sh.peekVariable(f, name)
	if v.outer {
		sh.recordRead(f, name, sh.placeOf(f, pos))
	}
	return v
}

// assignVariable sets a variable of f to v, whose origin then includes what decides whether f runs.
func (sh *Walk) assignVariable(f *frame, name string, v value) {
	v.from = v.from.addOrigins(decides, f.why)
	f.vars.setVariable(name, variable{value: v, exported: sh.peekVariable(f, name).exported})
}

// runDeclare runs export, local, readonly, declare or typeset.
func (sh *Walk) runDeclare(f *frame, c *syntax.DeclClause) answer {
	kind := c.Variant.Value
	export := kind == "export"
	local := f.saved != nil && (kind == "local" || kind == "declare" || kind == "typeset")
	one := func(name string, v *value) {
		if _, ok := f.saved[name]; local && !ok {
			f.saved[name] = sh.peekVariable(f, name)
		}
		if local && v == nil {
			v = &value{known: true, unset: true}
		}
		if v != nil {
			sh.assignVariable(f, name, *v)
		}
		if export {
			w := sh.peekVariable(f, name)
			w.exported = true
			f.vars.setVariable(name, w)
		}
	}
	for _, a := range c.Args {
		if a.Name != nil && a.Naked {
			one(a.Name.Value, nil)
			continue
		}
		if a.Name != nil {
			v := sh.assignedValue(f, a)
			one(a.Name.Value, &v)
			continue
		}
		v := sh.expandText(f, a.Value)
		name, rest, ok := strings.Cut(v.text, "=")
		switch {
		case strings.HasPrefix(name, "-"):
			export = export && !strings.Contains(name, "n") || kind != "export" && strings.Contains(name, "x")
		case !syntax.ValidName(name) || !ok && !v.known:
			sh.Note(sh.placeOf(f, a.Pos()), "%s of a name that isn't known", kind)
		case ok:
			v.text, v.from = rest, origin(nil).addOrigins(inside, v.from)
			one(name, &v)
		default:
			one(name, nil)
		}
	}
	return done
}

// assignedValue returns the value that an assignment gives to its variable.
func (sh *Walk) assignedValue(f *frame, a *syntax.Assign) value {
	v := literal("")
	switch {
	case a.Array != nil:
		v = value{known: true, list: []value{}}
		for _, e := range a.Array.Elems {
			if e.Value != nil {
				v.list = append(v.list, sh.expandFields(f, []*syntax.Word{e.Value})...)
			}
			v = v.bounded()
		}
	case a.Value != nil:
		v = sh.expandText(f, a.Value)
	}
	switch old := sh.peekVariable(f, a.Name.Value).value; {
	case a.Index != nil:
		v.from = v.from.addOrigins(decides, sh.expandArithmetic(f, a.Index).from)
		return value{list: append(slices.Clone(old.list), v)}.bounded()
	case !a.Append:
	case v.list == nil && old.list == nil:
		return sh.readVariable(f, a.Name.Value, a.Pos()).concat(v)
	default:
		v.list = slices.Concat(old.elements(), v.elements())
		return v.bounded()
	}
	return v
}
