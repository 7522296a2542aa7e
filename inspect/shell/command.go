package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// walkStatements walks through statements in turn and returns the answer of the last.
func (sh *Walk) walkStatements(f *frame, stmts []*syntax.Stmt) answer {
	return sh.walkSequence(f, 0, len(stmts), func(g *frame, i int) answer { return sh.walkStatement(g, stmts[i]) })
}

// walkStatement walks through one statement with its redirections.
func (sh *Walk) walkStatement(f *frame, s *syntax.Stmt) answer {
	if !sh.enter(f) {
		return answer{}
	}
	if s.Background || s.Coprocess || s.Disown {
		c := *s
		c.Background, c.Coprocess, c.Disown = false, false, false
		sh.walkSubshell(f, func(g *frame) answer { g.out = nil; return sh.walkStatement(g, &c) })
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
			in = sh.expandDocument(f, r.Hdoc)
		case syntax.WordHdoc:
			in = sh.expandText(f, r.Word).concat(literal("\n"))
		case syntax.RdrIn, syntax.RdrInOut:
			in = sh.readInput(f, r.Word)
		case syntax.DplIn, syntax.DplOut:
			sh.expandText(f, r.Word)
			continue
		default:
			t := target{sh.expandText(f, r.Word), r.Op.String(), sh.placeOf(f, r.Pos())}
			if r.N != nil && r.N.Value == "2" {
				sh.recordWrite(f, t.to, value{}, t.how, t.at)
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
		a = sh.walkCommand(&g, s.Cmd)
	}
	for _, t := range targets {
		sh.recordWrite(f, t.to, g.out.value, t.how, t.at)
	}
	if s.Negated {
		return a.negate()
	}
	return a
}

// readInput returns the content of the file that a redirection names, or the output of <(…).
func (sh *Walk) readInput(f *frame, w *syntax.Word) value {
	if len(w.Parts) == 1 {
		if p, ok := w.Parts[0].(*syntax.ProcSubst); ok {
			return sh.captureOutput(f, func(g *frame) answer { return sh.walkStatements(g, p.Stmts) })
		}
	}
	return sh.contentOf(sh.expandText(f, w))
}

// contentOf returns the content of the file that v names: its text is unknown, and it comes from what decides on the
// file.
func (sh *Walk) contentOf(v value) value {
	c := unknown(v)
	c.file = pathOf(v)
	c.from = c.from.addOrigins(inside, sh.touched[c.file])
	return c
}

// stdinOf returns the standard input of f; it is unknown when f has none.
func (sh *Walk) stdinOf(f *frame) value {
	if f.stdin == nil {
		return value{}
	}
	return *f.stdin
}

// walkCommand walks through one command of any kind.
func (sh *Walk) walkCommand(f *frame, c syntax.Command) answer {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return sh.walkCall(f, c)
	case *syntax.Block:
		return sh.walkStatements(f, c.Stmts)
	case *syntax.Subshell:
		return sh.walkSubshell(f, func(g *frame) answer { return sh.walkStatements(g, c.Stmts) })
	case *syntax.BinaryCmd:
		return sh.walkBinary(f, c)
	case *syntax.IfClause:
		return sh.walkIf(f, c)
	case *syntax.WhileClause:
		cond := sh.walkStatements(f, c.Cond)
		return sh.walkRest(f, cond, func(g *frame) answer { return sh.walkLoop(g, cond.why, c.Do) })
	case *syntax.ForClause:
		return sh.walkFor(f, c)
	case *syntax.CaseClause:
		return sh.walkCase(f, sh.expandText(f, c.Word), c.Items)
	case *syntax.FuncDecl:
		if c.Name != nil {
			f.funcs[c.Name.Value] = function{c.Body, f.at, f.base}
		}
		return done
	case *syntax.DeclClause:
		return sh.runDeclare(f, c)
	case *syntax.TestClause:
		return sh.walkTest(f, c.X)
	case *syntax.ArithmCmd:
		return dependsOn(maybe, sh.expandArithmetic(f, c.X))
	case *syntax.LetClause:
		for _, x := range c.Exprs {
			sh.expandArithmetic(f, x)
		}
		return answer{}
	case *syntax.TimeClause:
		if c.Stmt != nil {
			return sh.walkStatement(f, c.Stmt)
		}
		return done
	}
	sh.Note(sh.placeOf(f, c.Pos()), "a command of this kind can't be followed")
	return answer{}
}

// walkBinary walks through a pipe, && or ||.
func (sh *Walk) walkBinary(f *frame, c *syntax.BinaryCmd) answer {
	if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
		in := sh.captureOutput(f, func(g *frame) answer { return sh.walkStatement(g, c.X) })
		return sh.walkSubshell(f, func(g *frame) answer { g.stdin = &in; return sh.walkStatement(g, c.Y) })
	}
	g := *f
	g.depth++
	x := sh.walkStatement(&g, c.X)
	return sh.walkRest(f, x, func(g *frame) answer {
		y := func(g *frame) answer { return sh.walkStatement(g, c.Y) }
		skip := func(*frame) answer { return answer{is: triOf(c.Op == syntax.OrStmt)} }
		if c.Op == syntax.OrStmt {
			return sh.walkChoice(g, x.negate(), y, skip)
		}
		return sh.walkChoice(g, x, y, skip)
	})
}

// walkIf walks through if, elif and else.
func (sh *Walk) walkIf(f *frame, c *syntax.IfClause) answer {
	if len(c.Cond) == 0 { // else
		return sh.walkStatements(f, c.Then)
	}
	cond := sh.walkStatements(f, c.Cond)
	return sh.walkRest(f, cond, func(g *frame) answer {
		var other func(*frame) answer
		if c.Else != nil {
			other = func(g *frame) answer { return sh.walkIf(g, c.Else) }
		}
		return sh.walkChoice(g, cond, func(g *frame) answer { return sh.walkStatements(g, c.Then) }, other)
	})
}

// walkLoop walks through body once, as a branch that may be taken, decided by why.
func (sh *Walk) walkLoop(f *frame, why origin, body []*syntax.Stmt) answer {
	return sh.walkChoice(f, answer{why: why}, func(g *frame) answer {
		a := sh.walkStatements(g, body)
		g.end.catchUpTo(breaks)
		return a
	}, nil)
}

// walkFor walks through a for or select loop: round by round when its items are known and at most maxLoop, otherwise
// once.
func (sh *Walk) walkFor(f *frame, c *syntax.ForClause) answer {
	iter, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
			for _, x := range []syntax.ArithmExpr{l.Init, l.Cond, l.Post} {
				sh.expandArithmetic(f, x)
			}
		}
		return sh.walkLoop(f, nil, c.Do)
	}
	items := sh.positionals(f)
	if iter.InPos.IsValid() {
		items = sh.expandFields(f, iter.Items)
	}
	whole := !c.Select && len(items) <= maxLoop
	for _, v := range items {
		whole = whole && v.known
	}
	if !whole {
		var from origin
		for _, v := range items {
			from = from.addOrigins(begins, v.from)
		}
		sh.assignVariable(f, iter.Name.Value, value{from: from})
		return sh.walkLoop(f, from, c.Do)
	}
	a := sh.walkSequence(f, 0, len(items), func(g *frame, i int) answer {
		sh.assignVariable(g, iter.Name.Value, items[i])
		a := sh.walkStatements(g, c.Do)
		g.end.catchUpTo(continues)
		return a
	})
	f.end.catchUpTo(breaks)
	return a
}

// walkCase walks through the items of a case, one choice inside the other.
func (sh *Walk) walkCase(f *frame, v value, items []*syntax.CaseItem) answer {
	if len(items) == 0 {
		return done
	}
	cond := dependsOn(no, v)
	for _, w := range items[0].Patterns {
		p := sh.expandText(f, w)
		is := maybe
		switch {
		case p.known && p.text == "*":
			is = yes
		case v.known && p.known && !strings.ContainsAny(p.text, "*?[\\("):
			is = triOf(v.text == p.text)
		}
		cond = answer{max(cond.is, is), cond.why.addOrigins(decides, p.from)}
	}
	if p := items[0].Patterns; len(p) == 1 && p[0].Lit() == "*" {
		return sh.walkStatements(f, items[0].Stmts)
	}
	return sh.walkChoice(f, cond, func(g *frame) answer { return sh.walkStatements(g, items[0].Stmts) },
		func(g *frame) answer { return sh.walkCase(g, v, items[1:]) })
}

// walkCall walks through assignments, or through a command with the assignments before it.
func (sh *Walk) walkCall(f *frame, c *syntax.CallExpr) answer {
	if len(c.Args) == 0 {
		a := done
		for _, x := range c.Assigns {
			if x.Name == nil {
				continue
			}
			v := sh.assignedValue(f, x)
			if !v.known {
				a.is = maybe
			}
			sh.assignVariable(f, x.Name.Value, v)
		}
		return a
	}
	args := sh.expandFields(f, c.Args)
	if len(args) == 0 {
		return answer{}
	}
	// The variables before a command are its own; what it sets besides, as read does, stays.
	before := map[string]variable{}
	for _, x := range c.Assigns {
		if x.Name != nil {
			v := variable{value: sh.assignedValue(f, x), exported: true}
			if _, again := before[x.Name.Value]; !again {
				before[x.Name.Value] = sh.peekVariable(f, x.Name.Value)
			}
			f.vars.setVariable(x.Name.Value, v)
		}
	}
	a := sh.runCommand(f, args, c.Pos())
	for name, v := range before {
		f.vars.setVariable(name, v)
	}
	return a
}

// runCommand runs a command: a function, a builtin or a program.
func (sh *Walk) runCommand(f *frame, args []value, pos syntax.Pos) answer {
	if !sh.enter(f) {
		return answer{}
	}
	name := args[0]
	sh.addHook(f, name.from.namesAtLeast(begins), "command", pos)
	if !name.known || name.text == "" {
		if !name.known {
			sh.Note(sh.placeOf(f, pos), "which command is run here can't be told%s", dependencyNote(name))
		}
		sh.emitOutput(f, unknown(args...))
		return dependsOn(maybe, args...)
	}
	if fn, ok := f.funcs[name.text]; ok {
		return sh.callFunction(f, fn, args)
	}
	if a, ok := sh.runBuiltin(f, args, pos); ok {
		return a
	}
	return sh.runProgram(f, args, pos)
}

// dependencyNote returns the end of a note: the variables that v depends on, or "" when there are none.
func dependencyNote(v value) string {
	if data := v.dataNames(); len(data) > 0 {
		return ", but it depends on " + strings.Join(data, ", ")
	}
	return ""
}

// function is a function of a script, and the place where its text begins.
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
	g.saved = map[string]variable{"@": sh.peekVariable(f, "@")}
	g.depth++
	if !sh.mayRecurse(f, name) || !sh.enter(&g) {
		return answer{}
	}
	g.calls = append(slices.Clip(f.calls), name)
	sh.setPositionals(&g, args[1:])
	a := sh.walkStatement(&g, fn.body)
	for name, v := range g.saved {
		f.vars.setVariable(name, v)
	}
	f.end.catchUpTo(returns)
	return a
}

// mayRecurse reports whether the function or script called name may run once more within itself, and adds a note when
// it may not.
func (sh *Walk) mayRecurse(f *frame, name string) bool {
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
