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

// runText walks through a string as a script, in frame f. It adds a hook for each variable of the environment whose
// text goes into the string.
func (sh *Walk) runText(f *frame, v value, how string, pos syntax.Pos) answer {
	sh.addHook(f, v.dataNames(), how, pos)
	if !v.known {
		if len(v.dataNames()) == 0 {
			sh.Note(sh.placeOf(f, pos), "what %s runs here can't be told", how)
		}
		return dependsOn(maybe, v)
	}
	line := f.base + int(pos.Line())
	script, why := parseScript(v.text)
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
	return sh.walkStatements(&g, script.Stmts)
}

// runSource walks through the file that "." or source names.
func (sh *Walk) runSource(f *frame, args []value, pos syntax.Pos) answer {
	sh.addHook(f, args[0].from.namesAtLeast(begins), ".", pos)
	p := pathOf(args[0])
	if strings.HasPrefix(p, "/dev/fd/") {
		return answer{}
	}
	if p == "" {
		sh.Note(sh.placeOf(f, pos), "which file is sourced here can't be told%s", dependencyNote(args[0]))
		return answer{}
	}
	s := sh.loadScript(p)
	switch {
	case s == nil:
		if !f.dormant {
			sh.Note(sh.placeOf(f, pos), "%s is sourced, and it isn't there", p)
		}
		return answer{}
	case s.why != "":
		sh.Note(sh.img.Place(s.path, 0), "this file is sourced, and can't be followed: %s", s.why)
		return answer{}
	case !sh.mayRecurse(f, s.path):
		return answer{}
	}
	sh.addScript(f, p, s)
	g := *f
	g.at, g.base = s.path, 0
	g.calls = append(slices.Clip(f.calls), s.path)
	g.depth++
	if !sh.enter(&g) {
		return answer{}
	}
	before := sh.peekVariable(f, "@")
	if len(args) > 1 {
		sh.setPositionals(f, args[1:])
	}
	a := sh.walkStatements(&g, s.file.Stmts)
	if len(args) > 1 {
		f.vars.setVariable("@", before)
	}
	f.end.catchUpTo(returns)
	return a
}

// Reasons that a file isn't followed. When the file is run as a program, these two lead to no note: a large file is
// nearly always a program, and only inflating its layer would show.
const (
	isProgram = "it is a program, not a script"
	tooLarge  = "it is too large for a script that is read"
)

// loadScript reads and parses the file at p, once per file. It returns nil when there is no such file.
func (sh *Walk) loadScript(p string) *script {
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
	s.parseText(string(data))
	return s
}

// addScript adds script s, called as p, to Scripts.
func (sh *Walk) addScript(f *frame, p string, s *script) {
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
	if sh.hasRoom(f, len(sh.Scripts), maxScripts, "scripts run") {
		sh.Scripts = append(sh.Scripts, n)
	}
}

// mayBeScript reports whether a program at p is worth reading. It leaves out the directories of packaged programs,
// since reading one file of a layer costs reading the layer.
func mayBeScript(p string) bool {
	switch path.Dir(p) {
	case "/bin", "/usr/bin", "/sbin", "/usr/sbin":
		return strings.HasSuffix(p, ".sh")
	}
	return true
}

// lookUpProgram returns the path of the program that a shell runs by that name, or "" when PATH has none.
func (sh *Walk) lookUpProgram(f *frame, name string) string {
	dirs := []string{""}
	if !strings.Contains(name, "/") {
		dirs = strings.Split(sh.peekVariable(f, "PATH").text, ":")
	}
	for _, dir := range dirs {
		p := path.Join(dir, name)
		if e, ok := sh.img.Stat(p); ok && strings.HasPrefix(p, "/") && !e.IsDir() {
			return p
		}
	}
	return ""
}

// runScript walks through script s, found at p, in a process of its own.
func (sh *Walk) runScript(f *frame, p string, s *script, args []value) answer {
	if !sh.mayRecurse(f, s.path) {
		return answer{}
	}
	if s.why != "" {
		if !slices.Contains(foreignPrograms, path.Base(p)) {
			sh.Note(sh.img.Place(s.path, 0), "%s runs this file, and it can't be followed: %s", sh.callerOf(f), s.why)
		}
		return sh.runUnknown(f, args)
	}
	sh.addScript(f, p, s)
	if !sh.enter(f) {
		return answer{}
	}
	g := sh.newProcess(f, args[1:])
	g.name, g.at, g.base, g.bash = args[0].text, s.path, 0, s.bash
	g.calls = append(slices.Clip(f.calls), s.path)
	if s.bash {
		sh.recordRead(g, "BASH_ENV", sh.img.Place(s.path, 1))
	}
	return sh.walkStatements(g, s.file.Stmts)
}

// callerOf names the file, program or entrypoint that a command of frame f belongs to.
func (sh *Walk) callerOf(f *frame) string {
	switch {
	case f.at != "":
		return f.at
	case sh.job != "":
		return "program " + sh.job
	}
	return "the entrypoint"
}

// runShell walks through bash -c, bash FILE, and a shell that reads its commands from standard input.
func (sh *Walk) runShell(f *frame, base string, args []value, pos syntax.Pos) answer {
	given, rest := parseOptions(args[1:], "-o -O --rcfile --init-file")
	flags := ""
	for _, o := range given {
		if !strings.HasPrefix(o.name, "--") {
			flags += o.name
		}
	}
	g := sh.newProcess(f, nil)
	g.bash = base == "bash" || base == "rbash"
	g.name = args[0].text
	if !sh.enter(g) {
		return answer{}
	}
	if g.bash {
		sh.recordRead(f, "BASH_ENV", sh.placeOf(f, pos))
	}
	switch {
	case strings.Contains(flags, "c"):
		if len(rest) == 0 {
			return answer{}
		}
		if len(rest) > 1 {
			g.name = rest[1].text
			sh.setPositionals(g, rest[2:])
		}
		return sh.runText(g, rest[0], base+" -c", pos)
	case strings.Contains(flags, "s") || len(rest) == 0:
		if f.stdin == nil {
			return answer{}
		}
		sh.setPositionals(g, rest)
		g.stdin = nil
		return sh.runText(g, *f.stdin, base+" -s", pos)
	}
	sh.addHook(f, rest[0].from.namesAtLeast(begins), base, pos)
	p := pathOf(rest[0])
	if p == "" {
		sh.Note(sh.placeOf(f, pos), "which script %s runs here can't be told%s", base, dependencyNote(rest[0]))
		return answer{}
	}
	s := sh.loadScript(p)
	if s == nil {
		if !f.dormant {
			sh.noteAbsent(sh.placeOf(f, pos), "%s is run, and it isn't there", p)
		}
		return answer{}
	}
	return sh.runScript(f, p, s, rest)
}

// runSu walks through the command that su or runuser runs.
func (sh *Walk) runSu(f *frame, base string, args []value, pos syntax.Pos) answer {
	given, rest := parseOptions(args[1:], suTakes)
	if len(rest) > 0 && rest[0].known && rest[0].text == "-" {
		given, rest = append(given, option{name: "-l"}), rest[1:]
	}
	user := literal("root")
	if len(rest) > 0 {
		more, _ := parseOptions(rest[1:], suTakes)
		given, user = append(given, more...), rest[0]
	}
	g := sh.newProcess(f, nil)
	if !sh.enter(g) {
		return answer{}
	}
	g.bash = true
	command, how := g.stdin, base // a login shell reads its commands
	for _, o := range given {
		switch o.name {
		case "-", "-l", "--login":
			g.bare, g.vars = true, &store{}
			sh.setPositionals(g, nil)
		case "-c", "--command", "--session-command":
			command, how = &o.value, base+" -c"
		case "-u", "--user":
			if base == "runuser" && len(rest) > 0 {
				return sh.runExternal(f, rest, pos)
			}
		}
	}
	home := literal("/home/").concat(user)
	if user.known && user.text == "root" {
		home = literal("/root")
	}
	for name, v := range map[string]value{"HOME": home, "LOGNAME": user, "SHELL": {}} {
		g.vars.setVariable(name, variable{value: v, exported: true})
	}
	if command == nil {
		return answer{}
	}
	return sh.runText(g, *command, how, pos)
}

// suTakes lists the options of su and runuser that take the next word.
const suTakes = "-c --command --session-command -s --shell -g -G -w -u --user"
