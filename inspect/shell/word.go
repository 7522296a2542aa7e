package shell

import (
	"cmp"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// expander evaluates one word. The expand package computes its value with the image's own environment, as if the word
// were run; the syntax tree yields what else may go into it.
type expander struct {
	sh      *Walk
	f       *frame
	from    origin
	outputs map[syntax.Node]value // of the substitutions in it
	size    int                   // bytes of the texts in it
	work    int                   // bytes of text times bytes of pattern, for all patterns in it
	unknown bool                  // an unknown value may be in it without a mark
	strict  bool                  // while parts are added: any unknown value makes the word unknown
}

// maxWork bounds the work of one word.
const maxWork = 1 << 20

// mark stands for the unknown part of a text. No text contains this character.
const mark = "\ufdd0"

// expandFields returns the fields that words expand to. A word that expands to nothing is added to the origin of the
// next field, since with another value it comes before it.
func (sh *Walk) expandFields(f *frame, words []*syntax.Word) []value {
	var out []value
	var gone origin
	for _, w := range words {
		list, ok := sh.expandSpliced(f, w)
		if !ok {
			e := sh.newExpander(f, w)
			list = e.evaluate(func(c *expand.Config) (out []string, err error) {
				size := 0
				for text, err := range expand.FieldsSeq(c, plainWord(w, f.bash)) {
					if size += len(text); err != nil || size > 2*maxScript || len(out) > 10*maxNames {
						return nil, cmp.Or(err, errors.New("one word expands to too many words"))
					}
					out = append(out, text)
				}
				return out, nil
			})
			if len(list) == 0 {
				gone = e.from.addOrigins(begins, gone)
			}
		}
		if len(list) > 0 {
			list[0].from = list[0].from.addOrigins(begins, gone)
			gone = nil
		}
		if out = append(out, list...); len(out) > 10*maxNames {
			return append(out[:10*maxNames], unknown(out[10*maxNames:]...))
		}
	}
	return out
}

// expandText returns a word as one string, as in an assignment or a redirection.
func (sh *Walk) expandText(f *frame, w *syntax.Word) value {
	if w == nil {
		return literal("")
	}
	return sh.newExpander(f, w).evaluate(func(c *expand.Config) ([]string, error) {
		text, err := expand.Literal(c, plainWord(w, false))
		return []string{text}, err
	})[0]
}

// expandDocument returns the text of a here document.
func (sh *Walk) expandDocument(f *frame, w *syntax.Word) value {
	if w == nil {
		return literal("")
	}
	return sh.expandText(f, &syntax.Word{Parts: []syntax.WordPart{&syntax.DblQuoted{Parts: w.Parts}}})
}

// expandArithmetic returns the value of an arithmetic expression.
func (sh *Walk) expandArithmetic(f *frame, x syntax.ArithmExpr) value {
	return sh.expandText(f, &syntax.Word{Parts: []syntax.WordPart{&syntax.ArithmExp{X: x}}})
}

// plainWord returns w with its literals quoted and without their backslashes: the expand package would look up home
// directories, and keep the backslashes. With braces set, literals with { stay as they are, for brace expansion.
func plainWord(w *syntax.Word, braces bool) *syntax.Word {
	out := &syntax.Word{}
	for _, p := range w.Parts {
		if lit, ok := p.(*syntax.Lit); ok && !(braces && strings.Contains(lit.Value, "{")) {
			p = &syntax.SglQuoted{Value: backslashes.Replace(lit.Value)}
		}
		out.Parts = append(out.Parts, p)
	}
	return out
}

var backslashes = strings.NewReplacer("\\\n", "", `\\`, `\`, `\`, "")

// expandSpliced returns the elements of "$@" or "${array[@]}", each of which is a field. It returns false for any other
// word.
func (sh *Walk) expandSpliced(f *frame, w *syntax.Word) ([]value, bool) {
	if len(w.Parts) != 1 {
		return nil, false
	}
	q, ok := w.Parts[0].(*syntax.DblQuoted)
	if !ok || len(q.Parts) != 1 {
		return nil, false
	}
	p, ok := q.Parts[0].(*syntax.ParamExp)
	if !ok || p.Param == nil || p.Exp != nil || p.Length || p.Excl || p.Slice != nil || p.Repl != nil ||
		p.Param.Value != "@" && literalIndex(p.Index) != "@" {
		return nil, false
	}
	return slices.Clone(sh.readVariable(f, p.Param.Value, p.Pos()).elements()), true
}

// literalIndex returns the index of an array if it is a plain word, otherwise "".
func literalIndex(x syntax.ArithmExpr) string {
	if w, ok := x.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

// evaluate returns the values that by computes from the word. What by leaves unknown, or fails at, is an unknown value.
func (e *expander) evaluate(by func(*expand.Config) ([]string, error)) (out []value) {
	defer func() {
		if recover() != nil { // it panics on some words that bash calls errors
			out = []value{{from: e.from}}
		}
	}()
	e.size = 0
	if e.sh.steps += min(e.work, maxWork) >> 10; e.work > maxWork {
		e.sh.Note(tree.Place{Path: e.f.at}, "a pattern that is asked of a long text is not followed")
	}
	if e.work > maxWork || !e.sh.enter(e.f) {
		return []value{{from: e.from}}
	}
	texts, err := by(&expand.Config{
		Env: e,
		CmdSubst: func(w io.Writer, c *syntax.CmdSubst) error {
			_, err := io.WriteString(w, e.markedText(e.outputs[c]))
			return err
		},
		ProcSubst: func(*syntax.ProcSubst) (string, error) { return "/dev/fd/63", nil },
	})
	if err != nil {
		e.sh.steps += 2 << 10 // the cause may be too many braces
		return []value{{from: e.from}}
	}
	e.sh.steps += len(texts) >> 3
	for _, text := range texts {
		before, _, marked := strings.Cut(text, mark)
		v := value{text: before, known: !e.unknown && !marked, from: e.from}
		if e.unknown && !marked {
			v.text = ""
		}
		out = append(out, v.bounded())
	}
	return out
}

// Get returns a variable to the expand package.
func (e *expander) Get(name string) expand.Variable {
	if strings.HasPrefix(name, "HOME ") {
		return expand.Variable{Set: true, Kind: expand.String, Str: "~" + name[5:]}
	}
	v := e.sh.peekVariable(e.f, name)
	switch {
	case name == "IFS" && !v.known:
		return expand.Variable{}
	case v.list == nil:
		return expand.Variable{Set: !v.unset, Kind: expand.String, Str: e.markedText(v.value)}
	}
	list := []string{}
	for _, x := range v.list {
		list = append(list, e.markedText(x))
	}
	return expand.Variable{Set: true, Kind: expand.Indexed, List: list}
}

// markedText returns the text of v for the expand package, with mark in the place of what is unknown.
func (e *expander) markedText(v value) string {
	if e.size += len(v.text); e.size > maxText {
		e.unknown = true
		return mark
	}
	if !v.known {
		return v.text + mark
	}
	return v.text
}

// Set assigns a variable for the expand package, as ${x:=y} and $((x++)) do.
func (e *expander) Set(name string, v expand.Variable) error {
	if !syntax.ValidName(name) {
		return errors.New("no name")
	}
	text, _, marked := strings.Cut(v.Str, mark)
	e.sh.assignVariable(e.f, name, value{text: text, known: !e.unknown && !marked && v.Kind == expand.String, from: e.from})
	return nil
}

// Each does nothing: it is for ${!prefix*}, which isn't followed.
func (e *expander) Each(func(string, expand.Variable) bool) {}

// newExpander returns an expander that has collected the values that go into w.
func (sh *Walk) newExpander(f *frame, w *syntax.Word) *expander {
	e := &expander{sh: sh, f: f, outputs: map[syntax.Node]value{}}
	e.addWord(w, begins)
	return e
}

// addWord adds the parts of w, each with at most the grade most, and reports whether they hold any text with
// the image's own environment.
func (e *expander) addWord(w *syntax.Word, most grade) bool {
	return w != nil && e.addParts(w.Parts, most)
}

// addParts is addWord for parts of a word. Once there is text, the parts after it are no part of the beginning.
func (e *expander) addParts(parts []syntax.WordPart, most grade) (any bool) {
	for _, p := range parts {
		text := true
		switch p := p.(type) {
		case *syntax.Lit:
			e.size += len(p.Value)
		case *syntax.SglQuoted:
			e.size += len(p.Value)
			text = p.Value != ""
		case *syntax.DblQuoted:
			text = e.addParts(p.Parts, most)
		case *syntax.ParamExp:
			text = e.addParameter(p, most)
		case *syntax.CmdSubst:
			text = e.addSubstitution(p, p.Stmts, most)
		case *syntax.ProcSubst:
			e.addSubstitution(p, p.Stmts, inside)
		case *syntax.ArithmExp:
			e.addArithmetic(p.X)
		}
		if text {
			any, most = true, min(most, inside)
		}
	}
	return any
}

// addValue adds a value that goes into the word, with at most the grade most.
func (e *expander) addValue(v value, most grade) {
	e.unknown = e.unknown || e.strict && !v.known
	for _, x := range v.elements() {
		e.size += len(x.text)
		e.from = e.from.addOrigins(most, x.from)
		e.unknown = e.unknown || e.strict && !x.known
	}
}

// addSubstitution walks through a command substitution and adds its output; it reports whether that has any text.
func (e *expander) addSubstitution(node syntax.Node, stmts []*syntax.Stmt, most grade) bool {
	var v value
	if e.sh.enter(e.f) {
		v = e.sh.captureOutput(e.f, func(g *frame) answer { return e.sh.walkStatements(g, stmts) })
	}
	e.outputs[node] = v
	e.addValue(v, most)
	return v.text != ""
}

// addParameter adds a parameter expansion, and reports whether it has any text.
func (e *expander) addParameter(p *syntax.ParamExp, most grade) (text bool) {
	if p.Param == nil || !e.sh.enter(e.f) {
		e.unknown = true
		return true
	}
	if p.Excl {
		e.sh.Note(e.sh.placeOf(e.f, p.Pos()), "which variable ${!%s} reads isn't followed", p.Param.Value)
		e.unknown = true
	}
	defer func(was bool) { e.strict = was }(e.strict)
	word := most
	if p.Exp != nil {
		switch p.Exp.Op {
		case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
			e.strict, most = true, decides
		default:
			e.strict, word = true, min(word, inside)
		}
	}
	if p.Length {
		most = decides
	}
	e.strict = e.strict || p.Length || p.Slice != nil || p.Repl != nil
	v := e.sh.readVariable(e.f, p.Param.Value, p.Pos()).value
	before, work := e.size, e.work
	e.addValue(v, most)
	long := e.size - before
	text = p.Length || v.firstElement().text != ""
	if i := literalIndex(p.Index); i != "@" && i != "*" {
		e.addArithmetic(p.Index)
	}
	switch {
	case p.Slice != nil:
		e.addArithmetic(p.Slice.Offset)
		e.addArithmetic(p.Slice.Length)
	case p.Repl != nil:
		e.addWord(p.Repl.Orig, inside)
		e.addWord(p.Repl.With, inside)
	case p.Exp != nil:
		text = e.addWord(p.Exp.Word, word) || text
	}
	if e.strict {
		e.work += long * min(e.size-before-long+e.work-work, maxWork)
	}
	return text
}

// addArithmetic adds the values that decide on an arithmetic expression. bash evaluates a variable's value in it as an
// expression of its own, and an array index in that runs commands: x='a[$(id)]'; ((x)).
func (e *expander) addArithmetic(x syntax.ArithmExpr) {
	if x == nil || !e.sh.enter(e.f) {
		e.unknown = e.unknown || x != nil
		return
	}
	syntax.Walk(x, func(n syntax.Node) bool {
		w, ok := n.(*syntax.Word)
		if !ok {
			return true
		}
		a := &expander{sh: e.sh, f: e.f, outputs: e.outputs, strict: true}
		if name := w.Lit(); syntax.ValidName(name) {
			v := e.sh.readVariable(e.f, name, w.Pos()).firstElement()
			a.addValue(v, inside)
			a.unknown = a.unknown || syntax.ValidName(v.text) // the name of another one
		} else {
			a.addWord(w, inside)
		}
		if e.f.bash {
			e.sh.addHook(e.f, a.from.namesAtLeast(inside), "bash arithmetic", w.Pos())
		}
		e.from = e.from.addOrigins(decides, a.from)
		e.unknown = e.unknown || a.unknown
		return false
	})
}

// pathOf returns the path that a value names, cleaned, or "" when it is unknown, not absolute, or holds a NUL or a
// newline.
func pathOf(v value) string {
	if !v.known || !strings.HasPrefix(v.text, "/") || strings.ContainsAny(v.text, "\x00\n") {
		return ""
	}
	return image.Clean(path.Clean(v.text))
}
