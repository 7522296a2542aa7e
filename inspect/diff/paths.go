package diff

import (
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// filter selects paths. The zero value selects all.
type filter []string

// CheckPaths returns an error if Options.Paths is invalid.
func CheckPaths(paths []string) error {
	_, err := newFilter(paths)
	return err
}

func newFilter(paths []string) (filter, error) {
	f := make(filter, len(paths))
	for i, p := range paths {
		if p == "" {
			return nil, fmt.Errorf("a path to compare is empty; / is everything")
		}
		if !doublestar.ValidatePattern(p) {
			return nil, fmt.Errorf("path %q is not a glob: put a backslash before a bracket or brace that is part of a name", p)
		}
		f[i] = image.Clean(p)
	}
	return f, nil
}

// isSelected reports whether p is selected.
func (f filter) isSelected(p string) bool {
	if len(f) == 0 {
		return true
	}
	for _, pattern := range f {
		if matches(pattern, p) {
			return true
		}
	}
	return false
}

// matches reports whether pattern names or matches p or a directory above p.
func matches(pattern, p string) bool {
	if image.Within(p, pattern) {
		return true
	}
	if !isGlob(pattern) {
		return false
	}
	for i := 1; i < len(p); i++ {
		if p[i] == '/' && doublestar.MatchUnvalidated(pattern, p[:i]) {
			return true
		}
	}
	return doublestar.MatchUnvalidated(pattern, p)
}

func isGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[{\`) }

// unmatched returns the patterns without a match in any of trees.
func (f filter) unmatched(trees ...*tree.Tree) []string {
	var out []string
	for _, pattern := range f {
		found := false
		for _, t := range trees {
			if found {
				break
			}
			if _, found = t.Lookup(pattern); found || !isGlob(pattern) {
				continue
			}
			paths, err := t.Glob(pattern)
			found = err == nil && len(paths) > 0
		}
		if !found {
			out = append(out, pattern)
		}
	}
	return out
}
