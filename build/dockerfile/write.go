package dockerfile

import (
	"fmt"
	"path/filepath"

	"github.com/slimctl/slimctl/image"
)

// Write writes the context to dir atomically. dir must be empty or not exist.
func (c *Context) Write(dir string) error {
	return image.WriteDir(dir, func(tmp string) error {
		for _, f := range c.files {
			if err := image.WriteFile(filepath.Join(tmp, filepath.FromSlash(f.path)), 0o644, f.write); err != nil {
				return fmt.Errorf("%s: %w", f.path, err)
			}
		}
		for name, text := range map[string]string{
			"Dockerfile": c.Dockerfile, ".dockerignore": c.Ignore, "docker-bake.hcl": c.Bake, "README.md": readme,
		} {
			if err := image.WriteBytes(filepath.Join(tmp, name), 0o644, []byte(text)); err != nil {
				return err
			}
		}
		return nil
	})
}
