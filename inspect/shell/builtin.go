package shell

import (
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// idle lists builtins that have no effect on anything that is followed here.
var idle = strings.Fields("cd umask wait ulimit shopt hash pwd type kill jobs times alias disown bg fg")

// runBuiltin runs a builtin of the shell. ok is false when args[0] is none.
func (sh *Walk) runBuiltin(f *frame, args []value, pos syntax.Pos) (a answer, ok bool) {
	name, rest := args[0].text, args[1:]
	switch name {
	case ":", "true":
	case "false":
		return answer{is: no}, true
	case "echo":
		newline := "\n"
		for len(rest) > 0 && rest[0].known && slices.Contains([]string{"-n", "-e", "-ne", "-en"}, rest[0].text) {
			if strings.Contains(rest[0].text, "n") {
				newline = ""
			}
			rest = rest[1:]
		}
		sh.emitOutput(f, joinWords(rest).concat(literal(newline)))
	case "printf":
		sh.emitOutput(f, formatPrintf(rest))
	case "[", "test":
		if name == "[" && len(rest) > 0 {
			rest = rest[:len(rest)-1]
		}
		return sh.runTest(rest), true
	case "exit", "return", "break", "continue":
		return sh.runEnding(f, name, rest), true
	case "shift":
		if args := sh.positionals(f); len(args) > 0 {
			sh.setPositionals(f, args[1:])
		}
	case "set":
		if i := slices.IndexFunc(rest, func(a value) bool { return a.known && a.text == "--" }); i >= 0 {
			sh.setPositionals(f, rest[i+1:])
		}
	case "unset":
		for _, a := range rest {
			if a.known && syntax.ValidName(a.text) {
				sh.assignVariable(f, a.text, value{known: true, unset: true})
			}
		}
	case "getopts":
		if len(rest) > 1 && rest[1].known && syntax.ValidName(rest[1].text) {
			sh.assignVariable(f, rest[1].text, unknown(sh.positionals(f)...))
		}
		return answer{}, true
	case "read", "readarray", "mapfile":
		sh.runRead(f, name, rest)
		return dependsOn(maybe, sh.stdinOf(f)), true
	case "eval":
		return sh.runText(f, joinWords(rest), "eval", pos), true
	case "trap":
		if len(rest) > 1 {
			sh.walkChoice(f, answer{}, func(g *frame) answer { return sh.runText(g, rest[0], "trap", pos) }, nil)
		}
	case ".", "source":
		if len(rest) == 0 {
			return answer{}, true
		}
		return sh.runSource(f, rest, pos), true
	case "exec":
		if _, rest = parseOptions(rest, "-a"); len(rest) > 0 {
			a = sh.runExternal(f, rest, pos)
			*f.end = certainEnding(exits)
			return a, true
		}
	case "command", "builtin":
		given, rest := parseOptions(rest, "")
		if slices.ContainsFunc(given, func(o option) bool { return strings.ContainsAny(o.name, "vV") }) {
			sh.emitOutput(f, unknown(rest...))
			return dependsOn(maybe, rest...), true
		}
		if len(rest) > 0 {
			g := *f
			g.funcs = nil
			return sh.runCommand(&g, rest, pos), true
		}
	default:
		if !slices.Contains(idle, name) {
			return answer{}, false
		}
		sh.emitOutput(f, unknown(rest...))
		return dependsOn(maybe, rest...), true
	}
	return done, true
}

// runEnding runs exit, return, break or continue.
func (sh *Walk) runEnding(f *frame, name string, args []value) answer {
	w := map[string]way{"exit": exits, "return": returns, "break": breaks, "continue": continues}[name]
	*f.end = certainEnding(w)
	if w < returns || len(args) == 0 {
		return done
	}
	a := dependsOn(maybe, args[0])
	if args[0].known {
		a.is = triOf(args[0].text == "0")
		f.end.fails = w == exits && a.is == no
	}
	return a
}

// joinWords returns the words joined by spaces.
func joinWords(words []value) value {
	out := literal("")
	for i, w := range words {
		if i > 0 {
			out = out.concat(literal(" "))
		}
		out = out.concat(w)
	}
	return out
}

// width matches a field of printf with a width, which may be of any size.
var width = regexp.MustCompile(`%[-+ ]*[0-9]`)

// formatPrintf returns what printf writes. That is unknown with -v, with a width in the format, and with more
// arguments than the format takes.
func formatPrintf(args []value) value {
	v := unknown(args...)
	if len(args) == 0 || !args[0].known || args[0].text == "-v" || width.MatchString(args[0].text) {
		return v
	}
	var texts []string
	v.known = true
	for _, a := range args[1:] {
		v.known = v.known && a.known
		texts = append(texts, a.text)
	}
	text, n, err := expand.Format(&expand.Config{}, args[0].text, texts)
	if !v.known || err != nil || n < len(texts) {
		text, v.known = "", false
	}
	if strings.HasPrefix(args[0].text, "%") {
		v.from = v.from.addOrigins(begins, args[min(1, len(args)-1)].from)
	}
	v.text = text
	return v.bounded()
}

// runRead runs read, readarray or mapfile.
func (sh *Walk) runRead(f *frame, command string, args []value) {
	in := sh.stdinOf(f)
	takes := "-p -n -N -t -d -u -i"
	if command != "read" {
		takes = "-d -n -u -C -c -O -s"
	}
	given, vars := parseOptions(args, takes)
	array := command != "read" || slices.ContainsFunc(given, func(o option) bool { return strings.Contains(o.name, "a") })
	v := value{from: in.from}
	if array {
		v.list = []value{v}
	}
	if command != "read" && in.known {
		v.known, v.list = true, []value{}
		for line := range strings.Lines(in.text) {
			v.list = append(v.list, value{text: strings.TrimSuffix(line, "\n"), known: true, from: in.from})
		}
	}
	for _, a := range vars {
		if a.known && syntax.ValidName(a.text) {
			sh.assignVariable(f, a.text, v.bounded())
		}
	}
}

// option is an option of a command line, with its own word if it takes one.
type option struct {
	name  string
	value value
}

// parseOptions returns the options at the front of args, and the words after them. takes lists the
// options that take the next word.
func parseOptions(args []value, takes string) (given []option, rest []value) {
	with := strings.Fields(takes)
	for len(args) > 0 && args[0].known && len(args[0].text) > 1 && args[0].text[0] == '-' {
		a := args[0]
		args = args[1:]
		if a.text == "--" {
			break
		}
		name, v, joined := strings.Cut(a.text, "=")
		a.text = v
		// -euo is -eu and -o
		if last := "-" + name[len(name)-1:]; !strings.HasPrefix(name, "--") && name != "-" && slices.Contains(with, last) {
			given = append(given, option{name: strings.TrimSuffix(name, last[1:])})
			name = last
		}
		if slices.Contains(with, name) && !joined && len(args) > 0 {
			a, args = args[0], args[1:]
		}
		given = append(given, option{name, a})
	}
	return given, args
}

// operandsOf returns the words of args that are no options, wherever they are.
func operandsOf(args []value) []value {
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
