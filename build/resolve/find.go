package resolve

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// foundOverlay is the overlay with the links to what the image needs and the base has at another path.
const foundOverlay = "found"

// otherNames are the names that a program has in other bases.
var otherNames = map[string][]string{
	"browser": {"chrome", "chromium", "google-chrome", "google-chrome-stable", "chromium-browser"},
	"Xvnc":    {"Xvnc", "Xtigervnc"},
	"node":    {"node", "nodejs"},
}

// neverPrograms are directories whose files are no programs to link to: they are configuration, data, or written to while
// the image runs.
var neverPrograms = []string{"/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/usr/share", "/var"}

// findElsewhere looks in the whole base for what is not at its usual path. It returns the path to link there, as a link to
// the second: of a program the file, of another file its directory. If no candidate or several are good, link is empty.
func (w *work) findElsewhere(n need) (link, target string, candidates []string) {
	seen := map[string]bool{}
	hasELF := false
	for _, p := range w.base.Glob("/**/{" + globEscape.Replace(strings.Join(n.listNames(), ",")) + "}") {
		real := w.checkCandidate(p, n)
		if real == "" || seen[real] {
			continue
		}
		seen[real] = true
		isELF := w.base.Machine(real) != 0
		if isELF && !hasELF { // a script of the name starts the program, or another one
			candidates, hasELF = nil, true
		}
		if isELF == hasELF {
			candidates = append(candidates, real)
		}
	}
	best := candidates
	if len(best) > 1 { // the one that the base itself finds
		best = nil
		for _, dir := range w.basePath() {
			if real, err := w.base.Resolve(path.Join(dir, path.Base(n.paths[0]))); err == nil && slices.Contains(candidates, w.checkCandidate(real, n)) {
				best = []string{w.checkCandidate(real, n)}
				break
			}
		}
	}
	if len(best) != 1 {
		return "", "", candidates
	}
	if n.program {
		return n.paths[0], best[0], candidates
	}
	dir := path.Dir(n.paths[0])
	real, err := w.resolveParents(dir)
	if e, ok := w.base.Lookup(real); err != nil || ok && e.IsDir() && !w.isRemoved(real) {
		return "", "", candidates // a directory can't be replaced by a link
	}
	return dir, path.Dir(best[0]), candidates
}

// checkCandidate returns the file at p after following symlinks, if the image could use it for a need; otherwise "".
func (w *work) checkCandidate(p string, n need) string {
	real, err := w.followAll(p)
	if err != nil || w.findProblem(p, n.program, scripts) != "" {
		return ""
	}
	for _, dir := range append(image.Parents(real), real) {
		if e, ok := w.base.Lookup(dir); !ok || e.UID != 0 || e.Mode&0o022 != 0 {
			return "" // another account could replace it
		}
		if n.program && slices.Contains(neverPrograms, dir) {
			return ""
		}
	}
	if e, _ := w.base.Lookup(real); e.Type != image.TypeFile && e.Type != image.TypeLink {
		return ""
	}
	return real
}

// basePath returns the directories of the base's own PATH.
func (w *work) basePath() []string {
	config, err := w.recipe.Base.Image.ConfigFile()
	if err != nil {
		return nil
	}
	for _, kv := range config.Config.Env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			return strings.Split(value, ":")
		}
	}
	return nil
}

// followAll returns the path that p leads to in the image to be, after all symlinks of overlays and base.
func (w *work) followAll(p string) (string, error) {
	for range 40 { // Linux's limit (path_resolution(7))
		if to, ok, err := w.followLaid(p); err != nil {
			return "", err
		} else if ok {
			p = to
			continue
		}
		real, err := w.resolveParents(p)
		if err != nil {
			return "", err
		}
		e, ok := w.base.Lookup(real)
		if _, laid := w.laid[real]; laid || !ok || e.Type != image.TypeSymlink {
			return real, nil
		}
		if p, err = w.resolveUps(path.Dir(real), e.Link); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%s leads through more than 40 symlinks", p)
}

// followLaid follows the first symlink of an overlay on the way to p. It reports whether there is one.
func (w *work) followLaid(p string) (string, bool, error) {
	for _, dir := range append(image.Parents(p), p) {
		real, err := w.resolveParents(dir)
		if err != nil {
			return "", false, err
		}
		if link := w.laid[real].link; link != "" {
			to, err := w.resolveUps(path.Dir(real), link)
			return path.Join(to, strings.TrimPrefix(p, dir)), true, err
		}
	}
	return p, false, nil
}

// layFound links what was found to where the image looks for it.
func (w *work) layFound() (build.Lay, error) {
	lay := build.Lay{Name: foundOverlay, Why: "what the image needs, where this base has it"}
	for _, f := range w.recipe.Found {
		lay.Files = append(lay.Files, image.Symlink(f.Path, f.Target))
	}
	return lay, w.layOverlay(&lay)
}

// adviseProfile returns the end of the error for a need that is not met: what the base has of its names, and a profile that
// names it.
func (w *work) adviseProfile(n need, candidates []string) string {
	at, what := n.paths[0], "PATH OF "+n.what
	toLink := func(p string) string { return p }
	if !n.program {
		at, what, toLink = path.Dir(at), "ITS DIRECTORY", path.Dir
	}
	says, rest := fmt.Sprintf("no other file of the base named %s would do", strings.Join(n.listNames(), ", ")), ""
	if len(candidates) > 0 {
		says, what = fmt.Sprintf("the base has %s", strings.Join(candidates, ", ")), toLink(candidates[0])
		for _, c := range candidates[1:] {
			rest += " # or " + toLink(c)
		}
	}
	if n.what == "node" {
		says += "; --profile l0-native needs no Node"
	}
	lines := []string{
		says + "; build with a profile that names it:",
		"  version: 1", "  name: my-" + w.in.Profile.Name, "  extends: " + w.in.Profile.Name,
		"  base: {reference: " + strconv.Quote(w.in.Profile.Base.Reference) + "}",
	}
	if e, ok := w.base.Lookup(at); ok && e.IsDir() {
		lines = append(lines, "  remove:", "    - {path: "+at+", why: a link takes its place}")
	}
	return strings.Join(append(lines, "  overlays:", "    - name: links", "      why: where this base has what the image needs",
		"      files:", "        - {path: "+at+", link: "+what+"}"+rest), "\n")
}

// listNames returns the names that a need may have in a base.
func (n need) listNames() []string {
	if names := otherNames[n.what]; names != nil {
		return names
	}
	return []string{path.Base(n.paths[0])}
}
