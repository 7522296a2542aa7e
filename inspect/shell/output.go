package shell

import "strings"

// emit writes to standard output.
func (sh *Walk) emit(f *frame, v value) { f.out.add(v) }

// unknownOutput is that of a program of which no more is known than what it was given.
func (sh *Walk) unknownOutput(f *frame, args []value) value {
	v := unknown(args...)
	if f.stdin != nil {
		v.data, v.why = v.data.with(f.stdin.data), v.why.with(f.stdin.why)
	}
	return v
}

func (sh *Walk) stdin(f *frame) value {
	if f.stdin == nil {
		return value{}
	}
	return *f.stdin
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
