package dockerfile

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// checkFiles refuses paths that BuildKit or the context's file system would interpret.
func checkFiles(files []image.File) error {
	for _, f := range files {
		switch base := path.Base(f.Path); {
		case !utf8.ValidString(f.Path+f.Link) || strings.Contains(f.Path+f.Link, "\x00"):
			return fmt.Errorf("%q isn't UTF-8 without NUL, which BuildKit's contexts must be", f.Path)
		case strings.HasPrefix(base, ".wh."):
			return fmt.Errorf("%s: BuildKit reads a name that begins with .wh. as a whiteout: use the profile's `remove`", f.Path)
		}
		if _, err := keepable(f.Entry, f.IsDir()); err != nil {
			return err
		}
	}
	return nil
}

// keepable returns the extended attributes of e that survive a build. BuildKit's layers hold security.capability only
// (containerd, pkg/archive/tar.go, ChangeWriter). Losing another attribute is an error, except a user.* attribute of a
// base's directory, which has no effect and which most unpackers keep.
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

// keepableFiles returns the files of a layer, and the base's directories that lose user.* attributes.
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
