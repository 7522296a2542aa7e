package shell

import (
	"maps"
	"slices"
	"strings"
)

// grade says what a variable of the environment has to do with a value.
type grade uint8

const (
	decides grade = iota // it decides which of several the value is
	inside               // its text goes into the value
	begins               // its text may be the value's beginning
)

// origin has the variables of the environment that a value comes from, sorted by name. It is never changed once made.
type origin []source

type source struct {
	name string
	how  grade
}

// maxNames bounds the variables of one origin, and the elements of one array.
const maxNames = 100

// with adds what is in more, which counts for no more than most.
func (o origin) with(most grade, more ...origin) origin {
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

// names are the variables of a grade or a higher one, sorted.
func (o origin) names(least grade) []string {
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

// value is what a word of a script comes to.
type value struct {
	// text is what it is when the container is started with the image's own environment; when that isn't known, as much of
	// its beginning as is.
	text  string
	known bool
	// unset is true for a variable that there isn't.
	unset bool
	from  origin
	// list is set for an array.
	list []value
	// file is the one whose content it is, filled what envsubst has done to it, if it has.
	file   string
	filled *filling
}

// filling is the variables that envsubst replaces, nil for all, and what is known of them.
type filling struct {
	variables []string
	values    map[string]string
}

func literal(s string) value { return value{text: s, known: true} }

// unknown is a value that nothing is known of but what goes into it.
func unknown(from ...value) value {
	var v value
	for _, f := range from {
		v.from = v.from.with(inside, f.from)
		for _, e := range f.list {
			v.from = v.from.with(inside, e.from)
		}
	}
	return v
}

// and appends b.
func (v value) and(b value) value {
	if v.known && v.text == "" && len(v.from) == 0 {
		b.unset = false
		return b
	}
	most := inside
	if v.text == "" {
		most = begins
	}
	out := value{text: v.text, known: v.known && b.known, from: v.from.with(most, b.from)}
	if v.known {
		out.text += b.text
	}
	return out.bounded()
}

// bounded is the value without what is beyond the length that texts and arrays may have.
func (v value) bounded() value {
	if len(v.text) > maxText {
		v.text, v.known = "", false
	}
	if len(v.list) > maxNames {
		v.list = append(slices.Clone(v.list[:maxNames]), unknown(v.list[maxNames:]...))
	}
	return v
}

// first is what an array gives without an index.
func (v value) first() value {
	switch {
	case v.list == nil:
		return v
	case len(v.list) == 0:
		return literal("")
	}
	return v.list[0]
}

// elements are those of an array; a value that is none is its only one.
func (v value) elements() []value {
	if v.list == nil {
		return []value{v}
	}
	return v.list
}

// data are the variables whose text goes into the value.
func (v value) data() []string { return v.from.names(inside) }

// written is the text, or a sign of what isn't known.
func (v value) written() string {
	data := v.data()
	switch {
	case v.known:
		return v.text
	case len(data) == 1:
		return "${" + data[0] + "}"
	}
	return "?"
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// tri is a truth that may not be known.
type tri int8

const (
	no tri = iota - 1
	maybe
	yes
)

func truth(b bool) tri {
	if b {
		return yes
	}
	return no
}

// answer is what a command or a condition comes to, and what decides that.
type answer struct {
	is  tri
	why origin
}

// done is the answer of what succeeds.
var done = answer{is: yes}

// dependsOn is an answer that values decide.
func dependsOn(is tri, on ...value) answer {
	a := answer{is: is}
	for _, v := range on {
		a.why = a.why.with(decides, v.from)
	}
	return a
}

func (a answer) not() answer { return answer{-a.is, a.why} }

// and is a && b. What a alone decides doesn't depend on b.
func (a answer) and(b answer) answer {
	if a.is == no && len(a.why) == 0 {
		return a
	}
	return answer{min(a.is, b.is), a.why.with(decides, b.why)}
}

func (a answer) or(b answer) answer { return a.not().and(b.not()).not() }

// sure tells whether it is so whatever the environment says.
func (a answer) sure(is tri) bool { return a.is == is && len(a.why) == 0 }
