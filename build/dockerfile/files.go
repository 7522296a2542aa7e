package dockerfile

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// checkFiles refuses paths that mean something else to BuildKit or to the file system that the context lies in.
func checkFiles(files []image.File) error {
	by := map[string]image.File{}
	for _, f := range files {
		by[f.Path] = f
	}
	if len(by) != len(files) {
		return errors.New("a path is there twice")
	}
	for _, f := range files {
		switch base := path.Base(f.Path); {
		case image.Clean(f.Path) != f.Path || f.Path == "/":
			return fmt.Errorf("%q isn't an absolute, clean path below the root", f.Path)
		case !utf8.ValidString(f.Path+f.Link) || strings.Contains(f.Path+f.Link, "\x00"):
			return fmt.Errorf("%q isn't UTF-8 without NUL, which BuildKit's contexts must be", f.Path)
		case f.Type == image.TypeChar || f.Type == image.TypeBlock:
			return fmt.Errorf("%s is a device, which an overlay can't hold", f.Path)
		case strings.HasPrefix(base, ".wh."):
			return fmt.Errorf("%s: a name with .wh. removes a file of the base: use a Remove step", f.Path)
		case f.Type == image.TypeLink && by[f.Link].Type != image.TypeFile:
			return fmt.Errorf("%s is a hard link to %s, which isn't a file of the same overlay", f.Path, f.Link)
		}
		for _, dir := range image.Parents(f.Path) {
			if d, ok := by[dir]; ok && !d.IsDir() {
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

// keepableFiles returns the files of a layer, and the paths of the base's directories whose user.* attributes are lost.
func keepableFiles(l build.Layer) (files []image.File, lost []string, err error) {
	for _, f := range l.Files {
		kept, err := keepable(f.Entry, l.Parents[f.Path])
		if err != nil {
			return nil, nil, err
		}
		if len(kept) < len(f.Xattrs) {
			lost = append(lost, f.Path)
		}
		f.Xattrs = kept
		files = append(files, f)
	}
	return files, lost, nil
}
