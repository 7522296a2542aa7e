package keep

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/deb822"
	"github.com/slimctl/slimctl/image/tree"
)

// The files of dpkg's database (dpkg(1), "FILES").
const (
	dpkgStatus     = "/var/lib/dpkg/status"
	dpkgInfo       = "/var/lib/dpkg/info"
	dpkgDiversions = "/var/lib/dpkg/diversions"
)

// database is the content of dpkg's database.
type database struct {
	packages map[string]*debian
	owner    map[string]string // package by path in the merged tree
	provides map[string][]string
	status   string
	diverted map[string]diversion // by path in the packages
}

// diversion moves a path of every package except one (dpkg-divert(1)).
type diversion struct{ to, by string }

// debian is an installed package.
type debian struct {
	name, arch string
	depends    [][]string // alternatives of each clause
	files      []string   // files and directories in the merged tree
	info       []string   // its files in dpkg's info directory
}

// readDatabase reads dpkg's database. An image without one has no packages.
func readDatabase(ctx context.Context, img *tree.Image) (*database, error) {
	db := &database{packages: map[string]*debian{}, owner: map[string]string{}, provides: map[string][]string{}}
	if e, ok := img.Stat(dpkgStatus); !ok || e.IsDir() {
		return db, nil
	}
	for _, p := range []string{dpkgStatus, dpkgInfo} {
		if e, ok := img.Stat(p); ok && e.Path != p {
			return nil, fmt.Errorf("%s leads to %s, where dpkg's database can't be edited; choose a base without this symlink", p, e.Path)
		}
	}
	data, err := img.ReadFile(ctx, dpkgStatus)
	if err != nil {
		return nil, err
	}
	db.status = string(data)
	edges := 0
	for s := range deb822.All(db.status) {
		if words := strings.Fields(s.Get("Status")); len(words) != 3 || words[2] != "installed" {
			continue
		}
		p := &debian{name: strings.Clone(s.Get("Package")), arch: s.Get("Architecture")}
		if len(p.name) > maxName || !packageName.MatchString(p.name) {
			return nil, fmt.Errorf("%s:%d: %.100q is not the name of a package; choose a base whose database dpkg can read", dpkgStatus, s.Line, p.name)
		}
		for _, field := range []string{"Pre-Depends", "Depends", "Provides"} {
			edges += strings.Count(s.Get(field), ",") + strings.Count(s.Get(field), "|")
		}
		if edges > maxEdges {
			return nil, errEdges
		}
		for _, field := range []string{"Pre-Depends", "Depends"} {
			p.depends = append(p.depends, clauses(s.Get(field))...)
		}
		if db.packages[p.name] != nil {
			return nil, fmt.Errorf("%s:%d: package %s is installed twice, for %s and %s, and names don't tell the two apart; choose a base with one of them", dpkgStatus, s.Line, p.name, db.packages[p.name].arch, p.arch)
		}
		db.packages[p.name] = p
		for _, clause := range clauses(s.Get("Provides")) {
			db.provides[clause[0]] = append(db.provides[clause[0]], p.name)
		}
	}
	if err := db.checkEdges(); err != nil {
		return nil, err
	}
	var lists []string
	at := map[string]string{} // path of each package's list
	for _, e := range img.Dir(dpkgInfo) {
		stem, ext, _ := cutLast(path.Base(e.Path), ".")
		name, _, _ := strings.Cut(stem, ":")
		p := db.packages[name]
		if p == nil || e.IsDir() {
			continue
		}
		p.info = append(p.info, e.Path)
		if ext != "list" && ext != "md5sums" {
			continue
		}
		if e.Type != image.TypeFile && e.Type != image.TypeLink {
			return nil, fmt.Errorf("%s is a %s, which can't be edited; choose a base where it is a file", e.Path, e.Type)
		}
		if ext == "list" {
			lists = append(lists, e.Path)
			at[name] = e.Path
		}
	}
	texts, err := img.ReadFiles(ctx, lists...)
	if err != nil {
		return nil, err
	}
	if err := db.readDiversions(ctx, img); err != nil {
		return nil, err
	}
	real := map[string]string{} // of directories, ending in a slash
	named := 0
	for _, name := range slices.Sorted(maps.Keys(at)) {
		p, list := db.packages[name], at[name]
		listed := map[string]bool{}
		for line := range strings.Lines(string(texts[list])) {
			line = strings.TrimSuffix(line, "\n")
			if line == "" || line == "/." {
				continue
			}
			if named++; named > maxNamed {
				return nil, fmt.Errorf("%s: the packages have more than %d files", list, maxNamed)
			}
			if len(real) > maxDirs {
				clear(real)
			}
			dir, base := path.Split(db.divert(line, name))
			if real[dir] == "" {
				to, err := img.Resolve(path.Join(dir, "x"))
				if err != nil {
					continue // a dangling link
				}
				real[dir] = to[:len(to)-1]
			}
			e, ok := img.Lookup(real[dir] + base)
			if !ok || listed[e.Path] {
				continue
			}
			listed[e.Path] = true
			p.files = append(p.files, e.Path) // the tree's string, to save memory
			if !e.IsDir() {
				db.owner[e.Path] = name
			}
		}
	}
	return db, nil
}

// Limits for a database. A real one has 2,000 packages and 300,000 recorded files.
const (
	maxDiverted = 1 << 16
	maxEdges    = 1_000_000 // dependencies of all packages together
	maxNamed    = 5_000_000 // files of all packages together
	maxDirs     = 1 << 16   // resolved directories to remember
	maxName     = 250       // bytes of a package's name, which is part of file names
)

// readDiversions reads the paths that packages replace in others: three lines each, with ":" for the administrator.
func (db *database) readDiversions(ctx context.Context, img *tree.Image) error {
	if e, ok := img.Stat(dpkgDiversions); !ok || e.IsDir() {
		return nil
	}
	text, err := img.ReadFile(ctx, dpkgDiversions)
	if err != nil {
		return err
	}
	if n := bytes.Count(text, []byte("\n")) / 3; n > maxDiverted {
		return fmt.Errorf("%s: more than %d diversions", dpkgDiversions, maxDiverted)
	}
	db.diverted = map[string]diversion{}
	lines := strings.Split(string(text), "\n")
	for ; len(lines) >= 3; lines = lines[3:] {
		if path.IsAbs(lines[0]) && path.IsAbs(lines[1]) {
			by, _, _ := strings.Cut(lines[2], ":")
			db.diverted[lines[0]] = diversion{lines[1], by}
		}
	}
	return nil
}

// divert returns the path at which a path of a package is.
func (db *database) divert(p, name string) string {
	if d, ok := db.diverted[p]; ok && d.by != name {
		return d.to
	}
	return p
}

var errEdges = fmt.Errorf("%s: the dependencies of its packages lead to more than %d packages", dpkgStatus, maxEdges)

// packageName matches the names that dpkg accepts (deb-control(5)).
var packageName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z+._-]*$`)

// checkEdges refuses a database with too many dependencies to follow.
func (db *database) checkEdges() error {
	edges := 0
	for _, p := range db.packages {
		for _, clause := range p.depends {
			for _, name := range clause {
				if edges += 1 + len(db.provides[name]); edges > maxEdges {
					return errEdges
				}
			}
		}
	}
	return nil
}

// clauses parses a dependency field (deb-control(5)) to names without versions and architectures.
func clauses(field string) [][]string {
	var out [][]string
	for clause := range strings.SplitSeq(field, ",") {
		var names []string
		for alternative := range strings.SplitSeq(clause, "|") {
			if words := strings.Fields(alternative); len(words) > 0 {
				name, _, _ := strings.Cut(words[0], "(")
				name, _, _ = strings.Cut(name, ":")
				names = append(names, strings.Clone(name))
			}
		}
		if len(names) > 0 {
			out = append(out, names)
		}
	}
	return out
}

// provide returns the installed packages that provide a name, first the one with that name.
func (db *database) provide(name string) []string {
	if db.packages[name] != nil {
		return append([]string{name}, db.provides[name]...)
	}
	return db.provides[name]
}

// keepDatabases keeps dpkg's files about packages that stay.
func (k *keeper) keepDatabases() {
	if len(k.set.Packages) == 0 {
		return
	}
	for _, p := range []string{dpkgStatus, dpkgInfo + "/format"} {
		if _, ok := k.img.Lookup(p); ok {
			k.addPath(p, Reason{Rule: ByDatabase})
		}
	}
	for name := range k.set.Packages {
		for _, p := range k.db.packages[name].info {
			if ext := path.Ext(p); ext == ".list" || ext == ".md5sums" {
				k.addPath(p, Reason{Rule: ByDatabase, From: packagePrefix + name})
			}
		}
	}
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Owner returns the package that owns a path of the base, or "".
func (s *Set) Owner(p string) string { return s.db.owner[p] }
