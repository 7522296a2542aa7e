package verify

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// mostBraces bounds what a glob's braces come to.
const mostBraces = 256

// unsure are globs of which doublestar has its own mind: a star beside or in braces.
var unsure = regexp.MustCompile(`\*\{|\{[^}]*[*?]|\}[*?]|[\\[]`)

// braces writes the alternatives of a glob out, so that each can be looked for below its own directory only. What it can't be
// sure of it leaves as it is.
func braces(glob string) []string {
	if unsure.MatchString(glob) || !utf8.ValidString(glob) {
		return []string{glob}
	}
	if out := alternatives(glob); len(out) <= mostBraces {
		return out
	}
	return []string{glob}
}

func alternatives(glob string) []string {
	open := strings.IndexByte(glob, '{')
	if open < 0 {
		return []string{glob}
	}
	depth, start := 0, open+1
	var parts []string
	for i := open; i < len(glob); i++ {
		switch glob[i] {
		case '{':
			depth++
		case ',':
			if depth == 1 {
				parts = append(parts, glob[start:i])
				start = i + 1
			}
		case '}':
			if depth--; depth > 0 {
				continue
			}
			parts = append(parts, glob[start:i])
			var out []string
			for _, rest := range alternatives(glob[i+1:]) {
				for _, p := range parts {
					for _, inner := range alternatives(p) {
						if out = append(out, glob[:open]+inner+rest); len(out) > mostBraces {
							return out
						}
					}
				}
			}
			return out
		}
	}
	return []string{glob}
}

// glob lists what matches in the merged tree, sorted, also where a symlink among the fixed first directories leads.
func (h *held) glob(pattern string) ([]string, error) {
	var out []string
	for _, p := range braces(pattern) {
		found, err := h.Files.Glob(p)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
		if to := h.real(p); to != p {
			if found, err = h.Files.Glob(to); err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// fixed is what every path that a glob matches starts with: whole directories with the last slash, or all of a pattern
// that is none.
func fixed(pattern string) string {
	i := strings.IndexAny(pattern, `*?[{\`)
	if i < 0 {
		return pattern
	}
	return pattern[:strings.LastIndexByte(pattern[:i], '/')+1]
}

// real gives a glob with the symlinks among its fixed first directories followed.
func (h *held) real(pattern string) string {
	first := strings.TrimSuffix(fixed(pattern), "/")
	rest := pattern[len(first):]
	if rest == "" {
		to, err := h.Files.Resolve(first)
		if err != nil {
			return pattern
		}
		return to
	}
	e, ok := h.Files.Stat(first)
	if !ok {
		return pattern
	}
	return strings.TrimSuffix(e.Path, "/") + rest
}

func matchesAny(globs []string, p string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := doublestar.Match(g, p)
		return ok && err == nil
	})
}

// below lists what lies in the directory p at any depth, p left out.
func (h *held) below(p string) []tree.Entry {
	var out []tree.Entry
	for e := range h.Files.Walk(p) {
		if e.Path != p {
			out = append(out, *e)
		}
	}
	return out
}

// writer says who but root may change what is at p, by it or by a directory above it, symlinks followed; empty when nobody
// may. What isn't there can be made by who may write the directory that it would be in.
func (h *held) writer(p string) string {
	p = image.Clean(p)
	if to, err := h.Files.Resolve(p); err == nil {
		p = to
	}
	for range 40 {
		e, ok := h.Files.Lookup(p)
		if !ok || e.Type != image.TypeSymlink {
			break
		}
		next := e.Link
		if !path.IsAbs(next) {
			next = path.Join(path.Dir(p), next)
		}
		to, err := h.Files.Resolve(next)
		if err != nil {
			return fmt.Sprintf("%s leads nowhere", p)
		}
		p = to
	}
	sticky := false
	for _, at := range append(image.Parents(p), p) {
		e, ok := h.Files.Lookup(at)
		if !ok {
			if sticky {
				return fmt.Sprintf("anybody may make %s", at)
			}
			return ""
		}
		// In a directory with the sticky bit nobody may replace what is another's.
		if who := h.mayWrite(e); who != "" && (e.Mode&0o1000 == 0 || !e.IsDir()) {
			return fmt.Sprintf("%s may write %s", who, at)
		} else if who != "" {
			sticky = true
		}
	}
	return ""
}

// mayWrite names an account other than root that may write e itself.
func (h *held) mayWrite(e tree.Entry) string {
	_, list := e.Xattrs["system.posix_acl_access"]
	switch {
	case e.Type == image.TypeSymlink:
		return "" // a link has no mode
	case list:
		return "who is on its access list"
	case e.UID != 0:
		return fmt.Sprintf("user %d", e.UID)
	case e.Mode&0o002 != 0:
		return "everybody"
	case e.Mode&0o020 != 0 && e.GID != 0 && h.inGroup(e.GID):
		return fmt.Sprintf("group %d", e.GID)
	}
	return ""
}

// inGroup says whether an account other than root is in a group. An unread /etc/group has everybody.
func (h *held) inGroup(gid int) bool {
	p := h.Surface.Privilege
	if p == nil {
		return true
	}
	for _, u := range p.Users {
		if u.UID != 0 && u.GID == gid {
			return true
		}
	}
	for _, g := range p.Groups {
		if g.GID == gid && len(difference(g.Members, []string{"root"})) > 0 {
			return true
		}
	}
	return false
}
