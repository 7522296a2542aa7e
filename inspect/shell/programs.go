package shell

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/shlex"
	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// runExternal runs a program as exec does: functions and builtins of that name don't count.
func (sh *Walk) runExternal(f *frame, args []value, pos syntax.Pos) answer {
	name := args[0]
	sh.addHook(f, name.from.namesAtLeast(begins), "exec", pos)
	if !name.known || name.text == "" {
		sh.Note(sh.placeOf(f, pos), "which program is run here can't be told%s", dependencyNote(name))
		return dependsOn(maybe, name)
	}
	return sh.runProgram(f, args, pos)
}

// runProgram runs a program of the image: one of the known ones, a script, or one that isn't followed.
func (sh *Walk) runProgram(f *frame, args []value, pos syntax.Pos) answer {
	name := args[0].text
	if a, ok := sh.runKnown(f, path.Base(name), args, pos); ok {
		return a
	}
	if p := sh.lookUpProgram(f, name); p != "" && mayBeScript(p) {
		if s := sh.loadScript(p); s != nil && (s.shell || s.why != "" && s.why != isProgram && s.why != tooLarge) {
			return sh.runScript(f, p, s, args)
		}
	} else if p == "" && strings.HasPrefix(name, "/") && !f.dormant {
		sh.noteAbsent(sh.placeOf(f, pos), "%s is run, and it isn't there", name)
	}
	return sh.runUnknown(f, args)
}

// foreignPrograms are the base's programs in other languages than the shell's. inspect/start lists the variables that
// they read.
var foreignPrograms = []string{"python-server", "gem-server", "mcp-hub", "mcp-server-browser", "jupyter", "code-server"}

// runUnknown runs a program that isn't followed: its output is unknown, and during Follow its command line becomes one
// of argv.
func (sh *Walk) runUnknown(f *frame, args []value) answer {
	v := sh.unknownOutput(f, args[1:])
	sh.emitOutput(f, v)
	if sh.job == "" || f.dormant {
		return dependsOn(maybe, v)
	}
	var words []string
	for _, a := range args {
		words = append(words, a.displayText())
	}
	switch {
	case slices.ContainsFunc(sh.argv, func(o []string) bool { return slices.Equal(o, words) }):
	case len(sh.argv) == maxNames:
		sh.Note(sh.jobAt, "program %s comes to more than %d programs: only these are looked at", sh.job, maxNames)
	default:
		sh.argv = append(sh.argv, words)
	}
	return dependsOn(maybe, v)
}

// unknownOutput returns an unknown value that comes from a program's arguments and its standard input.
func (sh *Walk) unknownOutput(f *frame, args []value) value {
	return unknown(append(slices.Clip(args), sh.stdinOf(f))...)
}

// runKnown runs a program whose effect matters here. ok is false for any other.
func (sh *Walk) runKnown(f *frame, base string, args []value, pos syntax.Pos) (a answer, ok bool) {
	rest := args[1:]
	at := sh.placeOf(f, pos)
	ops := operandsOf(rest)
	switch base {
	case "su", "runuser":
		return sh.runSu(f, base, args, pos), true
	case "browser-shell":
		if len(rest) == 0 || rest[0].text != "start" {
			return answer{}, false
		}
		return sh.runWrapper(f, "browser-shell start", rest, pos)
	case "envsubst":
		sh.emitOutput(f, sh.runEnvsubst(f, ops, at))
		return done, true
	case "cat":
		v := unknown(ops...)
		switch {
		case len(ops) == 0 || len(ops) == 1 && ops[0].known && ops[0].text == "-":
			v = sh.stdinOf(f)
		case len(ops) == 1:
			v = sh.contentOf(ops[0])
		}
		sh.emitOutput(f, v)
	case "tr":
		v := sh.stdinOf(f)
		if len(rest) == 2 && rest[0].text == "-d" && rest[1].text == "[:space:]" && v.known {
			v = value{text: strings.Join(strings.Fields(v.text), ""), known: true, from: v.from}
		} else {
			v = sh.unknownOutput(f, rest)
		}
		sh.emitOutput(f, v)
	case "tee":
		for _, a := range ops {
			sh.recordWrite(f, a, sh.stdinOf(f), "tee", at)
		}
		sh.emitOutput(f, sh.stdinOf(f))
	case "sed":
		sh.runSed(f, rest, at)
	case "cp", "mv", "ln", "install", "rsync":
		sh.runCopy(f, base, rest, at)
	case "rm", "unlink", "rmdir":
		for _, a := range ops {
			sh.recordRemoval(f, a, at)
		}
	case "touch", "truncate":
		for _, a := range ops {
			sh.recordWrite(f, a, value{}, base, at)
		}
	case "mktemp":
		sh.emitOutput(f, literal("/tmp/tmp.XXXXXXXXXX"))
	case "mkdir":
		for _, a := range ops {
			if p := pathOf(a); p != "" {
				sh.touched[p] = sh.touched[p].addOrigins(decides, a.from, f.why)
			}
		}
	case "chmod":
		if len(ops) > 1 && ops[0].known && setsID(ops[0].text) {
			for _, a := range ops[1:] {
				sh.addGrant(f, at, "it makes "+a.displayText()+" run with its owner's or group's rights: chmod "+ops[0].text)
			}
		}
	case "setcap":
		sh.addGrant(f, at, "it gives capabilities: setcap "+joinWords(rest).displayText())
	case "chpasswd", "visudo", "passwd":
		sh.addGrant(f, at, "it changes an account's rights: "+base+" "+joinWords(rest).displayText())
	case "usermod", "gpasswd", "adduser", "addgroup":
		if line := joinWords(rest); privileged.MatchString(line.text) {
			sh.addGrant(f, at, "it changes an account's rights: "+base+" "+line.displayText())
		}
	case "supervisord":
		sh.runSupervisord(f, rest, at)
	default:
		if slices.Contains(shells, base) {
			return sh.runShell(f, base, args, pos), true
		}
		if _, ok := wrappers[base]; ok {
			return sh.runWrapper(f, base, args, pos)
		}
		if interpreter.MatchString(base) {
			return sh.runInterpreter(f, base, args, pos), true
		}
		return answer{}, false
	}
	return answer{}, true
}

var (
	interpreter = regexp.MustCompile(`^(python[0-9.]*|node[0-9]*|nodejs|perl|ruby|php|lua|deno|bun)$`)
	privileged  = regexp.MustCompile(`(^|[ ,])(sudo|wheel|root|docker|shadow|adm|disk)([ ,]|$)`)
	modes       = regexp.MustCompile(`^[0-7]{3,4}$`) // what install -m takes; no path looks so
	octalMode   = regexp.MustCompile(`^[0-7]?[2-7][0-7]{3}$`)
)

// setsID reports whether a mode for chmod sets the set-user-ID or set-group-ID bit.
func setsID(mode string) bool {
	return octalMode.MatchString(mode) || strings.Contains(mode, "s") && strings.ContainsAny(mode, "+=")
}

// nodeREPL is the base's server that runs what JavaScript it is sent; it reads NODEJS_REPL_PORT, which its program
// sets.
const nodeREPL = "/opt/repl-servers/nodejs/server.js"

// runInterpreter runs a program for an interpreter of a language that isn't followed.
func (sh *Walk) runInterpreter(f *frame, base string, args []value, pos syntax.Pos) answer {
	given, rest := parseOptions(args[1:], "-c -e")
	i := slices.IndexFunc(given, func(o option) bool { return o.name == "-c" || o.name == "-e" })
	switch {
	case i >= 0:
		sh.addHook(f, given[i].value.dataNames(), base+" "+given[i].name, pos)
		sh.Note(sh.placeOf(f, pos), "a program for %s is run, and can't be followed", base)
	case len(rest) > 0:
		sh.addHook(f, rest[0].from.namesAtLeast(begins), base, pos)
		if rest[0].text != nodeREPL {
			sh.Note(sh.placeOf(f, pos), "%s is run by %s, and can't be followed", rest[0].displayText(), base)
		}
	}
	return sh.runUnknown(f, args)
}

// wrappers are the programs that run the rest of their command line. options lists those that take the next word,
// operands counts the words before the command.
var wrappers = map[string]struct {
	options  string
	operands int
}{
	"env": {"-u -C -S --unset --chdir", 0}, "sudo": {"-u -g -h -p -C -D -R -T -U --user --group", 0}, "doas": {"-u -C", 0},
	"nice": {"-n", 0}, "ionice": {"-c -n -p", 0}, "stdbuf": {"-i -o -e", 0}, "timeout": {"-k -s", 1}, "time": {}, "nohup": {}, "setsid": {},
	"browser-shell start": {"--cage --display --pidfile", 0}, "gosu": {"", 1}, "su-exec": {"", 1}, "setpriv": {}, "chroot": {"", 1},
	"flock": {"-w -E", 1}, "chpst": {"-u -U -b -e -/ -n -l -L -m -d -o -p -f -c", 0}, "tini": {"-p -e", 0}, "dumb-init": {}, "catatonit": {},
	"unshare": {}, "busybox": {}, "fakeroot": {}, "dbus-run-session": {}, "xvfb-run": {}, "xargs": {"-n -L -I -P -s -d -E -a", 0},
}

// runWrapper runs the command in the rest of a wrapper's command line. ok is false for busybox without one.
func (sh *Walk) runWrapper(f *frame, base string, args []value, pos syntax.Pos) (answer, bool) {
	w := wrappers[base]
	given, rest := parseOptions(args[1:], w.options)
	g := *f
	g.vars = &store{up: f.vars}
	if base == "env" || base == "sudo" {
		for len(rest) > 0 {
			v := rest[0]
			name, text, ok := strings.Cut(v.text, "=")
			if !ok || !syntax.ValidName(name) {
				break
			}
			v.text, v.from = text, origin(nil).addOrigins(inside, v.from)
			g.vars.setVariable(name, variable{value: v, exported: true})
			rest = rest[1:]
		}
	}
	rest = rest[min(w.operands, len(rest)):]
	if base == "env" && len(given) > 0 && given[len(given)-1].name == "-S" {
		return sh.runText(&g, given[len(given)-1].value, "env -S", pos), true
	}
	if base == "xargs" {
		return sh.runXargs(&g, given, rest, pos), true
	}
	if len(rest) == 0 {
		return answer{}, base != "busybox"
	}
	return sh.runExternal(&g, rest, pos), true
}

// runXargs runs the command of xargs with the words of its standard input. Its output is known without a command,
// and for -n1 printf '%s\n'.
func (sh *Walk) runXargs(f *frame, given []option, command []value, pos syntax.Pos) answer {
	in := sh.stdinOf(f)
	if len(command) > 0 && command[0].text != "printf" && command[0].text != "echo" {
		return sh.runExternal(f, append(slices.Clip(command), value{from: in.from}), pos)
	}
	by := " "
	if len(command) == 2 && command[1].text == `%s\n` && len(given) == 1 && given[0].name == "-n1" {
		by, command = "\n", nil
	}
	words, err := shlex.Split(in.text)
	if !in.known || err != nil || strings.Contains(in.text, "#") || len(command) > 0 {
		sh.emitOutput(f, unknown(in))
		return dependsOn(maybe, in)
	}
	v := value{text: strings.Join(words, by), known: true, from: in.from}
	if v.text != "" {
		v.text += "\n"
	}
	sh.emitOutput(f, v)
	return dependsOn(yes, in)
}

// runEnvsubst returns the output of envsubst, which replaces the variables in ops[0], or every one, in its standard
// input.
func (sh *Walk) runEnvsubst(f *frame, ops []value, at tree.Place) value {
	v := sh.stdinOf(f)
	v.known, v.text, v.filled = false, "", &filling{values: map[string]string{}}
	switch {
	case v.file == "":
		sh.Note(at, "which template envsubst reads here can't be told")
	case len(ops) == 0 || !ops[0].known:
		sh.Note(sh.img.Place(v.file, 0), "envsubst replaces every variable in it: which those are isn't looked at")
	}
	if len(ops) == 0 || !ops[0].known {
		return v
	}
	v.filled.variables = findPlaceholders(ops[0].text)
	for _, name := range v.filled.variables {
		w := sh.peekVariable(f, name)
		if w.outer {
			sh.recordRead(f, name, at)
		}
		v.from = v.from.addOrigins(inside, w.from)
		if w.known {
			v.filled.values[name] = w.text
		}
	}
	return v
}

// placeholder matches the variables that envsubst replaces.
var placeholder = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

// findPlaceholders returns the names of the variables in text, each once.
func findPlaceholders(text string) []string {
	out := []string{}
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[2]
		if !slices.Contains(out, name) && len(out) < 10*maxNames {
			out = append(out, name)
		}
	}
	return out
}

// runSed runs sed, whose output is unknown; with -i it changes the files that it names.
func (sh *Walk) runSed(f *frame, args []value, at tree.Place) {
	inPlace, expressions := false, 0
	for _, a := range args {
		switch {
		case !a.known || !strings.HasPrefix(a.text, "-"):
		case a.text == "-e" || a.text == "-f":
			expressions++
		case strings.HasPrefix(a.text, "--in-place"), !strings.HasPrefix(a.text, "--") && strings.Contains(a.text, "i"):
			inPlace = true
		}
	}
	v := sh.unknownOutput(f, args)
	if inPlace {
		files := operandsOf(args)
		for _, a := range files[min(max(1, expressions), len(files)):] {
			sh.recordWrite(f, a, v, "sed -i", at)
		}
		return
	}
	if in := sh.stdinOf(f); in.filled != nil {
		sh.Note(at, "sed changes what envsubst made of %s before it is written", in.file)
		v.file, v.filled = in.file, in.filled
	}
	sh.emitOutput(f, v)
}

// runCopy runs cp, mv, ln, install or rsync. An unchanged copy counts as a rendering with no variable replaced.
func (sh *Walk) runCopy(f *frame, base string, args []value, at tree.Place) {
	if base == "install" {
		if slices.ContainsFunc(args, func(a value) bool { return a.text == "-d" }) {
			return
		}
		args = slices.DeleteFunc(slices.Clone(args), func(a value) bool { return modes.MatchString(a.text) })
	}
	ops := operandsOf(args)
	if len(ops) < 2 {
		return
	}
	to := ops[len(ops)-1]
	e, ok := sh.img.Stat(pathOf(to))
	isDir := pathOf(to) != "" && ok && e.IsDir() || strings.HasSuffix(to.text, "/") || len(ops) > 2
	for _, from := range ops[:len(ops)-1] {
		source, target := pathOf(from), to
		if isDir && to.known && from.known {
			target.text = path.Join(to.text, path.Base(from.text))
		}
		if pathOf(target) == "" {
			if !to.known {
				sh.Note(at, "what %s writes here can't be told%s", base, dependencyNote(to))
			}
			continue
		}
		content := sh.contentOf(from)
		e, ok := sh.img.Stat(source)
		_, made := sh.touched[source]
		if source != "" && !made && ok && (e.Type == image.TypeFile || e.Type == image.TypeLink) && base != "rsync" {
			content.filled = &filling{variables: []string{}}
		}
		sh.recordWrite(f, target, content, base, at)
		if base == "mv" {
			sh.recordRemoval(f, from, at)
		}
	}
}

// recordRemoval records that the file that v names is removed.
func (sh *Walk) recordRemoval(f *frame, v value, at tree.Place) {
	p := pathOf(v)
	if p == "" {
		return
	}
	by := f.why.addOrigins(decides, v.from)
	sh.touched[p] = sh.touched[p].addOrigins(decides, by)
	sh.addChange(f, Change{Path: p, How: "rm", Place: at}, by)
}

// supervisorConfigs are the paths that supervisord searches without -c (supervisor/options.py, Options.__init__).
var supervisorConfigs = []string{
	"/usr/etc/supervisord.conf", "/usr/supervisord.conf", "/etc/supervisord.conf", "/etc/supervisor/supervisord.conf",
}

// runSupervisord sets Supervisord to the configuration that supervisord is started with, and keeps its environment.
func (sh *Walk) runSupervisord(f *frame, args []value, at tree.Place) {
	if sh.job != "" {
		sh.Note(at, "program %s starts a supervisord of its own, which is not followed", sh.job)
		return
	}
	var config value
	given, _ := parseOptions(args, "-c --configuration")
	for _, o := range given {
		switch {
		case o.name == "-c" || o.name == "--configuration":
			config = o.value
		case strings.HasPrefix(o.name, "-c"):
			config = literal(o.name[2:])
		}
	}
	p := pathOf(config)
	if len(config.dataNames()) > 0 {
		sh.Note(at, "the environment decides on supervisord's configuration%s", dependencyNote(config))
	} else if !config.known {
		for _, c := range supervisorConfigs {
			if _, ok := sh.img.Stat(c); ok {
				p = c
				break
			}
		}
	}
	switch {
	case p == "":
		sh.Note(at, "which configuration supervisord is started with can't be told%s", dependencyNote(config))
	case f.dormant:
	case sh.Supervisord == "":
		sh.Supervisord = p
		sh.started = sh.newProcess(f, nil).vars.allVariables()
		delete(sh.started, "@")
	case sh.Supervisord != p:
		sh.Note(at, "another supervisord is started, with %s", p)
	}
}
