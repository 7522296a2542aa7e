package shell

import "slices"

// branch is one of two ways, walked through.
type branch struct {
	vars   *store
	out    *output
	status status
}

// branch walks through body as if it were taken. cond says whether it is, and depends on why.
func (sh *Walk) branch(f *frame, cond tri, why names, body func(*frame) status) branch {
	g := *f
	g.vars = &store{up: f.vars}
	g.why = f.why.with(why)
	g.dormant = f.dormant || cond == no && len(why) == 0
	g.depth++
	args := slices.Clone(*f.args)
	if f.out != nil {
		g.out = newOutput()
	}
	st := status{}
	if sh.enter(&g) {
		st = body(&g)
	}
	if cond != yes {
		*f.args = args
	}
	return branch{g.vars, g.out, st}
}

// join puts what two ways leave into f.
func (sh *Walk) join(f *frame, cond tri, why names, a, b branch) status {
	keys := map[string]bool{}
	for _, br := range []branch{a, b} {
		if br.vars != nil {
			for k := range br.vars.vars {
				keys[k] = true
			}
		}
	}
	// What a way leaves that ends the script is gone; after return and break the caller or what follows the loop has it.
	aEnds, bEnds := a.status.end == exits && a.status.sure, b.status.end == exits && b.status.sure
	for _, k := range sorted(keys) {
		before := sh.peekKey(f, k)
		va, vb := before, before
		if a.vars != nil {
			if v, ok := a.vars.vars[k]; ok {
				va = v
			}
		}
		if b.vars != nil {
			if v, ok := b.vars.vars[k]; ok {
				vb = v
			}
		}
		switch {
		case aEnds && !bEnds:
			f.vars.set(k, vb)
		case bEnds && !aEnds:
			f.vars.set(k, va)
		default:
			f.vars.set(k, meet(cond, why, va, vb))
		}
	}
	f.out.merge(a.out, cond, why)
	f.out.merge(b.out, cond.not(), why)
	return choose(cond, why, a.status, b.status)
}

// apart walks through body in a shell of its own.
func (sh *Walk) apart(f *frame, body func(*frame) status) status {
	g := *f
	g.vars = &store{up: f.vars}
	args := slices.Clone(*f.args)
	g.args = &args
	g.depth++
	if !sh.enter(&g) {
		return status{}
	}
	st := body(&g)
	return status{ok: st.ok, why: st.why}
}

// either walks through body if cond says so.
func (sh *Walk) either(f *frame, cond tri, why names, body func(*frame) status) {
	sh.join(f, cond, why, sh.branch(f, cond, why, body), branch{status: status{ok: maybe}})
}
