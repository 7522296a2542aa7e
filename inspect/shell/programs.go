package shell

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
func (sh *Walk) known(f *frame, base string, args []value, pos syntax.Pos) (status, bool) {
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
	case "browser-shell":
		if len(rest) == 0 || rest[0].text != "start" {
			return status{}, false
		}
		return sh.wrapper(f, "browser-shell start", rest, pos)
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
				sh.Note(at, "a program for %s is run, and can't be followed", base)
			case a.known && !strings.HasPrefix(a.text, "-") || !a.known:
				if len(a.head) > 0 {
					sh.hook(f, a.head, base, pos)
				}
				if a.text != nodeREPL {
					sh.Note(at, "%s is run by %s, and can't be followed", a.written(), base)
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

func (sh *Walk) cat(f *frame, args []value) value {
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

func (sh *Walk) sed(f *frame, args []value, at tree.Place) {
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
		sh.Note(at, "sed changes what envsubst made of %s before it is written", in.file)
		in.data = in.data.with(v.data)
		sh.emit(f, in)
		return
	}
	sh.emit(f, v)
}

// copy is cp, mv, ln, install and rsync. A file that is copied as it is counts as rendered with no variable replaced.
func (sh *Walk) copy(f *frame, base string, args []value, at tree.Place) {
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
				sh.Note(at, "what %s writes here can't be told%s", base, because(to))
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

func (sh *Walk) remove(f *frame, v value, at tree.Place) {
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

func (sh *Walk) supervisord(f *frame, args []value, at tree.Place) {
	if sh.job != "" {
		sh.Note(at, "program %s starts a supervisord of its own, which is not followed", sh.job)
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
		sh.Note(at, "the environment decides on supervisord's configuration%s", because(config))
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
		sh.Note(at, "which configuration supervisord is started with can't be told%s", because(config))
	case f.dormant:
	case sh.Supervisord == "":
		sh.Supervisord = p
		sh.started = map[string]variable{}
		for key, v := range sh.process(f).vars.all() {
			sh.started[key] = v
		}
	case sh.Supervisord != p:
		sh.Note(at, "another supervisord is started, with %s", p)
	}
}
