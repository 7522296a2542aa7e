package keep

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/deb822"
	"github.com/slimctl/slimctl/image/tree"
)

// Digest returns a digest of the paths, directories and packages of the set, and of the base's diversions.
func (s *Set) Digest() string {
	h := sha256.New()
	for _, list := range [][]string{slices.Sorted(maps.Keys(s.Paths)), slices.Sorted(maps.Keys(s.Dirs)), slices.Sorted(maps.Keys(s.Packages))} {
		for _, p := range list {
			_, _ = io.WriteString(h, p+"\x00") // writing to a hash never fails
		}
		_, _ = io.WriteString(h, "\x00")
	}
	for _, p := range slices.Sorted(maps.Keys(s.db.diverted)) {
		fmt.Fprintf(h, "%q %q\n", p, s.db.diverted[p])
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Edits returns an edit for each file of dpkg's database, by path, so that the database describes the image: it removes
// packages that go, dependencies that are cut and files that don't exist, and names diverted files by where they are. An
// edit maps the file's content to the new one. has reports whether the image has a path of the base.
func (s *Set) Edits(img *tree.Image, has func(p string) bool) map[string]func([]byte) []byte {
	present := func(p string) bool { // follow links above it, such as /lib
		real, err := img.Resolve(p)
		return err == nil && has(real)
	}
	edits := map[string]func([]byte) []byte{}
	for p, r := range s.Paths {
		name := strings.TrimPrefix(r.From, packagePrefix)
		switch {
		case r.Rule != ByDatabase:
		case p == dpkgStatus:
			edits[p] = func(old []byte) []byte { return []byte(s.editStatus(string(old), present)) }
		case path.Ext(p) == ".list":
			edits[p] = func(old []byte) []byte {
				return editLines(old, func(line string) (string, bool) {
					file := s.db.divert(line, name)
					return file, line == "/." || present(file)
				})
			}
		case path.Ext(p) == ".md5sums":
			edits[p] = func(old []byte) []byte {
				return editLines(old, func(line string) (string, bool) {
					sum, file, ok := strings.Cut(line, "  ")
					file = s.db.divert("/"+file, name)
					return sum + "  " + file[1:], ok && present(file)
				})
			}
		}
	}
	return edits
}

// Has reports whether the set has a path: a file, a link or a directory.
func (s *Set) Has(p string) bool {
	_, ok := s.Paths[p]
	return ok || s.Dirs[p]
}

// editLines returns the lines that edit makes of text's, without those for which it reports false.
func editLines(text []byte, edit func(line string) (string, bool)) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		without := strings.TrimSuffix(line, "\n")
		if edited, ok := edit(without); ok {
			out.WriteString(edited + line[len(without):])
		}
	}
	return []byte(out.String())
}

// editStatus returns dpkg's status file with only the packages of the set.
func (s *Set) editStatus(old string, present func(p string) bool) string {
	var out strings.Builder
	for p := range deb822.All(old) {
		if _, stays := s.Packages[p.Get("Package")]; !stays {
			continue
		}
		for _, f := range p.Fields {
			value := f.Value
			switch strings.ToLower(f.Name) {
			case "depends", "pre-depends":
				if value = s.editDependencies(value); value == "" {
					continue
				}
			case "conffiles":
				kept := editLines([]byte(value), func(line string) (string, bool) {
					file, sum, _ := strings.Cut(strings.TrimSpace(line), " ")
					file = s.db.divert(file, p.Get("Package"))
					return " " + file + " " + sum, file != "" && present(file)
				})
				if value = strings.TrimSuffix(string(kept), "\n"); value == "" {
					continue
				}
				value = "\n " + strings.TrimLeft(value, " ")
			}
			out.WriteString(f.Name + ":")
			if value != "" && !strings.HasPrefix(value, "\n") {
				out.WriteString(" ")
			}
			out.WriteString(value + "\n")
		}
		out.WriteString("\n")
	}
	return out.String()
}

// editDependencies returns the clauses of a field that a package of the set satisfies.
func (s *Set) editDependencies(field string) string {
	var kept []string
	for clause := range strings.SplitSeq(field, ",") {
		names := clauses(clause)
		if len(names) == 0 {
			continue
		}
		if slices.ContainsFunc(names[0], func(name string) bool {
			return slices.ContainsFunc(s.db.provide(name), func(p string) bool { _, ok := s.Packages[p]; return ok })
		}) {
			kept = append(kept, strings.TrimSpace(clause))
		}
	}
	return strings.Join(kept, ", ")
}
