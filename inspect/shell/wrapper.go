package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shellCommand is bash -c, bash FILE, and a shell that reads its commands from standard input.
func (sh *Walk) shellCommand(f *frame, base string, args []value, pos syntax.Pos) status {
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
		sh.Note(sh.place(f, pos), "which script %s runs here can't be told%s", base, because(rest[0]))
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
func (sh *Walk) su(f *frame, base string, args []value, pos syntax.Pos) status {
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
	"browser-shell start": {"--cage --display --pidfile", 0},
	"gosu":                {"", 1}, "su-exec": {"", 1},
	"setpriv": {"", 0}, "chroot": {"", 1}, "flock": {"-w -E", 1}, "chpst": {"-u -U -b -e -/ -n -l -L -m -d -o -p -f -c", 0}, "tini": {"-p -e", 0},
	"xargs": {"-n -L -I -P -s -d -E -a", 0},
}

// wrapper is a program that runs the rest of its command line.
func (sh *Walk) wrapper(f *frame, base string, args []value, pos syntax.Pos) (status, bool) {
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
func (sh *Walk) xargs(f *frame, options, command []value, in value, pos syntax.Pos) status {
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
