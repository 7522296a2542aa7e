package dockerfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// Write puts the context in dir, all of it or nothing: it is made beside dir and renamed. A dir that is there already
// must be an empty directory.
func (c *Context) Write(dir string) error {
	if err := checkDestination(dir); err != nil {
		return err
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := c.fill(tmp); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	// Only an empty directory goes away here, so nothing is lost when someone filled it meanwhile.
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(tmp, dir)
}

func checkDestination(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is there and isn't a directory: choose another destination", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s isn't empty: remove it or choose another destination", dir)
	}
	return nil
}

func (c *Context) fill(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range c.files {
		if err := writeFile(root, f); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	for name, text := range map[string]string{
		"Dockerfile": c.Dockerfile, ".dockerignore": c.Ignore, "docker-bake.hcl": c.Bake, "README.md": readme,
	} {
		if err := writeFile(root, contextFile{path: name, File: image.Bytes(name, 0o644, []byte(text))}); err != nil {
			return err
		}
	}
	return nil
}

// writeFile stays in root whatever symlinks are below it.
func writeFile(root *os.Root, f contextFile) (err error) {
	name := filepath.FromSlash(strings.TrimPrefix(f.path, "/"))
	if err := root.MkdirAll(filepath.FromSlash(path.Dir(f.path)), 0o755); err != nil {
		return err
	}
	if f.Type == image.TypeSymlink {
		return root.Symlink(f.Link, name)
	}
	w, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(copyContent(w, f.File), w.Close())
	if err != nil {
		return err
	}
	if err := root.Chmod(name, fs.FileMode(f.Mode&0o777)); err != nil {
		return err
	}
	if f.ModTime.IsZero() {
		return nil
	}
	return root.Chtimes(name, f.ModTime, f.ModTime)
}
