package shell

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
)

// runText runs a string as a script. What comes from the environment into it is a hook.
func (sh *Walk) runText(f *frame, v value, how string, pos syntax.Pos) status {
	if len(v.data) > 0 {
		sh.hook(f, v.data, how, pos)
	}
	if !v.known {
		if len(v.data) == 0 {
			sh.Note(sh.place(f, pos), "what %s runs here can't be told", how)
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

// source is "." and source.
func (sh *Walk) source(f *frame, args []value, pos syntax.Pos) status {
	if len(args[0].head) > 0 {
		sh.hook(f, args[0].head, ".", pos)
	}
	p := file(args[0])
	if p == "" {
		if args[0].known && strings.HasPrefix(args[0].text, "/dev/fd/") {
			return status{}
		}
		sh.Note(sh.place(f, pos), "which file is sourced here can't be told%s", because(args[0]))
		return status{}
	}
	s := sh.load(p)
	if s == nil {
		if !f.dormant {
			sh.Note(sh.place(f, pos), "%s is sourced, and it isn't there", p)
		}
		return status{}
	}
	if s.why != "" {
		sh.Note(sh.img.Place(s.path, 0), "it is sourced, and can't be followed: %s", s.why)
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
func (sh *Walk) load(p string) *script {
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
	if len(sh.scripts) >= maxScripts || sh.single >= maxReads {
		s.why = "there are too many scripts"
		return s
	}
	sh.scripts[e.Path] = s
	if e.Size > maxScript {
		s.why = tooLarge
		return s
	}
	sh.single++
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

func (sh *Walk) parsed(s *script, text string) {
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
func (sh *Walk) met(f *frame, p string, s *script) {
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
	switch {
	case slices.ContainsFunc(sh.Scripts, same):
	case len(sh.Scripts) == maxScripts:
		sh.Note(sh.img.Place(s.path, 0), "more than %d scripts run: only these are told", maxScripts)
	default:
		sh.Scripts = append(sh.Scripts, n)
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
func (sh *Walk) lookUp(f *frame, name string) string {
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
func (sh *Walk) script(f *frame, p string, s *script, args []value) status {
	if !sh.again(f, s.path) {
		return status{}
	}
	if s.why != "" {
		if !slices.Contains(others, path.Base(p)) {
			sh.Note(sh.img.Place(s.path, 0), "%s runs it, and it can't be followed: %s", sh.by(f), s.why)
		}
		sh.ran(f, args)
		v := sh.unknownOutput(f, args[1:])
		sh.emit(f, v)
		return status{}
	}
	sh.met(f, p, s)
	if !sh.enter(f) {
		return status{}
	}
	g := sh.process(f)
	g.name, g.at, g.base, g.bash = args[0].text, s.path, 0, s.bash
	rest := slices.Clone(args[1:])
	g.args = &rest
	g.calls = append(slices.Clip(f.calls), s.path)
	if s.bash {
		sh.read(g, "BASH_ENV", sh.img.Place(s.path, 1))
	}
	return caught(sh.seq(g, s.file.Stmts), exits)
}

// by says who runs something.
func (sh *Walk) by(f *frame) string {
	switch {
	case f.at != "":
		return f.at
	case sh.job != "":
		return "program " + sh.job
	}
	return "the entrypoint"
}

// process is a frame for another process: only what is exported goes on.
func (sh *Walk) process(f *frame) *frame {
	g := *f
	g.vars = &store{}
	all := f.vars.all()
	sh.steps += len(all) / 4 // passing them on costs as much as walking through commands
	for key, v := range all {
		name, _, _ := strings.Cut(key, "\x00")
		if f.key(name) == key && v.exported {
			g.vars.set(name, v)
		}
	}
	g.funcs, g.locals = map[string]function{}, nil
	g.depth++
	return &g
}

// text parses and walks through a script that is a string of another one, such as that of bash -c.
func (sh *Walk) walkText(f *frame, text string, line int) status {
	file, why := parse(text)
	if why != "" {
		sh.Note(sh.img.Place(f.at, line), "a script in a string can't be followed: %s", why)
		return status{}
	}
	base := f.base
	f.base = max(line-1, 0)
	st := sh.seq(f, file.Stmts)
	f.base = base
	return st
}
