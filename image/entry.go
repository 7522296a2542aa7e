// Package image knows OCI images and nothing of profiles: the entries and layers of one (entry.go, layer.go), and the
// sources that one is read from (source*.go): a registry, a layout, an archive. Package tree, below, has merged trees, the
// base index and its cache; package output writes an image.
package image

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/slimctl/slimctl/internal/rawname"
)

// Type is the type of a file system object, by the words of the OCI image specification's layer page.
type Type string

// The types that a layer can hold.
const (
	TypeFile    Type = "file"
	TypeDir     Type = "dir"
	TypeSymlink Type = "symlink"
	TypeLink    Type = "hardlink"
	TypeChar    Type = "char"
	TypeBlock   Type = "block"
	TypeFifo    Type = "fifo"
)

// Entry is what a layer says of one path: everything but the content.
type Entry struct {
	// Path is absolute and clean: "/etc/passwd". The root is "/".
	Path string `json:"path"`
	Type Type   `json:"type"`
	// Mode holds the permission bits and setuid, setgid and sticky as a tar header does: 0 to 07777.
	Mode int64 `json:"mode"`
	UID  int   `json:"uid,omitempty"`
	GID  int   `json:"gid,omitempty"`
	// Size is in bytes; 0 for anything but a regular file.
	Size    int64     `json:"size,omitempty"`
	ModTime time.Time `json:"mtime,omitzero"`
	// Link is the target of a symlink as written, or the absolute path of a hard link's other name.
	Link string `json:"link,omitempty"`
	// Xattrs maps a name such as "security.capability" to its raw value.
	Xattrs Xattrs `json:"xattrs,omitempty"`
}

// Xattrs are extended attributes. Their values are bytes, not text, and so are base64 in JSON.
type Xattrs map[string]string

// MarshalJSON writes the values in base64.
func (x Xattrs) MarshalJSON() ([]byte, error) {
	raw := make(map[string][]byte, len(x))
	for k, v := range x {
		raw[rawname.Quote(k)] = []byte(v)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (x *Xattrs) UnmarshalJSON(data []byte) error {
	var raw map[string][]byte
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*x = make(Xattrs, len(raw))
	for k, v := range raw {
		(*x)[rawname.Unquote(k)] = string(v)
	}
	return nil
}

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Type == TypeDir }

// File is an entry with its content: one item of an overlay.
type File struct {
	Entry
	// Open gives the content of a regular file; nil for every other type. It can be called more than once.
	Open func() (io.ReadCloser, error)
}

// Bytes makes a root-owned regular file that holds data.
func Bytes(p string, mode int64, data []byte) File {
	return File{
		Entry: Entry{Path: Clean(p), Type: TypeFile, Mode: mode, Size: int64(len(data))},
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
	}
}

// Symlink makes a root-owned symbolic link at p to target.
func Symlink(p, target string) File {
	return File{Entry: Entry{Path: Clean(p), Type: TypeSymlink, Mode: 0o777, Link: target}}
}

// Dir makes a root-owned directory.
func Dir(p string, mode int64) File {
	return File{Entry: Entry{Path: Clean(p), Type: TypeDir, Mode: mode}}
}

// FromFS makes a root-owned regular file of the given mode whose content is name in fsys, opened anew at each Open.
func FromFS(p string, mode int64, fsys fs.FS, name string) (File, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return File{}, err
	}
	return File{
		Entry: Entry{Path: Clean(p), Type: TypeFile, Mode: mode, Size: info.Size()},
		Open:  func() (io.ReadCloser, error) { return fsys.Open(name) },
	}, nil
}

// Interpreter returns the words after "#!" in a script's first line (execve(2)); none for what is no script.
func Interpreter(data []byte) []string {
	line, ok := strings.CutPrefix(string(data[:min(len(data), 512)]), "#!")
	if !ok {
		return nil
	}
	line, _, _ = strings.Cut(line, "\n")
	return strings.Fields(line)
}

// Clean gives p as an Entry writes it: absolute, slash-separated, with no "." or ".." left.
func Clean(p string) string { return path.Clean("/" + p) }

// Parents lists the directories above p, topmost first, without the root: "/a/b/c" gives "/a", "/a/b".
func Parents(p string) []string {
	var out []string
	for i := 1; i < len(p); i++ {
		if p[i] == '/' {
			out = append(out, p[:i])
		}
	}
	return out
}

// Within reports whether p is dir or lies below it.
func Within(p, dir string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}
