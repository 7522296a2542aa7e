package resolve

import (
	"bufio"
	"cmp"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
)

// What the image is started with (cmd/browser-shell, init), and what tells where a payload of Node looks for it.
const (
	supervisordProgram = "/usr/bin/supervisord"
	supervisordConf    = "/opt/gem/supervisord.conf"
	shellProgram       = "/usr/local/bin/browser-shell"
	payloadDaemon      = "/opt/agent-browser/dist/daemon.js"
	toolPolicy         = "/etc/agent-browser/browser-shell.policy.json"
)

// need is something that the base must have: one of paths.
type need struct {
	what, by string
	paths    []string
	program  bool
}

// needs refuses a base that lacks what the image can't work without: what the profile names, the programs of the laid
// supervisord.conf, supervisord itself, and Node where the payload runs on it.
func (w *work) needs(overlays []build.Lay) error {
	var all []need
	for _, n := range w.in.Profile.Needs {
		all = append(all, need{what: n.Path, by: n.Why, paths: []string{n.Path}})
	}
	conf, err := laidText(overlays, supervisordConf)
	if err != nil {
		return err
	}
	if conf != "" {
		all = append(all, need{what: "supervisord", by: "browser-shell init", paths: []string{supervisordProgram}, program: true})
		all = append(all, programsOf(conf)...)
	}
	if _, ok := w.laid[payloadDaemon]; ok {
		text, err := laidText(overlays, toolPolicy)
		if err != nil {
			return err
		}
		var policy struct {
			AgentBrowser struct {
				SearchPath string `json:"search_path"`
			} `json:"agent_browser"`
		}
		_ = json.Unmarshal([]byte(text), &policy) // a broken one has the default here; the image says so at its start
		n := need{what: "node", by: "agent-browser's daemon, " + payloadDaemon, program: true}
		for dir := range strings.SplitSeq(cmp.Or(policy.AgentBrowser.SearchPath, "/usr/local/bin:/usr/bin:/bin"), ":") {
			n.paths = append(n.paths, image.Clean(dir+"/node"))
		}
		all = append(all, n)
	}
	var missing []string
	for _, n := range all {
		var looked []string
		met := false
		for _, p := range n.paths {
			problem := w.lacks(p, n.program, scripts)
			if met = problem == ""; met {
				w.met = append(w.met, profile.Root{Path: p, Why: n.by})
				break
			}
			looked = append(looked, problem)
		}
		if !met {
			missing = append(missing, fmt.Sprintf("base %s lacks %s, which %s needs: %s", w.in.Reference, n.what, n.by, strings.Join(looked, "; ")))
		}
	}
	if len(missing) > 0 && w.base.Err == nil {
		return &NeedsError{Missing: missing}
	}
	return nil
}

// lacks says what is wrong with p in the image to be; empty when nothing is. Symlinks are followed. A program must be a file
// that everybody may run, no ELF file of another machine, and a script only of an interpreter for which the same holds; depth
// bounds how many scripts start one another.
func (w *work) lacks(p string, program bool, depth int) string {
	at := p
	for range 40 { // Linux's limit (path_resolution(7))
		real, err := w.place(at)
		if err != nil {
			return err.Error()
		}
		if _, laid := w.laid[real]; laid {
			return "" // its own rules are about it
		}
		where := p
		if real != p {
			where = p + " -> " + real
		}
		if w.gone(real) {
			return where + " is removed"
		}
		e, ok := w.base.Lookup(real)
		switch {
		case !ok:
			return where + " is not there"
		case e.Type == image.TypeSymlink:
			at = e.Link
			if !path.IsAbs(at) {
				at = path.Join(path.Dir(real), at)
			}
			continue
		case !program:
			return ""
		case e.Type != image.TypeFile && e.Type != image.TypeLink:
			return fmt.Sprintf("%s is a %s", where, e.Type)
		case e.Mode&0o001 == 0:
			return fmt.Sprintf("%s has mode %04o, so that not everybody may run it", where, e.Mode)
		}
		for _, dir := range image.Parents(real) {
			if d, ok := w.base.Lookup(dir); ok && d.Mode&0o001 == 0 {
				return fmt.Sprintf("%s lies in %s, which not everybody may enter", where, dir)
			}
		}
		machine := w.base.Machine(real)
		if want := machines[w.platform.Architecture]; machine != 0 && want != 0 && machine != want {
			return fmt.Sprintf("%s is a program for %s, not %s", where, machine, want)
		}
		if machine != 0 {
			return ""
		}
		return w.lacksInterpreter(where, w.base.Interpreter(real), depth)
	}
	return p + " leads through more than 40 symlinks"
}

// scripts is how many scripts Linux starts one by another (execve(2)).
const scripts = 4

// lacksInterpreter returns what is wrong with what a script's first line starts it with: a program, or one that env looks for.
func (w *work) lacksInterpreter(script string, words []string, depth int) string {
	if len(words) == 0 {
		return ""
	}
	if depth == 0 {
		return fmt.Sprintf("%s is the last of %d scripts that start one another", script, scripts)
	}
	if problem := w.lacks(words[0], true, depth-1); problem != "" {
		return fmt.Sprintf("%s is a script for %s: %s", script, words[0], problem)
	}
	if path.Base(words[0]) != "env" || len(words) < 2 {
		return ""
	}
	name := words[len(words)-1]
	for _, dir := range searched {
		if w.lacks(path.Join(dir, name), true, depth-1) == "" {
			return ""
		}
	}
	return fmt.Sprintf("%s is a script for %s, which is in none of %s", script, name, strings.Join(searched, ":"))
}

// searched are the directories of the PATH that browser-shell init gives supervisord.
var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// programsOf lists the programs that a supervisord.conf of ours starts, whether by `browser-shell start` or by itself.
func programsOf(conf string) []need {
	var out []need
	name := ""
	lines := bufio.NewScanner(strings.NewReader(conf))
	for lines.Scan() {
		line := lines.Text()
		if section, ok := strings.CutPrefix(line, "[program:"); ok {
			name = strings.TrimSuffix(section, "]")
		}
		command, ok := strings.CutPrefix(line, "command=")
		if !ok {
			continue
		}
		words := strings.Fields(command)
		if len(words) > 1 && words[0] == shellProgram && words[1] == "start" {
			words = words[2:]
			for len(words) > 2 && strings.HasPrefix(words[0], "--") {
				words = words[2:] // a flag and its value
			}
		}
		if len(words) > 0 && words[0] != shellProgram {
			out = append(out, need{
				what: path.Base(words[0]), by: fmt.Sprintf("program %s of %s", name, supervisordConf), paths: []string{words[0]}, program: true,
			})
		}
	}
	return out
}

// laidText reads a laid file; empty when none is laid there.
func laidText(overlays []build.Lay, at string) (string, error) {
	for _, o := range overlays {
		i := slices.IndexFunc(o.Files, func(f image.File) bool { return f.Path == at && f.Open != nil })
		if i < 0 {
			continue
		}
		r, err := o.Files[i].Open()
		if err != nil {
			return "", err
		}
		defer r.Close()
		data, err := io.ReadAll(r)
		return string(data), err
	}
	return "", nil
}
