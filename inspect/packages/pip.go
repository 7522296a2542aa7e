package packages

import (
	"encoding/csv"
	"iter"
	"path"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/deb822"
)

// record returns the possible records of the files of the Python package whose metadata is at p: RECORD, of the
// packaging standard "Recording installed projects", or setuptools' installed-files.txt. Python's importlib.metadata
// reads the same.
func record(p string) string {
	dir, base := path.Split(p)
	switch base {
	case "METADATA":
		return dir + "RECORD"
	case "PKG-INFO":
		return dir + "installed-files.txt"
	}
	return p + "/none" // an egg-info that is a file
}

// pip reads the Python package whose metadata is at p.
func (r *reader) pip(p string) {
	dir := path.Dir(p) // x.dist-info
	if strings.HasSuffix(p, ".egg-info") {
		dir = p
	}
	pkg := Package{Kind: Pip, Dir: path.Dir(dir), Place: r.img.Place(p, 0)}
	for s := range deb822.All(r.files[p]) {
		pkg.Name, pkg.Version = s.Get("Name"), s.Get("Version")
		break // the description follows
	}
	if pkg.Name == "" || pkg.Version == "" {
		r.addNote(p, 0, "the metadata has no Name, or no Version: they are taken from the path")
		stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(dir), ".dist-info"), ".egg-info")
		name, version, _ := strings.Cut(stem, "-")
		if pkg.Name == "" {
			pkg.Name = name
		}
		if pkg.Version == "" {
			pkg.Version, _, _ = strings.Cut(version, "-py")
		}
	}
	n, ok := r.addPackage(pkg, dir)
	if !ok {
		return
	}
	base := pkg.Dir
	if path.Base(p) == "PKG-INFO" {
		base = dir
	}
	named := false
	for name := range recordNames(r.files[record(p)], base == dir) {
		if r.claims >= maxNamed {
			break
		}
		if name == "" || strings.HasSuffix(name, ".pyc") {
			continue // compiled files may exist or not
		}
		if name[0] != '/' {
			name = base + "/" + name
		}
		if strings.Contains(name, "./") || strings.Contains(name, "//") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, "/") {
			name = image.Clean(name)
		}
		r.claimPath(n, r.canonical(name))
		named = true
	}
	if named {
		return
	}
	// Without a record only the metadata certainly belongs to it.
	r.claimPath(n, p)
	if dir != p {
		for _, e := range r.img.Dir(dir) {
			r.claimPath(n, e.Path)
		}
	}
}

// recordNames returns the files in a record: installed-files.txt has one per line, RECORD has CSV with the name first.
func recordNames(text string, plain bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		if plain {
			strings.SplitSeq(text, "\n")(yield)
			return
		}
		r := csv.NewReader(strings.NewReader(text))
		r.FieldsPerRecord, r.LazyQuotes, r.ReuseRecord = -1, true, true
		for fields, err := r.Read(); err == nil && yield(fields[0]); fields, err = r.Read() {
		}
	}
}
