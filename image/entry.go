// Package image reads OCI images. It holds their entries and layers (entry.go, layer.go) and the sources that they come
// from (source*.go): registries, layouts, archives. It knows nothing of profiles. Package tree has merged trees and the
// base index with its cache; package output writes images.
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

// Type is the type of a file system object, named as in the OCI image specification (layer.md).
type Type string

// The types in a layer.
const (
	TypeFile    Type = "file"
	TypeDir     Type = "dir"
	TypeSymlink Type = "symlink"
	TypeLink    Type = "hardlink"
	TypeChar    Type = "char"
	TypeBlock   Type = "block"
	TypeFifo    Type = "fifo"
)

// Entry is a layer's metadata of one path.
type Entry struct {
	// Path is absolute and clean: "/etc/passwd". The root is "/".
	Path string `json:"path"`
	Type Type   `json:"type"`
	// Mode holds the permission bits with setuid, setgid and sticky, as in a tar header: 0 to 07777.
	Mode int64 `json:"mode"`
	UID  int   `json:"uid,omitempty"`
	GID  int   `json:"gid,omitempty"`
	// Size is the size in bytes, or 0 for anything but a regular file.
	Size    int64     `json:"size,omitempty"`
	ModTime time.Time `json:"mtime,omitzero"`
	// Link is the target of a symlink as written, or the absolute path of a hard link's target.
	Link string `json:"link,omitempty"`
	// Xattrs maps names such as "security.capability" to raw values.
	Xattrs Xattrs `json:"xattrs,omitempty"`
}

// Xattrs holds extended attributes. In JSON the values are base64, because they need not be text.
type Xattrs map[string]string

// MarshalJSON encodes the values in base64.
func (x Xattrs) MarshalJSON() ([]byte, error) {
	raw := make(map[string][]byte, len(x))
	for k, v := range x {
		raw[rawname.Quote(k)] = []byte(v)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON decodes the result of MarshalJSON.
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

// File is an entry with its content.
type File struct {
	Entry
	// Open returns the content of a regular file; it is nil for other types. It can be called several times.
	Open func() (io.ReadCloser, error)
}

// Bytes returns a root-owned regular file with the content data.
func Bytes(p string, mode int64, data []byte) File {
	return File{
		Entry: Entry{Path: Clean(p), Type: TypeFile, Mode: mode, Size: int64(len(data))},
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
	}
}

// Symlink returns a root-owned symbolic link at p to target.
func Symlink(p, target string) File {
	return File{Entry: Entry{Path: Clean(p), Type: TypeSymlink, Mode: 0o777, Link: target}}
}

// Dir returns a root-owned directory.
func Dir(p string, mode int64) File {
	return File{Entry: Entry{Path: Clean(p), Type: TypeDir, Mode: mode}}
}

// FromFS returns a root-owned regular file with the content of name in fsys, which each Open opens.
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

// Interpreter returns the words after "#!" in a script's first line (execve(2)), or nil for any other file.
func Interpreter(data []byte) []string {
	line, ok := strings.CutPrefix(string(data[:min(len(data), 512)]), "#!")
	if !ok {
		return nil
	}
	line, _, _ = strings.Cut(line, "\n")
	return strings.Fields(line)
}

// Clean returns p in the form of Entry.Path: absolute, slash-separated, without "." and "..".
func Clean(p string) string { return path.Clean("/" + p) }

// Parents returns the directories above p, topmost first, without the root: "/a", "/a/b" for "/a/b/c".
func Parents(p string) []string {
	var out []string
	for i := 1; i < len(p); i++ {
		if p[i] == '/' {
			out = append(out, p[:i])
		}
	}
	return out
}

// Within reports whether p is dir or below it.
func Within(p, dir string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}
