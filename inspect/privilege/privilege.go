// Package privilege reads who is who in an image, and how one becomes another: accounts, sudo, setuid files, capabilities,
// and what everybody may write.
package privilege

import (
	"context"
	"fmt"

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
	Name    string   `json:"name"`
	GID     int      `json:"gid"`
	Members []string `json:"members,omitempty"`
	// Password is "set" when whoever knows it may join; empty otherwise.
	Password string     `json:"password,omitempty"`
	Place    tree.Place `json:"place"`
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

// maxFiles bounds Report.Files; a real image has a few dozen. maxNotes bounds Report.Notes.
const (
	maxFiles = 50_000
	maxNotes = 1000
)

// Read reads img. What makes no sense is a Note; an error is a layer that can't be read.
func Read(ctx context.Context, img *tree.Image) (*Report, error) {
	r := newReader(ctx, img)
	first := []string{passwdFile, shadowFile, groupFile, gshadowFile, sudoConf, sudoersFile}
	if err := r.read(append(first, r.includable(sudoersDir)...)...); err != nil {
		return nil, err
	}
	r.users()
	r.groups()
	if err := r.sudo(); err != nil {
		return nil, err
	}
	r.rights()
	return r.report, nil
}

// reader is a Report while it is made.
type reader struct {
	ctx    context.Context
	img    *tree.Image
	files  map[string]string // by path, their content
	tried  map[string]bool   // what read was asked for
	left   int64             // bytes that may still be read
	rounds int
	// directives is how many lines of sudo's include files.
	directives int
	report     *Report
}

func newReader(ctx context.Context, img *tree.Image) *reader {
	return &reader{
		ctx: ctx, img: img, files: map[string]string{}, tried: map[string]bool{}, left: maxRead,
		report: &Report{Users: []User{}, Groups: []Group{}},
	}
}

// read reads those of paths that are there and are files. The others are notes, unless they are not there at all.
func (r *reader) read(paths ...string) error {
	var want []string
	for _, p := range paths {
		if r.tried[p] {
			continue
		}
		r.tried[p] = true
		at, err := r.img.Resolve(p)
		if err != nil {
			continue // below a loop of symlinks, or below a file: it isn't there
		}
		if _, there := r.img.Lookup(at); !there {
			continue
		}
		switch e, ok := r.img.Stat(p); {
		case !ok:
			r.note(p, 0, "a symlink that leads nowhere")
		case e.Digest == (tree.Digest{}):
			r.note(p, 0, fmt.Sprintf("not read: it is a %s", e.Type))
		case r.left < e.Size:
			r.note(p, 0, fmt.Sprintf("not read: with %d bytes it is larger than any real one", e.Size))
		default:
			r.left -= e.Size
			want = append(want, p)
		}
	}
	if len(want) == 0 {
		return nil
	}
	if r.rounds++; r.rounds > maxRounds {
		for _, p := range want {
			r.note(p, 0, "not read: it is included by a file that is included, too many times over")
		}
		return nil
	}
	raw, err := r.img.ReadFiles(r.ctx, want...)
	if err != nil {
		return err
	}
	for p, data := range raw {
		r.files[p] = string(data)
	}
	return nil
}

// Bounds of reading: bytes in all, and how often, since each time may read every layer.
const (
	maxRead   = 2 << 20
	maxRounds = 16
)

// note says something about a line of a file.
func (r *reader) note(p string, line int, text string) {
	switch n := len(r.report.Notes); {
	case n < maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: text})
	case n == maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: "this and further notes on privileges are left out"})
	}
}
