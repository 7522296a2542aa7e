package keep

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/deb822"
	"github.com/slimctl/slimctl/image/tree"
)

// dpkg's own files (dpkg(1), "FILES").
const (
	dpkgStatus = "/var/lib/dpkg/status"
	dpkgInfo   = "/var/lib/dpkg/info"
)

// database is what dpkg knows.
type database struct {
	packages map[string]*debian
	owner    map[string]string // of a path in the merged tree
	provides map[string][]string
	status   string
}

// debian is one installed package.
type debian struct {
	name, arch string
	depends    [][]string // each clause with its alternatives
	files      []string   // and directories, that the merged tree has
	info       []string   // its files in dpkg's info
}

// readDatabase reads dpkg's database; an image without one has no packages.
func readDatabase(ctx context.Context, img *tree.Image) (*database, error) {
	db := &database{packages: map[string]*debian{}, owner: map[string]string{}, provides: map[string][]string{}}
	if e, ok := img.Lookup(dpkgStatus); !ok || e.IsDir() {
		return db, nil
	}
	data, err := img.ReadFile(ctx, dpkgStatus)
	if err != nil {
		return nil, err
	}
	db.status = string(data)
	for s := range deb822.All(db.status) {
		if words := strings.Fields(s.Get("Status")); len(words) != 3 || words[2] != "installed" {
			continue
		}
		p := &debian{name: strings.Clone(s.Get("Package")), arch: s.Get("Architecture")}
		for _, field := range []string{"Pre-Depends", "Depends"} {
			p.depends = append(p.depends, clauses(s.Get(field))...)
		}
		if db.packages[p.name] != nil {
			return nil, fmt.Errorf("%s:%d: package %s is installed twice, for %s and %s: which of both stays isn't known", dpkgStatus, s.Line, p.name, db.packages[p.name].arch, p.arch)
		}
		db.packages[p.name] = p
		for _, clause := range clauses(s.Get("Provides")) {
			db.provides[clause[0]] = append(db.provides[clause[0]], p.name)
		}
	}
	var lists []string
	at := map[string]string{} // the list of each package
	for _, e := range img.Dir(dpkgInfo) {
		stem, ext, _ := cutLast(path.Base(e.Path), ".")
		name, _, _ := strings.Cut(stem, ":")
		p := db.packages[name]
		if p == nil || e.IsDir() {
			continue
		}
		p.info = append(p.info, e.Path)
		if ext == "list" {
			lists = append(lists, e.Path)
			at[name] = e.Path
		}
	}
	texts, err := img.ReadFiles(ctx, lists...)
	if err != nil {
		return nil, err
	}
	real := map[string]string{} // of directories, with a slash at the end
	for _, name := range slices.Sorted(maps.Keys(at)) {
		p, list := db.packages[name], at[name]
		for line := range strings.Lines(string(texts[list])) {
			line = strings.TrimSuffix(line, "\n")
			if line == "" || line == "/." {
				continue
			}
			dir, base := path.Split(line)
			if real[dir] == "" {
				to, err := img.Resolve(path.Join(dir, "x"))
				if err != nil {
					continue // it leads nowhere
				}
				real[dir] = to[:len(to)-1]
			}
			e, ok := img.Lookup(real[dir] + base)
			if !ok {
				continue
			}
			p.files = append(p.files, e.Path) // which the tree has in memory
			if !e.IsDir() {
				db.owner[e.Path] = name
			}
		}
	}
	return db, nil
}

// clauses takes a field of dependencies apart (deb-control(5)): names without versions and architectures.
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

// provide lists the installed packages that answer to a name, the one of that name first.
func (db *database) provide(name string) []string {
	if db.packages[name] != nil {
		return append([]string{name}, db.provides[name]...)
	}
	return db.provides[name]
}

// keepDatabases keeps what dpkg has of packages that stay.
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

// Owner is the package that has a path of the base; empty when none does.
func (s *Set) Owner(p string) string { return s.db.owner[p] }
