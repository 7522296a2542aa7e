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

// owned is an owned directory where the base has it, with the symlinks of its parents followed.
type owned struct {
	*profile.Own
	keep []string
}

// own removes what the profile's owned directories hold and don't keep.
func (w *work) own() error {
	w.owned = map[string]owned{}
	var errs []error
	for i := range w.in.Profile.Own {
		o := owned{Own: &w.in.Profile.Own[i]}
		real, err := w.base.Resolve(o.Path)
		for _, k := range o.Keep {
			var patterns []string
			if err == nil {
				patterns, err = w.real(k)
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
		if _, within := w.owner(path.Dir(dir)); !within {
			w.empty(dir)
		}
	}
	return errors.Join(errs...)
}

// owner returns the innermost owned directory that p is or lies in.
func (w *work) owner(p string) (string, bool) {
	for ; p != "/"; p = path.Dir(p) {
		if _, ok := w.owned[p]; ok {
			return p, true
		}
	}
	return "", false
}

// kept reports whether p, which lies in an owned directory, is or lies below what that keeps.
func (w *work) kept(p string) bool {
	dir, _ := w.owner(p)
	for ; p != dir; p = path.Dir(p) {
		if matchesAny(w.owned[dir].keep, p) {
			return true
		}
	}
	return false
}

// empty removes what lies in an owned directory and isn't kept, the highest directories that keep nothing as a whole.
func (w *work) empty(dir string) {
	e, ok := w.base.Lookup(dir)
	if !ok {
		return
	}
	var below []string
	if e.IsDir() { // else something in its place, which goes
		below = w.base.Below(dir)
	}
	holds := map[string]bool{} // directories on the way to what is kept
	for _, rel := range below {
		if p := path.Join(dir, rel); w.kept(p) {
			for _, parent := range image.Parents(p) {
				holds[parent] = true
			}
		}
	}
	var taken *build.Remove
	for _, rel := range append([]string{""}, below...) {
		p := path.Join(dir, rel)
		if holds[p] || w.kept(p) {
			continue
		}
		owner, _ := w.owner(p)
		o := w.owned[owner]
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

// privileged removes the files of the base that run with other rights than their caller's.
func (w *work) privileged() error {
	keep := []string{}
	for _, k := range w.in.Profile.Privileged {
		patterns, err := w.real(k)
		if err != nil {
			return err
		}
		keep = append(keep, patterns...)
	}
	for _, p := range w.base.Privileged() {
		if w.gone(p) || matchesAny(keep, p) {
			continue
		}
		e, _ := w.base.Lookup(p)
		w.removed[p] = &build.Remove{Path: p, Type: e.Type, Why: WhyPrivileged}
		w.ruled = append(w.ruled, w.removed[p])
	}
	return nil
}

// place returns where a laid path comes to lie: symlinks among its parents are followed as far as they stay in the image.
func (w *work) place(p string) (string, error) {
	for _, dir := range image.Parents(p) {
		real, err := w.base.Resolve(dir)
		if err != nil {
			return "", err
		}
		if w.gone(real) {
			return path.Join(real, strings.TrimPrefix(p, dir)), nil
		}
	}
	return w.base.Resolve(p)
}
