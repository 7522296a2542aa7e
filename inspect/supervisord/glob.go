package supervisord

import (
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

// glob lists what a pattern matches as Python's glob.glob does: element by element, symlinks followed, names that start with
// a dot only for patterns that do, "**" no more than "*". The pattern is absolute, the result sorted. whole is false when
// more than limit paths matched, and then found may not be all, nor all of it files.
func glob(img *tree.Image, pattern string, limit int) (found []string, whole bool) {
	elements := strings.Split(strings.TrimPrefix(path.Clean(pattern), "/"), "/")
	dirs := []string{"/"}
	for i, element := range elements {
		var next []string
		for _, dir := range dirs {
			at, ok := img.Stat(dir)
			if !ok {
				continue
			}
			last := i == len(elements)-1
			if !strings.ContainsAny(element, "*?[") {
				if _, ok := img.Lookup(path.Join(at.Path, element)); ok {
					next = append(next, path.Join(dir, element))
				}
				continue
			}
			for _, e := range img.Dir(at.Path) {
				name := path.Base(e.Path)
				if strings.HasPrefix(name, ".") && !strings.HasPrefix(element, ".") || !match(element, name) {
					continue
				}
				p := path.Join(dir, name)
				if to, ok := img.Stat(p); last || ok && to.IsDir() { // a link that leads nowhere is found, and then not read
					next = append(next, p)
				}
				if len(next) > limit {
					slices.Sort(next)
					return next[:limit], false
				}
			}
		}
		dirs = next
	}
	slices.Sort(dirs)
	return dirs, true
}

// match is Python's fnmatch.fnmatchcase: *, ?, [set] and [!set], and no way to quote them.
func match(pattern, name string) bool {
	p, n := []rune(pattern), []rune(name)
	star, from := -1, 0
	for i, j := 0, 0; ; {
		width, ok := 0, false
		if i < len(p) && j < len(n) && p[i] != '*' {
			width, ok = matchOne(p[i:], n[j])
		}
		switch {
		case i == len(p) && j == len(n):
			return true
		case i < len(p) && p[i] == '*':
			star, from = i, j
			i++
		case ok:
			i += width
			j++
		case star >= 0 && from < len(n): // let the last star take one more
			from++
			i, j = star+1, from
		default:
			return false
		}
	}
}

// matchOne matches the pattern's first element, which is no star, and gives how many runes of it that takes.
func matchOne(p []rune, r rune) (width int, ok bool) {
	switch p[0] {
	case '?':
		return 1, true
	case '[':
		set := p[1:]
		negated := len(set) > 0 && set[0] == '!'
		if negated {
			set = set[1:]
		}
		end := -1
		if len(set) > 1 {
			end = slices.Index(set[1:], ']') // one that comes first is itself
		}
		if end < 0 {
			return 1, r == '['
		}
		width = len(p) - len(set) + end + 2
		in := false
		for set = set[:end+1]; len(set) > 0; {
			if len(set) > 2 && set[1] == '-' {
				in = in || set[0] <= r && r <= set[2]
				set = set[3:]
				continue
			}
			in = in || set[0] == r
			set = set[1:]
		}
		return width, in != negated
	}
	return 1, p[0] == r
}
