package shell

import "maps"

// way is how far a command leaves what it is in.
type way int8

const (
	unsure    way = iota - 1 // one of the others
	goesOn                   // it doesn't
	continues                // the round of a loop
	breaks                   // the loop
	returns                  // the function or the sourced file
	exits                    // the script
)

// ending is whether the commands that follow are come to.
type ending struct {
	// now is what happens with the image's own environment; with any other it is between least and most.
	least, now, most way
	// why decides on it.
	why origin
	// fails is true when it is the end of the start, with an error, and nothing else takes its place.
	fails bool
}

// leaves is an ending that is sure.
func leaves(w way) ending { return ending{least: w, now: w, most: w} }

// catch takes away what goes no farther than w.
func (e *ending) catch(w way) {
	if e.most <= w {
		*e = ending{}
	}
	if e.least <= w {
		e.least = goesOn
	}
	if e.now > goesOn && e.now <= w {
		e.now = goesOn
	}
}

// joinEndings is the ending of a choice between a, if c, and b. What follows an error isn't chosen by it.
func joinEndings(c answer, a, b ending) ending {
	switch {
	case a.most == goesOn && b.most == goesOn:
		return ending{}
	case b.fails && !a.fails:
		return a
	case a.fails && !b.fails:
		return b
	}
	e := ending{least: min(a.least, b.least), now: unsure, most: max(a.most, b.most), fails: a.fails && b.fails}
	switch {
	case c.is == yes || a.now == b.now:
		e.now = a.now
	case c.is == no:
		e.now = b.now
	}
	if e.least == goesOn {
		e.why = c.why.with(decides, a.why, b.why)
	}
	return e
}

// each walks through n bodies, one after the other, as long as none ends what they are in.
func (sh *Walk) each(f *frame, i, n int, body func(*frame, int) answer) answer {
	last := done
	for ; i < n; i++ {
		if f.end.most != goesOn {
			return sh.then(f, last, func(g *frame) answer { return sh.each(g, i, n, body) })
		}
		last = body(f, i)
	}
	return last
}

// then walks through what follows a command whose answer is last, unless that was the end.
func (sh *Walk) then(f *frame, last answer, rest func(*frame) answer) answer {
	e := *f.end
	if e.most == goesOn {
		return rest(f)
	}
	if e.least > goesOn {
		return last
	}
	*f.end = ending{}
	c := answer{no, e.why}
	switch e.now {
	case goesOn:
		c.is = yes
	case unsure:
		c.is = maybe
	}
	return sh.choose(f, c, rest, func(g *frame) answer {
		*g.end = leaves(e.most)
		return last
	})
}

// choose walks through both ways of a choice, and puts into f what they leave together. A way that is nil does nothing.
func (sh *Walk) choose(f *frame, c answer, then, other func(*frame) answer) answer {
	a, ours := sh.branch(f, c, then)
	b, theirs := sh.branch(f, c.not(), other)
	// What a way leaves that ends the script is gone; after return and break the caller or what follows the loop has it.
	aEnds, bEnds := a.end.least == exits, b.end.least == exits
	changed := maps.Clone(a.vars.vars)
	if changed == nil {
		changed = map[string]variable{}
	}
	maps.Copy(changed, b.vars.vars)
	for name := range changed {
		va, vb := sh.peek(a, name), sh.peek(b, name)
		switch {
		case aEnds && !bEnds:
			f.vars.set(name, vb)
		case bEnds && !aEnds:
			f.vars.set(name, va)
		default:
			f.vars.set(name, meet(c, va, vb))
		}
	}
	if f.out != nil && a.out.pieces+b.out.pieces > 2*f.out.pieces {
		f.out.pieces++
		f.out.value = meet(c, variable{value: a.out.value}, variable{value: b.out.value}).value
	}
	*f.end = joinEndings(c, *a.end, *b.end)
	is := maybe
	switch {
	case c.is == yes || ours.is == theirs.is:
		is = ours.is
	case c.is == no:
		is = theirs.is
	}
	return answer{is, c.why.with(decides, ours.why, theirs.why)}
}

// branch walks through body as one way of a choice.
func (sh *Walk) branch(f *frame, c answer, body func(*frame) answer) (*frame, answer) {
	g := *f
	g.vars, g.end = &store{up: f.vars}, &ending{}
	g.why = f.why.with(decides, c.why)
	g.dormant = f.dormant || c.sure(no)
	g.depth++
	if f.out != nil {
		out := *f.out
		g.out = &out
	}
	switch {
	case body == nil:
		return &g, done
	case !sh.enter(&g):
		return &g, answer{}
	}
	return &g, body(&g)
}

// apart walks through body in a shell of its own.
func (sh *Walk) apart(f *frame, body func(*frame) answer) answer {
	g := *f
	g.vars, g.end = &store{up: f.vars}, &ending{}
	g.depth++
	if !sh.enter(&g) {
		return answer{}
	}
	return body(&g)
}

// output is what commands write when they run in a shell of their own.
func (sh *Walk) output(f *frame, body func(*frame) answer) value {
	out := newOutput()
	sh.apart(f, func(g *frame) answer { g.out = out; return body(g) })
	return out.value
}

// process is a frame for another process: only what is exported goes on.
func (sh *Walk) process(f *frame, args []value) *frame {
	g := *f
	g.vars, g.end = &store{}, &ending{}
	all := f.vars.all()
	sh.steps += len(all) / 4 // passing them on costs as much as walking through commands
	for name, v := range all {
		if v.exported {
			g.vars.set(name, v)
		}
	}
	g.funcs, g.saved = map[string]function{}, nil
	sh.setArgs(&g, args)
	g.depth++
	return &g
}

// output is what commands write to their standard output, in so many pieces.
type output struct {
	value
	pieces int
}

func newOutput() *output { return &output{value: literal("")} }

// emit writes to standard output.
func (sh *Walk) emit(f *frame, v value) {
	if f.out != nil {
		v.list = nil
		f.out.value = f.out.and(v)
		f.out.pieces++
	}
}
