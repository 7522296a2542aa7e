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
func (sh *Walk) runText(f *frame, v value, how string, pos syntax.Pos) answer {
	sh.hook(f, v.data(), how, pos)
	if !v.known {
		if len(v.data()) == 0 {
			sh.Note(sh.place(f, pos), "what %s runs here can't be told", how)
		}
		return dependsOn(maybe, v)
	}
	line := f.base + int(pos.Line())
	script, why := parse(v.text)
	if why != "" {
		sh.Note(sh.img.Place(f.at, line), "a script in a string can't be followed: %s", why)
		return answer{}
	}
	g := *f
	g.base = max(line-1, 0)
	g.depth++
	if !sh.enter(&g) {
		return answer{}
	}
	return sh.seq(&g, script.Stmts)
}

// source is "." and source.
func (sh *Walk) source(f *frame, args []value, pos syntax.Pos) answer {
	sh.hook(f, args[0].from.names(begins), ".", pos)
	p := file(args[0])
	if strings.HasPrefix(p, "/dev/fd/") {
		return answer{}
	}
	if p == "" {
		sh.Note(sh.place(f, pos), "which file is sourced here can't be told%s", because(args[0]))
		return answer{}
	}
	s := sh.load(p)
	switch {
	case s == nil:
		if !f.dormant {
			sh.Note(sh.place(f, pos), "%s is sourced, and it isn't there", p)
		}
		return answer{}
	case s.why != "":
		sh.Note(sh.img.Place(s.path, 0), "it is sourced, and can't be followed: %s", s.why)
		return answer{}
	case !sh.again(f, s.path):
		return answer{}
	}
	sh.met(f, p, s)
	g := *f
	g.at, g.base = s.path, 0
	g.calls = append(slices.Clip(f.calls), s.path)
	g.depth++
	if !sh.enter(&g) {
		return answer{}
	}
	before := sh.peek(f, "@")
	if len(args) > 1 {
		sh.setArgs(f, args[1:])
	}
	a := sh.seq(&g, s.file.Stmts)
	if len(args) > 1 {
		f.vars.set("@", before)
	}
	f.end.catch(returns)
	return a
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
	s.parse(string(data))
	return s
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
	if slices.ContainsFunc(sh.Scripts, func(o Script) bool { return o.Path == n.Path && o.By == n.By }) {
		return
	}
	if sh.room(f, len(sh.Scripts), maxScripts, "scripts run") {
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
	dirs := []string{""}
	if !strings.Contains(name, "/") {
		dirs = strings.Split(sh.peek(f, "PATH").text, ":")
	}
	for _, dir := range dirs {
		p := path.Join(dir, name)
		if e, ok := sh.img.Stat(p); ok && strings.HasPrefix(p, "/") && !e.IsDir() {
			return p
		}
	}
	return ""
}

// script runs a script in a process of its own.
func (sh *Walk) script(f *frame, p string, s *script, args []value) answer {
	if !sh.again(f, s.path) {
		return answer{}
	}
	if s.why != "" {
		if !slices.Contains(others, path.Base(p)) {
			sh.Note(sh.img.Place(s.path, 0), "%s runs it, and it can't be followed: %s", sh.by(f), s.why)
		}
		return sh.other(f, args)
	}
	sh.met(f, p, s)
	if !sh.enter(f) {
		return answer{}
	}
	g := sh.process(f, args[1:])
	g.name, g.at, g.base, g.bash = args[0].text, s.path, 0, s.bash
	g.calls = append(slices.Clip(f.calls), s.path)
	if s.bash {
		sh.read(g, "BASH_ENV", sh.img.Place(s.path, 1))
	}
	return sh.seq(g, s.file.Stmts)
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

// shellCommand is bash -c, bash FILE, and a shell that reads its commands from standard input.
func (sh *Walk) shellCommand(f *frame, base string, args []value, pos syntax.Pos) answer {
	given, rest := options(args[1:], "-o -O --rcfile --init-file")
	flags := ""
	for _, o := range given {
		if !strings.HasPrefix(o.name, "--") {
			flags += o.name
		}
	}
	g := sh.process(f, nil)
	g.bash = base == "bash" || base == "rbash"
	g.name = args[0].text
	if !sh.enter(g) {
		return answer{}
	}
	if g.bash {
		sh.read(f, "BASH_ENV", sh.place(f, pos))
	}
	switch {
	case strings.Contains(flags, "c"):
		if len(rest) == 0 {
			return answer{}
		}
		if len(rest) > 1 {
			g.name = rest[1].text
			sh.setArgs(g, rest[2:])
		}
		return sh.runText(g, rest[0], base+" -c", pos)
	case strings.Contains(flags, "s") || len(rest) == 0:
		if f.stdin == nil {
			return answer{}
		}
		sh.setArgs(g, rest)
		g.stdin = nil
		return sh.runText(g, *f.stdin, base+" -s", pos)
	}
	sh.hook(f, rest[0].from.names(begins), base, pos)
	p := file(rest[0])
	if p == "" {
		sh.Note(sh.place(f, pos), "which script %s runs here can't be told%s", base, because(rest[0]))
		return answer{}
	}
	s := sh.load(p)
	if s == nil {
		if !f.dormant {
			sh.absent(sh.place(f, pos), "%s is run, and it isn't there", p)
		}
		return answer{}
	}
	return sh.script(f, p, s, rest)
}

// su is su and runuser.
func (sh *Walk) su(f *frame, base string, args []value, pos syntax.Pos) answer {
	given, rest := options(args[1:], suTakes)
	if len(rest) > 0 && rest[0].known && rest[0].text == "-" {
		given, rest = append(given, option{name: "-l"}), rest[1:]
	}
	user := literal("root")
	if len(rest) > 0 {
		more, _ := options(rest[1:], suTakes)
		given, user = append(given, more...), rest[0]
	}
	g := sh.process(f, nil)
	if !sh.enter(g) {
		return answer{}
	}
	g.bash = true
	command, how := g.stdin, base // a login shell reads its commands
	for _, o := range given {
		switch o.name {
		case "-", "-l", "--login":
			g.bare, g.vars = true, &store{}
			sh.setArgs(g, nil)
		case "-c", "--command", "--session-command":
			command, how = &o.value, base+" -c"
		case "-u", "--user":
			if base == "runuser" && len(rest) > 0 {
				return sh.outside(f, rest, pos)
			}
		}
	}
	home := literal("/home/").and(user)
	if user.known && user.text == "root" {
		home = literal("/root")
	}
	for name, v := range map[string]value{"HOME": home, "LOGNAME": user, "SHELL": {}} {
		g.vars.set(name, variable{value: v, exported: true})
	}
	if command == nil {
		return answer{}
	}
	return sh.runText(g, *command, how, pos)
}

const suTakes = "-c --command --session-command -s --shell -g -G -w -u --user"
