package conf

import (
	"slices"
	"strings"
)

// starting is the image as it is when nginx starts: files that are made at start are there, and templates that are deleted
// then are not.
type starting struct{ *source }

// Names lists what will be in the directory dir.
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

// realDir is where dir leads to.
func (s *source) realDir(dir string) string {
	dir = s.resolve(dir)
	if e, ok := s.img.Stat(dir); ok {
		return e.Path
	}
	return dir
}

// Exists reports whether p will be there; with asDir, as a directory.
func (s starting) Exists(p string, asDir bool) bool {
	if asDir {
		real := s.realDir(p)
		e, ok := s.img.Lookup(real)
		for output := range s.outputs { // whatever makes it makes its directory
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
