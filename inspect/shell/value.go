package shell

import (
	"maps"
	"slices"
	"strings"
)

// grade is the part that a variable of the environment plays in a value.
type grade uint8

const (
	decides grade = iota // it decides which of several values this is
	inside               // its text goes into the value
	begins               // its text may be the beginning of the value
)

// origin lists the variables of the environment that a value comes from, sorted by name. An origin is never changed
// once made.
type origin []source

// source is one variable of an origin.
type source struct {
	name string
	how  grade
}

// maxNames bounds the variables of one origin, and the elements of one array.
const maxNames = 100

// addOrigins returns the union of o and more; the grades of more are lowered to most.
func (o origin) addOrigins(most grade, more ...origin) origin {
	own := false
	for _, m := range more {
		for _, s := range m {
			s.how = min(s.how, most)
			i, found := slices.BinarySearchFunc(o, s.name, func(a source, name string) int { return strings.Compare(a.name, name) })
			if found && o[i].how >= s.how || !found && len(o) == maxNames {
				continue
			}
			if !own { // others may have o
				o, own = slices.Clone(o), true
			}
			if found {
				o[i].how = s.how
			} else {
				o = slices.Insert(o, i, s)
			}
		}
	}
	return o
}

// namesAtLeast returns the variables of grade least or higher, sorted.
func (o origin) namesAtLeast(least grade) []string {
	var out []string
	for _, s := range o {
		if s.how >= least {
			out = append(out, s.name)
		}
	}
	return out
}

// maxText bounds the text of a value, in bytes.
const maxText = 64 << 10

// value is the value of a word or a variable, as far as it is known.
type value struct {
	// text is the value when the container is started with the image's own environment; unless known, it is as much of
	// the value's beginning as is known.
	text  string
	known bool
	// unset is true for the value of a variable that isn't set.
	unset bool
	from  origin
	// list is set for an array.
	list []value
	// file is the path of the file whose content this is; filled is set when envsubst has changed it.
	file   string
	filled *filling
}

// filling is what envsubst does to a file: the variables that it replaces, nil for all, and their known values.
type filling struct {
	variables []string
	values    map[string]string
}

// literal returns the known value s, which comes from no variable.
func literal(s string) value { return value{text: s, known: true} }

// unknown returns an unknown value into which the values of from go.
func unknown(from ...value) value {
	var v value
	for _, f := range from {
		v.from = v.from.addOrigins(inside, f.from)
		for _, e := range f.list {
			v.from = v.from.addOrigins(inside, e.from)
		}
	}
	return v
}

// concat returns v followed by b.
func (v value) concat(b value) value {
	if v.known && v.text == "" && len(v.from) == 0 {
		b.unset = false
		return b
	}
	most := inside
	if v.text == "" {
		most = begins
	}
	out := value{text: v.text, known: v.known && b.known, from: v.from.addOrigins(most, b.from)}
	if v.known {
		out.text += b.text
	}
	return out.bounded()
}

// bounded returns v, made unknown beyond maxText bytes, and with the elements beyond maxNames merged into one unknown
// element.
func (v value) bounded() value {
	if len(v.text) > maxText {
		v.text, v.known = "", false
	}
	if len(v.list) > maxNames {
		v.list = append(slices.Clone(v.list[:maxNames]), unknown(v.list[maxNames:]...))
	}
	return v
}

// firstElement returns the value of an array without an index, which is its first element; any other value is returned
// as it is.
func (v value) firstElement() value {
	switch {
	case v.list == nil:
		return v
	case len(v.list) == 0:
		return literal("")
	}
	return v.list[0]
}

// elements returns the elements of an array; any other value is its only element.
func (v value) elements() []value {
	if v.list == nil {
		return []value{v}
	}
	return v.list
}

// dataNames returns the variables whose text goes into the value.
func (v value) dataNames() []string { return v.from.namesAtLeast(inside) }

// displayText returns the text when it is known, ${NAME} when the value is unknown and comes from one variable, and ?
// otherwise.
func (v value) displayText() string {
	data := v.dataNames()
	switch {
	case v.known:
		return v.text
	case len(data) == 1:
		return "${" + data[0] + "}"
	}
	return "?"
}

// sortedKeys returns the keys of m, sorted.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// tri is a truth value that may be unknown.
type tri int8

const (
	no tri = iota - 1
	maybe
	yes
)

// triOf returns yes or no for a known truth value.
func triOf(b bool) tri {
	if b {
		return yes
	}
	return no
}

// answer is the result of a command or a condition, and what decides on it.
type answer struct {
	is  tri
	why origin
}

// done is the answer of a command that succeeds in every environment.
var done = answer{is: yes}

// dependsOn returns an answer that the values on decide.
func dependsOn(is tri, on ...value) answer {
	a := answer{is: is}
	for _, v := range on {
		a.why = a.why.addOrigins(decides, v.from)
	}
	return a
}

// negate returns !a.
func (a answer) negate() answer { return answer{-a.is, a.why} }

// both returns a && b. Where a is certainly false, b has no part in the answer.
func (a answer) both(b answer) answer {
	if a.is == no && len(a.why) == 0 {
		return a
	}
	return answer{min(a.is, b.is), a.why.addOrigins(decides, b.why)}
}

// either returns a || b.
func (a answer) either(b answer) answer { return a.negate().both(b.negate()).negate() }

// isCertain reports whether a has the truth value is in every environment.
func (a answer) isCertain(is tri) bool { return a.is == is && len(a.why) == 0 }
