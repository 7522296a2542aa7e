package privilege

import (
	"fmt"
	"path"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

// The main file of sudo's rules. sudo.conf can name another.
const (
	sudoConf    = "/etc/sudo.conf"
	sudoersFile = "/etc/sudoers"
	sudoersDir  = "/etc/sudoers.d"
)

// Limits of the rules: the number of files, and of include lines; sudo's own limit is on the depth, 128. A real image
// has one such line.
const (
	maxIncludes   = 1000
	maxDirectives = 100
)

// maxRules limits Report.Sudo.
const maxRules = 10_000

// sudo reads the rules of sudoers(5).
func (r *reader) sudo() error {
	line := 0
	for l := range strings.Lines(r.files[sudoConf]) {
		line++
		if l = strings.TrimSpace(l); !strings.HasPrefix(l, "#") && strings.Contains(l, "sudoers_file=") {
			r.addNote(sudoConf, line, "sudo's rules are read from another file: "+l)
		}
	}
	if _, ok := r.files[sudoersFile]; !ok {
		return nil
	}
	return r.sudoers(sudoersFile, map[string]bool{sudoersFile: true})
}

// sudoers reads one file of rules, with included files in place.
func (r *reader) sudoers(file string, done map[string]bool) error {
	if e, ok := r.img.Stat(file); ok && (e.UID != 0 || e.Mode&0o002 != 0 || e.Mode&0o020 != 0 && e.GID != 0) {
		r.addNote(file, 0, fmt.Sprintf("sudo ignores it: others may write it (mode %04o, owner %d:%d)", e.Mode, e.UID, e.GID))
	}
	for _, rule := range logicalLines(r.files[file]) {
		directive, arg, _ := strings.Cut(strings.ReplaceAll(rule.text, "\t", " "), " ")
		switch directive {
		case "@include", "#include", "@includedir", "#includedir":
			if err := r.include(file, rule.line, directive, strings.TrimSpace(arg), done); err != nil {
				return err
			}
			continue
		}
		switch text := cutComment(rule.text); {
		case text == "":
		case !isRule(text):
			r.addNote(file, rule.line, fmt.Sprintf("sudo makes nothing of it: %q", text))
		case len(r.report.Sudo) == maxRules:
			r.addNote(file, rule.line, "this and further rules of sudo are left out")
			return nil
		default:
			r.report.Sudo = append(r.report.Sudo, tree.Note{Place: r.img.Place(file, rule.line), Text: text})
		}
	}
	return nil
}

// include reads the files of an include line.
func (r *reader) include(file string, line int, directive, arg string, done map[string]bool) error {
	arg = strings.ReplaceAll(strings.Trim(arg, `"`), `\ `, " ")
	if strings.Contains(arg, "%h") {
		r.addNote(file, line, "the included file depends on the host's name: "+arg)
		return nil
	}
	if !strings.HasPrefix(arg, "/") {
		arg = path.Join(path.Dir(file), arg)
	}
	if r.directives++; r.directives > maxDirectives {
		r.addNote(file, line, fmt.Sprintf("not read: more than %d lines include files", maxDirectives))
		return nil
	}
	files := []string{arg}
	if strings.HasSuffix(directive, "dir") {
		files = r.includable(arg)
	}
	if err := r.readFiles(files...); err != nil {
		return err
	}
	for _, p := range files {
		switch _, ok := r.files[p]; {
		case done[p]:
			r.addNote(file, line, "the file includes "+p+" again")
		case len(done) >= maxIncludes:
			r.addNote(file, line, "not read: more files are included than any real image has")
			return nil
		case !ok:
			if _, there := r.img.Lookup(p); !there {
				r.addNote(file, line, p+" is included and not there")
			}
		default:
			done[p] = true
			if err := r.sudoers(p, done); err != nil {
				return err
			}
		}
	}
	return nil
}

// includable returns the files in dir that @includedir reads, by name: not those whose names end in "~" or contain a
// ".".
func (r *reader) includable(dir string) []string {
	inside, err := r.img.Resolve(dir + "/x") // dir may be a symlink
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range r.img.Dir(path.Dir(inside)) {
		if name := path.Base(e.Path); !e.IsDir() && !strings.Contains(name, ".") && !strings.HasSuffix(name, "~") {
			out = append(out, e.Path)
		}
	}
	return out
}

// isRule reports whether a line is one of sudoers(5): defaults, an alias, or a permission.
func isRule(l string) bool {
	word, _, _ := strings.Cut(strings.ReplaceAll(l, "\t", " "), " ")
	switch word {
	case "User_Alias", "Runas_Alias", "Host_Alias", "Cmnd_Alias", "Cmd_Alias":
		return true
	}
	return strings.HasPrefix(word, "Defaults") || strings.Contains(l, "=")
}

// logicalLine is a line with its continuation lines.
type logicalLine struct {
	line int
	text string
}

func logicalLines(text string) []logicalLine {
	var out []logicalLine
	var b strings.Builder
	line, first := 0, 1
	for l := range strings.Lines(text) {
		line++
		part, open := strings.CutSuffix(strings.TrimRight(l, "\r\n"), `\`)
		b.WriteString(part)
		if open && strings.HasSuffix(l, "\n") {
			continue
		}
		out = append(out, logicalLine{first, strings.TrimSpace(b.String())})
		b.Reset()
		first = line + 1
	}
	if b.Len() > 0 {
		out = append(out, logicalLine{first, strings.TrimSpace(b.String())})
	}
	return out
}

// cutComment removes a comment: from a "#" that is neither quoted nor escaped, nor begins a user's number.
func cutComment(l string) string {
	quoted := false
	for i := 0; i < len(l); i++ {
		switch l[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case '#':
			if rest := strings.TrimPrefix(l[i+1:], "-"); !quoted && (rest == "" || rest[0] < '0' || rest[0] > '9') {
				return strings.TrimSpace(l[:i])
			}
		}
	}
	return strings.TrimSpace(l)
}
