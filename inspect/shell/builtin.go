package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// builtin runs what the shell itself knows. ok is false for what it doesn't.
func (sh *Walk) builtin(f *frame, args []value, pos syntax.Pos) (st status, ok bool) {
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
func (sh *Walk) readVariables(f *frame, command string, args []value) {
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
