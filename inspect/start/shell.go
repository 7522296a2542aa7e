package start

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Bounds on what scripts can make us do.
const (
	maxScript  = 256 << 10 // bytes of one
	maxScripts = 500
	maxSteps   = 50_000 // commands walked through
	maxDepth   = 250    // branches, functions and scripts in each other
	maxLoop    = 64     // rounds of one for loop
	maxNotes   = 200
	maxPlaces  = 50 // of one variable
)

// shell walks through scripts without running anything: both ways of every choice, and what each variable of the
// environment comes to and decides.
type shell struct {
	ctx     context.Context
	img     *tree.Image
	report  *Report
	env     map[string]string // the image's own environment
	scripts map[string]*script
	reads   map[string]*reading
	touched map[string]names // files that the scripts make or take away, with what decides on them
	steps   int
	tooMuch bool
	frames  int                 // names the local variables of each call
	started map[string]variable // the environment of the supervisord that is started
	decides map[string][]string // the programs that a variable starts or stops
	job     string              // the program whose command is walked through; empty for the start
	jobAt   tree.Place
	argv    [][]string // the programs that a job comes to
	err     error      // of reading the image
}

// reading is where a variable of the environment is read.
type reading struct {
	places []tree.Place
	live   bool // not only in branches that the image's files rule out
}

// frame is where a command runs.
type frame struct {
	vars   *store
	funcs  map[string]function
	locals map[string]string // the key of each local variable by its name
	args   *[]value
	name   string // $0
	at     string // the file that the text is in; empty for the image config
	base   int    // lines of the file that come before the text
	why    names  // variables that decide whether it runs at all
	// dormant is true in a branch that the image's files rule out.
	dormant bool
	stdin   *value
	out     *output
	calls   []string // functions and scripts around it
	depth   int
	bash    bool
	bare    bool // nothing of the container's environment came here
}

type function struct {
	body *syntax.Stmt
	at   string
	base int
}

func (sh *shell) place(f *frame, pos syntax.Pos) tree.Place {
	if f.at == "" {
		return sh.jobAt
	}
	return sh.img.Place(f.at, f.base+int(pos.Line()))
}

func (sh *shell) note(at tree.Place, format string, args ...any) {
	n := tree.Note{Place: at, Text: fmt.Sprintf(format, args...)}
	if len(sh.report.Notes) < maxNotes && !slices.Contains(sh.report.Notes, n) {
		sh.report.Notes = append(sh.report.Notes, n)
	}
}

// read marks that a variable of the environment is read.
func (sh *shell) read(f *frame, name string, at tree.Place) {
	r := sh.reads[name]
	if r == nil {
		r = &reading{}
		sh.reads[name] = r
	}
	r.live = r.live || !f.dormant
	if len(r.places) < maxPlaces && !slices.Contains(r.places, at) {
		r.places = append(r.places, at)
	}
}

// key is the name under which the store has a variable.
func (f *frame) key(name string) string {
	if k, ok := f.locals[name]; ok {
		return k
	}
	return name
}

// own are variables that bash sets itself, whatever the environment says.
var own = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(`BASH BASHPID BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_REMATCH BASH_SOURCE BASH_SUBSHELL
		BASH_VERSINFO BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HOSTNAME HOSTTYPE IFS LINENO
		MACHTYPE OLDPWD OPTARG OPTIND OSTYPE PIPESTATUS PPID PWD RANDOM REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _`) {
		m[name] = true
	}
	return m
}()

// peek is the variable without it being read.
func (sh *shell) peek(f *frame, name string) variable {
	if v, ok := f.vars.get(f.key(name)); ok {
		return v
	}
	if own[name] {
		return variable{}
	}
	if sh.report.Clean || f.bare {
		return variable{value: literal("")}
	}
	text, set := sh.env[name]
	n := names{name}
	return variable{value: value{text: text, known: len(text) <= maxText, data: n, head: n}, exported: set, outer: true}
}

func (sh *shell) get(f *frame, name string, pos syntax.Pos) variable {
	v := sh.peek(f, name)
	if v.outer {
		sh.read(f, name, sh.place(f, pos))
	}
	return v
}

func (sh *shell) set(f *frame, name string, v value) {
	old := sh.peek(f, name)
	v.why = v.why.with(f.why)
	f.vars.set(f.key(name), variable{value: v, exported: old.exported})
}

// enter tells whether there is room for one more level.
func (sh *shell) enter(f *frame) bool {
	sh.steps++
	if sh.err == nil {
		sh.err = context.Cause(sh.ctx)
	}
	if sh.err != nil {
		return false
	}
	if sh.steps > maxSteps || f.depth > maxDepth {
		if !sh.tooMuch {
			sh.tooMuch = true
			sh.note(tree.Place{Path: f.at}, "the start is too long or too deep to be followed to its end")
		}
		return false
	}
	return true
}

// seq walks through commands one after the other.
func (sh *shell) seq(f *frame, stmts []*syntax.Stmt) status {
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

// branch is one of two ways, walked through.
type branch struct {
	vars   *store
	out    *output
	status status
}

// branch walks through body as if it were taken. cond says whether it is, and depends on why.
func (sh *shell) branch(f *frame, cond tri, why names, body func(*frame) status) branch {
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
func (sh *shell) join(f *frame, cond tri, why names, a, b branch) status {
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

func (sh *shell) peekKey(f *frame, key string) variable {
	name, _, local := strings.Cut(key, "\x00")
	if local {
		if v, ok := f.vars.get(key); ok {
			return v
		}
		return variable{value: literal("")}
	}
	g := *f
	g.locals = nil
	return sh.peek(&g, name)
}

// apart walks through body in a shell of its own.
func (sh *shell) apart(f *frame, body func(*frame) status) status {
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
func (sh *shell) either(f *frame, cond tri, why names, body func(*frame) status) {
	sh.join(f, cond, why, sh.branch(f, cond, why, body), branch{status: status{ok: maybe}})
}

func (sh *shell) stmt(f *frame, s *syntax.Stmt) status {
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
func (sh *shell) input(f *frame, w *syntax.Word) value {
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
func (sh *shell) output(f *frame, stmts []*syntax.Stmt) value {
	out := newOutput()
	sh.apart(f, func(g *frame) status { g.out = out; return sh.seq(g, stmts) })
	return out.value
}

func (sh *shell) command(f *frame, c syntax.Command) status {
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
	sh.note(sh.place(f, c.Pos()), "a command of this kind can't be followed")
	return status{}
}

func (sh *shell) binary(f *frame, c *syntax.BinaryCmd) status {
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

func (sh *shell) ifClause(f *frame, c *syntax.IfClause) status {
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
func (sh *shell) loop(f *frame, why names, body func(*frame) status) status {
	b := sh.branch(f, maybe, why, body)
	if b.status.end == breaks || b.status.sure {
		b.status.end, b.status.sure = goesOn, false
	}
	return sh.join(f, maybe, why, b, branch{status: status{ok: yes}})
}

func (sh *shell) forClause(f *frame, c *syntax.ForClause) status {
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

func (sh *shell) caseItems(f *frame, v value, items []*syntax.CaseItem) status {
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

// declare is export, local, readonly, declare and typeset.
func (sh *shell) declare(f *frame, c *syntax.DeclClause) status {
	kind := c.Variant.Value
	export, local := kind == "export", kind == "local"
	inFunction := f.locals != nil
	one := func(name string, v *value) {
		if (local || inFunction && (kind == "declare" || kind == "typeset")) && inFunction {
			sh.frames++
			f.locals[name] = name + "\x00" + strconv.Itoa(sh.frames)
			if v == nil {
				empty := literal("")
				v = &empty
			}
		}
		if v != nil {
			sh.set(f, name, *v)
		}
		if export {
			w := sh.peek(f, name)
			w.exported = true
			f.vars.set(f.key(name), w)
		}
	}
	for _, a := range c.Args {
		switch {
		case a.Name != nil && a.Naked:
			one(a.Name.Value, nil)
		case a.Name != nil:
			v := sh.assigned(f, a)
			one(a.Name.Value, &v)
		case a.Value != nil:
			v := sh.text(f, a.Value)
			name, rest, ok := strings.Cut(v.text, "=")
			switch {
			case !v.known:
				sh.note(sh.place(f, a.Pos()), "%s of a name that isn't known", kind)
			case strings.HasPrefix(name, "-"):
				export = export || kind != "export" && strings.Contains(name, "x")
				if kind == "export" && strings.Contains(name, "n") {
					export = false
				}
			case ok:
				v.text, v.fixed = rest, false
				one(name, &v)
			case syntax.ValidName(name):
				one(name, nil)
			}
		}
	}
	return status{ok: yes}
}

// assigned is what an assignment puts into its variable.
func (sh *shell) assigned(f *frame, a *syntax.Assign) value {
	v := literal("")
	switch {
	case a.Array != nil:
		v = value{known: true, list: []value{}}
		for _, e := range a.Array.Elems {
			if e.Value != nil {
				v.list = append(v.list, sh.fields(f, []*syntax.Word{e.Value})...)
			}
			v = v.bounded()
		}
	case a.Value != nil:
		v = sh.text(f, a.Value)
		v.file = ""
	}
	if a.Index != nil {
		old := sh.peek(f, a.Name.Value)
		i := sh.arithmetic(f, a.Index, a.Pos())
		u := unknown(append(slices.Clone(old.list), v, i)...)
		u.list = append(slices.Clone(old.list), v)
		return u.bounded()
	}
	if a.Append {
		old := sh.get(f, a.Name.Value, a.Pos()).value
		if v.list == nil && old.list == nil {
			return old.and(v)
		}
		if old.list == nil {
			old.list = []value{old}
		}
		if v.list == nil {
			v.list = []value{v}
		}
		v.list = append(slices.Clone(old.list), v.list...)
		return v.bounded()
	}
	return v
}

func (sh *shell) call(f *frame, c *syntax.CallExpr) status {
	if len(c.Args) == 0 {
		st := status{ok: yes}
		for _, a := range c.Assigns {
			if a.Name == nil {
				continue
			}
			v := sh.assigned(f, a)
			if !v.known {
				st.ok = maybe
			}
			sh.set(f, a.Name.Value, v)
		}
		return st
	}
	args := sh.fields(f, c.Args)
	if len(args) == 0 {
		return status{}
	}
	if len(c.Assigns) == 0 {
		return sh.run(f, args, c.Pos())
	}
	// The variables before a command are its own; what it sets besides, as read does, stays.
	g := *f
	g.vars = &store{up: f.vars}
	var temporary []string
	for _, a := range c.Assigns {
		if a.Name != nil {
			sh.set(&g, a.Name.Value, sh.assigned(f, a))
			v := sh.peek(&g, a.Name.Value)
			v.exported = true
			g.vars.set(g.key(a.Name.Value), v)
			temporary = append(temporary, g.key(a.Name.Value))
		}
	}
	st := sh.run(&g, args, c.Pos())
	for k, v := range g.vars.vars {
		if !slices.Contains(temporary, k) {
			f.vars.set(k, v)
		}
	}
	return st
}

// callFunction runs a function of the script.
func (sh *shell) callFunction(f *frame, fn function, args []value) status {
	g := *f
	g.name, g.at, g.base = f.name, fn.at, fn.base
	rest := args[1:]
	g.args = &rest
	g.locals = maps.Clone(f.locals)
	if g.locals == nil {
		g.locals = map[string]string{}
	}
	g.depth++
	name := "function " + args[0].text
	if !sh.again(f, name) || !sh.enter(&g) {
		return status{}
	}
	g.calls = append(slices.Clip(f.calls), name)
	st := sh.stmt(&g, fn.body)
	return caught(st, returns)
}

// caught ends an ending at what it ends.
func caught(st status, at ending) status {
	if st.end != goesOn && st.end <= at {
		if !st.sure {
			st.ok = maybe
		}
		st.end, st.sure, st.when, st.whenWhy = goesOn, false, maybe, nil
	}
	return st
}

// again tells whether something may be called once more within itself.
func (sh *shell) again(f *frame, name string) bool {
	const most = 3
	n := 0
	for _, c := range f.calls {
		if c == name {
			n++
		}
	}
	if n == most {
		sh.note(tree.Place{Path: f.at}, "%s calls itself: it is not followed further", name)
	}
	return n < most
}

// script is a parsed script.
type script struct {
	path  string // links followed
	file  *syntax.File
	bash  bool
	why   string // why it can't be followed; empty for one that can
	shell bool   // it is one, whether it can be read or not
}

// parse parses text. why says what is wrong with it.
func parse(text string) (file *syntax.File, why string) {
	if len(text) > maxScript {
		return nil, fmt.Sprintf("it has %d bytes; more than %d are not read", len(text), maxScript)
	}
	if nesting(text) > maxNesting {
		return nil, "it may be nested too deeply to be parsed"
	}
	defer func() {
		if r := recover(); r != nil {
			file, why = nil, fmt.Sprintf("it can't be parsed: %v", r)
		}
	}()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, fmt.Sprintf("it can't be parsed: %v", err)
	}
	return file, ""
}

// maxNesting bounds what nesting gives.
const maxNesting = 30_000

// nesting is more than how deeply a script can be nested, in units of about 4 kB of the parser's stack: it takes every
// sign that opens something to be open at once. The parser recurses, and Go can't recover from a stack that is full.
func nesting(text string) int {
	n := 3*strings.Count(text, "(") + strings.Count(text, "{")
	for i := 1; i < len(text); i++ {
		if c := text[i-1]; text[i] == '[' && (c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9') {
			n += 4
		}
	}
	for _, word := range []string{"if", "while", "until", "for", "case", "select", "coproc", "time", "!", "?", "`"} {
		n += strings.Count(text, word)
	}
	return n
}

// text parses and walks through a script that is a string of another one, such as that of bash -c.
func (sh *shell) walkText(f *frame, text string, line int) status {
	file, why := parse(text)
	if why != "" {
		sh.note(sh.img.Place(f.at, line), "a script in a string can't be followed: %s", why)
		return status{}
	}
	base := f.base
	f.base = max(line-1, 0)
	st := sh.seq(f, file.Stmts)
	f.base = base
	return st
}

// isShell tells what runs a script by its first line.
func isShell(content string) (interpreter string, shell, bash bool) {
	line, _, _ := strings.Cut(content, "\n")
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if !strings.HasPrefix(line, "#!") || len(words) == 0 {
		return "", false, false
	}
	interpreter = path.Base(words[0])
	if interpreter == "env" {
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
				interpreter = path.Base(w)
				break
			}
		}
	}
	switch interpreter {
	case "bash":
		return interpreter, true, true
	case "sh", "dash", "ash", "ksh", "zsh", "rbash":
		return interpreter, true, false
	}
	return interpreter, false, false
}
