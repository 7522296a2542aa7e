package keep

import (
	"maps"
	"slices"

	"github.com/slimctl/slimctl/build/profile"
)

// The rules by which paths and packages are removed.
const (
	ByDrop      = "dropped"
	ByCut       = "cut"      // a package that another would need, or a file that needs it
	WithPackage = "with"     // its package is removed
	Dangling    = "dangling" // a link whose target is removed
	Unneeded    = "unneeded" // no file that stays needs it
)

// Gone returns why a file or link of the base is not in the set.
func (s *Set) Gone(p string) Reason {
	name := s.db.owner[p]
	if _, stays := s.Packages[name]; name != "" && !stays {
		return Reason{Rule: WithPackage, From: packagePrefix + name}
	}
	if r, dropped := s.drop(p, name); dropped {
		return r
	}
	if s.dangling[p] {
		return Reason{Rule: Dangling}
	}
	return Reason{Rule: Unneeded}
}

// GonePackages returns why packages of the base are not in the set, by name.
func (s *Set) GonePackages() map[string]Reason {
	out := map[string]Reason{}
	for name := range s.db.packages {
		if _, stays := s.Packages[name]; !stays {
			out[name] = Reason{Rule: Unneeded}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(s.Packages)) {
		for _, name := range slices.Concat(s.db.packages[from].depends...) {
			for _, to := range s.db.provide(name) {
				if c, cut := s.findCut(from, to); cut && out[to].Rule == Unneeded {
					out[to] = Reason{Rule: ByCut, From: packagePrefix + from, Why: c.Why}
				}
			}
		}
	}
	return out
}

// findCut returns the cut of the dependency of a package on another.
func (s *Set) findCut(from, to string) (profile.Cut, bool) {
	i := slices.IndexFunc(s.spec.Without, func(c profile.Cut) bool { return matches(c.From, from) && matchesAny(c.To, to) })
	if i < 0 {
		return profile.Cut{}, false
	}
	return s.spec.Without[i], true
}

// drop returns why a file is dropped although its package stays. name is empty for a file without a package.
func (s *Set) drop(p, name string) (r Reason, dropped bool) {
	for _, d := range s.spec.Drop {
		if matches(d.Glob, p) && !matchesAny(d.Except, p) {
			return Reason{Rule: ByDrop, From: d.Glob, Why: d.Why}, true
		}
	}
	for _, c := range s.spec.Without {
		if name != "" && matches(c.From, name) && matchesAny(c.Drop, p) {
			return Reason{Rule: ByCut, Why: c.Why}, true
		}
	}
	return Reason{}, false
}
