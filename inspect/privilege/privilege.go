// Package privilege reads the accounts of an image and the ways from one to another: sudo, setuid files, capabilities,
// and world-writable paths.
package privilege

import (
	"context"
	"fmt"

	"github.com/slimctl/slimctl/image/tree"
)

// Report holds an image's accounts and rights.
type Report struct {
	Users  []User  `json:"users"`
	Groups []Group `json:"groups"`
	// Sudo lists the rules of /etc/sudoers and its includes, without comments.
	Sudo []tree.Note `json:"sudo,omitempty"`
	// Files lists files with special rights.
	Files []File      `json:"files,omitempty"`
	Notes []tree.Note `json:"notes,omitempty"`
}

// User is a line of /etc/passwd with its line in /etc/shadow.
type User struct {
	Name  string `json:"name"`
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Home  string `json:"home"`
	Shell string `json:"shell"`
	// Password is "locked", "none" (login without a password) or "set".
	Password string     `json:"password"`
	Place    tree.Place `json:"place"`
}

// Group is a line of /etc/group.
type Group struct {
	Name    string   `json:"name"`
	GID     int      `json:"gid"`
	Members []string `json:"members,omitempty"`
	// Password is "set" if a password admits others to the group; empty otherwise.
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

// File is a file with special rights.
type File struct {
	// Kinds are some of the constants, sorted.
	Kinds []string `json:"kinds"`
	// Entry is its entry in the image.
	Entry tree.Entry `json:"entry"`
	// Capabilities is the text of its capabilities, such as "cap_net_raw=ep", for Capability.
	Capabilities string     `json:"capabilities,omitempty"`
	Place        tree.Place `json:"place"`
}

// maxFiles limits Report.Files; a real image has a few dozen. maxNotes limits Report.Notes.
const (
	maxFiles = 50_000
	maxNotes = 1000
)

// Read reads img. Invalid content becomes a Note; an error reports a layer that can't be read.
func Read(ctx context.Context, img *tree.Image) (*Report, error) {
	r := newReader(ctx, img)
	first := []string{passwdFile, shadowFile, groupFile, gshadowFile, sudoConf, sudoersFile}
	if err := r.readFiles(append(first, r.includable(sudoersDir)...)...); err != nil {
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

// reader is a Report under construction.
type reader struct {
	ctx    context.Context
	img    *tree.Image
	files  map[string]string // contents by path
	tried  map[string]bool   // paths requested from read
	left   int64             // remaining bytes to read
	rounds int
	// directives is the number of include lines in sudo's files.
	directives int
	report     *Report
}

func newReader(ctx context.Context, img *tree.Image) *reader {
	return &reader{
		ctx: ctx, img: img, files: map[string]string{}, tried: map[string]bool{}, left: maxRead,
		report: &Report{Users: []User{}, Groups: []Group{}},
	}
}

// readFiles reads those of paths that are files. It notes other entries, and ignores missing ones.
func (r *reader) readFiles(paths ...string) error {
	var want []string
	for _, p := range paths {
		if r.tried[p] {
			continue
		}
		r.tried[p] = true
		at, err := r.img.Resolve(p)
		if err != nil {
			continue // below a loop of symlinks or a file: missing
		}
		if _, there := r.img.Lookup(at); !there {
			continue
		}
		switch e, ok := r.img.Stat(p); {
		case !ok:
			r.addNote(p, 0, "a symlink that leads nowhere")
		case e.Digest == (tree.Digest{}):
			r.addNote(p, 0, fmt.Sprintf("not read: a %s, not a file", e.Type))
		case r.left < e.Size:
			r.addNote(p, 0, fmt.Sprintf("not read: with %d bytes it is larger than any real one", e.Size))
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
			r.addNote(p, 0, fmt.Sprintf("not read: files include each other more than %d deep", maxRounds))
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

// Limits of reading: total bytes, and rounds, since each may read all layers.
const (
	maxRead   = 2 << 20
	maxRounds = 16
)

// addNote adds a note about a line of a file.
func (r *reader) addNote(p string, line int, text string) {
	switch n := len(r.report.Notes); {
	case n < maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: text})
	case n == maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: "this and further notes on privileges are left out"})
	}
}
