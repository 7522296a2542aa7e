package dockerfile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// isSpecial reports whether f can't be a plain file or symlink of the context and goes into an archive instead.
func isSpecial(f image.File) bool {
	return f.Type != image.TypeFile && f.Type != image.TypeSymlink || f.Mode&^0o777 != 0 || len(f.Xattrs) > 0
}

// specials gives the special files, with the files that hard links are names of: one archive must hold all names.
func specials(files map[string]image.File) ([]image.File, error) {
	out := map[string]image.File{}
	for p, f := range files {
		if !f.IsDir() && isSpecial(f) {
			out[p] = f
		}
		if f.Type != image.TypeLink {
			continue
		}
		target, ok := files[f.Link]
		if !ok || target.Type != image.TypeFile {
			return nil, fmt.Errorf("%s is a hard link to %s, which isn't a file of the same overlay", p, f.Link)
		}
		out[f.Link] = target
	}
	return slices.Collect(maps.Values(out)), nil
}

// everywhere reports whether all of others have the same file.
func everywhere(f image.File, others []map[string]image.File) (bool, error) {
	for _, files := range others {
		g, ok := files[f.Path]
		if !ok || g.Type != f.Type || g.Mode != f.Mode || g.UID != f.UID || g.GID != f.GID || g.Link != f.Link ||
			g.Size != f.Size || !g.ModTime.Equal(f.ModTime) || isSpecial(g) {
			return false, nil
		}
		if f.Type != image.TypeFile {
			continue
		}
		a, err := contentHash(f)
		if err != nil {
			return false, err
		}
		b, err := contentHash(g)
		if err != nil || !bytes.Equal(a, b) {
			return false, err
		}
	}
	return true, nil
}

func contentHash(f image.File) ([]byte, error) {
	h := sha256.New()
	if err := copyContent(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// copyContent writes what f holds and makes sure that it is as long as f says.
func copyContent(w io.Writer, f image.File) error {
	if f.Open == nil {
		if f.Size == 0 {
			return nil
		}
		return fmt.Errorf("%s: a regular file of %d bytes without content", f.Path, f.Size)
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(w, r)
	if err == nil && n != f.Size {
		err = fmt.Errorf("it has %d bytes, not %d", n, f.Size)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return nil
}

// checkFiles refuses paths that mean something else to BuildKit or to the file system that the context lies in.
func checkFiles(l laid) error {
	if len(l.files) != len(l.Files) {
		return fmt.Errorf("a path is there twice")
	}
	for _, f := range l.files {
		switch base := path.Base(f.Path); {
		case image.Clean(f.Path) != f.Path || f.Path == "/":
			return fmt.Errorf("%q isn't an absolute, clean path below the root", f.Path)
		case !utf8.ValidString(f.Path+f.Link) || strings.Contains(f.Path+f.Link, "\x00"):
			return fmt.Errorf("%q isn't UTF-8 without NUL, which BuildKit's contexts must be", f.Path)
		case f.Type == image.TypeChar || f.Type == image.TypeBlock:
			return fmt.Errorf("%s is a device, which an overlay can't hold", f.Path)
		case strings.HasPrefix(base, ".wh."):
			return fmt.Errorf("%s: a name with .wh. removes a file of the base: use a Remove step", f.Path)
		}
		for _, dir := range image.Parents(f.Path) {
			if d, ok := l.files[dir]; ok && !d.IsDir() {
				return fmt.Errorf("%s lies below %s, which is a %s", f.Path, dir, d.Type)
			}
		}
		if _, err := keepable(f.Entry, f.IsDir()); err != nil {
			return err
		}
	}
	return nil
}

// keepable gives the extended attributes of e that come out of a build. BuildKit's layers hold security.capability and
// no other (containerd, pkg/archive/tar.go, ChangeWriter). An attribute that is lost is an error, but for a user.* one
// of a directory of the base: that one decides nothing, and most unpackers leave it where it is.
func keepable(e image.Entry, ofBase bool) (map[string]string, error) {
	var kept map[string]string
	for name, value := range e.Xattrs {
		switch {
		case name == "security.capability":
			kept = map[string]string{name: value}
		case !ofBase || !strings.HasPrefix(name, "user."):
			return nil, fmt.Errorf("%s has the extended attribute %s, which BuildKit would lose: use slimctl build", e.Path, name)
		}
	}
	return kept, nil
}

// directories gives every directory that a layer holds, and the paths of those whose user.* attributes are lost.
func directories(l build.Layer) (dirs []image.File, lost []string, err error) {
	for _, f := range l.Files {
		if !f.IsDir() {
			continue
		}
		kept, err := keepable(f.Entry, l.Parents[f.Path])
		if err != nil {
			return nil, nil, err
		}
		if len(kept) < len(f.Xattrs) {
			lost = append(lost, f.Path)
		}
		f.Xattrs = kept
		dirs = append(dirs, f)
	}
	return dirs, lost, nil
}

// tar adds an archive of files to the context.
func (p *plan) tar(name string, files []image.File) (string, error) {
	var b bytes.Buffer
	if err := image.WriteTar(&b, files); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	f := image.Bytes("/"+name, 0o644, b.Bytes())
	p.sources = append(p.sources, name)
	p.files = append(p.files, contextFile{path: name, File: f})
	return name, nil
}
