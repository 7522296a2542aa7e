package packages

import (
	"path"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/deb822"
)

// record is the file that may say which files belong to the Python package whose metadata is at p: RECORD, of the packaging
// standard "Recording installed projects", or setuptools' installed-files.txt. It is what Python's importlib.metadata reads.
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
		break // what follows is the description
	}
	if pkg.Name == "" || pkg.Version == "" {
		r.note(p, 0, "the metadata has no Name, or no Version: they are taken from the path")
		stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(dir), ".dist-info"), ".egg-info")
		name, version, _ := strings.Cut(stem, "-")
		if pkg.Name == "" {
			pkg.Name = name
		}
		if pkg.Version == "" {
			pkg.Version, _, _ = strings.Cut(version, "-py")
		}
	}
	n, ok := r.add(pkg, dir)
	if !ok {
		return
	}
	base := pkg.Dir
	if path.Base(p) == "PKG-INFO" {
		base = dir
	}
	named := false
	for text := r.files[record(p)]; text != "" && r.claims < maxNamed; {
		var name string
		if base == dir {
			name, text, _ = strings.Cut(text, "\n")
		} else {
			name, text = recordLine(text)
		}
		if name == "" || strings.HasSuffix(name, ".pyc") {
			continue // compiled files come and go
		}
		if name[0] != '/' {
			name = base + "/" + name
		}
		if strings.Contains(name, "./") || strings.Contains(name, "//") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, "/") {
			name = image.Clean(name)
		}
		r.claim(n, r.canonical(name))
		named = true
	}
	if named {
		return
	}
	// Without a record only the metadata is sure to be its own.
	r.claim(n, p)
	if dir != p {
		for _, e := range r.img.Dir(dir) {
			r.claim(n, e.Path)
		}
	}
}

// recordLine takes the first field of the first line of a CSV text, and gives it and the lines after.
func recordLine(text string) (field, rest string) {
	if text[0] != '"' {
		line, rest, _ := strings.Cut(text, "\n")
		field, _, _ = strings.Cut(strings.TrimSuffix(line, "\r"), ",")
		return field, rest
	}
	text = text[1:]
	var b strings.Builder
	for {
		i := strings.IndexByte(text, '"')
		if i < 0 {
			return "", "" // it is never closed
		}
		b.WriteString(text[:i])
		text = text[i+1:]
		if !strings.HasPrefix(text, `"`) {
			break
		}
		b.WriteByte('"')
		text = text[1:]
	}
	_, rest, _ = strings.Cut(text, "\n")
	return b.String(), rest
}
