package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
)

// testExpr is [[ … ]].
func (sh *Walk) testExpr(f *frame, x syntax.TestExpr) answer {
	if !sh.enter(f) {
		return answer{}
	}
	operand := func(x syntax.TestExpr) value {
		if w, ok := x.(*syntax.Word); ok {
			return sh.text(f, w)
		}
		return value{}
	}
	switch x := x.(type) {
	case *syntax.ParenTest:
		return sh.testExpr(f, x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			return sh.testExpr(f, x.X).not()
		}
		return sh.unary(x.Op.String(), operand(x.X))
	case *syntax.BinaryTest:
		switch x.Op {
		case syntax.AndTest:
			return sh.testExpr(f, x.X).and(sh.testExpr(f, x.Y))
		case syntax.OrTest:
			return sh.testExpr(f, x.X).or(sh.testExpr(f, x.Y))
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr: // arithmetic in [[
			a, _ := x.X.(*syntax.Word)
			b, _ := x.Y.(*syntax.Word)
			if a != nil && b != nil {
				return dependsOn(maybe, sh.arithmetic(f, a), sh.arithmetic(f, b))
			}
		}
		return compare(x.Op.String(), operand(x.X), operand(x.Y))
	}
	return sh.unary("-n", operand(x))
}

// test is test and [, whose arguments are words already. With more than one condition in it, it isn't understood.
func (sh *Walk) test(args []value) answer {
	not := len(args) > 1 && args[0].known && args[0].text == "!"
	switch {
	case not && (len(args) != 3 || strings.HasPrefix(args[1].text, "-")): // [ ! = x ] compares
		return sh.test(args[1:]).not()
	case len(args) == 0:
		return answer{is: no}
	case len(args) == 1:
		return sh.unary("-n", args[0])
	case len(args) == 2 && args[0].known:
		return sh.unary(args[0].text, args[1])
	case len(args) == 3 && args[1].known:
		return compare(args[1].text, args[0], args[2])
	}
	return dependsOn(maybe, args...)
}

func (sh *Walk) unary(op string, v value) answer {
	switch op {
	case "-n", "-z":
		if !v.known && v.text == "" {
			return dependsOn(maybe, v)
		}
		return dependsOn(truth((v.text == "") == (op == "-z")), v)
	case "-e", "-f", "-d", "-s", "-x", "-L", "-h":
	default:
		return dependsOn(maybe, v)
	}
	p := file(v)
	if p == "" {
		return dependsOn(maybe, v)
	}
	for _, at := range append(image.Parents(p), p) {
		if by, ok := sh.touched[at]; ok && at != "/" {
			return dependsOn(maybe, v, value{from: by})
		}
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
	return dependsOn(truth(ok), v)
}

func compare(op string, a, b value) answer {
	pattern := op != "=" && strings.ContainsAny(b.text, "*?[\\")
	if !a.known || !b.known || pattern || op != "=" && op != "==" && op != "!=" {
		return dependsOn(maybe, a, b)
	}
	return dependsOn(truth((a.text == b.text) == (op != "!=")), a, b)
}
