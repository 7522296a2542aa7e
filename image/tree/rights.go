package tree

import "github.com/slimctl/slimctl/image"

// capabilityXattr is the attribute with a file's capabilities (capabilities(7), "File capability extended attribute
// versioning").
const capabilityXattr = "security.capability"

// Rights returns the mode bits and the raw file capabilities of e. For a hard link it adds those of its file, because
// runtimes differ on whose mode the file gets.
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

// Privileged reports whether a file runs with other rights than its caller's. For a hard link it checks the link's own
// entry only.
func (e *Entry) Privileged() bool {
	return (e.Type == image.TypeFile || e.Type == image.TypeLink) && (e.Mode&0o6000 != 0 || e.Xattrs[capabilityXattr] != "")
}
