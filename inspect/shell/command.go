package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// seq walks through commands one after the other.
func (sh *Walk) seq(f *frame, stmts []*syntax.Stmt) answer {
	return sh.each(f, 0, len(stmts), func(g *frame, i int) answer { return sh.stmt(g, stmts[i]) })
}

func (sh *Walk) stmt(f *frame, s *syntax.Stmt) answer {
	if !sh.enter(f) {
		return answer{}
	}
	if s.Background || s.Coprocess || s.Disown {
		c := *s
		c.Background, c.Coprocess, c.Disown = false, false, false
		sh.apart(f, func(g *frame) answer { g.out = nil; return sh.stmt(g, &c) })
		return done
	}
	g := *f
	type target struct {
		to  value
		how string
		at  tree.Place
	}
	var targets []target // the files that standard output goes to
	for _, r := range s.Redirs {
		var in value
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			in = sh.document(f, r.Hdoc)
		case syntax.WordHdoc:
			in = sh.text(f, r.Word).and(literal("\n"))
		case syntax.RdrIn, syntax.RdrInOut:
			in = sh.input(f, r.Word)
		case syntax.DplIn, syntax.DplOut:
			sh.text(f, r.Word)
			continue
		default:
			t := target{sh.text(f, r.Word), r.Op.String(), sh.place(f, r.Pos())}
			if r.N != nil && r.N.Value == "2" {
				sh.write(f, t.to, value{}, t.how, t.at)
				continue
			}
			targets = append(targets, t)
			g.out = newOutput()
			continue
		}
		g.stdin = &in
	}
	a := done
	if s.Cmd != nil {
		a = sh.command(&g, s.Cmd)
	}
	for _, t := range targets {
		sh.write(f, t.to, g.out.value, t.how, t.at)
	}
	if s.Negated {
		return a.not()
	}
	return a
}

// input is the content of the file that a redirection names, or what <(…) writes.
func (sh *Walk) input(f *frame, w *syntax.Word) value {
	if len(w.Parts) == 1 {
		if p, ok := w.Parts[0].(*syntax.ProcSubst); ok {
			return sh.output(f, func(g *frame) answer { return sh.seq(g, p.Stmts) })
		}
	}
	return sh.content(sh.text(f, w))
}

// content is that of the file that v names.
func (sh *Walk) content(v value) value {
	c := unknown(v)
	c.file = file(v)
	c.from = c.from.with(inside, sh.touched[c.file])
	return c
}

func (sh *Walk) stdin(f *frame) value {
	if f.stdin == nil {
		return value{}
	}
	return *f.stdin
}

func (sh *Walk) command(f *frame, c syntax.Command) answer {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return sh.call(f, c)
	case *syntax.Block:
		return sh.seq(f, c.Stmts)
	case *syntax.Subshell:
		return sh.apart(f, func(g *frame) answer { return sh.seq(g, c.Stmts) })
	case *syntax.BinaryCmd:
		return sh.binary(f, c)
	case *syntax.IfClause:
		return sh.ifClause(f, c)
	case *syntax.WhileClause:
		cond := sh.seq(f, c.Cond)
		return sh.then(f, cond, func(g *frame) answer { return sh.loop(g, cond.why, c.Do) })
	case *syntax.ForClause:
		return sh.forClause(f, c)
	case *syntax.CaseClause:
		return sh.caseItems(f, sh.text(f, c.Word), c.Items)
	case *syntax.FuncDecl:
		if c.Name != nil {
			f.funcs[c.Name.Value] = function{c.Body, f.at, f.base}
		}
		return done
	case *syntax.DeclClause:
		return sh.declare(f, c)
	case *syntax.TestClause:
		return sh.testExpr(f, c.X)
	case *syntax.ArithmCmd:
		return dependsOn(maybe, sh.arithmetic(f, c.X))
	case *syntax.LetClause:
		for _, x := range c.Exprs {
			sh.arithmetic(f, x)
		}
		return answer{}
	case *syntax.TimeClause:
		if c.Stmt != nil {
			return sh.stmt(f, c.Stmt)
		}
		return done
	}
	sh.Note(sh.place(f, c.Pos()), "a command of this kind can't be followed")
	return answer{}
}

func (sh *Walk) binary(f *frame, c *syntax.BinaryCmd) answer {
	if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
		in := sh.output(f, func(g *frame) answer { return sh.stmt(g, c.X) })
		return sh.apart(f, func(g *frame) answer { g.stdin = &in; return sh.stmt(g, c.Y) })
	}
	g := *f
	g.depth++
	x := sh.stmt(&g, c.X)
	return sh.then(f, x, func(g *frame) answer {
		y := func(g *frame) answer { return sh.stmt(g, c.Y) }
		skip := func(*frame) answer { return answer{is: truth(c.Op == syntax.OrStmt)} }
		if c.Op == syntax.OrStmt {
			return sh.choose(g, x.not(), y, skip)
		}
		return sh.choose(g, x, y, skip)
	})
}

func (sh *Walk) ifClause(f *frame, c *syntax.IfClause) answer {
	if len(c.Cond) == 0 { // else
		return sh.seq(f, c.Then)
	}
	cond := sh.seq(f, c.Cond)
	return sh.then(f, cond, func(g *frame) answer {
		var other func(*frame) answer
		if c.Else != nil {
			other = func(g *frame) answer { return sh.ifClause(g, c.Else) }
		}
		return sh.choose(g, cond, func(g *frame) answer { return sh.seq(g, c.Then) }, other)
	})
}

// loop walks through body once, as something that may happen.
func (sh *Walk) loop(f *frame, why origin, body []*syntax.Stmt) answer {
	return sh.choose(f, answer{why: why}, func(g *frame) answer {
		a := sh.seq(g, body)
		g.end.catch(breaks)
		return a
	}, nil)
}

func (sh *Walk) forClause(f *frame, c *syntax.ForClause) answer {
	iter, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
			for _, x := range []syntax.ArithmExpr{l.Init, l.Cond, l.Post} {
				sh.arithmetic(f, x)
			}
		}
		return sh.loop(f, nil, c.Do)
	}
	items := sh.args(f)
	if iter.InPos.IsValid() {
		items = sh.fields(f, iter.Items)
	}
	whole := !c.Select && len(items) <= maxLoop
	for _, v := range items {
		whole = whole && v.known
	}
	if !whole {
		var from origin
		for _, v := range items {
			from = from.with(begins, v.from)
		}
		sh.set(f, iter.Name.Value, value{from: from})
		return sh.loop(f, from, c.Do)
	}
	a := sh.each(f, 0, len(items), func(g *frame, i int) answer {
		sh.set(g, iter.Name.Value, items[i])
		a := sh.seq(g, c.Do)
		g.end.catch(continues)
		return a
	})
	f.end.catch(breaks)
	return a
}

func (sh *Walk) caseItems(f *frame, v value, items []*syntax.CaseItem) answer {
	if len(items) == 0 {
		return done
	}
	cond := dependsOn(no, v)
	for _, w := range items[0].Patterns {
		p := sh.text(f, w)
		is := maybe
		switch {
		case p.known && p.text == "*":
			is = yes
		case v.known && p.known && !strings.ContainsAny(p.text, "*?[\\("):
			is = truth(v.text == p.text)
		}
		cond = answer{max(cond.is, is), cond.why.with(decides, p.from)}
	}
	if p := items[0].Patterns; len(p) == 1 && p[0].Lit() == "*" {
		return sh.seq(f, items[0].Stmts)
	}
	return sh.choose(f, cond, func(g *frame) answer { return sh.seq(g, items[0].Stmts) },
		func(g *frame) answer { return sh.caseItems(g, v, items[1:]) })
}

func (sh *Walk) call(f *frame, c *syntax.CallExpr) answer {
	if len(c.Args) == 0 {
		a := done
		for _, x := range c.Assigns {
			if x.Name == nil {
				continue
			}
			v := sh.assigned(f, x)
			if !v.known {
				a.is = maybe
			}
			sh.set(f, x.Name.Value, v)
		}
		return a
	}
	args := sh.fields(f, c.Args)
	if len(args) == 0 {
		return answer{}
	}
	// The variables before a command are its own; what it sets besides, as read does, stays.
	before := map[string]variable{}
	for _, x := range c.Assigns {
		if x.Name != nil {
			v := variable{value: sh.assigned(f, x), exported: true}
			if _, again := before[x.Name.Value]; !again {
				before[x.Name.Value] = sh.peek(f, x.Name.Value)
			}
			f.vars.set(x.Name.Value, v)
		}
	}
	a := sh.run(f, args, c.Pos())
	for name, v := range before {
		f.vars.set(name, v)
	}
	return a
}

// run runs a command: a function, a builtin or a program.
func (sh *Walk) run(f *frame, args []value, pos syntax.Pos) answer {
	if !sh.enter(f) {
		return answer{}
	}
	name := args[0]
	sh.hook(f, name.from.names(begins), "command", pos)
	if !name.known || name.text == "" {
		if !name.known {
			sh.Note(sh.place(f, pos), "which command is run here can't be told%s", because(name))
		}
		sh.emit(f, unknown(args...))
		return dependsOn(maybe, args...)
	}
	if fn, ok := f.funcs[name.text]; ok {
		return sh.callFunction(f, fn, args)
	}
	if a, ok := sh.builtin(f, args, pos); ok {
		return a
	}
	return sh.program(f, args, pos)
}

func because(v value) string {
	if data := v.data(); len(data) > 0 {
		return ", but it depends on " + strings.Join(data, ", ")
	}
	return ""
}

type function struct {
	body *syntax.Stmt
	at   string
	base int
}

// callFunction runs a function of the script.
func (sh *Walk) callFunction(f *frame, fn function, args []value) answer {
	name := "function " + args[0].text
	g := *f
	g.at, g.base = fn.at, fn.base
	g.saved = map[string]variable{"@": sh.peek(f, "@")}
	g.depth++
	if !sh.again(f, name) || !sh.enter(&g) {
		return answer{}
	}
	g.calls = append(slices.Clip(f.calls), name)
	sh.setArgs(&g, args[1:])
	a := sh.stmt(&g, fn.body)
	for name, v := range g.saved {
		f.vars.set(name, v)
	}
	f.end.catch(returns)
	return a
}

// again tells whether something may be called once more within itself.
func (sh *Walk) again(f *frame, name string) bool {
	const most = 3
	n := 0
	for _, c := range f.calls {
		if c == name {
			n++
		}
	}
	if n == most {
		sh.Note(tree.Place{Path: f.at}, "%s calls itself: it is not followed further", name)
	}
	return n < most
}
