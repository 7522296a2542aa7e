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

// expander evaluates one word. What it comes to with the image's own environment is left to the expand package, as if it were
// run; what else may go into it is gathered from its syntax.
type expander struct {
	sh      *Walk
	f       *frame
	from    origin
	outputs map[syntax.Node]value // of the substitutions in it
	size    int                   // of the texts in it, in bytes
	work    int                   // of the patterns in it: bytes of text by bytes of pattern
	unknown bool                  // what isn't known may go into it without its mark
	strict  bool                  // while gathering: whatever isn't known makes the word so
}

// maxWork bounds the work of one word.
const maxWork = 1 << 20

// mark stands for what isn't known in a text, and is a character that no text has.
const mark = "\ufdd0"

// fields gives the words that a command gets. What a word comes to nothing by may make another of the next one.
func (sh *Walk) fields(f *frame, words []*syntax.Word) []value {
	var out []value
	var gone origin
	for _, w := range words {
		list, ok := sh.spliced(f, w)
		if !ok {
			e := sh.gather(f, w)
			list = e.expand(func(c *expand.Config) (out []string, err error) {
				size := 0
				for text, err := range expand.FieldsSeq(c, plain(w, f.bash)) {
					if size += len(text); err != nil || size > 2*maxScript || len(out) > 10*maxNames {
						return nil, cmp.Or(err, errors.New("too many words of one"))
					}
					out = append(out, text)
				}
				return out, nil
			})
			if len(list) == 0 {
				gone = e.from.with(begins, gone)
			}
		}
		if len(list) > 0 {
			list[0].from = list[0].from.with(begins, gone)
			gone = nil
		}
		if out = append(out, list...); len(out) > 10*maxNames {
			return append(out[:10*maxNames], unknown(out[10*maxNames:]...))
		}
	}
	return out
}

// text is a word as one string, as in an assignment or a redirection.
func (sh *Walk) text(f *frame, w *syntax.Word) value {
	if w == nil {
		return literal("")
	}
	return sh.gather(f, w).expand(func(c *expand.Config) ([]string, error) {
		text, err := expand.Literal(c, plain(w, false))
		return []string{text}, err
	})[0]
}

// document is the text of a here document.
func (sh *Walk) document(f *frame, w *syntax.Word) value {
	if w == nil {
		return literal("")
	}
	return sh.text(f, &syntax.Word{Parts: []syntax.WordPart{&syntax.DblQuoted{Parts: w.Parts}}})
}

// arithmetic is what an expression comes to.
func (sh *Walk) arithmetic(f *frame, x syntax.ArithmExpr) value {
	return sh.text(f, &syntax.Word{Parts: []syntax.WordPart{&syntax.ArithmExp{X: x}}})
}

// plain takes from a word what expand would do otherwise than a start: it knows nobody's home, and leaves backslashes in.
func plain(w *syntax.Word, braces bool) *syntax.Word {
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

// spliced is "$@" and "${array[@]}", each element a word of its own.
func (sh *Walk) spliced(f *frame, w *syntax.Word) ([]value, bool) {
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
	return slices.Clone(sh.get(f, p.Param.Value, p.Pos()).elements()), true
}

// literalIndex is the index of an array where it is a plain word.
func literalIndex(x syntax.ArithmExpr) string {
	if w, ok := x.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

// expand gives the values that by makes of the word.
func (e *expander) expand(by func(*expand.Config) ([]string, error)) (out []value) {
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
			_, err := io.WriteString(w, e.shown(e.outputs[c]))
			return err
		},
		ProcSubst: func(*syntax.ProcSubst) (string, error) { return "/dev/fd/63", nil },
	})
	if err != nil {
		e.sh.steps += 2 << 10 // it may be for too many braces
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

// Get gives expand a variable.
func (e *expander) Get(name string) expand.Variable {
	if strings.HasPrefix(name, "HOME ") {
		return expand.Variable{Set: true, Kind: expand.String, Str: "~" + name[5:]}
	}
	v := e.sh.peek(e.f, name)
	switch {
	case name == "IFS" && !v.known:
		return expand.Variable{}
	case v.list == nil:
		return expand.Variable{Set: !v.unset, Kind: expand.String, Str: e.shown(v.value)}
	}
	list := []string{}
	for _, x := range v.list {
		list = append(list, e.shown(x))
	}
	return expand.Variable{Set: true, Kind: expand.Indexed, List: list}
}

// shown is a value in a text that expand works with.
func (e *expander) shown(v value) string {
	if e.size += len(v.text); e.size > maxText {
		e.unknown = true
		return mark
	}
	if !v.known {
		return v.text + mark
	}
	return v.text
}

// Set takes what a word assigns, as ${x:=y} and $((x++)) do.
func (e *expander) Set(name string, v expand.Variable) error {
	if !syntax.ValidName(name) {
		return errors.New("no name")
	}
	text, _, marked := strings.Cut(v.Str, mark)
	e.sh.set(e.f, name, value{text: text, known: !e.unknown && !marked && v.Kind == expand.String, from: e.from})
	return nil
}

// Each is for ${!prefix*}, which isn't followed.
func (e *expander) Each(func(string, expand.Variable) bool) {}

// gather walks through what goes into a word.
func (sh *Walk) gather(f *frame, w *syntax.Word) *expander {
	e := &expander{sh: sh, f: f, outputs: map[syntax.Node]value{}}
	e.word(w, begins)
	return e
}

// word gathers what goes into a word, and tells whether there is any text in it with the image's own environment. What comes
// before that counts for most, and what follows is no part of the beginning.
func (e *expander) word(w *syntax.Word, most grade) bool { return w != nil && e.parts(w.Parts, most) }

func (e *expander) parts(parts []syntax.WordPart, most grade) (any bool) {
	for _, p := range parts {
		text := true
		switch p := p.(type) {
		case *syntax.Lit:
			e.size += len(p.Value)
		case *syntax.SglQuoted:
			e.size += len(p.Value)
			text = p.Value != ""
		case *syntax.DblQuoted:
			text = e.parts(p.Parts, most)
		case *syntax.ParamExp:
			text = e.param(p, most)
		case *syntax.CmdSubst:
			text = e.substitution(p, p.Stmts, most)
		case *syntax.ProcSubst:
			e.substitution(p, p.Stmts, inside)
		case *syntax.ArithmExp:
			e.arithmetic(p.X)
		}
		if text {
			any, most = true, min(most, inside)
		}
	}
	return any
}

// use adds a value that goes into the word.
func (e *expander) use(v value, most grade) {
	e.unknown = e.unknown || e.strict && !v.known
	for _, x := range v.elements() {
		e.size += len(x.text)
		e.from = e.from.with(most, x.from)
		e.unknown = e.unknown || e.strict && !x.known
	}
}

func (e *expander) substitution(node syntax.Node, stmts []*syntax.Stmt, most grade) bool {
	var v value
	if e.sh.enter(e.f) {
		v = e.sh.output(e.f, func(g *frame) answer { return e.sh.seq(g, stmts) })
	}
	e.outputs[node] = v
	e.use(v, most)
	return v.text != ""
}

func (e *expander) param(p *syntax.ParamExp, most grade) (text bool) {
	if p.Param == nil || !e.sh.enter(e.f) {
		e.unknown = true
		return true
	}
	if p.Excl {
		e.sh.Note(e.sh.place(e.f, p.Pos()), "which variable ${!%s} reads isn't followed", p.Param.Value)
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
	v := e.sh.get(e.f, p.Param.Value, p.Pos()).value
	before, work := e.size, e.work
	e.use(v, most)
	long := e.size - before
	text = p.Length || v.first().text != ""
	if i := literalIndex(p.Index); i != "@" && i != "*" {
		e.arithmetic(p.Index)
	}
	switch {
	case p.Slice != nil:
		e.arithmetic(p.Slice.Offset)
		e.arithmetic(p.Slice.Length)
	case p.Repl != nil:
		e.word(p.Repl.Orig, inside)
		e.word(p.Repl.With, inside)
	case p.Exp != nil:
		text = e.word(p.Exp.Word, word) || text
	}
	if e.strict {
		e.work += long * min(e.size-before-long+e.work-work, maxWork)
	}
	return text
}

// arithmetic gathers what decides on an expression. bash evaluates a variable's value in it as an expression of its own, and
// an array index in that runs commands: x='a[$(id)]'; ((x)).
func (e *expander) arithmetic(x syntax.ArithmExpr) {
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
			v := e.sh.get(e.f, name, w.Pos()).first()
			a.use(v, inside)
			a.unknown = a.unknown || syntax.ValidName(v.text) // the name of another one
		} else {
			a.word(w, inside)
		}
		if e.f.bash {
			e.sh.hook(e.f, a.from.names(inside), "bash arithmetic", w.Pos())
		}
		e.from = e.from.with(decides, a.from)
		e.unknown = e.unknown || a.unknown
		return false
	})
}

// file is the path that a value names, cleaned; empty when it isn't known or no absolute one.
func file(v value) string {
	if !v.known || !strings.HasPrefix(v.text, "/") || strings.ContainsAny(v.text, "\x00\n") {
		return ""
	}
	return image.Clean(path.Clean(v.text))
}
