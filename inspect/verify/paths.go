package verify

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// findWriter returns an account other than root that can change the content of p: at p, through a directory above it, or
// through a symlink on the way, which is followed as the kernel does. It returns "" if there is none. A missing path can
// be created by a writer of its directory.
func (h *held) findWriter(p string) string {
	at, rest := "/", elements(p)
	sticky := false // whether anybody may make files in at
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		e, ok := h.Files.Lookup(next)
		if !ok {
			if sticky {
				return fmt.Sprintf("anybody may make %s", next)
			}
			return ""
		}
		who := h.mayWrite(e)
		switch {
		// In a directory with the sticky bit nobody but its owner can replace another's files.
		case who != "" && (e.Mode&0o1000 == 0 || !e.IsDir() || e.UID != 0):
			return fmt.Sprintf("%s may write %s", who, next)
		case sticky && e.UID != 0: // a symlink
			return fmt.Sprintf("user %d may replace %s", e.UID, next)
		}
		if e.Type != image.TypeSymlink {
			at, sticky = next, who != ""
			continue
		}
		if links++; links > 40 {
			return fmt.Sprintf("%s leads nowhere", next)
		}
		if path.IsAbs(e.Link) {
			at, sticky = "/", false
		}
		rest = append(elements(e.Link), rest...)
	}
	return ""
}

// elements returns the elements of a path, without empty ones and ".".
func elements(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(name string) bool { return name == "" || name == "." })
}

// mayWrite returns an account other than root that can write e itself.
func (h *held) mayWrite(e tree.Entry) string {
	_, list := e.Xattrs["system.posix_acl_access"]
	switch {
	case e.Type == image.TypeSymlink:
		return "" // a symlink has no mode
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

// inGroup reports whether an account other than root is in a group.
func (h *held) inGroup(gid int) bool {
	p := h.Surface.Privilege
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
