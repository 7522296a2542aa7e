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

// The files that start the image (browser-shell init), and those that decide whether and where Node must exist.
const (
	supervisordProgram = "/usr/bin/supervisord"
	supervisordConf    = "/opt/gem/supervisord.conf"
	shellProgram       = "/usr/local/bin/browser-shell"
	payloadDaemon      = "/opt/agent-browser/dist/daemon.js"
	toolPolicy         = "/etc/agent-browser/browser-shell.policy.json"
)

// need is a requirement on the base: one of paths must exist.
type need struct {
	what, by string
	paths    []string
	program  bool
}

// checkNeeds returns a NeedsError if the base lacks something that the image can't work without: the profile's needs,
// the programs in the overlay's supervisord.conf, supervisord itself, and Node where the payload runs on it.
func (w *work) checkNeeds(overlays []build.Lay) error {
	var all []need
	for _, n := range w.in.Profile.Needs {
		all = append(all, need{what: n.Path, by: n.Why, paths: []string{n.Path}})
	}
	conf, err := readLaid(overlays, supervisordConf)
	if err != nil {
		return err
	}
	if conf != "" {
		all = append(all, need{what: "supervisord", by: "browser-shell init", paths: []string{supervisordProgram}, program: true})
		all = append(all, programsOf(conf)...)
	}
	if _, ok := w.laid[payloadDaemon]; ok {
		text, err := readLaid(overlays, toolPolicy)
		if err != nil {
			return err
		}
		var policy struct {
			AgentBrowser struct {
				SearchPath string `json:"search_path"`
			} `json:"agent_browser"`
		}
		_ = json.Unmarshal([]byte(text), &policy) // an invalid policy counts as the default here; browser-shell reports it when it starts
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
			problem := w.findProblem(p, n.program, scripts)
			if met = problem == ""; met {
				w.met = append(w.met, profile.Root{Path: p, Why: n.by})
				break
			}
			looked = append(looked, problem)
		}
		if met || w.base.Err != nil {
			continue
		}
		if slices.ContainsFunc(looked, func(problem string) bool { return strings.HasSuffix(problem, " is removed") }) { // on purpose
			missing = append(missing, fmt.Sprintf("base %s lacks %s, which %s needs: %s", w.in.Reference, n.what, n.by, strings.Join(looked, "; ")))
			continue
		}
		link, target, candidates := w.findElsewhere(n)
		if link != "" {
			w.recipe.Found = append(w.recipe.Found, build.Found{What: n.what, Path: link, Target: target})
			w.met = append(w.met, profile.Root{Path: n.paths[0], Why: n.by})
			continue
		}
		missing = append(missing, fmt.Sprintf("base %s lacks %s, which %s needs: %s; %s",
			w.in.Reference, n.what, n.by, strings.Join(looked, "; "), w.adviseProfile(n, candidates)))
	}
	if len(missing) > 0 && w.base.Err == nil {
		if w.line == "" {
			missing = append(missing, fmt.Sprintf("base %s has none of the files that mark the AIO Sandbox's lines A, B and C", w.in.Reference))
		}
		return &NeedsError{Missing: missing}
	}
	return nil
}

// findProblem returns what is wrong with p in the image to be, or "". It follows symlinks. A program must be a file
// that everybody may execute, no ELF file for another machine, and, if a script, have an interpreter that passes the
// same checks. depth limits the chain of interpreters.
func (w *work) findProblem(p string, program bool, depth int) string {
	at := p
	for range 40 { // Linux's limit (path_resolution(7))
		to, followed, err := w.followLaid(at)
		if err != nil {
			return err.Error()
		}
		if followed {
			at = to
			continue
		}
		real, err := w.resolveParents(at)
		if err != nil {
			return err.Error()
		}
		if _, laid := w.laid[real]; laid {
			return "" // the overlay's own checks cover it
		}
		where := p
		if real != p {
			where = p + " -> " + real
		}
		if w.isRemoved(real) {
			return where + " is removed"
		}
		e, ok := w.base.Lookup(real)
		switch {
		case !ok:
			return where + " is not there"
		case e.Type == image.TypeSymlink:
			if at, err = w.resolveUps(path.Dir(real), e.Link); err != nil {
				return err.Error()
			}
			continue
		case !program:
			return ""
		case e.Type != image.TypeFile && e.Type != image.TypeLink:
			return fmt.Sprintf("%s is a %s", where, e.Type)
		case e.Mode&0o001 == 0:
			return fmt.Sprintf("%s has mode %04o, so not everybody may execute it", where, e.Mode)
		}
		for _, dir := range image.Parents(real) {
			if d, ok := w.base.Lookup(dir); ok && d.Mode&0o001 == 0 {
				return fmt.Sprintf("%s lies in %s, which isn't executable for everybody", where, dir)
			}
		}
		machine := w.base.Machine(real)
		if want := machines[w.platform.Architecture]; machine != 0 && want != 0 && machine != want {
			return fmt.Sprintf("%s is a program for %s, not %s", where, machine, want)
		}
		if machine != 0 {
			return ""
		}
		return w.findInterpreterProblem(where, w.base.Interpreter(real), depth)
	}
	return p + " leads through more than 40 symlinks"
}

// resolveUps returns the path of a symlink's target, seen from the real directory dir, without "..": that leads to the
// parent of where the symlinks before it lead (path_resolution(7)).
func (w *work) resolveUps(dir, target string) (string, error) {
	if path.IsAbs(target) {
		dir = "/"
	}
	at, isReal := dir, true
	for name := range strings.SplitSeq(target, "/") {
		switch name {
		case "", ".":
			continue
		case "..":
		default:
			at, isReal = path.Join(at, name), false
			continue
		}
		if !isReal {
			inside, err := w.resolveParents(path.Join(at, "x"))
			if err != nil {
				return "", err
			}
			at, isReal = path.Dir(inside), true
		}
		at = path.Dir(at)
	}
	return at, nil
}

// scripts is the longest chain of scripts as interpreters that Linux follows (execve(2)).
const scripts = 4

// findInterpreterProblem returns what is wrong with a script's interpreter, or with the program that env(1) looks up
// for it; "" if nothing.
func (w *work) findInterpreterProblem(script string, words []string, depth int) string {
	if len(words) == 0 {
		return ""
	}
	if depth == 0 {
		return fmt.Sprintf("%s is the last of %d scripts that start one another", script, scripts)
	}
	if problem := w.findProblem(words[0], true, depth-1); problem != "" {
		return fmt.Sprintf("%s is a script for %s: %s", script, words[0], problem)
	}
	if path.Base(words[0]) != "env" || len(words) < 2 {
		return ""
	}
	name := words[len(words)-1]
	for _, dir := range searched {
		if w.findProblem(path.Join(dir, name), true, depth-1) == "" {
			return ""
		}
	}
	return fmt.Sprintf("%s is a script for %s, which is in none of %s", script, name, strings.Join(searched, ":"))
}

// searched lists the directories of the PATH that browser-shell init sets for supervisord.
var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// programsOf lists the programs that our supervisord.conf starts, directly or by `browser-shell start`.
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

// readLaid returns the content of the file that an overlay writes at path at, or "" if none does.
func readLaid(overlays []build.Lay, at string) (string, error) {
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
