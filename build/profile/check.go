package profile

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// keyed is an item of a list that `extends` merges by key. The key is an overlay's name, or an item's path or glob.
type keyed interface{ key() string }

func (o Overlay) key() string { return o.Name }
func (r Removal) key() string { return r.Path + r.Glob }
func (o Own) key() string     { return o.Path }
func (n Need) key() string    { return n.Path }
func (f File) key() string    { return f.Path }

// identity returns the string that may occur only once in a file, or "" for an item that may be repeated.
func identity(k keyed) string {
	switch k := k.(type) {
	case File:
		return "" // equal directories may be repeated; findClashes finds the others
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
		fail("test", fmt.Sprintf("%s followed by %d items", kind, n-1), `write ["CMD", program, argument...], ["CMD-SHELL", line] or ["NONE"]`)
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

// resolve returns the absolute path of a regular file below the profile's directory, or the problem with it. A file in
// .git, where CI keeps its token, is refused by its real path.
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
	abs = filepath.Join(s.dir, filepath.FromSlash(rel))
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", reason(err)
	}
	if slices.ContainsFunc(strings.Split(real, string(filepath.Separator)), func(name string) bool { return strings.EqualFold(name, ".git") }) {
		return "", "it lies in .git, which may hold a token"
	}
	return abs, ""
}

// HubPath is the path where the start script and the hub of every line read their MCP servers. slimctl writes
// asset:mcp-hub.json.template there.
const HubPath = "/opt/gem/mcp-hub.json"

// findClashes returns an error for each two files that overlays would write at the same time to the same path, or one
// below the other where that isn't a directory, and for each file in the way of HubPath.
func findClashes(p *Profile) (errs Errors) {
	type laid struct {
		File
		when []When
		n    int // position in the list of all files
	}
	var all []laid
	at := map[string][]laid{}
	for _, o := range p.Overlays {
		for _, f := range o.Files {
			l := laid{f, []When{f.When, o.When}, len(all)}
			all, at[f.Path] = append(all, l), append(at[f.Path], l)
		}
	}
	for _, l := range all {
		if above := strings.HasPrefix(HubPath, l.Path+"/") && !l.Dir; above || strings.HasPrefix(l.Path+"/", HubPath+"/") {
			errs = append(errs, &Error{
				Position: l.Position, Path: "overlays", Msg: fmt.Sprintf("%s can't be laid: slimctl writes %s", quote(l.Path), HubPath),
				Hint: "drop it",
			})
		}
		for dir := l.Path; len(dir) > 1; dir = path.Dir(dir) {
			i := slices.IndexFunc(at[dir], func(o laid) bool {
				same := l.Dir && o.Dir && l.Mode == o.Mode && l.Owner == o.Owner
				return (dir == l.Path && o.n < l.n && !same || dir != l.Path && !o.Dir) && !disjoint(l.when, o.when)
			})
			if i < 0 {
				continue
			}
			msg := fmt.Sprintf("%s is laid twice, first at %s", quote(l.Path), at[dir][i].Position)
			if dir != l.Path {
				msg = fmt.Sprintf("%s lies below %s, which is no directory, at %s", quote(l.Path), quote(dir), at[dir][i].Position)
			}
			errs = append(errs, &Error{
				Position: l.Position, Path: "overlays", Msg: msg,
				Hint: "give them conditions (when) that exclude each other, or drop one",
			})
		}
	}
	return errs
}

// disjoint reports whether two items can never both apply. Each applies only if all of its conditions hold.
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

// Join joins lines or platforms to a readable list.
func Join[T Line | Platform](list []T) string {
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = string(w)
	}
	return strings.Join(words, ", ")
}
