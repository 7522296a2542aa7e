package verify

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func matchesAny(globs []string, p string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := doublestar.Match(g, p)
		return ok && err == nil
	})
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
