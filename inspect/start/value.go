package start

import (
	"maps"
	"slices"
	"strings"
)

// names are variables of the environment, sorted.
type names []string

// maxNames bounds how many variables are told to go into one value.
const maxNames = 100

func (n names) with(more ...names) names {
	out := n
	for _, m := range more {
		for _, name := range m {
			i, found := slices.BinarySearch(out, name)
			if !found && len(out) < maxNames {
				out = slices.Insert(slices.Clip(out), i, name)
			}
		}
	}
	return out
}

// maxText bounds the text of a value, in bytes.
const maxText = 64 << 10

// value is what a word of a script comes to.
type value struct {
	// text is what it is when the container is started with the image's own environment, if that is known.
	text  string
	known bool
	// data are the variables of the environment that go into it, why those that decide which of several it is.
	data, why names
	// head are the variables that can make up its start; fixed is true when its first byte is the script's own.
	head  names
	fixed bool
	// list is set for an array.
	list []value
	// file is the one whose content it is; rendered says that envsubst has replaced variables in it, nil for all.
	file      string
	rendered  bool
	variables []string
	values    map[string]string
}

func literal(s string) value { return value{text: s, known: true, fixed: s != ""} }

// unknown is a value that nothing is known of but what goes into it.
func unknown(from ...value) value {
	var v value
	for _, f := range from {
		v.data, v.why = v.data.with(f.data), v.why.with(f.why)
	}
	return v
}

// and appends b.
func (v value) and(b value) value {
	out := value{
		text: v.text + b.text, known: v.known && b.known, data: v.data.with(b.data), why: v.why.with(b.why),
		head: v.head, fixed: v.fixed,
	}
	if !v.fixed {
		out.head = v.head.with(b.head)
		out.fixed = b.fixed && v.known && v.text == "" && len(v.head) == 0
	}
	if !out.known || len(out.text) > maxText {
		out.text, out.known = "", false
	}
	return out
}

// first is what an array gives without an index.
func (v value) first() value {
	if v.list == nil {
		return v
	}
	if len(v.list) == 0 {
		return literal("")
	}
	return v.list[0]
}

// bounded makes one element of what is beyond the length that arrays may have.
func (v value) bounded() value {
	if len(v.list) > maxNames {
		v.list = append(slices.Clone(v.list[:maxNames]), unknown(v.list[maxNames:]...))
	}
	return v
}

// written is the text, or a sign of what isn't known.
func (v value) written() string {
	switch {
	case v.known:
		return v.text
	case len(v.data) == 1:
		return "${" + v.data[0] + "}"
	}
	return "?"
}

// variable is a value with a name.
type variable struct {
	value
	exported bool
	// outer is true when it may be what the environment has.
	outer bool
}

// store holds variables, above those of up.
type store struct {
	up   *store
	vars map[string]variable
}

func (s *store) get(key string) (variable, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[key]; ok {
			return v, true
		}
	}
	return variable{}, false
}

func (s *store) set(key string, v variable) {
	if s.vars == nil {
		s.vars = map[string]variable{}
	}
	s.vars[key] = v
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

// tri is a truth that may not be known.
type tri int8

const (
	maybe tri = iota
	yes
	no
)

func truth(b bool) tri {
	if b {
		return yes
	}
	return no
}

func (t tri) not() tri { return [...]tri{maybe, no, yes}[t] }

func (t tri) or(o tri) tri {
	switch {
	case t == yes || o == yes:
		return yes
	case t == no && o == no:
		return no
	}
	return maybe
}

func (t tri) and(o tri) tri { return t.not().or(o.not()).not() }

// ending is how a command ends what it is in.
type ending int8

const (
	goesOn  ending = iota
	breaks         // the loop
	returns        // the function or the sourced file
	exits          // the script
)

// status is what a command comes to.
type status struct {
	ok  tri
	why names // variables that decide ok
	end ending
	// sure is true when it ends so in any case. Otherwise it does when is true, and that depends on whenWhy.
	sure    bool
	when    tri
	whenWhy names
	// fails is true when that is the end of the start, with an error, and nothing else takes its place.
	fails bool
}

// choose is the status of a choice between two ways.
func choose(cond tri, why names, a, b status) status {
	out := status{why: why.with(a.why, b.why)}
	switch {
	case cond == yes:
		out.ok = a.ok
	case cond == no:
		out.ok = b.ok
	case a.ok == b.ok:
		out.ok = a.ok
	}
	if a.end == goesOn && b.end == goesOn {
		return out
	}
	if a.end != goesOn && b.end != goesOn {
		out.end = min(a.end, b.end)
	} else {
		out.end = max(a.end, b.end)
	}
	if a.sure && b.sure {
		out.sure = true
		return out
	}
	happens := func(s status, here tri) tri {
		if s.end == goesOn {
			return no
		}
		if s.fails { // what comes after it isn't chosen by it
			return maybe
		}
		out.whenWhy = out.whenWhy.with(why, s.whenWhy)
		if s.sure {
			return here
		}
		return here.and(s.when)
	}
	out.when = happens(a, cond).or(happens(b, cond.not()))
	out.fails = (a.fails || a.end == goesOn) && (b.fails || b.end == goesOn)
	return out
}

// output is what commands write to their standard output.
type output struct {
	value
	pieces int
}

func newOutput() *output { return &output{value: value{known: true}} }

func (o *output) add(v value) {
	if o == nil {
		return
	}
	if o.pieces++; o.pieces == 1 {
		o.value = v
		return
	}
	o.value = o.and(v)
}

// merge takes the output of a branch.
func (o *output) merge(branch *output, cond tri, why names) {
	if o == nil || branch == nil || branch.pieces == 0 {
		return
	}
	v := branch.value
	v.why = v.why.with(why)
	switch cond {
	case no:
		v = value{known: true, data: v.data, why: v.why}
		if len(why) == 0 {
			return
		}
	case maybe:
		v.known = false
	}
	o.add(v)
}

// substituted is what $(…) makes of an output.
func (o *output) substituted() value {
	v := o.value
	v.text = strings.TrimRight(v.text, "\n")
	v.list = nil
	return v
}

// meet joins what two ways leave in a variable.
func meet(cond tri, why names, a, b variable) variable {
	picked, other := a, b
	if cond == no {
		picked, other = b, a
	}
	if cond != maybe && len(why) == 0 { // the other way is never taken
		return picked
	}
	out := picked
	out.data, out.why, out.head = a.data.with(b.data), a.why.with(b.why, why), a.head.with(b.head)
	out.fixed = a.fixed && b.fixed
	out.exported, out.outer = a.exported || b.exported, a.outer || b.outer
	if cond == maybe {
		if a.text != b.text || !other.known {
			out.known, out.text = false, ""
		}
		if a.list != nil || b.list != nil {
			out.known, out.list = false, slices.Concat(a.list, b.list)
			out.value = out.bounded()
		}
	}
	return out
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
