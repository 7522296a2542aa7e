package start

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// known runs a program whose work matters here. ok is false for any other.
func (sh *shell) known(f *frame, base string, args []value, pos syntax.Pos) (status, bool) {
	rest := args[1:]
	at := sh.place(f, pos)
	switch base {
	case "bash", "sh", "dash", "ash", "ksh", "zsh", "rbash":
		return sh.shellCommand(f, base, args, pos), true
	case "su", "runuser":
		return sh.su(f, base, args, pos), true
	case "env", "sudo", "doas", "nohup", "setsid", "nice", "ionice", "stdbuf", "time", "timeout", "gosu", "su-exec", "setpriv",
		"chroot", "tini", "dumb-init", "catatonit", "flock", "chpst", "unshare", "busybox", "xargs", "fakeroot", "dbus-run-session",
		"xvfb-run":
		return sh.wrapper(f, base, args, pos)
	case "envsubst":
		sh.emit(f, sh.envsubst(f, rest, at))
		return status{ok: yes}, true
	case "cat":
		sh.emit(f, sh.cat(f, rest))
		return status{ok: maybe}, true
	case "tr":
		in := sh.stdin(f)
		if len(rest) == 2 && rest[0].known && rest[0].text == "-d" && rest[1].known && rest[1].text == "[:space:]" && in.known {
			in.text = strings.Join(strings.Fields(in.text), "")
			in.file = ""
			sh.emit(f, in)
		} else {
			sh.emit(f, sh.unknownOutput(f, rest))
		}
		return status{ok: yes}, true
	case "tee":
		in := sh.stdin(f)
		for _, a := range operands(rest) {
			sh.write(f, a, in, "tee", at)
		}
		sh.emit(f, in)
		return status{ok: yes}, true
	case "sed":
		sh.sed(f, rest, at)
		return status{ok: maybe}, true
	case "cp", "mv", "ln", "install", "rsync":
		sh.copy(f, base, rest, at)
		return status{ok: maybe}, true
	case "rm", "unlink", "rmdir":
		for _, a := range operands(rest) {
			sh.remove(f, a, at)
		}
		return status{ok: maybe}, true
	case "touch", "truncate":
		for _, a := range operands(rest) {
			sh.write(f, a, value{}, base, at)
		}
		return status{ok: maybe}, true
	case "mktemp":
		sh.emit(f, literal("/tmp/tmp.XXXXXXXXXX"))
		return status{ok: yes}, true
	case "mkdir":
		for _, a := range operands(rest) {
			if p := file(a); p != "" {
				sh.touched[p] = sh.touched[p].with(a.data, a.why, f.why)
			}
		}
		return status{ok: maybe}, true
	case "chmod":
		ops := operands(rest)
		if len(ops) > 1 && ops[0].known && setsID(ops[0].text) {
			for _, a := range ops[1:] {
				sh.grant(f, at, "it makes "+a.written()+" run with its owner's or group's rights: chmod "+ops[0].text)
			}
		}
		return status{ok: maybe}, true
	case "setcap":
		sh.grant(f, at, "it gives capabilities: setcap "+join(rest, " ", false).written())
		return status{ok: maybe}, true
	case "usermod", "gpasswd", "adduser", "addgroup", "chpasswd", "visudo", "passwd":
		line := join(rest, " ", false)
		if base == "chpasswd" || base == "visudo" || base == "passwd" || privileged.MatchString(line.text) {
			sh.grant(f, at, "it changes an account's rights: "+base+" "+line.written())
		}
		return status{ok: maybe}, true
	case "supervisord":
		sh.supervisord(f, args, at)
		return status{ok: maybe}, true
	}
	if interpreter.MatchString(base) {
		for i, a := range rest {
			switch {
			case a.known && (a.text == "-c" || a.text == "-e") && i+1 < len(rest):
				if len(rest[i+1].data) > 0 {
					sh.hook(f, rest[i+1].data, base+" "+a.text, pos)
				}
				sh.note(at, "a program for %s is run, and can't be followed", base)
			case a.known && !strings.HasPrefix(a.text, "-") || !a.known:
				if len(a.head) > 0 {
					sh.hook(f, a.head, base, pos)
				}
				if a.text != nodeREPL {
					sh.note(at, "%s is run by %s, and can't be followed", a.written(), base)
				}
			default:
				continue
			}
			break
		}
		sh.ran(f, args)
		sh.emit(f, sh.unknownOutput(f, rest))
		return status{}, true
	}
	return status{}, false
}

// nodeREPL is the base's server that runs what JavaScript it is sent; it reads NODEJS_REPL_PORT, which its program sets.
const nodeREPL = "/opt/repl-servers/nodejs/server.js"

var (
	interpreter = regexp.MustCompile(`^(python[0-9.]*|node[0-9]*|nodejs|perl|ruby|php|lua|deno|bun)$`)
	privileged  = regexp.MustCompile(`(^|[ ,])(sudo|wheel|root|docker|shadow|adm|disk)([ ,]|$)`)
	modes       = regexp.MustCompile(`^[0-7]{3,4}$`) // what install -m takes; no path looks so
	octalMode   = regexp.MustCompile(`^[0-7]?[2-7][0-7]{3}$`)
)

func setsID(mode string) bool {
	return octalMode.MatchString(mode) || strings.Contains(mode, "s") && strings.ContainsAny(mode, "+=")
}

// operands are the words that are no options.
func operands(args []value) []value {
	var out []value
	for i, a := range args {
		if a.known && a.text == "--" {
			return append(out, args[i+1:]...)
		}
		if !a.known || !strings.HasPrefix(a.text, "-") || a.text == "-" {
			out = append(out, a)
		}
	}
	return out
}

// shellCommand is bash -c, bash FILE, and a shell that reads its commands from standard input.
func (sh *shell) shellCommand(f *frame, base string, args []value, pos syntax.Pos) status {
	g := sh.process(f)
	g.bash = base == "bash" || base == "rbash"
	g.name = args[0].text
	empty := []value{}
	g.args = &empty
	if !sh.enter(g) {
		return status{}
	}
	rest := args[1:]
	script, stdin := false, false
	for len(rest) > 0 && rest[0].known && len(rest[0].text) > 1 && strings.ContainsRune("-+", rune(rest[0].text[0])) {
		o := rest[0].text
		rest = rest[1:]
		if o == "--" {
			break
		}
		if strings.HasPrefix(o, "--") {
			if (o == "--rcfile" || o == "--init-file") && len(rest) > 0 {
				rest = rest[1:]
			}
			continue
		}
		script, stdin = script || strings.Contains(o, "c"), stdin || strings.Contains(o, "s")
		if strings.ContainsAny(o, "oO") && len(rest) > 0 {
			rest = rest[1:]
		}
	}
	if g.bash {
		sh.read(f, "BASH_ENV", sh.place(f, pos))
	}
	switch {
	case script:
		if len(rest) == 0 {
			return status{}
		}
		if len(rest) > 1 {
			g.name = rest[1].text
			a := slices.Clone(rest[2:])
			g.args = &a
		}
		return caught(sh.runText(g, rest[0], base+" -c", pos), exits)
	case stdin || len(rest) == 0:
		if f.stdin == nil {
			return status{}
		}
		a := slices.Clone(rest)
		g.args = &a
		in := *f.stdin
		g.stdin = nil
		return caught(sh.runText(g, in, base+" -s", pos), exits)
	}
	if len(rest[0].head) > 0 {
		sh.hook(f, rest[0].head, base, pos)
	}
	p := file(rest[0])
	if p == "" {
		sh.note(sh.place(f, pos), "which script %s runs here can't be told%s", base, because(rest[0]))
		return status{}
	}
	s := sh.load(p)
	if s == nil {
		if !f.dormant {
			sh.absent(sh.place(f, pos), "%s is run, and it isn't there", p)
		}
		return status{}
	}
	return sh.script(f, p, s, rest)
}

// su is su and runuser.
func (sh *shell) su(f *frame, base string, args []value, pos syntax.Pos) status {
	g := sh.process(f)
	if !sh.enter(g) {
		return status{}
	}
	g.bash = true
	rest := args[1:]
	var command *value
	user := literal("root")
	for i := 0; i < len(rest); i++ {
		a := rest[i]
		option, v, joined := strings.Cut(a.text, "=")
		switch {
		case !a.known || !strings.HasPrefix(a.text, "-"):
			user = a
		case option == "-c" || option == "--command" || option == "--session-command":
			if a.text, a.fixed = v, false; !joined && i+1 < len(rest) {
				i++
				a = rest[i]
			}
			command = &a
		case a.text == "-" || a.text == "-l" || a.text == "--login":
			g.bare, g.vars = true, &store{}
		case a.text == "-s" || a.text == "--shell" || a.text == "-g" || a.text == "-G" || a.text == "-w":
			i++
		case (a.text == "-u" || a.text == "--user") && base == "runuser":
			if cmd := operands(rest[min(i+2, len(rest)):]); len(cmd) > 0 {
				return sh.outside(f, cmd, pos)
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
	how := base + " -c"
	if command == nil { // a login shell that reads its commands
		command, how = g.stdin, base
	}
	if command == nil {
		return status{}
	}
	return caught(sh.runText(g, *command, how, pos), exits)
}

// takes says which options of a wrapper take the next word, and how many words come before the command.
var takes = map[string]struct {
	options  string
	operands int
}{
	"env": {"-u -C -S --unset --chdir", 0}, "sudo": {"-u -g -h -p -C -D -R -T -U --user --group", 0}, "doas": {"-u -C", 0},
	"nice": {"-n", 0}, "ionice": {"-c -n -p", 0}, "stdbuf": {"-i -o -e", 0}, "timeout": {"-k -s", 1},
	"gosu": {"", 1}, "su-exec": {"", 1},
	"setpriv": {"", 0}, "chroot": {"", 1}, "flock": {"-w -E", 1}, "chpst": {"-u -U -b -e -/ -n -l -L -m -d -o -p -f -c", 0}, "tini": {"-p -e", 0},
	"xargs": {"-n -L -I -P -s -d -E -a", 0},
}

// wrapper is a program that runs the rest of its command line.
func (sh *shell) wrapper(f *frame, base string, args []value, pos syntax.Pos) (status, bool) {
	t := takes[base]
	rest := args[1:]
	g := *f
	g.vars = &store{up: f.vars}
	for before := t.operands; len(rest) > 0; {
		a := rest[0]
		if a.known && strings.HasPrefix(a.text, "-") && a.text != "-" {
			rest = rest[1:]
			if a.text == "--" {
				rest = rest[min(before, len(rest)):]
				break
			}
			if slices.Contains(strings.Fields(t.options), a.text) && len(rest) > 0 {
				if base == "env" && a.text == "-S" {
					return sh.runText(&g, rest[0], "env -S", pos), true
				}
				rest = rest[1:]
			}
			continue
		}
		if name, v, ok := strings.Cut(a.text, "="); a.known && ok && syntax.ValidName(name) && (base == "env" || base == "sudo") {
			a.text, a.fixed = v, false
			g.vars.set(name, variable{value: a, exported: true})
			rest = rest[1:]
			continue
		}
		if before > 0 {
			before--
			rest = rest[1:]
			continue
		}
		break
	}
	in := sh.stdin(f)
	if base == "xargs" {
		return sh.xargs(&g, args[1:], rest, in, pos), true
	}
	if len(rest) == 0 {
		return status{}, base != "busybox"
	}
	return sh.outside(&g, rest, pos), true
}

// xargs takes the words of its input apart.
func (sh *shell) xargs(f *frame, options, command []value, in value, pos syntax.Pos) status {
	plain := len(command) == 0
	lines := len(command) == 2 && command[0].text == "printf" && command[1].text == `%s\n` &&
		len(options) > 0 && options[0].text == "-n1"
	if words, ok := xargsWords(in.text); in.known && ok && (plain || lines) {
		by := " "
		if lines {
			by = "\n"
		}
		out := in
		out.text, out.file = strings.Join(words, by), ""
		if out.text != "" {
			out.text += "\n"
		}
		sh.emit(f, out)
		return status{ok: yes, why: in.data}
	}
	if plain || command[0].text == "printf" || command[0].text == "echo" {
		sh.emit(f, unknown(in))
		return status{why: in.data}
	}
	rest := unknown(in)
	rest.head = in.head
	return sh.outside(f, append(slices.Clone(command), rest), pos)
}

// xargsWords takes words apart as xargs does; ok is false for a quotation that isn't closed.
func xargsWords(text string) (words []string, ok bool) {
	var (
		word  strings.Builder
		in    bool
		quote byte
	)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0 && c == '\n':
			return nil, false
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, in = c, true
		case c == '\\' && i+1 < len(text):
			i++
			word.WriteByte(text[i])
			in = true
		case c == ' ' || c == '\t' || c == '\n':
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words, quote == 0
}

// placeholder is how envsubst finds variables.
var placeholder = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

func placeholders(text string) []string {
	var out []string
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[2]
		if !slices.Contains(out, name) && len(out) < 10*maxNames {
			out = append(out, name)
		}
	}
	return out
}

// envsubst replaces variables in its input: those of its argument, or all.
func (sh *shell) envsubst(f *frame, args []value, at tree.Place) value {
	v := sh.stdin(f)
	ops := operands(args)
	var vars []string
	switch {
	case len(ops) > 0 && ops[0].known:
		v.variables = placeholders(ops[0].text)
		if v.variables == nil {
			v.variables = []string{}
		}
		vars = v.variables
	case len(ops) > 0:
		sh.note(at, "which variables envsubst replaces here can't be told%s", because(ops[0]))
		fallthrough
	default:
		v.variables = nil
		if v.file != "" {
			if e, ok := sh.img.Stat(v.file); ok && e.Type == image.TypeFile && e.Size <= maxScript {
				data, err := sh.img.ReadFile(sh.ctx, e.Path)
				if err != nil && sh.err == nil {
					sh.err = err
				}
				vars = placeholders(string(data))
			}
		}
	}
	v.values = map[string]string{}
	for _, name := range vars {
		w := sh.peek(f, name)
		if w.outer {
			sh.read(f, name, at)
		}
		v.data, v.why = v.data.with(w.data), v.why.with(w.why)
		if w.known {
			v.values[name] = w.text
		}
	}
	if v.file == "" {
		sh.note(at, "which template envsubst reads here can't be told")
	}
	v.known, v.rendered, v.text = false, true, ""
	return v
}

func (sh *shell) cat(f *frame, args []value) value {
	ops := operands(args)
	if len(ops) == 0 || len(ops) == 1 && ops[0].known && ops[0].text == "-" {
		return sh.stdin(f)
	}
	v := unknown(ops...)
	if len(ops) == 1 {
		v.file = file(ops[0])
	}
	for _, a := range ops {
		v.data = v.data.with(sh.touched[file(a)])
	}
	return v
}

func (sh *shell) sed(f *frame, args []value, at tree.Place) {
	inPlace := false
	var files []value
	expression := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a.known && (strings.HasPrefix(a.text, "-i") || strings.HasPrefix(a.text, "--in-place")):
			inPlace = true
		case a.known && (a.text == "-e" || a.text == "-f"):
			expression = true
			i++
		case a.known && strings.HasPrefix(a.text, "-"):
			inPlace = inPlace || !strings.HasPrefix(a.text, "--") && strings.Contains(a.text, "i")
		default:
			files = append(files, a)
		}
	}
	if !expression && len(files) > 0 {
		files = files[1:]
	}
	v := sh.unknownOutput(f, args)
	if inPlace {
		for _, a := range files {
			sh.write(f, a, v, "sed -i", at)
		}
		return
	}
	in := sh.stdin(f)
	if in.rendered {
		sh.note(at, "sed changes what envsubst made of %s before it is written", in.file)
		in.data = in.data.with(v.data)
		sh.emit(f, in)
		return
	}
	sh.emit(f, v)
}

// copy is cp, mv, ln, install and rsync. A file that is copied as it is counts as rendered with no variable replaced.
func (sh *shell) copy(f *frame, base string, args []value, at tree.Place) {
	if base == "install" {
		args = slices.DeleteFunc(slices.Clone(args), func(a value) bool { return modes.MatchString(a.text) })
	}
	ops := operands(args)
	if base == "install" && slices.ContainsFunc(args, func(a value) bool { return a.text == "-d" }) || len(ops) < 2 {
		return
	}
	to := ops[len(ops)-1]
	dir := file(to)
	e, isDir := sh.img.Stat(dir)
	isDir = dir != "" && isDir && e.IsDir() || strings.HasSuffix(to.text, "/") || len(ops) > 2
	for _, from := range ops[:len(ops)-1] {
		source := file(from)
		target := to
		if isDir && to.known && from.known {
			target.text = path.Join(to.text, path.Base(from.text))
		}
		p := file(target)
		if p == "" {
			if !to.known {
				sh.note(at, "what %s writes here can't be told%s", base, because(to))
			}
			continue
		}
		content := unknown(from)
		content.data = content.data.with(sh.touched[source])
		e, ok := sh.img.Stat(source)
		_, made := sh.touched[source]
		if source != "" && !made && ok && (e.Type == image.TypeFile || e.Type == image.TypeLink) && base != "rsync" {
			content.file, content.rendered, content.variables = source, true, []string{}
		}
		sh.write(f, target, content, base, at)
		if base == "mv" {
			sh.remove(f, from, at)
		}
	}
}

func (sh *shell) remove(f *frame, v value, at tree.Place) {
	p := file(v)
	if p == "" {
		return
	}
	why := v.data.with(v.why, f.why)
	sh.touched[p] = sh.touched[p].with(why)
	sh.change(f, Change{Path: p, How: "rm", Variables: why, Place: at})
}

// supervisorConfigs are where supervisord looks without -c (supervisor/options.py, Options.__init__).
var supervisorConfigs = []string{
	"/usr/etc/supervisord.conf", "/usr/supervisord.conf", "/etc/supervisord.conf", "/etc/supervisor/supervisord.conf",
}

func (sh *shell) supervisord(f *frame, args []value, at tree.Place) {
	if sh.job != "" {
		sh.note(at, "program %s starts a supervisord of its own, which is not followed", sh.job)
		return
	}
	var config value
	for i, a := range args {
		switch {
		case a.known && (a.text == "-c" || a.text == "--configuration") && i+1 < len(args):
			config = args[i+1]
		case a.known && strings.HasPrefix(a.text, "--configuration="):
			config = literal(strings.TrimPrefix(a.text, "--configuration="))
			config.data, config.head = a.data, a.head
		case a.known && strings.HasPrefix(a.text, "-c") && len(a.text) > 2:
			config = literal(a.text[2:])
			config.data, config.head = a.data, a.head
		}
	}
	p := file(config)
	if len(config.data) > 0 {
		sh.note(at, "the environment decides on supervisord's configuration%s", because(config))
	}
	if !config.known && len(config.data) == 0 {
		for _, c := range supervisorConfigs {
			if _, ok := sh.img.Stat(c); ok {
				p = c
				break
			}
		}
	}
	switch {
	case p == "":
		sh.note(at, "which configuration supervisord is started with can't be told%s", because(config))
	case f.dormant:
	case sh.report.Supervisord == "":
		sh.report.Supervisord = p
		sh.started = map[string]variable{}
		for key, v := range sh.process(f).vars.all() {
			sh.started[key] = v
		}
	case sh.report.Supervisord != p:
		sh.note(at, "another supervisord is started, with %s", p)
	}
}
