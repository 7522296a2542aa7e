package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// seq walks through commands one after the other.
func (sh *Walk) seq(f *frame, stmts []*syntax.Stmt) status {
	last := status{ok: yes}
	for i, s := range stmts {
		last = sh.stmt(f, s)
		if last.end == goesOn {
			continue
		}
		if last.sure {
			return last
		}
		// The rest happens unless the end came.
		cond := last.when.not()
		rest := sh.branch(f, cond, last.whenWhy, func(g *frame) status { return sh.seq(g, stmts[i+1:]) })
		ended := branch{status: status{ok: last.ok, why: last.why, end: last.end, sure: true, fails: last.fails}}
		return sh.join(f, cond, last.whenWhy, rest, ended)
	}
	return last
}

func (sh *Walk) stmt(f *frame, s *syntax.Stmt) status {
	if !sh.enter(f) {
		return status{}
	}
	if s.Background || s.Coprocess || s.Disown {
		c := *s
		c.Background, c.Coprocess, c.Disown = false, false, false
		sh.apart(f, func(g *frame) status { g.out = nil; return sh.stmt(g, &c) })
		return status{ok: yes}
	}
	g := f
	var targets []value // files that standard output goes to
	var places []tree.Place
	var how []string
	if len(s.Redirs) > 0 {
		c := *f
		g = &c
		for _, r := range s.Redirs {
			fd := ""
			if r.N != nil {
				fd = r.N.Value
			}
			switch r.Op {
			case syntax.Hdoc, syntax.DashHdoc:
				v := literal("")
				if r.Hdoc != nil {
					v = sh.text(f, r.Hdoc)
					v.file = ""
				}
				g.stdin = &v
			case syntax.WordHdoc:
				v := sh.text(f, r.Word).and(literal("\n"))
				g.stdin = &v
			case syntax.RdrIn, syntax.RdrInOut:
				v := sh.input(f, r.Word)
				g.stdin = &v
			case syntax.DplIn, syntax.DplOut:
				sh.text(f, r.Word)
			default:
				to := sh.text(f, r.Word)
				if fd == "2" {
					sh.write(f, to, value{}, r.Op.String(), sh.place(f, r.Pos()))
					continue
				}
				targets, places, how = append(targets, to), append(places, sh.place(f, r.Pos())), append(how, r.Op.String())
			}
		}
		if len(targets) > 0 {
			g.out = newOutput()
		}
	}
	st := status{ok: yes}
	if s.Cmd != nil {
		st = sh.command(g, s.Cmd)
	}
	for i, to := range targets {
		sh.write(f, to, g.out.value, how[i], places[i])
	}
	if s.Negated {
		st.ok = st.ok.not()
	}
	return st
}

// input is the content of the file that a redirection names, or what <(…) writes.
func (sh *Walk) input(f *frame, w *syntax.Word) value {
	if len(w.Parts) == 1 {
		if p, ok := w.Parts[0].(*syntax.ProcSubst); ok {
			return sh.output(f, p.Stmts)
		}
	}
	from := sh.text(f, w)
	v := unknown(from)
	v.file = file(from)
	v.data = v.data.with(sh.touched[v.file])
	return v
}

// output is what commands write when they run in a shell of their own.
func (sh *Walk) output(f *frame, stmts []*syntax.Stmt) value {
	out := newOutput()
	sh.apart(f, func(g *frame) status { g.out = out; return sh.seq(g, stmts) })
	return out.value
}

func (sh *Walk) command(f *frame, c syntax.Command) status {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return sh.call(f, c)
	case *syntax.Block:
		return sh.seq(f, c.Stmts)
	case *syntax.Subshell:
		return sh.apart(f, func(g *frame) status { return sh.seq(g, c.Stmts) })
	case *syntax.BinaryCmd:
		return sh.binary(f, c)
	case *syntax.IfClause:
		return sh.ifClause(f, c)
	case *syntax.WhileClause:
		cond := sh.seq(f, c.Cond)
		if cond.end != goesOn && cond.sure {
			return cond
		}
		return sh.loop(f, cond.why, func(g *frame) status { return sh.seq(g, c.Do) })
	case *syntax.ForClause:
		return sh.forClause(f, c)
	case *syntax.CaseClause:
		v := sh.text(f, c.Word)
		return sh.caseItems(f, v, c.Items)
	case *syntax.FuncDecl:
		if c.Name != nil {
			f.funcs[c.Name.Value] = function{c.Body, f.at, f.base}
		}
		return status{ok: yes}
	case *syntax.DeclClause:
		return sh.declare(f, c)
	case *syntax.TestClause:
		ok, why := sh.testExpr(f, c.X)
		return status{ok: ok, why: why}
	case *syntax.ArithmCmd:
		v := sh.arithmetic(f, c.X, c.Pos())
		return status{why: v.data.with(v.why)}
	case *syntax.LetClause:
		for _, x := range c.Exprs {
			sh.arithmetic(f, x, c.Pos())
		}
		return status{}
	case *syntax.TimeClause:
		if c.Stmt != nil {
			return sh.stmt(f, c.Stmt)
		}
		return status{ok: yes}
	case *syntax.CoprocClause:
		sh.apart(f, func(g *frame) status { g.out = nil; return sh.stmt(g, c.Stmt) })
		return status{ok: yes}
	}
	sh.Note(sh.place(f, c.Pos()), "a command of this kind can't be followed")
	return status{}
}

func (sh *Walk) binary(f *frame, c *syntax.BinaryCmd) status {
	if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
		out := newOutput()
		sh.apart(f, func(g *frame) status { g.out = out; return sh.stmt(g, c.X) })
		v := out.value
		return sh.apart(f, func(g *frame) status { g.stdin = &v; return sh.stmt(g, c.Y) })
	}
	g := *f
	g.depth++
	x := sh.stmt(&g, c.X)
	if x.end != goesOn && x.sure {
		return x
	}
	cond := x.ok
	if c.Op == syntax.OrStmt {
		cond = cond.not()
	}
	y := sh.branch(f, cond, x.why, func(g *frame) status { return sh.stmt(g, c.Y) })
	st := sh.join(f, cond, x.why, y, branch{status: status{ok: truth(c.Op == syntax.OrStmt), why: x.why}})
	if x.end != goesOn && st.end == goesOn {
		st.end, st.when, st.whenWhy = x.end, x.when, x.whenWhy
	}
	return st
}

func (sh *Walk) ifClause(f *frame, c *syntax.IfClause) status {
	if len(c.Cond) == 0 { // else
		return sh.seq(f, c.Then)
	}
	cond := sh.seq(f, c.Cond)
	if cond.end != goesOn && cond.sure {
		return cond
	}
	then := sh.branch(f, cond.ok, cond.why, func(g *frame) status { return sh.seq(g, c.Then) })
	other := branch{status: status{ok: yes}}
	if c.Else != nil {
		other = sh.branch(f, cond.ok.not(), cond.why, func(g *frame) status { return sh.ifClause(g, c.Else) })
	}
	return sh.join(f, cond.ok, cond.why, then, other)
}

// loop walks through body once, as something that may happen.
func (sh *Walk) loop(f *frame, why names, body func(*frame) status) status {
	b := sh.branch(f, maybe, why, body)
	if b.status.end == breaks || b.status.sure {
		b.status.end, b.status.sure = goesOn, false
	}
	return sh.join(f, maybe, why, b, branch{status: status{ok: yes}})
}

func (sh *Walk) forClause(f *frame, c *syntax.ForClause) status {
	iter, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
			for _, x := range []syntax.ArithmExpr{l.Init, l.Cond, l.Post} {
				sh.arithmetic(f, x, c.Pos())
			}
		}
		return sh.loop(f, nil, func(g *frame) status { return sh.seq(g, c.Do) })
	}
	items := *f.args
	if iter.InPos.IsValid() {
		items = sh.fields(f, iter.Items)
	}
	whole := !c.Select && len(items) <= maxLoop
	for _, v := range items {
		whole = whole && v.known
	}
	if !whole {
		all := unknown(items...)
		for _, v := range items {
			if !v.fixed {
				all.head = all.head.with(v.head)
			}
		}
		sh.set(f, iter.Name.Value, all)
		return sh.loop(f, all.data.with(all.why), func(g *frame) status { return sh.seq(g, c.Do) })
	}
	st := status{ok: yes}
	for _, v := range items {
		sh.set(f, iter.Name.Value, v)
		st = sh.seq(f, c.Do)
		if st.end != goesOn && st.sure && st.end != breaks {
			return st
		}
		if st.end == breaks && st.sure {
			break
		}
	}
	if st.end == breaks {
		st.end = goesOn
	}
	return st
}

func (sh *Walk) caseItems(f *frame, v value, items []*syntax.CaseItem) status {
	if len(items) == 0 {
		return status{ok: yes}
	}
	item := items[0]
	why := v.data.with(v.why)
	cond := no
	for _, w := range item.Patterns {
		p := sh.text(f, w)
		why = why.with(p.data, p.why)
		switch {
		case p.known && p.text == "*":
			cond = yes
		case !v.known || !p.known || strings.ContainsAny(p.text, "*?[\\("):
			cond = cond.or(maybe)
		default:
			cond = cond.or(truth(v.text == p.text))
		}
	}
	if cond == yes && len(item.Patterns) == 1 && item.Patterns[0].Lit() == "*" {
		return sh.seq(f, item.Stmts)
	}
	then := sh.branch(f, cond, why, func(g *frame) status { return sh.seq(g, item.Stmts) })
	rest := items[1:]
	other := sh.branch(f, cond.not(), why, func(g *frame) status { return sh.caseItems(g, v, rest) })
	return sh.join(f, cond, why, then, other)
}
