package start

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// run runs a command: a function, a builtin or a program.
func (sh *shell) run(f *frame, args []value, pos syntax.Pos) status {
	if !sh.enter(f) {
		return status{}
	}
	name := args[0]
	if len(name.head) > 0 {
		sh.hook(f, name.head, "command", pos)
	}
	if !name.known || name.text == "" {
		if !name.known {
			sh.note(sh.place(f, pos), "which command is run here can't be told%s", because(name))
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

// emit writes to standard output.
func (sh *shell) emit(f *frame, v value) { f.out.add(v) }

// unknownOutput is that of a program of which no more is known than what it was given.
func (sh *shell) unknownOutput(f *frame, args []value) value {
	v := unknown(args...)
	if f.stdin != nil {
		v.data, v.why = v.data.with(f.stdin.data), v.why.with(f.stdin.why)
	}
	return v
}

func (sh *shell) stdin(f *frame) value {
	if f.stdin == nil {
		return value{}
	}
	return *f.stdin
}

// builtin runs what the shell itself knows. ok is false for what it doesn't.
func (sh *shell) builtin(f *frame, args []value, pos syntax.Pos) (st status, ok bool) {
	name, rest := args[0].text, args[1:]
	done := status{ok: yes}
	switch name {
	case ":", "true":
		return done, true
	case "false":
		return status{ok: no}, true
	case "echo":
		newline := true
		for len(rest) > 0 && rest[0].known && (rest[0].text == "-n" || rest[0].text == "-e" || rest[0].text == "-ne" || rest[0].text == "-en") {
			newline = newline && !strings.Contains(rest[0].text, "n")
			rest = rest[1:]
		}
		sh.emit(f, join(rest, " ", newline))
		return done, true
	case "printf":
		sh.emit(f, printf(rest))
		return done, true
	case "[", "test":
		if name == "[" && len(rest) > 0 {
			rest = rest[:len(rest)-1]
		}
		ok, why := sh.test(f, rest)
		return status{ok: ok, why: why}, true
	case "exit", "return":
		st := status{end: exits, sure: true, ok: yes}
		if name == "return" {
			st.end = returns
		}
		if len(rest) > 0 {
			st.ok = maybe
			if rest[0].known {
				st.ok = truth(rest[0].text == "0")
				st.fails = name == "exit" && rest[0].text != "0"
			}
			st.why = rest[0].data.with(rest[0].why)
		}
		return st, true
	case "break", "continue":
		return status{end: breaks, sure: true, ok: yes}, true
	case "shift":
		if len(*f.args) > 0 {
			a := (*f.args)[1:]
			*f.args = a
		}
		return done, true
	case "set":
		for i, a := range rest {
			if a.known && a.text == "--" {
				*f.args = slices.Clone(rest[i+1:])
				break
			}
		}
		return done, true
	case "unset":
		for _, a := range rest {
			if a.known && syntax.ValidName(a.text) {
				sh.set(f, a.text, literal(""))
			}
		}
		return done, true
	case "cd", "umask", "wait", "ulimit", "shopt", "hash", "pwd", "type", "kill", "jobs", "getopts", "times", "alias", "disown", "bg", "fg":
		if name == "getopts" && len(rest) > 1 && rest[1].known && syntax.ValidName(rest[1].text) {
			sh.set(f, rest[1].text, unknown(*f.args...))
		}
		v := unknown(rest...)
		sh.emit(f, v)
		return status{ok: maybe, why: v.data.with(v.why)}, true
	case "read", "readarray", "mapfile":
		sh.readVariables(f, name, rest)
		v := sh.stdin(f)
		return status{ok: maybe, why: v.data.with(v.why)}, true
	case "eval":
		v := join(rest, " ", false)
		return sh.runText(f, v, "eval", pos), true
	case "trap":
		if len(rest) > 1 {
			sh.either(f, maybe, nil, func(g *frame) status { return sh.runText(g, rest[0], "trap", pos) })
		}
		return done, true
	case ".", "source":
		if len(rest) == 0 {
			return status{}, true
		}
		return sh.source(f, rest, pos), true
	case "exec":
		for len(rest) > 0 && rest[0].known && strings.HasPrefix(rest[0].text, "-") {
			if rest[0].text == "-a" && len(rest) > 1 {
				rest = rest[1:]
			}
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return done, true
		}
		st := sh.outside(f, rest, pos)
		return status{ok: st.ok, why: st.why, end: exits, sure: true}, true
	case "command", "builtin":
		for len(rest) > 0 && rest[0].known && strings.HasPrefix(rest[0].text, "-") {
			if strings.ContainsAny(rest[0].text, "vV") {
				v := unknown(rest[1:]...)
				sh.emit(f, v)
				return status{why: v.data}, true
			}
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return done, true
		}
		g := *f
		g.funcs = nil
		return sh.run(&g, rest, pos), true
	}
	return status{}, false
}

// outside runs a program, and no function or builtin, as exec does.
func (sh *shell) outside(f *frame, args []value, pos syntax.Pos) status {
	name := args[0]
	if len(name.head) > 0 {
		sh.hook(f, name.head, "exec", pos)
	}
	if !name.known || name.text == "" {
		sh.note(sh.place(f, pos), "which program is run here can't be told%s", because(name))
		return status{why: name.data.with(name.why)}
	}
	return sh.program(f, args, pos)
}

// join puts words together.
func join(words []value, by string, newline bool) value {
	out := literal("")
	for i, w := range words {
		if i > 0 {
			out = out.and(literal(by))
		}
		if w.list != nil {
			w = unknown(w.list...)
		}
		if i == 0 {
			out = w
			out.file = ""
		} else {
			out = out.and(w)
		}
	}
	if newline {
		out = out.and(literal("\n"))
	}
	return out
}

// printf knows the plainest of its formats.
func printf(args []value) value {
	if len(args) > 1 && args[0].known && args[0].text == "-v" {
		return unknown(args...)
	}
	if len(args) == 0 {
		return value{}
	}
	switch format := args[0]; {
	case !format.known:
	case format.text == "%s":
		return join(args[1:], "", false)
	case format.text == `%s\n`:
		return join(args[1:], "\n", true)
	case len(args) == 1 && !strings.ContainsAny(format.text, `%\`):
		return format
	}
	v := unknown(args...)
	v.fixed = args[0].fixed && !strings.HasPrefix(args[0].text, "%")
	return v
}

// readVariables is read, readarray and mapfile.
func (sh *shell) readVariables(f *frame, command string, args []value) {
	in := sh.stdin(f)
	array := command != "read"
	var vars []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if !a.known {
			continue
		}
		if strings.HasPrefix(a.text, "-") {
			array = array || strings.Contains(a.text, "a")
			with := "pdntuNi" // the options that take the next word
			if command != "read" {
				with = "dnuCcOs"
			}
			if strings.ContainsRune(with, rune(a.text[len(a.text)-1])) {
				i++
			}
			continue
		}
		if syntax.ValidName(a.text) {
			vars = append(vars, a.text)
		}
	}
	for _, name := range vars {
		v := unknown(in)
		v.head = in.head
		if array {
			v.list = []value{v}
			if command != "read" && in.known {
				v.list = []value{}
				for _, line := range strings.Split(strings.TrimSuffix(in.text, "\n"), "\n") {
					if in.text == "" || len(v.list) > maxNames {
						break
					}
					e := in
					e.text, e.list, e.file = line, nil, ""
					v.list = append(v.list, e)
				}
			}
		}
		sh.set(f, name, v)
	}
}

// runText runs a string as a script. What comes from the environment into it is a hook.
func (sh *shell) runText(f *frame, v value, how string, pos syntax.Pos) status {
	if len(v.data) > 0 {
		sh.hook(f, v.data, how, pos)
	}
	if !v.known {
		if len(v.data) == 0 {
			sh.note(sh.place(f, pos), "what %s runs here can't be told", how)
		}
		return status{why: v.data.with(v.why)}
	}
	g := *f
	g.depth++
	if !sh.enter(&g) {
		return status{}
	}
	return sh.walkText(&g, v.text, f.base+int(pos.Line()))
}

// hook marks variables whose value is run.
func (sh *shell) hook(f *frame, vars names, how string, pos syntax.Pos) {
	at := sh.place(f, pos)
	for _, name := range vars {
		h := Hook{Variable: name, How: how, Dormant: f.dormant, Place: at}
		i := slices.IndexFunc(sh.report.Hooks, func(o Hook) bool { return o.Variable == name && o.How == how })
		switch {
		case i < 0:
			sh.report.Hooks = append(sh.report.Hooks, h)
		case sh.report.Hooks[i].Dormant && !h.Dormant:
			sh.report.Hooks[i] = h
		}
	}
}

// source is "." and source.
func (sh *shell) source(f *frame, args []value, pos syntax.Pos) status {
	if len(args[0].head) > 0 {
		sh.hook(f, args[0].head, ".", pos)
	}
	p := file(args[0])
	if p == "" {
		if args[0].known && strings.HasPrefix(args[0].text, "/dev/fd/") {
			return status{}
		}
		sh.note(sh.place(f, pos), "which file is sourced here can't be told%s", because(args[0]))
		return status{}
	}
	s := sh.load(p)
	if s == nil {
		if !f.dormant {
			sh.note(sh.place(f, pos), "%s is sourced, and it isn't there", p)
		}
		return status{}
	}
	if s.why != "" {
		sh.note(sh.img.Place(s.path, 0), "it is sourced, and can't be followed: %s", s.why)
		return status{}
	}
	if !sh.again(f, s.path) {
		return status{}
	}
	sh.met(f, p, s)
	g := *f
	g.at, g.base, g.name = s.path, 0, f.name
	g.calls = append(slices.Clip(f.calls), s.path)
	g.depth++
	if len(args) > 1 {
		rest := args[1:]
		g.args = &rest
	}
	if !sh.enter(&g) {
		return status{}
	}
	return caught(sh.seq(&g, s.file.Stmts), returns)
}

// Why a file isn't followed. A program is taken as it is; and so is what is too large for a script where it is run as a
// program, since that is nearly always one, and a layer would have to be inflated to tell.
const (
	isProgram = "it is a program, not a script"
	tooLarge  = "it is too large for a script that is read"
)

// load reads and parses a script; nil when there is none.
func (sh *shell) load(p string) *script {
	e, ok := sh.img.Stat(p)
	if !ok {
		return nil
	}
	if s, ok := sh.scripts[e.Path]; ok {
		return s
	}
	s := &script{path: e.Path}
	if e.Type != image.TypeFile && e.Type != image.TypeLink {
		s.why = "it is a " + string(e.Type)
		return s
	}
	if len(sh.scripts) >= maxScripts {
		s.why = "there are too many scripts"
		return s
	}
	sh.scripts[e.Path] = s
	if e.Size > maxScript {
		s.why = tooLarge
		return s
	}
	data, err := sh.img.ReadFile(sh.ctx, e.Path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && sh.err == nil {
			sh.err = err
		}
		s.why = "it can't be read"
		return s
	}
	sh.parsed(s, string(data))
	return s
}

func (sh *shell) parsed(s *script, text string) {
	var interpreter string
	interpreter, s.shell, s.bash = isShell(text)
	switch {
	case strings.HasPrefix(text, "\x7fELF"):
		s.why = isProgram
		return
	case interpreter != "" && !s.shell:
		s.why = "it is a script for " + interpreter
		return
	}
	s.file, s.why = parse(text)
	if s.why == "" && interpreter == "" {
		s.shell = true // sourced, or run by a shell that is named
	}
}

// met notes a script that runs.
func (sh *shell) met(f *frame, p string, s *script) {
	by := f.at
	if by == "" {
		by = "entrypoint"
		if sh.job != "" {
			by = sh.job
		}
	}
	n := Script{Path: s.path, By: by, Place: sh.img.Place(s.path, 0)}
	if p != s.path {
		n.Link = p
	}
	same := func(o Script) bool { return o.Path == n.Path && o.By == n.By }
	if !slices.ContainsFunc(sh.report.Scripts, same) && len(sh.report.Scripts) < maxScripts {
		sh.report.Scripts = append(sh.report.Scripts, n)
	}
}

// absent notes a file that isn't there, unless it may be in a layer that was not read.
func (sh *shell) absent(at tree.Place, format, p string) {
	if !slices.ContainsFunc(sh.img.Layers, func(l tree.Layer) bool { return l.Unread }) {
		sh.note(at, format, p)
	}
}

// program runs a program of the image.
func (sh *shell) program(f *frame, args []value, pos syntax.Pos) status {
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

// others are programs of the base in other languages than the shell's. The table of switches has what they read.
var others = []string{"python-server", "gem-server", "mcp-hub", "mcp-server-browser", "jupyter", "code-server"}

// ran notes a program that a job comes to.
func (sh *shell) ran(f *frame, args []value) {
	if sh.job == "" || f.dormant || len(sh.argv) >= maxNames {
		return
	}
	var words []string
	for _, a := range args {
		words = append(words, a.written())
	}
	if !slices.ContainsFunc(sh.argv, func(o []string) bool { return slices.Equal(o, words) }) {
		sh.argv = append(sh.argv, words)
	}
}

// mayBeScript leaves out the directories of programs that packages bring: reading a file of a layer costs reading the layer.
func mayBeScript(p string) bool {
	switch path.Dir(p) {
	case "/bin", "/usr/bin", "/sbin", "/usr/sbin":
		return strings.HasSuffix(p, ".sh")
	}
	return true
}

// lookUp finds a program as the shell does.
func (sh *shell) lookUp(f *frame, name string) string {
	if strings.HasPrefix(name, "/") {
		if _, ok := sh.img.Stat(name); ok {
			return image.Clean(name)
		}
		return ""
	}
	if strings.Contains(name, "/") {
		return ""
	}
	p := sh.peek(f, "PATH")
	for _, dir := range strings.Split(p.text, ":") {
		if e, ok := sh.img.Stat(path.Join(dir, name)); ok && strings.HasPrefix(dir, "/") && !e.IsDir() {
			return path.Join(dir, name)
		}
	}
	return ""
}

// script runs a script in a process of its own.
func (sh *shell) script(f *frame, p string, s *script, args []value) status {
	if !sh.again(f, s.path) {
		return status{}
	}
	if s.why != "" {
		if !slices.Contains(others, path.Base(p)) {
			sh.note(sh.img.Place(s.path, 0), "%s runs it, and it can't be followed: %s", sh.by(f), s.why)
		}
		sh.ran(f, args)
		v := sh.unknownOutput(f, args[1:])
		sh.emit(f, v)
		return status{}
	}
	sh.met(f, p, s)
	g := sh.process(f)
	g.name, g.at, g.base, g.bash = args[0].text, s.path, 0, s.bash
	rest := slices.Clone(args[1:])
	g.args = &rest
	g.calls = append(slices.Clip(f.calls), s.path)
	if s.bash {
		sh.read(g, "BASH_ENV", sh.img.Place(s.path, 1))
	}
	if !sh.enter(g) {
		return status{}
	}
	return caught(sh.seq(g, s.file.Stmts), exits)
}

// by says who runs something.
func (sh *shell) by(f *frame) string {
	switch {
	case f.at != "":
		return f.at
	case sh.job != "":
		return "program " + sh.job
	}
	return "the entrypoint"
}

// process is a frame for another process: only what is exported goes on.
func (sh *shell) process(f *frame) *frame {
	g := *f
	g.vars = &store{}
	for key, v := range f.vars.all() {
		name, _, _ := strings.Cut(key, "\x00")
		if f.key(name) == key && v.exported {
			g.vars.set(name, v)
		}
	}
	g.funcs, g.locals = map[string]function{}, nil
	g.depth++
	return &g
}

// write tells of a file that is written, made or rendered.
func (sh *shell) write(f *frame, to value, content value, how string, at tree.Place) {
	p := file(to)
	if p == "" {
		if prefix := to.text; to.known || !strings.HasPrefix(prefix, "/") {
			return // a path of the working directory, /dev/fd or a home
		}
		sh.note(at, "which file is written here can't be told%s", because(to))
		return
	}
	if strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/proc/") {
		return
	}
	decides := content.data.with(content.why, to.data, to.why, f.why)
	if how == ">>" || how == "sed -i" {
		decides = decides.with(sh.touched[p])
	}
	sh.touched[p] = sh.touched[p].with(decides)
	if gives := rights(p); gives != "" {
		text := "it writes to " + p + ", " + gives
		if content.known && content.text != "" {
			text = "it writes " + strings.TrimSpace(content.text) + " to " + p + ", " + gives
		}
		sh.grant(f, at, text)
	}
	if content.rendered && content.file != "" {
		sh.rendering(f, Rendering{Template: content.file, Output: p, Variables: content.variables, Values: content.values, Place: at})
		return
	}
	sh.change(f, Change{Path: p, How: how, Variables: decides, Place: at})
}

func (sh *shell) rendering(f *frame, r Rendering) {
	_, there := sh.img.Stat(r.Template)
	_, made := sh.touched[r.Template]
	r.Dormant = f.dormant || !there && !made
	for i, o := range sh.report.Renderings {
		if o.Template == r.Template && o.Output == r.Output && slices.Equal(o.Variables, r.Variables) {
			sh.report.Renderings[i].Dormant = o.Dormant && r.Dormant
			return
		}
	}
	if len(sh.report.Renderings) < maxScripts {
		sh.report.Renderings = append(sh.report.Renderings, r)
	}
}

func (sh *shell) change(f *frame, c Change) {
	c.Dormant = f.dormant
	for i, o := range sh.report.Changes {
		if o.Path == c.Path && o.How == c.How {
			sh.report.Changes[i].Variables = names(o.Variables).with(c.Variables)
			sh.report.Changes[i].Dormant = o.Dormant && c.Dormant
			return
		}
	}
	if len(sh.report.Changes) < 2*maxScripts {
		sh.report.Changes = append(sh.report.Changes, c)
	}
}

func (sh *shell) grant(f *frame, at tree.Place, text string) {
	n := tree.Note{Place: at, Text: text}
	if !f.dormant && !slices.Contains(sh.report.Grants, n) && len(sh.report.Grants) < maxNotes {
		sh.report.Grants = append(sh.report.Grants, n)
	}
}

// rights says what a file gives to whom it names.
func rights(p string) string {
	switch {
	case p == "/etc/sudoers" || strings.HasPrefix(p, "/etc/sudoers.d/"):
		return "which sudo obeys"
	case p == "/etc/passwd" || p == "/etc/shadow" || p == "/etc/group" || p == "/etc/gshadow":
		return "which says who is who"
	case strings.HasPrefix(p, "/etc/pam.d/"):
		return "which says who may log in"
	case p == "/etc/ld.so.preload":
		return "which every program loads"
	case strings.HasPrefix(p, "/etc/cron"), strings.HasPrefix(p, "/var/spool/cron/"):
		return "which cron runs"
	case strings.HasPrefix(p, "/root/.ssh/"), strings.HasSuffix(p, "/.ssh/authorized_keys"):
		return "which ssh lets in by"
	}
	return ""
}
