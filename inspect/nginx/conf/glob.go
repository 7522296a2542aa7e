package conf

import (
	"slices"
	"strings"
)

// starting is the image at nginx's start: with the files created until then, and without the templates deleted until
// then.
type starting struct{ *source }

// Names returns the names in the directory dir at that time.
func (s starting) Names(dir string) []string {
	real := s.realDir(dir)
	out := s.img.Names(real)
	for output := range s.outputs {
		if rest, ok := strings.CutPrefix(output, strings.TrimSuffix(real, "/")+"/"); ok {
			if name, _, _ := strings.Cut(rest, "/"); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// realDir resolves dir.
func (s *source) realDir(dir string) string {
	dir = s.resolve(dir)
	if e, ok := s.img.Stat(dir); ok {
		return e.Path
	}
	return dir
}

// Exists reports whether p exists at that time; with asDir, as a directory.
func (s starting) Exists(p string, asDir bool) bool {
	if asDir {
		real := s.realDir(p)
		e, ok := s.img.Lookup(real)
		for output := range s.outputs { // its creator also creates its directory
			ok = ok || strings.HasPrefix(output, real+"/")
		}
		return ok && (e.IsDir() || e.Path == "")
	}
	real := s.resolve(p)
	if templates, ok := s.outputs[real]; ok {
		n, chosen := s.choice[real]
		return !chosen || templates[n].Path != ""
	}
	_, ok := s.img.Lookup(real)
	return ok && !s.gone[real]
}
