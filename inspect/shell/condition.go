package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
)

// walkTest returns the answer of [[ … ]].
func (sh *Walk) walkTest(f *frame, x syntax.TestExpr) answer {
	if !sh.enter(f) {
		return answer{}
	}
	operand := func(x syntax.TestExpr) value {
		if w, ok := x.(*syntax.Word); ok {
			return sh.expandText(f, w)
		}
		return value{}
	}
	switch x := x.(type) {
	case *syntax.ParenTest:
		return sh.walkTest(f, x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			return sh.walkTest(f, x.X).negate()
		}
		return sh.testUnary(x.Op.String(), operand(x.X))
	case *syntax.BinaryTest:
		switch x.Op {
		case syntax.AndTest:
			return sh.walkTest(f, x.X).both(sh.walkTest(f, x.Y))
		case syntax.OrTest:
			return sh.walkTest(f, x.X).either(sh.walkTest(f, x.Y))
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr: // arithmetic in [[
			a, _ := x.X.(*syntax.Word)
			b, _ := x.Y.(*syntax.Word)
			if a != nil && b != nil {
				return dependsOn(maybe, sh.expandArithmetic(f, a), sh.expandArithmetic(f, b))
			}
		}
		return testBinary(x.Op.String(), operand(x.X), operand(x.Y))
	}
	return sh.testUnary("-n", operand(x))
}

// runTest returns the answer of test and [, whose arguments are words already. The answer of several
// conditions in one is unknown.
func (sh *Walk) runTest(args []value) answer {
	not := len(args) > 1 && args[0].known && args[0].text == "!"
	switch {
	case not && (len(args) != 3 || strings.HasPrefix(args[1].text, "-")): // [ ! = x ] compares
		return sh.runTest(args[1:]).negate()
	case len(args) == 0:
		return answer{is: no}
	case len(args) == 1:
		return sh.testUnary("-n", args[0])
	case len(args) == 2 && args[0].known:
		return sh.testUnary(args[0].text, args[1])
	case len(args) == 3 && args[1].known:
		return testBinary(args[1].text, args[0], args[2])
	}
	return dependsOn(maybe, args...)
}

// testUnary returns the answer of a test with one operand: of a text, or of a file in the image that no script has
// touched.
func (sh *Walk) testUnary(op string, v value) answer {
	switch op {
	case "-n", "-z":
		if !v.known && v.text == "" {
			return dependsOn(maybe, v)
		}
		return dependsOn(triOf((v.text == "") == (op == "-z")), v)
	case "-e", "-f", "-d", "-s", "-x", "-L", "-h":
	default:
		return dependsOn(maybe, v)
	}
	p := pathOf(v)
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
	return dependsOn(triOf(ok), v)
}

// testBinary returns the answer of a comparison of two texts; it is unknown for patterns and every operator but =, ==
// and !=.
func testBinary(op string, a, b value) answer {
	pattern := op != "=" && strings.ContainsAny(b.text, "*?[\\")
	if !a.known || !b.known || pattern || op != "=" && op != "==" && op != "!=" {
		return dependsOn(maybe, a, b)
	}
	return dependsOn(triOf((a.text == b.text) == (op != "!=")), a, b)
}
