package keep

import (
	"path"
	"regexp"
	"strings"
)

// bulk is what bases have much of and no desktop needs, below /usr/lib and /usr/share.
var bulk = regexp.MustCompile(`^/usr/(lib/(debug|gcc|go|jvm|libreoffice|llvm|locale/[a-z]|rustlib)|` +
	`share/(doc/|gimp|go|gtk-doc|help|icons|info|inkscape|javascript|locale|man|texlive|texmf|unicode)|include/|src/)`)

// IsLikely reports whether the path of a file is one that may stay, before anything else of the base is known. Nothing but time depends
// on it: which files are put into a tree.Stash.
func IsLikely(p string) bool {
	dir, name := path.Split(p)
	if _, module, ok := strings.Cut(dir, "-packages/"); ok { // of Python
		return strings.HasPrefix(module, "supervisor") || strings.HasPrefix(module, "pkg_resources")
	}
	return name == "copyright" || path.Ext(name) != ".a" && !strings.Contains(dir, "/node_modules/") && !bulk.MatchString(dir)
}
