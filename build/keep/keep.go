// Package keep computes which files of a base given programs need, and why. It follows the rules of the dynamic loader
// and of dpkg. No kept file needs one that isn't kept.
//
// It starts from roots, which are paths, and follows links, scripts' interpreters and the loader to every library.
// Profiles name what programs load at run time. The packages that own these files stay, with the packages that they
// depend on, except through cut edges. Packages stay whole, except dropped files. Files without a package stay by name.
package keep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf"
	"github.com/slimctl/slimctl/image/tree"
)

// The rules by which paths and packages stay.
const (
	ByRoot        = "root"
	ByLink        = "link"        // a link on the way to a path that stays
	ByTarget      = "target"      // the target of a link that stays
	ByInterpreter = "interpreter" // a script's interpreter, or a program's loader
	ByLibrary     = "library"     // DT_NEEDED
	ByDlopen      = "dlopen"
	ByPackage     = "package"  // its package stays
	ByPath        = "path"     // named in the profile, without a package
	ByCompiled    = "compiled" // compiled Python of source that stays
	ByDatabase    = "database" // dpkg's database
	ByOwner       = "owner"    // a package that owns a file that stays
	ByDepends     = "depends"  // a dependency of another package
	ByName        = "named"    // a package named in the profile
)

// Reason is why a path or package stays: the rule, and the path, or "package " and the name, that needs it.
type Reason struct {
	Rule string `json:"rule"`
	From string `json:"from,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Set is the part of a base that stays.
type Set struct {
	// Paths maps the files and links that stay, by path in the merged tree, to the reason. Dirs are the directories.
	Paths map[string]Reason
	Dirs  map[string]bool
	// Packages maps the packages that stay, by name, to the reason.
	Packages map[string]Reason

	db       *database
	spec     profile.Keep
	dangling map[string]bool // links whose target is removed
}

// Explain returns the chain of reasons from a path or package to its root, one line per step, beginning with the path.
// It returns nothing for a path that isn't in the set.
func (s *Set) Explain(what string) []string {
	var out []string
	for range 100 { // no chain is longer
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

// BrokenError lists the files that stay although they need a file that doesn't.
type BrokenError struct{ Findings []string }

func (e *BrokenError) Error() string { return strings.Join(e.Findings, "\n") }

// keeper is the state of a call of Resolve.
type keeper struct {
	ctx  context.Context
	stop context.CancelCauseFunc // ends ctx if the base exceeds a limit
	img  *tree.Image
	spec profile.Keep
	elfs map[tree.Digest]*elf.File
	db   *database

	confDirs, defaultDirs []string // the loader's directories

	set    *Set
	strong map[string]bool // files that stay even if dropped
	files  []string        // files whose needs must be followed
	names  []string        // packages whose needs must be followed
	errs   []error
	broken []string // findings of BrokenError

	searched []string // values of PATH by which env(1) finds interpreters

	globbed map[string][]string
	spent   int // by spend
}

// Resolve computes which files of img stay by the rules of spec. It ignores the conditions of spec's roots, which must
// all exist. It fails if a root is missing, or if a file would stay without a file that it needs. env(1) finds the
// interpreters of roots by each of the searched values of PATH.
func Resolve(ctx context.Context, img *tree.Image, spec profile.Keep, searched ...string) (*Set, error) {
	elfs, err := img.ELF()
	if err != nil {
		return nil, err
	}
	db, err := readDatabase(ctx, img)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	k := &keeper{
		ctx: ctx, stop: stop, img: img, spec: spec, elfs: elfs, db: db, strong: map[string]bool{}, searched: searched, globbed: map[string][]string{},
		set: &Set{
			Paths: map[string]Reason{}, Dirs: map[string]bool{}, Packages: map[string]Reason{}, db: db, spec: spec, dangling: map[string]bool{},
		},
	}
	if err := k.listLoaderDirs(); err != nil {
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
	k.findBroken()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if len(k.broken) > 0 {
		return nil, &BrokenError{k.broken}
	}
	return k.set, nil
}

// addPath adds a path to the set and reports whether it is new. The first reason counts.
func (k *keeper) addPath(p string, r Reason) bool {
	if _, ok := k.set.Paths[p]; ok {
		return false
	}
	k.set.Paths[p] = r
	return true
}

// keepPath keeps the file at p, every link on the way, and what the file needs. It returns the path after following the
// links.
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

// link is a link on the way to a path. last reports whether it is the path itself, not a directory above it.
type link struct {
	path string
	last bool
}

// followLinks resolves p like the kernel and returns the links on the way, in order. A ".." leads to the parent of where
// the links before it lead.
func (k *keeper) followLinks(p string) (real string, links []link, ok bool) {
	rest := splitPath(p)
	at := "/"
	for len(rest) > 0 {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		if !k.spend(p, 100+64*len(next)) {
			return "", nil, false
		}
		e, ok := k.img.Lookup(next)
		if !ok {
			return "", nil, false
		}
		if e.Type != image.TypeSymlink {
			at = next
			continue
		}
		if links = append(links, link{next, len(rest) == 0}); len(links) > 40 { // the kernel's limit (path_resolution(7))
			return "", nil, false
		}
		if path.IsAbs(e.Link) {
			at = "/"
		}
		rest = append(splitPath(e.Link), rest...)
	}
	return at, links, true
}

// splitPath returns the elements of a path, without empty ones and ".".
func splitPath(p string) []string {
	elements := strings.FieldsFunc(p, func(c rune) bool { return c == '/' })
	return slices.DeleteFunc(elements, func(name string) bool { return name == "." })
}

// maxSpent limits the time for looking paths up, in units of spend. l1 of live stand-in B needs 63,000,000.
const maxSpent = 1_000_000_000

// spend counts the time for looking up what p names, in nanoseconds or so. It reports whether some is left.
func (k *keeper) spend(p string, n int) bool {
	if k.spent += n; k.spent > maxSpent {
		k.stop(fmt.Errorf("%s and other files of the base name too many libraries, directories and links to look through", p))
	}
	return k.spent <= maxSpent
}

// way returns the paths of the links, and then the real path.
func way(links []link, real string) []string {
	out := make([]string, 0, len(links)+1)
	for _, l := range links {
		out = append(out, l.path)
	}
	return append(out, real)
}

// keepOwner keeps the package that owns a path.
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
	for _, name := range slices.Sorted(maps.Keys(k.db.packages)) {
		if matches(glob, name) {
			k.keepPackage(name, Reason{Rule: ByName})
		}
	}
}

// followNeeds follows the needs of queued files and packages until the queues are empty.
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
		if slices.Contains([]string{ByRoot, ByTarget, ByInterpreter}, k.set.Paths[p].Rule) {
			k.keepInterpreter(p)
		}
		return
	}
	if f.Interp != "" {
		if _, ok := k.keepPath(f.Interp, Reason{Rule: ByInterpreter, From: p}); !ok {
			k.errs = append(k.errs, fmt.Errorf("%s needs the loader %s, which is not in the base", p, f.Interp))
		}
	}
	found := k.findLibraries(p, f.Needed)
	if k.ctx.Err() != nil {
		return
	}
	for _, name := range f.Needed {
		if len(found[name]) == 0 {
			k.errs = append(k.errs, fmt.Errorf("%s needs the library %s, which is not in the base", p, name))
		}
		for _, lib := range found[name] {
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

// absolutePaths matches paths in a script.
var absolutePaths = regexp.MustCompile(`/[A-Za-z0-9_.+/-]+`)

// keepInterpreter keeps the interpreter in a file's first line. Of a script that no package owns it also keeps the files that
// the script names.
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
	if elf.Is(data) {
		_, err := elf.Read(bytes.NewReader(data))
		if err == nil {
			err = errors.New("its layer has too many ELF files")
		}
		k.errs = append(k.errs, fmt.Errorf("%s is an ELF file that can't be read, so its libraries are unknown: %w; choose a base with another build of it", p, err))
		return
	}
	words := image.Interpreter(data)
	if len(words) == 0 {
		return
	}
	if _, owned := k.db.owner[p]; !owned { // such as a wrapper that starts the browser
		_, body, _ := bytes.Cut(data, []byte("\n"))
		for _, named := range absolutePaths.FindAll(body, 1000) {
			if real, _, ok := k.followLinks(string(named)); ok && !k.isDir(real) {
				k.keepPath(string(named), Reason{Rule: ByPath, From: p, Why: "named in the script"})
			}
		}
	}
	name, found := words[0], k.keepProgram(p, words[0])
	if path.Base(name) == "env" && len(words) > 1 && found {
		name, found = words[len(words)-1], false
		for _, list := range k.searched {
			found = slices.ContainsFunc(strings.Split(list, ":"), func(dir string) bool {
				return path.IsAbs(dir) && k.keepProgram(p, path.Join(dir, name))
			}) || found
		}
	}
	if !found {
		k.errs = append(k.errs, fmt.Errorf("%s needs the interpreter %s, which is not in the base", p, name))
	}
}

// keepProgram keeps the interpreter at p of a script and reports whether it exists. The modules of one that no package owns
// stay with it. If it has none at PREFIX/lib/NAME and isn't named in the profile, what it needs is unknown, and noted.
func (k *keeper) keepProgram(script, p string) bool {
	real, ok := k.keepPath(p, Reason{Rule: ByInterpreter, From: script})
	if !ok {
		return false
	}
	_, links, _ := k.followLinks(p)
	for _, l := range append(links, link{real, true}) {
		prefix := path.Dir(path.Dir(l.path))
		shared := slices.Contains([]string{"/", "/etc", "/opt", "/usr", "/usr/local"}, prefix) // of many programs
		if _, owned := k.db.owner[l.path]; owned || !l.last || k.isNamed(l.path) || shared && (l.path != real || len(k.db.packages) == 0) {
			continue
		}
		if lib := path.Join(prefix, "lib", path.Base(real)); k.isDir(lib) {
			k.keepModules(lib, l.path)
			k.keepModules(path.Join(prefix, "pyvenv.cfg"), l.path)
		} else if !shared {
			k.broken = append(k.broken, fmt.Sprintf("%s is a script for %s, which no package owns: its files would go, and it couldn't start. Keep them by this line of the profile:\nkeep: {paths: [%s]}", script, l.path, prefix))
			break
		}
	}
	return true
}

// keepModules keeps all files at and below a path, and what they need, for an interpreter. A drop of the profile counts.
func (k *keeper) keepModules(dir, interpreter string) {
	for e := range k.img.Walk(dir) {
		if !e.IsDir() && k.addPath(e.Path, Reason{Rule: ByPath, From: interpreter, Why: "modules of the interpreter"}) {
			k.files = append(k.files, e.Path)
		}
	}
}

// isNamed reports whether the profile's paths name p or a directory above it.
func (k *keeper) isNamed(p string) bool {
	return slices.ContainsFunc(k.spec.Paths, func(glob string) bool {
		return slices.ContainsFunc(k.glob(glob), func(named string) bool { return image.Within(p, named) })
	})
}

func (k *keeper) isDir(p string) bool {
	e, ok := k.img.Lookup(p)
	return ok && e.IsDir()
}

// keepDependencies keeps the packages that a package depends on.
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

// choosePackage returns the package that satisfies a clause: one that stays already, else the first installed one.
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

// keepDlopened keeps what programs that stay load at run time.
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
				found = k.findLibraries(opener, []string{o})[o]
			}
			for _, p := range found {
				if e, ok := k.img.Stat(p); ok && !e.IsDir() {
					k.keepPath(p, r)
				}
			}
		}
	}
}

// glob returns the paths of the base that a glob matches. It caches results, because most globs are used repeatedly.
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

// findOpener returns the first ELF file that a glob matches and that stays, by itself or with its package, or "".
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

// keepPackageFiles keeps the files of packages that stay, except dropped ones.
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

// isDropped reports whether a file is dropped although its package stays. name is empty for a file without a package.
func (k *keeper) isDropped(p, name string) bool {
	_, dropped := k.set.drop(p, name)
	return dropped
}

// keepProducts keeps files without a package: those named in the profile, and compiled Python of source that stays.
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

// removeDanglingLinks removes links whose target is removed. Links that dangle in the base stay.
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
				continue // it dangles in the base
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

// keepDirectories keeps the directories of everything that stays, and those of its packages.
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

// findBroken notes each file that stays and needs one that doesn't.
func (k *keeper) findBroken() {
	for _, p := range slices.Sorted(maps.Keys(k.set.Paths)) {
		f := k.readELF(p)
		if f == nil || k.ctx.Err() != nil {
			continue
		}
		libraries := k.findLibraries(p, f.Needed)
		for _, name := range f.Needed {
			found := libraries[name]
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
				k.broken = append(k.broken, text)
			}
		}
	}
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
