package shell

import (
	"maps"
	"slices"
)

// names are variables of the environment, sorted.
type names []string

// maxNames bounds how many variables are told to go into one value.
const maxNames = 100

func (n names) with(more ...names) names {
	out, own := n, false
	for _, m := range more {
		for _, name := range m {
			i, found := slices.BinarySearch(out, name)
			if found || len(out) == maxNames {
				continue
			}
			if !own { // others may have n
				out, own = append(make(names, 0, min(len(n)+len(m), maxNames)), n...), true
			}
			out = slices.Insert(out, i, name)
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

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
