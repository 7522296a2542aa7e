package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
)

// testExpr is [[ … ]].
func (sh *Walk) testExpr(f *frame, x syntax.TestExpr) (tri, names) {
	if !sh.enter(f) {
		return maybe, nil
	}
	g := *f
	g.depth++
	switch x := x.(type) {
	case *syntax.ParenTest:
		return sh.testExpr(&g, x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			ok, why := sh.testExpr(&g, x.X)
			return ok.not(), why
		}
		if w, ok := x.X.(*syntax.Word); ok {
			return sh.unary(f, x.Op.String(), sh.text(f, w))
		}
	case *syntax.BinaryTest:
		if x.Op == syntax.AndTest || x.Op == syntax.OrTest {
			a, why := sh.testExpr(&g, x.X)
			b, more := sh.testExpr(&g, x.Y)
			return decide(x.Op == syntax.OrTest, a, b, why, more)
		}
		a, ok1 := x.X.(*syntax.Word)
		b, ok2 := x.Y.(*syntax.Word)
		if !ok1 || !ok2 {
			break
		}
		switch x.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr: // arithmetic in [[
			v := unknown(sh.arithmetic(f, a, x.Pos()), sh.arithmetic(f, b, x.Pos()))
			return maybe, v.data.with(v.why)
		}
		return compare(x.Op.String(), sh.text(f, a), sh.text(f, b))
	case *syntax.Word:
		return sh.unary(f, "-n", sh.text(f, x))
	}
	return maybe, nil
}

// decide is a and b, or a or b. What the first decides alone doesn't depend on the second.
func decide(or bool, a, b tri, why, more names) (tri, names) {
	if or {
		if a == yes && len(why) == 0 {
			return yes, nil
		}
		return a.or(b), why.with(more)
	}
	if a == no && len(why) == 0 {
		return no, nil
	}
	return a.and(b), why.with(more)
}

// test is test and [, whose arguments are words already.
func (sh *Walk) test(f *frame, args []value) (tri, names) {
	for i, a := range args {
		if a.known && (a.text == "-a" || a.text == "-o") && i > 0 && i < len(args)-1 && len(args) > 3 {
			x, why := sh.test(f, args[:i])
			y, more := sh.test(f, args[i+1:])
			return decide(a.text == "-o", x, y, why, more)
		}
	}
	not := len(args) > 1 && args[0].known && args[0].text == "!"
	switch {
	case not && (len(args) != 3 || strings.HasPrefix(args[1].text, "-")): // [ ! = x ] compares
		ok, why := sh.test(f, args[1:])
		return ok.not(), why
	case len(args) == 0:
		return no, nil
	case len(args) == 1:
		return sh.unary(f, "-n", args[0])
	case len(args) == 2 && args[0].known:
		return sh.unary(f, args[0].text, args[1])
	case len(args) == 3 && args[1].known:
		return compare(args[1].text, args[0], args[2])
	}
	v := unknown(args...)
	return maybe, v.data.with(v.why)
}

func (sh *Walk) unary(f *frame, op string, v value) (tri, names) {
	why := v.data.with(v.why)
	switch op {
	case "-z", "-n":
		if !v.known {
			return maybe, why
		}
		return truth((v.text == "") == (op == "-z")), why
	case "-e", "-f", "-d", "-s", "-x", "-L", "-h":
		p := file(v)
		if p == "" {
			return maybe, why
		}
		if by, ok := sh.changedAt(p); ok {
			return maybe, why.with(by)
		}
		e, ok := sh.img.Stat(p)
		switch op {
		case "-f":
			ok = ok && (e.Type == image.TypeFile || e.Type == image.TypeLink)
		case "-d":
			ok = ok && e.IsDir()
		case "-s":
			ok = ok && (e.Size > 0 || e.IsDir())
		case "-x":
			ok = ok && (e.Mode&0o111 != 0 || e.IsDir())
		case "-L", "-h":
			e, ok = sh.img.Lookup(p)
			ok = ok && e.Type == image.TypeSymlink
		}
		return truth(ok), why
	case "-v":
		if v.known && syntax.ValidName(v.text) {
			w := sh.peek(f, v.text)
			return maybe, why.with(w.data, w.why)
		}
	}
	return maybe, why
}

// changedAt tells whether a script has made or taken away p, or a directory around it, and what decided on that.
func (sh *Walk) changedAt(p string) (names, bool) {
	for _, at := range append(image.Parents(p), p) {
		if by, ok := sh.touched[at]; ok && at != "/" {
			return by, true
		}
	}
	return nil, false
}

func compare(op string, a, b value) (tri, names) {
	why := a.data.with(a.why, b.data, b.why)
	if !a.known || !b.known {
		return maybe, why
	}
	switch op {
	case "=", "==":
		if op == "==" && strings.ContainsAny(b.text, "*?[\\") {
			return maybe, why
		}
		return truth(a.text == b.text), why
	case "!=":
		if strings.ContainsAny(b.text, "*?[\\") {
			return maybe, why
		}
		return truth(a.text != b.text), why
	}
	return maybe, why
}
