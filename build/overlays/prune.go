package overlays

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// keepRules select the files of an installed package that go to the image. The last matching rule decides.
type keepRules []keepRule

type keepRule struct {
	pattern string
	keep    bool
}

// parseKeep parses a keep.txt: one doublestar pattern per line, with "!" before one that drops files, and "#" before
// comments.
func parseKeep(text []byte) (keepRules, error) {
	var out keepRules
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, drop := strings.CutPrefix(line, "!")
		if !doublestar.ValidatePattern(pattern) {
			return nil, fmt.Errorf("line %d: %q isn't a valid pattern", i+1, pattern)
		}
		out = append(out, keepRule{pattern, !drop})
	}
	return out, nil
}

func (k keepRules) keeps(name string) bool {
	keep := false
	for _, r := range k {
		if doublestar.MatchUnvalidated(r.pattern, name) {
			keep = r.keep
		}
	}
	return keep
}

// prune moves the files that the rules keep from an installed node_modules to stage. agent-browser's own files go to
// the top, its dependencies below node_modules.
func prune(modules, stage string, rules keepRules) error {
	return filepath.WalkDir(modules, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(modules, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		name, own := strings.CutPrefix(rel, packageName+"/")
		if !own {
			name = "node_modules/" + rel
		}
		if !rules.keeps(name) {
			return nil
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s: %s: a payload holds regular files only", p, d.Type())
		}
		to := filepath.Join(stage, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(p, to); err != nil {
			return err
		}
		return os.Chmod(to, os.FileMode(modeOf(name)))
	})
}
