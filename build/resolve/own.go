package resolve

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
)

// owned is an owned directory at its real path in the base, with the real paths of its keep patterns.
type owned struct {
	*profile.Own
	keep []string
}

// emptyOwned removes the content of the owned directories that the profile doesn't keep.
func (w *work) emptyOwned() error {
	w.owned = map[string]owned{}
	var errs []error
	for i := range w.in.Profile.Own {
		o := owned{Own: &w.in.Profile.Own[i]}
		real, err := w.base.Resolve(o.Path)
		for _, k := range o.Keep {
			var patterns []string
			if err == nil {
				patterns, err = w.resolvePattern(k)
			}
			o.keep = append(o.keep, patterns...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: own[%d]: %w", o.Position, i, err))
			continue
		}
		w.owned[real] = o
	}
	for dir := range w.owned {
		if _, within := w.ownerOf(path.Dir(dir)); !within {
			w.emptyDir(dir)
		}
	}
	return errors.Join(errs...)
}

// ownerOf returns the innermost owned directory that contains p or is p.
func (w *work) ownerOf(p string) (string, bool) {
	for ; p != "/"; p = path.Dir(p) {
		if _, ok := w.owned[p]; ok {
			return p, true
		}
	}
	return "", false
}

// fate is what an owned directory means for a path in it: the innermost one, and whether it keeps the path or a
// directory above it.
type fate struct {
	owner string
	kept  bool
}

// fateOf returns the fate of p. dirs holds those of the directories so far, so that a deep tree takes no longer.
func (w *work) fateOf(p string, dirs map[string]fate) fate {
	if _, ok := w.owned[p]; ok || p == "/" {
		return fate{owner: p}
	}
	dir := path.Dir(p)
	f, ok := dirs[dir]
	if !ok {
		f = w.fateOf(dir, dirs)
		dirs[dir] = f
	}
	f.kept = f.kept || matchesAny(w.owned[f.owner].keep, p)
	return f
}

// emptyDir removes what lies in an owned directory and isn't kept. A tree without kept files is removed as a whole.
func (w *work) emptyDir(dir string) {
	e, ok := w.base.Lookup(dir)
	if !ok {
		return
	}
	var below []string
	if e.IsDir() { // anything else in its place is removed
		below = w.base.Below(dir)
	}
	fates := map[string]fate{}
	holds := map[string]bool{} // directories above kept files
	for _, rel := range below {
		if p := path.Join(dir, rel); w.fateOf(p, fates).kept {
			for parent := path.Dir(p); parent != "/" && !holds[parent]; parent = path.Dir(parent) {
				holds[parent] = true
			}
		}
	}
	var taken *build.Remove
	for _, rel := range append([]string{""}, below...) {
		p := path.Join(dir, rel)
		f := w.fateOf(p, fates)
		if holds[p] || f.kept {
			continue
		}
		o := w.owned[f.owner]
		if taken == nil || !image.Within(p, taken.Path) {
			e, _ := w.base.Lookup(p)
			taken = &build.Remove{Path: p, Type: e.Type, Why: o.Why, Source: o.Position.String()}
			w.removed[p] = taken
			w.ruled = append(w.ruled, taken)
		} else if !strings.HasSuffix(rel, "/") {
			taken.With = append(taken.With, build.Gone{Path: p, Why: o.Why})
		}
	}
}

// WhyPrivileged is the reason for removing a file that the profile's key "privileged" doesn't name.
const WhyPrivileged = "setuid, setgid or file capabilities: a way to other rights than the caller's"

// removePrivileged removes the base's setuid and setgid files and those with capabilities, except the ones that the
// profile names.
func (w *work) removePrivileged() error {
	keep := []string{}
	for _, k := range w.in.Profile.Privileged {
		patterns, err := w.resolvePattern(k)
		if err != nil {
			return err
		}
		keep = append(keep, patterns...)
	}
	for _, p := range w.base.Privileged() {
		if w.isRemoved(p) || matchesAny(keep, p) {
			continue
		}
		e, _ := w.base.Lookup(p)
		w.removed[p] = &build.Remove{Path: p, Type: e.Type, Why: WhyPrivileged}
		w.ruled = append(w.ruled, w.removed[p])
	}
	return nil
}

// resolveParents returns the real path of an overlay's path: it follows symlinks in the parents, except those that are removed.
func (w *work) resolveParents(p string) (string, error) {
	for _, dir := range image.Parents(p) {
		real, err := w.base.Resolve(dir)
		if err != nil {
			return "", err
		}
		if w.isRemoved(real) {
			return path.Join(real, strings.TrimPrefix(p, dir)), nil
		}
	}
	return w.base.Resolve(p)
}
