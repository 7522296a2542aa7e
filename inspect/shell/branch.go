package shell

import "maps"

// way is how far a command leaves the code around it, from nothing to the whole script.
type way int8

const (
	unsure    way = iota - 1 // one of the others
	goesOn                   // nothing is left
	continues                // the round of a loop is left
	breaks                   // the loop
	returns                  // the function or the sourced file
	exits                    // the script
)

// ending is how far the commands so far have left the code around them, which decides whether the next ones run.
type ending struct {
	// now is the way out with the image's own environment; with any other it is between least and most.
	least, now, most way
	// why are the variables that decide on it.
	why origin
	// fails is true when the start ends with an error.
	fails bool
}

// certainEnding returns the ending that leaves by w in every environment.
func certainEnding(w way) ending { return ending{least: w, now: w, most: w} }

// catchUpTo turns every way out that reaches no farther than w into going on, as a loop does with break.
func (e *ending) catchUpTo(w way) {
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

// mergeEndings returns the ending of a choice: a if c, otherwise b. A branch that fails the start doesn't count: no
// running container has taken it.
func mergeEndings(c answer, a, b ending) ending {
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
		e.why = c.why.addOrigins(decides, a.why, b.why)
	}
	return e
}

// walkSequence walks through bodies i to n-1 in turn, as long as none ends the code around them, and
// returns the answer of the last.
func (sh *Walk) walkSequence(f *frame, i, n int, body func(*frame, int) answer) answer {
	last := done
	for ; i < n; i++ {
		if f.end.most != goesOn {
			return sh.walkRest(f, last, func(g *frame) answer { return sh.walkSequence(g, i, n, body) })
		}
		last = body(f, i)
	}
	return last
}

// walkRest walks through the commands after one whose answer is last, as far as they are reached: not at all after a
// certain ending, as one branch after a possible one.
func (sh *Walk) walkRest(f *frame, last answer, rest func(*frame) answer) answer {
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
	return sh.walkChoice(f, c, rest, func(g *frame) answer {
		*g.end = certainEnding(e.most)
		return last
	})
}

// walkChoice walks through both branches of a choice and merges what they leave into f. A nil branch does nothing.
func (sh *Walk) walkChoice(f *frame, c answer, then, other func(*frame) answer) answer {
	a, ours := sh.walkBranch(f, c, then)
	b, theirs := sh.walkBranch(f, c.negate(), other)
	// The variables of a branch that ends the script are gone; after return and break the caller or the code after the
	// loop sees them.
	aEnds, bEnds := a.end.least == exits, b.end.least == exits
	changed := maps.Clone(a.vars.vars)
	if changed == nil {
		changed = map[string]variable{}
	}
	maps.Copy(changed, b.vars.vars)
	for name := range changed {
		va, vb := sh.peekVariable(a, name), sh.peekVariable(b, name)
		switch {
		case aEnds && !bEnds:
			f.vars.setVariable(name, vb)
		case bEnds && !aEnds:
			f.vars.setVariable(name, va)
		default:
			f.vars.setVariable(name, mergeVariables(c, va, vb))
		}
	}
	if f.out != nil && a.out.pieces+b.out.pieces > 2*f.out.pieces {
		f.out.pieces++
		f.out.value = mergeVariables(c, variable{value: a.out.value}, variable{value: b.out.value}).value
	}
	*f.end = mergeEndings(c, *a.end, *b.end)
	is := maybe
	switch {
	case c.is == yes || ours.is == theirs.is:
		is = ours.is
	case c.is == no:
		is = theirs.is
	}
	return answer{is, c.why.addOrigins(decides, ours.why, theirs.why)}
}

// walkBranch walks through body as the branch that c selects. It returns the branch's frame, and f stays as it was.
func (sh *Walk) walkBranch(f *frame, c answer, body func(*frame) answer) (*frame, answer) {
	g := *f
	g.vars, g.end = &store{up: f.vars}, &ending{}
	g.why = f.why.addOrigins(decides, c.why)
	g.dormant = f.dormant || c.isCertain(no)
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

// walkSubshell walks through body in a subshell: its variables and its ending don't reach f.
func (sh *Walk) walkSubshell(f *frame, body func(*frame) answer) answer {
	g := *f
	g.vars, g.end = &store{up: f.vars}, &ending{}
	g.depth++
	if !sh.enter(&g) {
		return answer{}
	}
	return body(&g)
}

// captureOutput walks through body in a subshell and returns what it writes to standard output.
func (sh *Walk) captureOutput(f *frame, body func(*frame) answer) value {
	out := newOutput()
	sh.walkSubshell(f, func(g *frame) answer { g.out = out; return body(g) })
	return out.value
}

// newProcess returns a frame for a new process with the arguments args: of f's variables it has only the exported ones.
func (sh *Walk) newProcess(f *frame, args []value) *frame {
	g := *f
	g.vars, g.end = &store{}, &ending{}
	all := f.vars.allVariables()
	sh.steps += len(all) / 4 // passing them on costs as much as walking through commands
	for name, v := range all {
		if v.exported {
			g.vars.setVariable(name, v)
		}
	}
	g.funcs, g.saved = map[string]function{}, nil
	sh.setPositionals(&g, args)
	g.depth++
	return &g
}

// output is the text that commands wrote to standard output, and the number of pieces it came in.
type output struct {
	value
	pieces int
}

func newOutput() *output { return &output{value: literal("")} }

// emitOutput appends v to the standard output of f.
func (sh *Walk) emitOutput(f *frame, v value) {
	if f.out != nil {
		v.list = nil
		f.out.value = f.out.concat(v)
		f.out.pieces++
	}
}
