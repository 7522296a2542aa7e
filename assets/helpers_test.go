package assets_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/profiles"
)

var lines = []profile.Line{"A", "B", "C"}

func loadProfile(t *testing.T, name string) *profile.Profile {
	t.Helper()
	p, err := profile.Loader{Builtin: profiles.FS}.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func holds(w profile.When, line profile.Line) bool {
	return len(w.Line) == 0 || slices.Contains(w.Line, line)
}

// laid returns what the profile's overlays put on a base of one line, by path in the image.
func laid(t *testing.T, p *profile.Profile, line profile.Line) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, o := range p.Overlays {
		if !holds(o.When, line) {
			continue
		}
		for _, f := range o.Files {
			name, ok := strings.CutPrefix(f.Source, "asset:")
			if !holds(f.When, line) || !ok {
				continue
			}
			data, err := fs.ReadFile(assets.FS, name)
			if err != nil {
				t.Errorf("overlay %s, %s: %v", o.Name, f.Path, err)
				continue
			}
			if _, twice := out[f.Path]; twice {
				t.Errorf("%s is laid twice on line %s", f.Path, line)
			}
			out[f.Path] = string(data)
		}
	}
	return out
}
