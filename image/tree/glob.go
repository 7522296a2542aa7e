package tree

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// maxLooked limits the number of names to compare with one pattern.
const maxLooked = 500_000

// Dirs looks names up in directories: of an image, or of its container after the start.
type Dirs interface {
	// Names returns the names in a directory, in any order.
	Names(dir string) []string
	// Exists reports whether p exists; with asDir, whether it is a directory or a link to one.
	Exists(p string, asDir bool) bool
}

// Glob returns the paths that an absolute pattern of path.Match matches, sorted by bytes. As in a shell, only a dot
// matches the leading dot of a name, and "[!x]" is "[^x]". If the paths may be incomplete, the error says why: an
// unsupported pattern, or more than limit paths.
func Glob(d Dirs, pattern string, limit int) (found []string, err error) {
	if len(pattern) > maxPath { // path.Match reads the rest of a pattern at each mismatch
		return nil, fmt.Errorf("the pattern has more than %d bytes", maxPath)
	}
	parts := strings.FieldsFunc(strings.ReplaceAll(pattern, "[!", "[^"), func(c rune) bool { return c == '/' })
	for _, part := range parts {
		if _, bad := path.Match(part, ""); bad != nil || strings.Contains(part, "[:") {
			return nil, errors.New("the pattern is not supported")
		}
	}
	dirs, looked := []string{""}, 0
	for i, part := range parts {
		var next []string
		for _, dir := range dirs {
			names, literal := []string{part}, !strings.ContainsAny(part, `*?[\`)
			if !literal {
				names = d.Names(dir)
			}
			for _, name := range names {
				if looked++; looked > maxLooked || len(next) > limit {
					err = errors.New("it matches too many names to look through")
					break
				}
				ok := literal
				if !literal && (!strings.HasPrefix(name, ".") || strings.HasPrefix(strings.TrimPrefix(part, `\`), ".")) {
					ok, _ = path.Match(part, name)
				}
				if p := dir + "/" + name; ok && d.Exists(p, i < len(parts)-1) {
					next = append(next, p)
				}
			}
		}
		dirs = next
	}
	slices.Sort(dirs)
	return dirs[:min(len(dirs), limit)], err
}

// Names returns the names in a directory of the image, following links.
func (im *Image) Names(dir string) []string {
	var out []string
	if e, ok := im.Stat("/" + dir); ok {
		for _, c := range im.Dir(e.Path) {
			out = append(out, path.Base(c.Path))
		}
	}
	return out
}

// Exists reports whether the image has p; with asDir, whether it is a directory or a link to one.
func (im *Image) Exists(p string, asDir bool) bool {
	if e, ok := im.Stat(p); ok || asDir {
		return !asDir || ok && e.IsDir()
	}
	dir, ok := im.Stat(path.Dir(p)) // a dangling link
	if ok {
		_, ok = im.Lookup(path.Join(dir.Path, path.Base(p)))
	}
	return ok
}
