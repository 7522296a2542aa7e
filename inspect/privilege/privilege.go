// Package privilege reads who is who in an image, and how one becomes another: accounts, sudo, setuid files, capabilities,
// and what everybody may write.
package privilege

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
)

// Report is what an image has of these.
type Report struct {
	Users  []User  `json:"users"`
	Groups []Group `json:"groups"`
	// Sudo are the rules of /etc/sudoers and what it includes, comments left out.
	Sudo []tree.Note `json:"sudo,omitempty"`
	// Files are those with rights of their own.
	Files []File      `json:"files,omitempty"`
	Notes []tree.Note `json:"notes,omitempty"`
}

// User is a line of /etc/passwd with its line of /etc/shadow.
type User struct {
	Name  string `json:"name"`
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Home  string `json:"home"`
	Shell string `json:"shell"`
	// Password is "locked", "none" (anybody gets in) or "set".
	Password string     `json:"password"`
	Place    tree.Place `json:"place"`
}

// Group is a line of /etc/group.
type Group struct {
	Name    string     `json:"name"`
	GID     int        `json:"gid"`
	Members []string   `json:"members,omitempty"`
	Place   tree.Place `json:"place"`
}

// Kinds of a File.
const (
	Setuid        = "setuid"
	Setgid        = "setgid"
	Capability    = "capability"
	WorldWritable = "world-writable" // a file, or a directory without the sticky bit
	Device        = "device"
)

// File is a file with rights of its own.
type File struct {
	// Kinds are some of the constants, sorted.
	Kinds []string `json:"kinds"`
	// Entry is what the image says of it.
	Entry tree.Entry `json:"entry"`
	// Capabilities are by name, such as "cap_net_raw=ep", for Capability.
	Capabilities string     `json:"capabilities,omitempty"`
	Place        tree.Place `json:"place"`
}

// Read reads img. What makes no sense is a Note.
func Read(ctx context.Context, img *tree.Image) (*Report, error) {
	panic("not yet")
}
