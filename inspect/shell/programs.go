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

// outside runs a program, and no function or builtin, as exec does.
func (sh *Walk) outside(f *frame, args []value, pos syntax.Pos) answer {
	name := args[0]
	sh.hook(f, name.from.names(begins), "exec", pos)
	if !name.known || name.text == "" {
		sh.Note(sh.place(f, pos), "which program is run here can't be told%s", because(name))
		return dependsOn(maybe, name)
	}
	return sh.program(f, args, pos)
}

// program runs a program of the image.
func (sh *Walk) program(f *frame, args []value, pos syntax.Pos) answer {
	name := args[0].text
	if a, ok := sh.known(f, path.Base(name), args, pos); ok {
		return a
	}
	if p := sh.lookUp(f, name); p != "" && mayBeScript(p) {
		if s := sh.load(p); s != nil && (s.shell || s.why != "" && s.why != isProgram && s.why != tooLarge) {
			return sh.script(f, p, s, args)
		}
	} else if p == "" && strings.HasPrefix(name, "/") && !f.dormant {
		sh.absent(sh.place(f, pos), "%s is run, and it isn't there", name)
	}
	return sh.other(f, args)
}

// others are programs of the base in other languages than the shell's. inspect/start has what they read.
var others = []string{"python-server", "gem-server", "mcp-hub", "mcp-server-browser", "jupyter", "code-server"}

// other is a program of which no more is known than what it is given. It is one that a job comes to.
func (sh *Walk) other(f *frame, args []value) answer {
	v := sh.unknownOutput(f, args[1:])
	sh.emit(f, v)
	if sh.job == "" || f.dormant {
		return dependsOn(maybe, v)
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
	return dependsOn(maybe, v)
}

// unknownOutput is that of a program of which no more is known than what it was given.
func (sh *Walk) unknownOutput(f *frame, args []value) value {
	return unknown(append(slices.Clip(args), sh.stdin(f))...)
}

// known runs a program whose work matters here. ok is false for any other.
func (sh *Walk) known(f *frame, base string, args []value, pos syntax.Pos) (a answer, ok bool) {
	rest := args[1:]
	at := sh.place(f, pos)
	ops := operands(rest)
	switch base {
	case "su", "runuser":
		return sh.su(f, base, args, pos), true
	case "browser-shell":
		if len(rest) == 0 || rest[0].text != "start" {
			return answer{}, false
		}
		return sh.wrapper(f, "browser-shell start", rest, pos)
	case "envsubst":
		sh.emit(f, sh.envsubst(f, ops, at))
		return done, true
	case "cat":
		v := unknown(ops...)
		switch {
		case len(ops) == 0 || len(ops) == 1 && ops[0].known && ops[0].text == "-":
			v = sh.stdin(f)
		case len(ops) == 1:
			v = sh.content(ops[0])
		}
		sh.emit(f, v)
	case "tr":
		v := sh.stdin(f)
		if len(rest) == 2 && rest[0].text == "-d" && rest[1].text == "[:space:]" && v.known {
			v = value{text: strings.Join(strings.Fields(v.text), ""), known: true, from: v.from}
		} else {
			v = sh.unknownOutput(f, rest)
		}
		sh.emit(f, v)
	case "tee":
		for _, a := range ops {
			sh.write(f, a, sh.stdin(f), "tee", at)
		}
		sh.emit(f, sh.stdin(f))
	case "sed":
		sh.sed(f, rest, at)
	case "cp", "mv", "ln", "install", "rsync":
		sh.copy(f, base, rest, at)
	case "rm", "unlink", "rmdir":
		for _, a := range ops {
			sh.remove(f, a, at)
		}
	case "touch", "truncate":
		for _, a := range ops {
			sh.write(f, a, value{}, base, at)
		}
	case "mktemp":
		sh.emit(f, literal("/tmp/tmp.XXXXXXXXXX"))
	case "mkdir":
		for _, a := range ops {
			if p := file(a); p != "" {
				sh.touched[p] = sh.touched[p].with(decides, a.from, f.why)
			}
		}
	case "chmod":
		if len(ops) > 1 && ops[0].known && setsID(ops[0].text) {
			for _, a := range ops[1:] {
				sh.grant(f, at, "it makes "+a.written()+" run with its owner's or group's rights: chmod "+ops[0].text)
			}
		}
	case "setcap":
		sh.grant(f, at, "it gives capabilities: setcap "+join(rest).written())
	case "chpasswd", "visudo", "passwd":
		sh.grant(f, at, "it changes an account's rights: "+base+" "+join(rest).written())
	case "usermod", "gpasswd", "adduser", "addgroup":
		if line := join(rest); privileged.MatchString(line.text) {
			sh.grant(f, at, "it changes an account's rights: "+base+" "+line.written())
		}
	case "supervisord":
		sh.supervisord(f, rest, at)
	default:
		if slices.Contains(shells, base) {
			return sh.shellCommand(f, base, args, pos), true
		}
		if _, ok := wrappers[base]; ok {
			return sh.wrapper(f, base, args, pos)
		}
		if interpreter.MatchString(base) {
			return sh.interpret(f, base, args, pos), true
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

func setsID(mode string) bool {
	return octalMode.MatchString(mode) || strings.Contains(mode, "s") && strings.ContainsAny(mode, "+=")
}

// nodeREPL is the base's server that runs what JavaScript it is sent; it reads NODEJS_REPL_PORT, which its program sets.
const nodeREPL = "/opt/repl-servers/nodejs/server.js"

// interpret is a program in a language that isn't followed.
func (sh *Walk) interpret(f *frame, base string, args []value, pos syntax.Pos) answer {
	given, rest := options(args[1:], "-c -e")
	i := slices.IndexFunc(given, func(o option) bool { return o.name == "-c" || o.name == "-e" })
	switch {
	case i >= 0:
		sh.hook(f, given[i].value.data(), base+" "+given[i].name, pos)
		sh.Note(sh.place(f, pos), "a program for %s is run, and can't be followed", base)
	case len(rest) > 0:
		sh.hook(f, rest[0].from.names(begins), base, pos)
		if rest[0].text != nodeREPL {
			sh.Note(sh.place(f, pos), "%s is run by %s, and can't be followed", rest[0].written(), base)
		}
	}
	return sh.other(f, args)
}

// wrappers are the programs that run the rest of their command line: the options of each that take the next word, and how many
// words come before the command.
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

// wrapper runs the rest of a command line.
func (sh *Walk) wrapper(f *frame, base string, args []value, pos syntax.Pos) (answer, bool) {
	w := wrappers[base]
	given, rest := options(args[1:], w.options)
	g := *f
	g.vars = &store{up: f.vars}
	if base == "env" || base == "sudo" {
		for len(rest) > 0 {
			v := rest[0]
			name, text, ok := strings.Cut(v.text, "=")
			if !ok || !syntax.ValidName(name) {
				break
			}
			v.text, v.from = text, origin(nil).with(inside, v.from)
			g.vars.set(name, variable{value: v, exported: true})
			rest = rest[1:]
		}
	}
	rest = rest[min(w.operands, len(rest)):]
	if base == "env" && len(given) > 0 && given[len(given)-1].name == "-S" {
		return sh.runText(&g, given[len(given)-1].value, "env -S", pos), true
	}
	if base == "xargs" {
		return sh.xargs(&g, given, rest, pos), true
	}
	if len(rest) == 0 {
		return answer{}, base != "busybox"
	}
	return sh.outside(&g, rest, pos), true
}

// xargs takes the words of its input apart.
func (sh *Walk) xargs(f *frame, given []option, command []value, pos syntax.Pos) answer {
	in := sh.stdin(f)
	if len(command) > 0 && command[0].text != "printf" && command[0].text != "echo" {
		return sh.outside(f, append(slices.Clip(command), value{from: in.from}), pos)
	}
	by := " "
	if len(command) == 2 && command[1].text == `%s\n` && len(given) == 1 && given[0].name == "-n1" {
		by, command = "\n", nil
	}
	words, err := shlex.Split(in.text)
	if !in.known || err != nil || strings.Contains(in.text, "#") || len(command) > 0 {
		sh.emit(f, unknown(in))
		return dependsOn(maybe, in)
	}
	v := value{text: strings.Join(words, by), known: true, from: in.from}
	if v.text != "" {
		v.text += "\n"
	}
	sh.emit(f, v)
	return dependsOn(yes, in)
}

// envsubst replaces variables in its input: those of its argument, or all.
func (sh *Walk) envsubst(f *frame, ops []value, at tree.Place) value {
	v := sh.stdin(f)
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
	v.filled.variables = placeholders(ops[0].text)
	for _, name := range v.filled.variables {
		w := sh.peek(f, name)
		if w.outer {
			sh.read(f, name, at)
		}
		v.from = v.from.with(inside, w.from)
		if w.known {
			v.filled.values[name] = w.text
		}
	}
	return v
}

// placeholder is how envsubst finds variables.
var placeholder = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

func placeholders(text string) []string {
	out := []string{}
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[2]
		if !slices.Contains(out, name) && len(out) < 10*maxNames {
			out = append(out, name)
		}
	}
	return out
}

func (sh *Walk) sed(f *frame, args []value, at tree.Place) {
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
		files := operands(args)
		for _, a := range files[min(max(1, expressions), len(files)):] {
			sh.write(f, a, v, "sed -i", at)
		}
		return
	}
	if in := sh.stdin(f); in.filled != nil {
		sh.Note(at, "sed changes what envsubst made of %s before it is written", in.file)
		v.file, v.filled = in.file, in.filled
	}
	sh.emit(f, v)
}

// copy is cp, mv, ln, install and rsync. A file that is copied as it is counts as rendered with no variable replaced.
func (sh *Walk) copy(f *frame, base string, args []value, at tree.Place) {
	if base == "install" {
		if slices.ContainsFunc(args, func(a value) bool { return a.text == "-d" }) {
			return
		}
		args = slices.DeleteFunc(slices.Clone(args), func(a value) bool { return modes.MatchString(a.text) })
	}
	ops := operands(args)
	if len(ops) < 2 {
		return
	}
	to := ops[len(ops)-1]
	e, ok := sh.img.Stat(file(to))
	isDir := file(to) != "" && ok && e.IsDir() || strings.HasSuffix(to.text, "/") || len(ops) > 2
	for _, from := range ops[:len(ops)-1] {
		source, target := file(from), to
		if isDir && to.known && from.known {
			target.text = path.Join(to.text, path.Base(from.text))
		}
		if file(target) == "" {
			if !to.known {
				sh.Note(at, "what %s writes here can't be told%s", base, because(to))
			}
			continue
		}
		content := sh.content(from)
		e, ok := sh.img.Stat(source)
		_, made := sh.touched[source]
		if source != "" && !made && ok && (e.Type == image.TypeFile || e.Type == image.TypeLink) && base != "rsync" {
			content.filled = &filling{variables: []string{}}
		}
		sh.write(f, target, content, base, at)
		if base == "mv" {
			sh.remove(f, from, at)
		}
	}
}

func (sh *Walk) remove(f *frame, v value, at tree.Place) {
	p := file(v)
	if p == "" {
		return
	}
	by := f.why.with(decides, v.from)
	sh.touched[p] = sh.touched[p].with(decides, by)
	sh.change(f, Change{Path: p, How: "rm", Place: at}, by)
}

// supervisorConfigs are where supervisord looks without -c (supervisor/options.py, Options.__init__).
var supervisorConfigs = []string{
	"/usr/etc/supervisord.conf", "/usr/supervisord.conf", "/etc/supervisord.conf", "/etc/supervisor/supervisord.conf",
}

func (sh *Walk) supervisord(f *frame, args []value, at tree.Place) {
	if sh.job != "" {
		sh.Note(at, "program %s starts a supervisord of its own, which is not followed", sh.job)
		return
	}
	var config value
	given, _ := options(args, "-c --configuration")
	for _, o := range given {
		switch {
		case o.name == "-c" || o.name == "--configuration":
			config = o.value
		case strings.HasPrefix(o.name, "-c"):
			config = literal(o.name[2:])
		}
	}
	p := file(config)
	if len(config.data()) > 0 {
		sh.Note(at, "the environment decides on supervisord's configuration%s", because(config))
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
		sh.Note(at, "which configuration supervisord is started with can't be told%s", because(config))
	case f.dormant:
	case sh.Supervisord == "":
		sh.Supervisord = p
		sh.started = sh.process(f, nil).vars.all()
		delete(sh.started, "@")
	case sh.Supervisord != p:
		sh.Note(at, "another supervisord is started, with %s", p)
	}
}
