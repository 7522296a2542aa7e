package profile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// keyed is an item of a list that `extends` merges by key: the name of an overlay, the path or glob of the others.
type keyed interface{ key() string }

func (o Overlay) key() string { return o.Name }
func (r Removal) key() string { return r.Path + r.Glob }
func (o Own) key() string     { return o.Path }
func (n Need) key() string    { return n.Path }
func (f File) key() string    { return f.Path }

// identity is what may be only once in a file; empty for what may come again.
func identity(k keyed) string {
	switch k := k.(type) {
	case File:
		return "" // equal directories may repeat; clashes finds the rest
	case Removal:
		return fmt.Sprintf("%s %q", k.key(), k.When)
	}
	return k.key()
}

func (w *When) check(_ *source, fail func(key, msg, hint string)) {
	if w.Exists != "" && w.Exists == w.Missing {
		fail("missing", "exists and missing name the same path, so it can never hold", "")
	}
}

func (h *Healthcheck) check(_ *source, fail func(key, msg, hint string)) {
	if len(h.Test) == 0 {
		return
	}
	kinds := []string{"CMD", "CMD-SHELL", "NONE"}
	kind, n := h.Test[0], len(h.Test)
	switch {
	case !slices.Contains(kinds, kind):
		fail("test", fmt.Sprintf("expected CMD, CMD-SHELL or NONE first, found %s", quote(kind)), didYouMean(kind, kinds))
	case kind == "NONE" && n != 1, kind == "CMD" && n < 2, kind == "CMD-SHELL" && n != 2:
		fail("test", fmt.Sprintf("%s with %d items after it", kind, n-1), `write ["CMD", program, argument...], ["CMD-SHELL", line] or ["NONE"]`)
	}
}

func (o *Own) check(_ *source, fail func(key, msg, hint string)) {
	for _, k := range o.Keep {
		if !strings.HasPrefix(k, o.Path+"/") {
			fail("keep", fmt.Sprintf("%s does not lie below %s", quote(k), quote(o.Path)), "write the whole path")
		}
	}
}

func (f *File) check(src *source, fail func(key, msg, hint string)) {
	if f.Link != "" && f.Mode != 0 {
		fail("mode", "a symbolic link has no mode of its own", "remove the key")
	}
	if f.Source == "" {
		return
	}
	f.Written = f.Source
	if strings.HasPrefix(f.Source, "asset:") {
		return
	}
	abs, err := src.resolve(f.Source)
	if err != "" {
		fail("source", fmt.Sprintf("%s: %s", quote(f.Source), err), "keep sources in or below the profile's directory")
		return
	}
	f.Source = abs
}

// resolve gives the absolute path of a regular file below the profile's directory, or what is wrong with it.
func (s *source) resolve(rel string) (abs, problem string) {
	if s.dir == "" {
		return "", "an embedded profile has no directory; only asset:NAME can be used"
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return "", reason(err)
	}
	defer root.Close()
	info, err := root.Stat(filepath.FromSlash(rel))
	switch {
	case err != nil:
		return "", reason(err)
	case !info.Mode().IsRegular():
		return "", "not a regular file"
	}
	return filepath.Join(s.dir, filepath.FromSlash(rel)), ""
}

// clashes finds files of two overlays, or of one, that want one path, or a path below a file or link, at the same time.
func clashes(p *Profile) Errors {
	type laid struct {
		File
		overlay *Overlay
	}
	var errs Errors
	at := map[string][]laid{}
	each := func(do func(laid)) {
		for i := range p.Overlays {
			for _, f := range p.Overlays[i].Files {
				do(laid{f, &p.Overlays[i]})
			}
		}
	}
	together := func(a, b laid) bool {
		return !disjoint([]When{a.When, a.overlay.When}, []When{b.When, b.overlay.When})
	}
	report := func(l laid, msg string) {
		errs = append(errs, &Error{
			Position: l.Position, Path: "overlays", Msg: msg,
			Hint: "give them conditions (when) that exclude each other, or drop one",
		})
	}
	each(func(l laid) {
		for _, other := range at[l.Path] {
			same := l.Dir && other.Dir && l.Mode == other.Mode && l.Owner == other.Owner
			if !same && together(l, other) {
				report(l, fmt.Sprintf("%s is laid twice, first at %s", quote(l.Path), other.Position))
				break
			}
		}
		at[l.Path] = append(at[l.Path], l)
	})
	each(func(l laid) {
		for i := 1; i < len(l.Path); i++ {
			if l.Path[i] != '/' {
				continue
			}
			for _, other := range at[l.Path[:i]] {
				if !other.Dir && together(l, other) {
					report(l, fmt.Sprintf("%s lies below %s, which is no directory, at %s", quote(l.Path), quote(other.Path), other.Position))
					return
				}
			}
		}
	})
	return errs
}

// disjoint reports whether the conditions of two items, each under all of its own, can never hold together.
func disjoint(a, b []When) bool {
	for _, x := range a {
		for _, y := range b {
			if apart(x.Line, y.Line) || apart(x.Platform, y.Platform) ||
				x.Exists != "" && x.Exists == y.Missing || x.Missing != "" && x.Missing == y.Exists {
				return true
			}
		}
	}
	return false
}

func apart[T comparable](a, b []T) bool {
	return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(v T) bool { return slices.Contains(b, v) })
}
