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

// key is the name under which the store has a variable.
func (f *frame) key(name string) string {
	if k, ok := f.locals[name]; ok {
		return k
	}
	return name
}

// own are variables that bash sets itself, whatever the environment says.
var own = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(`BASH BASHPID BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_REMATCH BASH_SOURCE BASH_SUBSHELL
		BASH_VERSINFO BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HOSTNAME HOSTTYPE IFS LINENO
		MACHTYPE OLDPWD OPTARG OPTIND OSTYPE PIPESTATUS PPID PWD RANDOM REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _`) {
		m[name] = true
	}
	return m
}()

// peek is the variable without it being read.
func (sh *Walk) peek(f *frame, name string) variable {
	if v, ok := f.vars.get(f.key(name)); ok {
		return v
	}
	if own[name] {
		return variable{}
	}
	if sh.clean || f.bare {
		return variable{value: literal("")}
	}
	text, set := sh.env[name]
	n := names{name}
	return variable{value: value{text: text, known: len(text) <= maxText, data: n, head: n}, exported: set, outer: true}
}

func (sh *Walk) get(f *frame, name string, pos syntax.Pos) variable {
	v := sh.peek(f, name)
	if v.outer {
		sh.read(f, name, sh.place(f, pos))
	}
	return v
}

func (sh *Walk) set(f *frame, name string, v value) {
	old := sh.peek(f, name)
	v.why = v.why.with(f.why)
	f.vars.set(f.key(name), variable{value: v, exported: old.exported})
}

func (sh *Walk) peekKey(f *frame, key string) variable {
	name, _, local := strings.Cut(key, "\x00")
	if local {
		if v, ok := f.vars.get(key); ok {
			return v
		}
		return variable{value: literal("")}
	}
	g := *f
	g.locals = nil
	return sh.peek(&g, name)
}

// declare is export, local, readonly, declare and typeset.
func (sh *Walk) declare(f *frame, c *syntax.DeclClause) status {
	kind := c.Variant.Value
	export, local := kind == "export", kind == "local"
	inFunction := f.locals != nil
	one := func(name string, v *value) {
		if (local || inFunction && (kind == "declare" || kind == "typeset")) && inFunction {
			sh.frames++
			f.locals[name] = name + "\x00" + strconv.Itoa(sh.frames)
			if v == nil {
				empty := literal("")
				v = &empty
			}
		}
		if v != nil {
			sh.set(f, name, *v)
		}
		if export {
			w := sh.peek(f, name)
			w.exported = true
			f.vars.set(f.key(name), w)
		}
	}
	for _, a := range c.Args {
		switch {
		case a.Name != nil && a.Naked:
			one(a.Name.Value, nil)
		case a.Name != nil:
			v := sh.assigned(f, a)
			one(a.Name.Value, &v)
		case a.Value != nil:
			v := sh.text(f, a.Value)
			name, rest, ok := strings.Cut(v.text, "=")
			switch {
			case !v.known:
				sh.Note(sh.place(f, a.Pos()), "%s of a name that isn't known", kind)
			case strings.HasPrefix(name, "-"):
				export = export || kind != "export" && strings.Contains(name, "x")
				if kind == "export" && strings.Contains(name, "n") {
					export = false
				}
			case ok:
				v.text, v.fixed = rest, false
				one(name, &v)
			case syntax.ValidName(name):
				one(name, nil)
			}
		}
	}
	return status{ok: yes}
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
		v.file = ""
	}
	if a.Index != nil {
		old := sh.peek(f, a.Name.Value)
		i := sh.arithmetic(f, a.Index, a.Pos())
		u := unknown(append(slices.Clone(old.list), v, i)...)
		u.list = append(slices.Clone(old.list), v)
		return u.bounded()
	}
	if a.Append {
		old := sh.get(f, a.Name.Value, a.Pos()).value
		if v.list == nil && old.list == nil {
			return old.and(v)
		}
		if old.list == nil {
			old.list = []value{old}
		}
		if v.list == nil {
			v.list = []value{v}
		}
		v.list = append(slices.Clone(old.list), v.list...)
		return v.bounded()
	}
	return v
}
