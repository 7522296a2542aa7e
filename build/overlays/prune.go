package overlays

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// keepRules say which files of an installed package are laid in the image; the last that matches decides.
type keepRules []keepRule

type keepRule struct {
	pattern string
	keep    bool
}

// parseKeep reads a keep.txt: a doublestar pattern a line, "!" before one that drops, "#" before words.
func parseKeep(text []byte) (keepRules, error) {
	var out keepRules
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, drop := strings.CutPrefix(line, "!")
		if !doublestar.ValidatePattern(pattern) {
			return nil, fmt.Errorf("line %d: %q: not a pattern", i+1, pattern)
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

// prune moves what the rules keep from an installed node_modules to stage, in the payload's layout: agent-browser's own
// files at the top, its dependencies below node_modules.
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
