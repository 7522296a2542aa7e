package shell

import (
	"maps"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// run runs a command: a function, a builtin or a program.
func (sh *Walk) run(f *frame, args []value, pos syntax.Pos) status {
	if !sh.enter(f) {
		return status{}
	}
	name := args[0]
	if len(name.head) > 0 {
		sh.hook(f, name.head, "command", pos)
	}
	if !name.known || name.text == "" {
		if !name.known {
			sh.Note(sh.place(f, pos), "which command is run here can't be told%s", because(name))
		}
		v := unknown(args...)
		v.known = false
		sh.emit(f, v)
		return status{why: v.data.with(v.why)}
	}
	if fn, ok := f.funcs[name.text]; ok {
		return sh.callFunction(f, fn, args)
	}
	if st, ok := sh.builtin(f, args, pos); ok {
		return st
	}
	return sh.program(f, args, pos)
}

func because(v value) string {
	if len(v.data) == 0 {
		return ""
	}
	return ", but it depends on " + strings.Join(v.data, ", ")
}

// outside runs a program, and no function or builtin, as exec does.
func (sh *Walk) outside(f *frame, args []value, pos syntax.Pos) status {
	name := args[0]
	if len(name.head) > 0 {
		sh.hook(f, name.head, "exec", pos)
	}
	if !name.known || name.text == "" {
		sh.Note(sh.place(f, pos), "which program is run here can't be told%s", because(name))
		return status{why: name.data.with(name.why)}
	}
	return sh.program(f, args, pos)
}

// program runs a program of the image.
func (sh *Walk) program(f *frame, args []value, pos syntax.Pos) status {
	name := args[0].text
	base := path.Base(name)
	if st, ok := sh.known(f, base, args, pos); ok {
		return st
	}
	if p := sh.lookUp(f, name); p != "" && mayBeScript(p) {
		if s := sh.load(p); s != nil && (s.shell || s.why != "" && s.why != isProgram && s.why != tooLarge) {
			return sh.script(f, p, s, args)
		}
	} else if p == "" && strings.HasPrefix(name, "/") && !f.dormant {
		sh.absent(sh.place(f, pos), "%s is run, and it isn't there", name)
	}
	sh.ran(f, args)
	v := sh.unknownOutput(f, args[1:])
	sh.emit(f, v)
	return status{why: v.data.with(v.why)}
}

// others are programs of the base in other languages than the shell's. inspect/start has what they read.
var others = []string{"python-server", "gem-server", "mcp-hub", "mcp-server-browser", "jupyter", "code-server"}

// ran notes a program that a job comes to.
func (sh *Walk) ran(f *frame, args []value) {
	if sh.job == "" || f.dormant {
		return
	}
	var words []string
	for _, a := range args {
		words = append(words, a.written())
	}
	switch {
	case slices.ContainsFunc(sh.argv, func(o []string) bool { return slices.Equal(o, words) }):
	case len(sh.argv) == maxNames:
		sh.Note(sh.jobAt, "program %s comes to more than %d programs: only these are looked at", sh.job, maxNames)
	default:
		sh.argv = append(sh.argv, words)
	}
}

type function struct {
	body *syntax.Stmt
	at   string
	base int
}

func (sh *Walk) call(f *frame, c *syntax.CallExpr) status {
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
func (sh *Walk) callFunction(f *frame, fn function, args []value) status {
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
