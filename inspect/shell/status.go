package shell

// caught ends an ending at what it ends.
func caught(st status, at ending) status {
	if st.end != goesOn && st.end <= at {
		if !st.sure {
			st.ok = maybe
		}
		st.end, st.sure, st.when, st.whenWhy = goesOn, false, maybe, nil
	}
	return st
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
