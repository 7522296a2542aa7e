package tree

import "github.com/slimctl/slimctl/image"

// capabilityXattr holds a file's capabilities (capabilities(7), "File capability extended attribute versioning").
const capabilityXattr = "security.capability"

// Rights returns the mode bits and the raw file capabilities of e. A hard link has those of the file it leads to besides its
// own: a runtime gives the file the mode of the link, or leaves it that of the file.
func (t *Tree) Rights(e *Entry) (mode int64, capability string) {
	mode, capability = e.Mode, e.Xattrs[capabilityXattr]
	if e.Type == image.TypeLink {
		if to, ok := t.Lookup(e.Link); ok {
			mode |= to.Mode
			if capability == "" {
				capability = to.Xattrs[capabilityXattr]
			}
		}
	}
	return mode, capability
}

// Privileged reports whether a file runs with other rights than its caller's. Of a hard link only its own entry is looked at.
func (e *Entry) Privileged() bool {
	return (e.Type == image.TypeFile || e.Type == image.TypeLink) && (e.Mode&0o6000 != 0 || e.Xattrs[capabilityXattr] != "")
}
