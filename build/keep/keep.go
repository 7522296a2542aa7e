// Package keep works out what of a base named programs need, file by file, and why: from the paths of the programs, by the
// rules of the dynamic loader and of dpkg. What it doesn't keep nothing that is kept needs.
//
// The order is: roots are paths, followed through links, scripts' interpreters and the loader to every library; what programs
// load by themselves is named by its opener; the owners of all that are packages, and with them come those they depend on, but
// for edges that are cut; packages stay whole but for what is dropped; products that no package owns stay by name.
package keep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf"
	"github.com/slimctl/slimctl/image/tree"
)

// Rules say how a path came to stay.
const (
	ByRoot        = "root"
	ByLink        = "link"        // leads to what stays
	ByTarget      = "target"      // of a link that stays
	ByInterpreter = "interpreter" // of a script, or the loader of a program
	ByLibrary     = "library"     // DT_NEEDED
	ByDlopen      = "dlopen"
	ByPackage     = "package"  // its package stays
	ByPath        = "path"     // named as a product
	ByCompiled    = "compiled" // Python's, of source that stays
	ByDatabase    = "database" // dpkg's
	ByOwner       = "owner"    // a package that owns what stays
	ByDepends     = "depends"  // a package that another needs
	ByName        = "named"    // a package that the profile names
)

// Reason is why a path or package stays: the rule, and the path, or "package " and the name, that pulled it.
type Reason struct {
	Rule string `json:"rule"`
	From string `json:"from,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Set is what stays of a base.
type Set struct {
	// Paths has every file and link that stays, by path in the merged tree, and Dirs the directories.
	Paths map[string]Reason
	Dirs  map[string]bool
	// Packages has the packages that stay, by name.
	Packages map[string]Reason
	// Notes say what was looked for and is not in the base, and which cuts have no effect.
	Notes []string

	db       *database
	spec     profile.Keep
	dangling map[string]bool // links that would lead to nothing
}

// Explain returns the chain from a path or package of the set back to its root, one line a step, the path itself first. It
// returns nothing for what is not in the set.
func (s *Set) Explain(what string) []string {
	var out []string
	for range 100 { // longer than any chain
		r, ok := s.Paths[what]
		if !ok {
			if r, ok = s.Packages[strings.TrimPrefix(what, packagePrefix)]; !ok {
				return out
			}
		}
		line := what + ": " + r.Rule
		if r.From != "" {
			line += " of " + r.From
		}
		if r.Why != "" {
			line += " (" + r.Why + ")"
		}
		out = append(out, line)
		if what = r.From; what == "" {
			return out
		}
	}
	return out
}

const packagePrefix = "package "

// BrokenError lists what would not work in the image: files that stay and need what doesn't.
type BrokenError struct{ Findings []string }

func (e *BrokenError) Error() string { return strings.Join(e.Findings, "\n") }

// keeper is one call of Resolve.
type keeper struct {
	ctx  context.Context
	img  *tree.Image
	spec profile.Keep
	elfs map[tree.Digest]*elf.File
	db   *database
	dirs []string // that the loader looks in

	set    *Set
	strong map[string]bool // stays whatever is dropped
	files  []string        // whose needs are to be looked at
	names  []string        // packages, likewise
	errs   []error

	globbed map[string][]string
}

// Resolve works out what of img stays by the rules of spec, whose roots must all be there: their conditions aren't read. A root that isn't there, and a file that would stay without what it needs, are errors.
func Resolve(ctx context.Context, img *tree.Image, spec profile.Keep) (*Set, error) {
	elfs, err := img.ELF()
	if err != nil {
		return nil, err
	}
	db, err := readDatabase(ctx, img)
	if err != nil {
		return nil, err
	}
	k := &keeper{
		ctx: ctx, img: img, spec: spec, elfs: elfs, db: db, strong: map[string]bool{}, globbed: map[string][]string{},
		set: &Set{
			Paths: map[string]Reason{}, Dirs: map[string]bool{}, Packages: map[string]Reason{}, db: db, spec: spec, dangling: map[string]bool{},
		},
	}
	if k.dirs, err = k.listLoaderDirs(); err != nil {
		return nil, err
	}
	for _, r := range spec.Roots {
		if _, ok := k.keepPath(r.Path, Reason{Rule: ByRoot, Why: r.Why}); !ok {
			k.errs = append(k.errs, fmt.Errorf("%s is not in the base (%s)", r.Path, r.Why))
		}
	}
	for _, name := range spec.Packages {
		k.keepPackagesNamed(name)
	}
	for before := -1; before != len(k.set.Paths)+len(k.set.Packages) && ctx.Err() == nil; {
		before = len(k.set.Paths) + len(k.set.Packages)
		k.followNeeds()
		k.keepDlopened()
		k.followNeeds()
	}
	if err := errors.Join(append(k.errs, context.Cause(ctx))...); err != nil {
		return nil, err
	}
	k.keepPackageFiles()
	k.keepProducts()
	k.removeDanglingLinks()
	k.keepDatabases()
	k.keepDirectories()
	k.noteIdleCuts()
	if broken := k.findBroken(); len(broken) > 0 {
		return nil, &BrokenError{broken}
	}
	slices.Sort(k.set.Notes)
	k.set.Notes = slices.Compact(k.set.Notes)
	return k.set, nil
}

// addPath adds a path to the set and reports whether it is new; the first reason counts.
func (k *keeper) addPath(p string, r Reason) bool {
	if _, ok := k.set.Paths[p]; ok {
		return false
	}
	k.set.Paths[p] = r
	return true
}

// keepPath keeps the file at p, every link on the way, and what the file needs. It returns the path at the end of the links.
func (k *keeper) keepPath(p string, r Reason) (real string, ok bool) {
	real, links, ok := k.followLinks(p)
	if !ok {
		return "", false
	}
	from := r
	for _, l := range links {
		k.strong[l.path] = true
		if k.addPath(l.path, from) {
			k.keepOwner(l.path)
		}
		if l.last {
			from = Reason{Rule: ByTarget, From: l.path}
		}
	}
	e, _ := k.img.Lookup(real)
	if e.IsDir() {
		k.set.Dirs[real] = true
		return real, true
	}
	if !k.strong[real] {
		k.strong[real] = true
		k.addPath(real, from)
		k.files = append(k.files, real)
		k.keepOwner(real)
	}
	return real, true
}

// link is a link on the way to a path; last reports that it is the path's own and not that of a directory above it.
type link struct {
	path string
	last bool
}

// followLinks resolves p as the kernel does and returns the links on the way, in order.
func (k *keeper) followLinks(p string) (real string, links []link, ok bool) {
	rest := strings.Split(strings.TrimPrefix(path.Clean("/"+p), "/"), "/")
	at := "/"
	for len(rest) > 0 {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		e, ok := k.img.Lookup(next)
		if !ok {
			return "", nil, false
		}
		if e.Type != image.TypeSymlink {
			at = next
			continue
		}
		if links = append(links, link{next, len(rest) == 0}); len(links) > 40 { // as the kernel, path_resolution(7)
			return "", nil, false
		}
		to := e.Link
		if !path.IsAbs(to) {
			to = path.Join(at, to)
		}
		rest = append(strings.Split(strings.TrimPrefix(path.Clean(to), "/"), "/"), rest...)
		at = "/"
	}
	return at, links, true
}

// way returns the paths of the links and then the path that they lead to.
func way(links []link, real string) []string {
	out := make([]string, 0, len(links)+1)
	for _, l := range links {
		out = append(out, l.path)
	}
	return append(out, real)
}

// keepOwner keeps the package that a path belongs to.
func (k *keeper) keepOwner(p string) {
	if name, ok := k.db.owner[p]; ok {
		k.keepPackage(name, Reason{Rule: ByOwner, From: p})
	}
}

func (k *keeper) keepPackage(name string, r Reason) {
	if _, ok := k.set.Packages[name]; !ok {
		k.set.Packages[name] = r
		k.names = append(k.names, name)
	}
}

func (k *keeper) keepPackagesNamed(glob string) {
	found := false
	for _, name := range slices.Sorted(maps.Keys(k.db.packages)) {
		if matches(glob, name) {
			found = true
			k.keepPackage(name, Reason{Rule: ByName})
		}
	}
	if !found {
		k.set.Notes = append(k.set.Notes, fmt.Sprintf("package %s is not in the base", glob))
	}
}

// followNeeds follows the needs of queued files and packages until there are none.
func (k *keeper) followNeeds() {
	for len(k.files)+len(k.names) > 0 && k.ctx.Err() == nil {
		for len(k.files) > 0 {
			p := k.files[0]
			k.files = k.files[1:]
			k.keepNeeds(p)
		}
		for len(k.names) > 0 {
			name := k.names[0]
			k.names = k.names[1:]
			k.keepDependencies(name)
		}
	}
}

// keepNeeds keeps the interpreter and the libraries of a file.
func (k *keeper) keepNeeds(p string) {
	f := k.readELF(p)
	if f == nil {
		if k.set.Paths[p].Rule == ByRoot || k.set.Paths[p].Rule == ByTarget {
			k.keepInterpreter(p)
		}
		return
	}
	if f.Interp != "" {
		if _, ok := k.keepPath(f.Interp, Reason{Rule: ByInterpreter, From: p}); !ok {
			k.errs = append(k.errs, fmt.Errorf("%s needs the loader %s, which is not in the base", p, f.Interp))
		}
	}
	for _, name := range f.Needed {
		found := k.findLibrary(p, name)
		if len(found) == 0 {
			k.errs = append(k.errs, fmt.Errorf("%s needs the library %s, which is not in the base", p, name))
		}
		for _, lib := range found {
			k.keepPath(lib, Reason{Rule: ByLibrary, From: p})
		}
	}
}

func (k *keeper) readELF(p string) *elf.File {
	e, ok := k.img.Lookup(p)
	if !ok || e.Digest == (tree.Digest{}) {
		return nil
	}
	return k.elfs[e.Digest]
}

// keepInterpreter keeps the interpreter that a file's first line names.
func (k *keeper) keepInterpreter(p string) {
	e, ok := k.img.Lookup(p)
	if !ok || e.Mode&0o111 == 0 || e.Size == 0 || e.Size > tree.MaxRead {
		return
	}
	data, err := k.img.ReadFile(k.ctx, p)
	if err != nil {
		k.errs = append(k.errs, err)
		return
	}
	words := image.Interpreter(data)
	if len(words) == 0 {
		return
	}
	if _, ok := k.keepPath(words[0], Reason{Rule: ByInterpreter, From: p}); !ok {
		k.errs = append(k.errs, fmt.Errorf("%s needs the interpreter %s, which is not in the base", p, words[0]))
	}
	if path.Base(words[0]) != "env" || len(words) < 2 {
		return
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if _, ok := k.keepPath(path.Join(dir, words[len(words)-1]), Reason{Rule: ByInterpreter, From: p}); ok {
			return
		}
	}
	k.errs = append(k.errs, fmt.Errorf("%s needs the interpreter %s, which is not in the base", p, words[len(words)-1]))
}

// keepDependencies keeps the packages that a package needs.
func (k *keeper) keepDependencies(name string) {
	for _, clause := range k.db.packages[name].depends {
		to, ok := k.choosePackage(clause)
		if !ok {
			continue
		}
		if _, cut := k.set.findCut(name, to); !cut {
			k.keepPackage(to, Reason{Rule: ByDepends, From: packagePrefix + name})
		}
	}
}

// choosePackage returns the package that satisfies a clause: one that stays anyhow, else the first that is installed.
func (k *keeper) choosePackage(clause []string) (string, bool) {
	var first string
	for _, alternative := range clause {
		for _, name := range k.db.provide(alternative) {
			if _, ok := k.set.Packages[name]; ok {
				return name, true
			}
			if first == "" {
				first = name
			}
		}
	}
	return first, first != ""
}

// keepDlopened keeps what programs that stay load by themselves.
func (k *keeper) keepDlopened() {
	for _, d := range k.spec.Dlopen {
		opener := k.findOpener(d.Opener)
		if opener == "" {
			continue
		}
		r := Reason{Rule: ByDlopen, From: opener, Why: d.Why}
		for _, o := range d.Objects {
			var found []string
			if strings.HasPrefix(o, "/") {
				found = k.glob(o)
			} else {
				found = k.findLibrary(opener, o)
			}
			for _, p := range found {
				if e, ok := k.img.Stat(p); ok && !e.IsDir() {
					k.keepPath(p, r)
				}
			}
			if len(found) == 0 {
				k.set.Notes = append(k.set.Notes, fmt.Sprintf("%s, which %s may load, is not in the base", o, opener))
			}
		}
	}
}

// glob returns the paths of the base that a glob matches. It is asked the same again and again.
func (k *keeper) glob(pattern string) []string {
	if _, ok := k.globbed[pattern]; !ok {
		paths, err := k.img.Glob(pattern)
		if err != nil {
			k.errs = append(k.errs, fmt.Errorf("%s: %w", pattern, err))
		}
		k.globbed[pattern] = paths
	}
	return k.globbed[pattern]
}

// findOpener returns the first ELF file that a glob matches and that stays, by itself or with its package; empty when none does.
func (k *keeper) findOpener(glob string) string {
	for _, p := range k.glob(glob) {
		real, _, ok := k.followLinks(p)
		if !ok || k.readELF(real) == nil {
			continue
		}
		_, kept := k.set.Paths[real]
		if name, owned := k.db.owner[real]; owned && !kept {
			_, kept = k.set.Packages[name]
		}
		if kept {
			return real
		}
	}
	return ""
}

// keepPackageFiles keeps the files of packages that stay, but for those that are dropped.
func (k *keeper) keepPackageFiles() {
	for _, name := range slices.Sorted(maps.Keys(k.set.Packages)) {
		for _, p := range k.db.packages[name].files {
			if k.strong[p] {
				continue
			}
			if e, ok := k.img.Lookup(p); !ok || e.IsDir() {
				continue
			}
			if !k.isDropped(p, name) {
				k.addPath(p, Reason{Rule: ByPackage, From: packagePrefix + name})
			}
		}
	}
}

// isDropped reports whether a file goes although its package stays; name is empty for a file that no package owns.
func (k *keeper) isDropped(p, name string) bool {
	_, dropped := k.set.drop(p, name)
	return dropped
}

// keepProducts keeps what no package owns: by name, and compiled Python of source that stays.
func (k *keeper) keepProducts() {
	for _, glob := range k.spec.Paths {
		for _, p := range k.glob(glob) {
			for e := range k.img.Walk(p) {
				if e.IsDir() {
					k.set.Dirs[e.Path] = true
				} else if _, owned := k.db.owner[e.Path]; !owned && !k.isDropped(e.Path, "") {
					k.addPath(e.Path, Reason{Rule: ByPath, Why: glob})
				}
			}
		}
	}
	for e := range k.img.Walk("/") {
		dir, base := path.Split(e.Path)
		dir, ok := strings.CutSuffix(dir, "/__pycache__/")
		if !ok || path.Ext(base) != ".pyc" {
			continue
		}
		module, _, _ := strings.Cut(base, ".cpython-") // PEP 3147
		source := path.Join(dir, module+".py")
		if _, kept := k.set.Paths[source]; kept {
			k.addPath(e.Path, Reason{Rule: ByCompiled, From: source})
		}
	}
}

// removeDanglingLinks lets go of links that would lead to nothing, and led to something.
func (k *keeper) removeDanglingLinks() {
	for again := true; again; {
		again = false
		for p := range k.set.Paths {
			e, _ := k.img.Lookup(p)
			if e.Type != image.TypeSymlink || k.strong[p] {
				continue
			}
			real, links, ok := k.followLinks(p)
			if !ok {
				continue // it led to nothing
			}
			for _, at := range way(links, real) {
				e, _ := k.img.Lookup(at)
				if _, stays := k.set.Paths[at]; !stays && !e.IsDir() {
					delete(k.set.Paths, p)
					k.set.dangling[p], again = true, true
					break
				}
			}
		}
	}
}

// keepDirectories keeps those that something that stays lies in, and those that its packages have.
func (k *keeper) keepDirectories() {
	for p := range k.set.Paths {
		for _, dir := range image.Parents(p) {
			k.set.Dirs[dir] = true
		}
	}
	for name := range k.set.Packages {
		for _, p := range k.db.packages[name].files {
			if e, ok := k.img.Lookup(p); ok && e.IsDir() && !k.isDropped(p, name) {
				k.set.Dirs[p] = true
			}
		}
	}
	for p := range k.set.Dirs {
		for _, dir := range image.Parents(p) {
			k.set.Dirs[dir] = true
		}
	}
	maps.DeleteFunc(k.set.Dirs, func(p string, _ bool) bool { e, ok := k.img.Lookup(p); return !ok || !e.IsDir() })
}

// noteIdleCuts notes cuts whose packages stay all the same.
func (k *keeper) noteIdleCuts() {
	for _, c := range k.spec.Without {
		_, from := k.set.Packages[c.From]
		for _, name := range c.To {
			if to, stays := k.set.Packages[name]; from && stays {
				k.set.Notes = append(k.set.Notes, fmt.Sprintf("%s stays although its edge from %s is cut: %s of %s", name, c.From, to.Rule, to.From))
			}
		}
	}
}

// findBroken finds files that stay and need what doesn't.
func (k *keeper) findBroken() []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(k.set.Paths)) {
		f := k.readELF(p)
		if f == nil {
			continue
		}
		for _, name := range f.Needed {
			found := k.findLibrary(p, name)
			if len(found) > 0 && !slices.ContainsFunc(found, k.isKept) {
				at := found[0]
				if real, _, ok := k.followLinks(at); ok {
					at = real
				}
				text := fmt.Sprintf("%s stays and needs %s", p, at)
				if owner, ok := k.db.owner[at]; ok {
					text += " of package " + owner
				}
				if owner, ok := k.db.owner[p]; ok {
					text += fmt.Sprintf(": drop it with the edge from %s, or don't cut or drop what it needs", owner)
				}
				out = append(out, text)
			}
		}
	}
	return out
}

// isKept reports whether the file at p and every link on the way stay.
func (k *keeper) isKept(p string) bool {
	real, links, ok := k.followLinks(p)
	if !ok {
		return false
	}
	for _, at := range way(links, real) {
		if _, kept := k.set.Paths[at]; !kept {
			return false
		}
	}
	return true
}

func matches(glob, s string) bool { return doublestar.MatchUnvalidated(glob, s) }

func matchesAny(globs []string, s string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return matches(g, s) })
}
