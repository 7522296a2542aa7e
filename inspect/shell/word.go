package shell

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
)

// fields gives the words that a command gets.
func (sh *Walk) fields(f *frame, words []*syntax.Word) []value {
	var out []value
	for _, w := range words {
		out = append(out, sh.field(f, w)...)
		if len(out) > 10*maxNames {
			return append(out[:10*maxNames], unknown(out[10*maxNames:]...))
		}
	}
	return out
}

// field splits a word as the shell does.
func (sh *Walk) field(f *frame, w *syntax.Word) []value {
	if len(w.Parts) == 1 && f.bash {
		if lit, ok := w.Parts[0].(*syntax.Lit); ok && strings.Contains(lit.Value, "{") {
			return braces(w)
		}
	}
	var (
		out   []value
		now   value
		open  bool
		empty = literal("") // what comes before and is nothing, but may be something with another environment
	)
	add := func(v value) {
		if open {
			now = now.and(v)
			return
		}
		now, open = v, true
		if len(empty.data)+len(empty.why) > 0 {
			now = empty.and(v)
			empty = literal("")
		}
	}
	end := func() {
		if open {
			out = append(out, now)
			now, open = value{}, false
		}
	}
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.DblQuoted:
			if list, ok := sh.spliced(f, p); ok {
				for i, v := range list {
					if i > 0 {
						end()
					}
					add(v)
				}
				continue
			}
			add(sh.parts(f, p.Parts, true))
		case *syntax.ParamExp, *syntax.CmdSubst:
			v := sh.part(f, p, false)
			if v.list != nil {
				for i, e := range v.list {
					if i > 0 {
						end()
					}
					add(e)
				}
				continue
			}
			if !v.known {
				add(v)
				continue
			}
			words := strings.Fields(v.text)
			if len(words) > maxNames {
				v.known, v.text = false, ""
				add(v)
				continue
			}
			for i, text := range words {
				if i > 0 || strings.TrimLeft(v.text, " \t\n") != v.text {
					end()
				}
				e := v
				e.text, e.file = text, ""
				add(e)
			}
			if len(words) > 0 && strings.TrimRight(v.text, " \t\n") != v.text {
				end()
			}
			switch nothing := (value{known: true, data: v.data, why: v.why, head: v.head}); {
			case len(words) > 0:
			case open:
				now = now.and(nothing)
			default:
				empty = empty.and(nothing)
			}
		default:
			add(sh.part(f, p, false))
		}
	}
	end()
	return out
}

// braces gives the words of {a,b}, for what is all literal.
func braces(w *syntax.Word) []value {
	lit := w.Parts[0].(*syntax.Lit).Value
	before, rest, ok := strings.Cut(lit, "{")
	inside, after, closed := strings.Cut(rest, "}")
	if !ok || !closed || !strings.Contains(inside, ",") || strings.ContainsAny(inside+after, "{}\\") {
		return []value{literal(unquote(lit, false))}
	}
	var out []value
	for _, alternative := range strings.Split(inside, ",") {
		if len(out) == maxNames {
			break
		}
		out = append(out, literal(unquote(before+alternative+after, false)))
	}
	return out
}

// spliced is "$@" and "${array[@]}", each element a word of its own.
func (sh *Walk) spliced(f *frame, q *syntax.DblQuoted) ([]value, bool) {
	if len(q.Parts) != 1 {
		return nil, false
	}
	p, ok := q.Parts[0].(*syntax.ParamExp)
	if !ok || p.Param == nil || p.Exp != nil || p.Length || p.Excl || p.Slice != nil || p.Repl != nil {
		return nil, false
	}
	if p.Param.Value == "@" {
		return slices.Clone(*f.args), true
	}
	if index(p.Index) != "@" {
		return nil, false
	}
	v := sh.get(f, p.Param.Value, p.Pos())
	if v.list == nil {
		return []value{v.value}, true
	}
	return v.list, true
}

// index is the literal index of an array.
func index(x syntax.ArithmExpr) string {
	if w, ok := x.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

// text is a word as one string, as in an assignment or a redirection.
func (sh *Walk) text(f *frame, w *syntax.Word) value {
	if w == nil {
		return literal("")
	}
	return sh.parts(f, w.Parts, false)
}

func (sh *Walk) parts(f *frame, parts []syntax.WordPart, quoted bool) value {
	var out value
	for i, p := range parts {
		v := sh.part(f, p, quoted)
		if v.list != nil {
			joined := literal("")
			for j, e := range v.list {
				if j > 0 {
					joined = joined.and(literal(" "))
				}
				joined = joined.and(e)
			}
			v = joined
		}
		if i == 0 {
			out = v
		} else {
			out = out.and(v)
		}
	}
	if len(parts) == 0 {
		return literal("")
	}
	return out
}

func (sh *Walk) part(f *frame, p syntax.WordPart, quoted bool) value {
	switch p := p.(type) {
	case *syntax.Lit:
		return literal(unquote(p.Value, quoted))
	case *syntax.SglQuoted:
		if p.Dollar && strings.Contains(p.Value, `\`) {
			return value{fixed: true}
		}
		return literal(p.Value)
	case *syntax.DblQuoted:
		return sh.parts(f, p.Parts, true)
	case *syntax.ParamExp:
		return sh.param(f, p)
	case *syntax.CmdSubst:
		if !sh.enter(f) {
			return value{}
		}
		out := newOutput()
		sh.apart(f, func(g *frame) status { g.out = out; return sh.seq(g, p.Stmts) })
		return out.substituted()
	case *syntax.ProcSubst:
		if !sh.enter(f) {
			return value{}
		}
		return unknown(sh.output(f, p.Stmts))
	case *syntax.ArithmExp:
		return number(sh.arithmetic(f, p.X, p.Pos()))
	case *syntax.ExtGlob:
		return value{fixed: true}
	}
	return value{}
}

// unquote takes backslashes off a literal.
func unquote(s string, quoted bool) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch {
		case s[i] == '\n':
		case quoted && !strings.ContainsRune("$`\"\\", rune(s[i])):
			b.WriteByte('\\')
			b.WriteByte(s[i])
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func (sh *Walk) param(f *frame, p *syntax.ParamExp) value {
	if p.Param == nil {
		return value{}
	}
	name := p.Param.Value
	var v value
	set := maybe
	switch {
	case name == "@" || name == "*":
		v = value{known: true, list: append([]value{}, *f.args...)}
	case name == "0":
		v = literal(f.name)
	case name == "#":
		return literal(strconv.Itoa(len(*f.args)))
	case strings.ContainsAny(name, "?-$!"):
		return value{fixed: true}
	case name[0] >= '1' && name[0] <= '9':
		n, err := strconv.Atoi(name)
		set = no
		v = literal("")
		if err == nil && n <= len(*f.args) {
			v, set = (*f.args)[n-1], yes
		}
	default:
		w := sh.get(f, name, p.Pos())
		v = w.value
		_, assigned := f.vars.get(f.key(name))
		switch _, there := sh.env[name]; {
		case !w.outer || v.known && v.text != "":
			set = yes
		case !assigned:
			set = truth(there)
		}
	}
	if p.Index != nil {
		switch i := index(p.Index); i {
		case "@", "*":
			if v.list == nil {
				v.list = []value{v}
			}
		default:
			at := sh.arithmetic(f, p.Index, p.Pos())
			n, err := strconv.Atoi(i)
			if err == nil && v.list != nil && n >= 0 && n < len(v.list) {
				v = v.list[n]
			} else {
				v = unknown(append(slices.Clone(v.list), v, at)...)
			}
		}
	} else if name != "@" && name != "*" {
		v = v.first()
	}
	switch {
	case p.Length:
		if v.known && v.list == nil {
			l := number(v)
			l.text, l.known = strconv.Itoa(len(v.text)), true
			return l
		}
		return number(unknown(append(slices.Clone(v.list), v)...))
	case p.Excl || p.Names != 0:
		return sh.indirect(f, p, v)
	case p.Slice != nil || p.Repl != nil:
		var more value
		if p.Slice != nil {
			more = unknown(sh.arithmetic(f, p.Slice.Offset, p.Pos()), sh.arithmetic(f, p.Slice.Length, p.Pos()))
		} else {
			more = sh.text(f, p.Repl.With)
			sh.text(f, p.Repl.Orig)
		}
		return changed(v, more)
	case p.Exp == nil:
		return v
	}
	return sh.expansion(f, p, v, set)
}

// changed is a value that something is done with: what is empty stays so.
func changed(v value, by ...value) value {
	if v.known && v.text == "" && v.list == nil {
		return v
	}
	out := unknown(append(append(slices.Clone(v.list), v), by...)...)
	out.head = v.head
	return out
}

// indirect is ${!name}: the variable that another one names.
func (sh *Walk) indirect(f *frame, p *syntax.ParamExp, v value) value {
	if p.Names == 0 && v.known && syntax.ValidName(v.text) {
		w := sh.get(f, v.text, p.Pos()).value
		w.why = w.why.with(v.data, v.why)
		return w
	}
	if p.Names != 0 || len(v.data) > 0 || !v.known {
		sh.Note(sh.place(f, p.Pos()), "which variable ${!%s} reads can't be told", p.Param.Value)
	}
	return unknown(v)
}

func (sh *Walk) expansion(f *frame, p *syntax.ParamExp, v value, set tri) value {
	op := p.Exp.Op
	full := maybe
	if v.known {
		full = truth(v.text != "" || len(v.list) > 0)
	}
	there := set
	switch op {
	case syntax.AlternateUnsetOrNull, syntax.DefaultUnsetOrNull, syntax.ErrorUnsetOrNull, syntax.AssignUnsetOrNull:
		there = full
	}
	why := v.data.with(v.why)
	word := func(cond tri) value {
		var w value
		sh.either(f, cond, why, func(g *frame) status { w = sh.text(g, p.Exp.Word); return status{ok: yes} })
		return w
	}
	pick := func(cond tri, a, b value) value {
		m := meet(cond, why, variable{value: a}, variable{value: b}).value
		m.list = nil
		if cond == yes || cond == no && len(why) > 0 {
			m.file = ""
		}
		return m
	}
	switch op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		w := pick(there, v, word(there.not()))
		if op == syntax.AssignUnset || op == syntax.AssignUnsetOrNull {
			sh.set(f, p.Param.Value, w)
		}
		return w
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		return pick(there, word(there), literal(""))
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		word(there.not())
		return v
	}
	return changed(v, sh.text(f, p.Exp.Word))
}

// arithmetic walks through an arithmetic expression. bash evaluates a variable's value in it as an expression of its own,
// and an array index in that runs commands: x='a[$(id)]'; ((x)).
func (sh *Walk) arithmetic(f *frame, x syntax.ArithmExpr, pos syntax.Pos) value {
	if x == nil || !sh.enter(f) {
		return value{}
	}
	switch x := x.(type) {
	case *syntax.BinaryArithm:
		a, b := sh.arithmetic(f, x.X, pos), sh.arithmetic(f, x.Y, pos)
		v := unknown(a, b)
		if name := index(x.X); syntax.ValidName(name) && isAssignment(x.Op) {
			sh.set(f, name, number(v))
		}
		return v
	case *syntax.UnaryArithm:
		return sh.arithmetic(f, x.X, pos)
	case *syntax.ParenArithm:
		return sh.arithmetic(f, x.X, pos)
	case *syntax.Word:
		v := value{}
		if name := x.Lit(); syntax.ValidName(name) {
			v = sh.get(f, name, pos).value
		} else {
			v = sh.text(f, x)
		}
		if f.bash && len(v.data) > 0 && !isNumber(x) {
			sh.hook(f, v.data, "bash arithmetic", pos)
		}
		return v
	}
	return value{}
}

// number is a number that v decides on.
func number(v value) value { return value{why: v.why.with(v.data), fixed: true} }

// isNumber tells whether a word of arithmetic is a number whatever the environment says: $#, ${#x}, $? and the like.
func isNumber(w *syntax.Word) bool {
	if len(w.Parts) != 1 {
		return false
	}
	p, ok := w.Parts[0].(*syntax.ParamExp)
	return ok && (p.Length || p.Param != nil && strings.Contains("#?!$", p.Param.Value))
}

func isAssignment(op syntax.BinAritOperator) bool {
	s := op.String()
	return strings.HasSuffix(s, "=") && !slices.Contains([]string{"==", "!=", "<=", ">="}, s)
}

// file is the path that a value names, cleaned; empty when it isn't known or no absolute one.
func file(v value) string {
	if !v.known || !strings.HasPrefix(v.text, "/") || strings.ContainsAny(v.text, "\x00\n") {
		return ""
	}
	return image.Clean(path.Clean(v.text))
}
