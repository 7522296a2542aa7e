package resolve

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
)

// work resolves one platform.
type work struct {
	in       Input
	base     *lock.View
	line     profile.Line
	platform v1.Platform
	recipe   *build.Recipe
	removed  map[string]*build.Remove
	owned    map[string]owned
	// ruled are the removals that follow from a rule (glob, owned directory, privileged file), not from a path in the
	// profile.
	ruled []*build.Remove
	// servers are the MCP servers of the base's hub.
	servers []string
	laid    map[string]laid
	// met are the paths of the base that the image needs.
	met []profile.Root
	// imagePath is the PATH in the image's config.
	imagePath string
}

// laid describes the entry that an overlay puts at a path.
type laid struct {
	overlay  string
	dir      bool
	link     string // a symlink's target
	mode     int64
	uid, gid int
}

func (w *work) run() error {
	w.removed, w.laid = map[string]*build.Remove{}, map[string]laid{}
	p := w.in.Profile
	var errs []error
	for i, r := range p.Remove {
		found, err := w.findRemoved(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: remove[%d]: %w", r.Position, i, err))
		}
		for _, e := range found {
			if _, again := w.removed[e.Path]; !again {
				w.removed[e.Path] = &build.Remove{Path: e.Path, Type: e.Type, Why: r.Why, Source: r.Position.String()}
				if r.Glob != "" {
					w.ruled = append(w.ruled, w.removed[e.Path])
				}
			}
		}
	}
	errs = append(errs, w.emptyOwned(), w.removePrivileged())
	w.noteServers()
	overlays := slices.Clone(w.in.Overlays[w.platform.String()])
	for _, o := range p.Overlays {
		lay, ok, err := w.makeOverlay(o)
		if err != nil {
			errs = append(errs, fmt.Errorf("overlay %s: %w", o.Name, err))
		}
		if ok {
			overlays = append(overlays, lay)
		}
	}
	hub, err := hubOverlay(w.in.Assets)
	if err != nil {
		return err
	}
	overlays = append(overlays, hub)
	names := map[string]bool{build.RemoveLayer: true, foundOverlay: true}
	for i := range overlays {
		if names[overlays[i].Name] {
			errs = append(errs, fmt.Errorf("overlay %s: the name is slimctl's own; choose another", overlays[i].Name))
		}
		names[overlays[i].Name] = true
		if err := w.layOverlay(&overlays[i]); err != nil {
			errs = append(errs, fmt.Errorf("overlay %s: %w", overlays[i].Name, err))
		}
	}
	errs = append(errs, w.checkParents(overlays)...)
	if w.base.Err != nil {
		return w.base.Err // an unanswered question causes further errors
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := cmp.Or(w.checkNeeds(overlays), w.base.Err); err != nil {
		return err
	}
	if len(w.recipe.Found) > 0 {
		lay, err := w.layFound()
		if err != nil {
			return err
		}
		overlays = append(overlays, lay)
	}
	if w.recipe.Change, err = w.configChange(); err != nil {
		return err
	}
	if p.Keep == nil {
		w.recipe.Removals = w.listRemovals()
	}
	w.recipe.Overlays = slices.DeleteFunc(overlays, func(o build.Lay) bool { return len(o.Files) == 0 })
	return cmp.Or(w.noteParents(), w.base.Err)
}

// holds reports whether a condition holds on this base and platform.
func (w *work) holds(c profile.When) (bool, error) {
	holds, _ := canHold(c, w.platform)
	if !holds || len(c.Line) > 0 && !slices.Contains(c.Line, w.line) {
		return false, nil
	}
	for _, ask := range []struct {
		path string
		want bool
	}{{c.Exists, true}, {c.Missing, false}} {
		if ask.path == "" {
			continue
		}
		real, err := w.base.Resolve(ask.path)
		if err != nil {
			return false, err
		}
		_, ok := w.base.Lookup(real) // ask for both, so that a lock has both answers
		holds = holds && ok == ask.want
	}
	return holds, nil
}

// findRemoved returns the base's entries that a removal names. It fails if there are none, unless the removal ignores
// that.
func (w *work) findRemoved(r profile.Removal) ([]image.Entry, error) {
	if ok, err := w.holds(r.When); err != nil || !ok {
		return nil, err
	}
	var paths []string
	var err error
	if r.Glob != "" {
		if paths, err = w.glob(r.Glob, r.Except); err != nil {
			return nil, err
		}
	} else {
		real, err := w.base.Resolve(r.Path)
		if err != nil {
			return nil, err
		}
		paths = []string{real}
	}
	var found []image.Entry
	for _, p := range paths {
		if e, ok := w.base.Lookup(p); ok {
			found = append(found, e)
		}
	}
	if len(found) == 0 && r.IfMissing != "ignore" {
		what := r.Path
		if r.Glob != "" {
			what = "glob " + r.Glob
		}
		return nil, fmt.Errorf("%s matches nothing in base %s (line %s); correct it, or write `ifMissing: ignore`", what, w.in.Reference, w.line)
	}
	return found, nil
}

func (w *work) glob(pattern string, except []string) ([]string, error) {
	paths, err := w.match(pattern)
	if err != nil {
		return nil, err
	}
	for _, e := range except {
		real, err := w.resolvePattern(e)
		if err != nil {
			return nil, err
		}
		paths = slices.DeleteFunc(paths, func(p string) bool { return matchesAny(real, p) })
	}
	return paths, nil
}

// match lists the paths of the base that a pattern matches, sorted. It follows symlinks in the pattern's fixed leading
// part, as in a plain path, but not in what a wildcard matches.
func (w *work) match(pattern string) ([]string, error) {
	patterns, err := w.resolvePattern(pattern)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range patterns {
		out = append(out, w.base.Glob(p)...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// resolvePattern expands a pattern's braces and follows the base's symlinks in the fixed leading part of each
// alternative.
func (w *work) resolvePattern(pattern string) ([]string, error) {
	var out []string
	for _, p := range profile.ExpandBraces(pattern) {
		dir, rest := doublestar.SplitPattern(p)
		below, err := w.base.Resolve(path.Join("/", dir, "x"))
		if err != nil {
			return nil, err
		}
		if real := path.Dir(below); real != path.Clean("/"+dir) {
			p = path.Join(globEscape.Replace(real), rest)
		}
		out = append(out, p)
	}
	return out, nil
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `{`, `\{`)

func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(e string) bool { return doublestar.MatchUnvalidated(e, p) })
}

// listRemovals returns the removals, sorted by path, without those that lie below another one.
func (w *work) listRemovals() []build.Remove {
	var out []build.Remove
	for p, r := range w.removed {
		if !w.isRemoved(path.Dir(p)) {
			out = append(out, *r)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

// isRemoved reports whether p or a directory above it is removed.
func (w *work) isRemoved(p string) bool {
	for ; len(p) > 1; p = p[:max(0, strings.LastIndexByte(p, '/'))] {
		if _, ok := w.removed[p]; ok {
			return true
		}
	}
	return false
}

// makeOverlay returns an overlay that the profile writes. It reports false where the overlay's condition doesn't hold.
func (w *work) makeOverlay(o profile.Overlay) (build.Lay, bool, error) {
	if ok, err := w.holds(o.When); err != nil || !ok {
		return build.Lay{}, false, err
	}
	lay := build.Lay{Name: o.Name, Why: o.Why}
	var errs []error
	for _, f := range o.Files {
		ok, err := w.holds(f.When)
		if err == nil && ok {
			var file image.File
			if file, err = w.makeFile(f); err == nil {
				lay.Files = append(lay.Files, file)
				err = w.checkDir(f, file.Entry)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	return lay, true, errors.Join(errs...)
}

// checkDir refuses a directory of the profile that the base has with another mode or owner, since an overlay wouldn't
// change them.
func (w *work) checkDir(f profile.File, want image.Entry) error {
	if !f.Dir || f.Mode == 0 && f.Owner == "" {
		return nil
	}
	real, err := w.resolveParents(f.Path)
	if err != nil || w.isRemoved(real) {
		return err
	}
	have, ok := w.base.Lookup(real)
	if !ok || !have.IsDir() {
		return nil
	}
	if f.Mode != 0 && have.Mode != want.Mode || f.Owner != "" && (have.UID != want.UID || have.GID != want.GID) {
		return fmt.Errorf("the base has this directory with mode %04o and owner %d:%d, and an overlay doesn't change them; write these, or neither", have.Mode, have.UID, have.GID)
	}
	return nil
}

func (w *work) makeFile(f profile.File) (image.File, error) {
	mode := int64(f.Mode)
	if mode == 0 {
		mode = 0o644
		if f.Dir {
			mode = 0o755
		}
	}
	var out image.File
	switch asset, isAsset := strings.CutPrefix(f.Source, "asset:"); {
	case f.Dir:
		out = image.Dir(f.Path, mode)
	case f.Link != "":
		out = image.Symlink(f.Path, f.Link)
	case f.Content != nil:
		out = image.Bytes(f.Path, mode, []byte(*f.Content))
	case isAsset:
		var err error
		if out, err = image.FromFS(f.Path, mode, w.in.Assets, asset); err != nil {
			return image.File{}, err
		}
	default:
		info, err := os.Stat(f.Source)
		if err != nil {
			return image.File{}, err
		}
		if !info.Mode().IsRegular() {
			return image.File{}, fmt.Errorf("%s is not a regular file", f.Source)
		}
		out = image.File{
			Entry: image.Entry{Path: image.Clean(f.Path), Type: image.TypeFile, Mode: mode, Size: info.Size()},
			Open:  func() (io.ReadCloser, error) { return os.Open(f.Source) },
		}
	}
	if f.Owner != "" {
		if _, err := fmt.Sscanf(f.Owner, "%d:%d", &out.UID, &out.GID); err != nil {
			return image.File{}, fmt.Errorf("owner %q: %w", f.Owner, err)
		}
	}
	return out, nil
}

// hubOverlay returns the overlay with mcp-hub.json, which names browser-shell and no other server.
func hubOverlay(assets fs.FS) (build.Lay, error) {
	data, err := fs.ReadFile(assets, "mcp-hub.json.template")
	if err != nil {
		return build.Lay{}, err
	}
	return build.Lay{
		Name: "hub", Why: "the image serves one MCP server and no other",
		Files: []image.File{image.Bytes(profile.HubPath, 0o644, data)},
	}, nil
}

// layOverlay moves each file of o to where the base's symlinks lead and clears its way. A file replaces only a regular
// file; anything else is removed first, because engines differ there.
func (w *work) layOverlay(o *build.Lay) error {
	files := o.Files
	o.Files = make([]image.File, 0, len(files)) // the caller may use the original for another platform
	var errs []error
	for _, f := range files {
		real, err := w.resolveParents(f.Path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.Path = real
		if other, ok := w.laid[real]; ok {
			if f.IsDir() && other == (laid{overlay: other.overlay, dir: true, mode: f.Mode, uid: f.UID, gid: f.GID}) {
				continue
			}
			errs = append(errs, fmt.Errorf("overlay %s writes %s too; remove one of the two", other.overlay, real))
			continue
		}
		link := ""
		if f.Type == image.TypeSymlink {
			link = f.Link
		}
		w.laid[real] = laid{overlay: o.Name, dir: f.IsDir(), link: link, mode: f.Mode, uid: f.UID, gid: f.GID}
		o.Files = append(o.Files, f)
		errs = append(errs, w.clearPath(o.Name, f))
	}
	return errors.Join(errs...)
}

// checkParents returns an error for each overlay file that lies below another overlay's file instead of a directory.
func (w *work) checkParents(overlays []build.Lay) (errs []error) {
	for _, o := range overlays {
		for _, f := range o.Files {
			for _, dir := range image.Parents(f.Path) {
				if above, ok := w.laid[dir]; ok && !above.dir {
					errs = append(errs, fmt.Errorf("overlay %s: %s lies below %s, which overlay %s lays as a file", o.Name, f.Path, dir, above.overlay))
				}
			}
		}
	}
	return errs
}

// clearPath removes the base's entry at an overlay file's path if the file can't simply replace it.
func (w *work) clearPath(overlay string, f image.File) error {
	real := f.Path
	e, ok := w.base.Lookup(real)
	if !ok || w.isRemoved(real) {
		return nil
	}
	switch {
	case e.IsDir() && f.IsDir(), e.Type == image.TypeFile && f.Type == image.TypeFile:
	case e.IsDir():
		return fmt.Errorf("%s is a directory in the base; add it to the profile's `remove` to put a %s there", real, f.Type)
	default:
		w.removed[real] = &build.Remove{Path: real, Type: e.Type, Why: fmt.Sprintf("overlay %s puts a %s there", overlay, f.Type)}
	}
	return nil
}

// noteParents records the base's metadata of each directory that a layer has to repeat.
func (w *work) noteParents() error {
	var paths []string
	for _, r := range w.recipe.Removals {
		paths = append(paths, r.Path)
	}
	for _, o := range w.recipe.Overlays {
		for _, f := range o.Files {
			paths = append(paths, f.Path)
			if f.IsDir() {
				paths = append(paths, f.Path+"/x")
			}
		}
	}
	for _, dir := range build.ParentsOf(paths) {
		e, ok := w.base.Lookup(dir)
		if ok && e.IsDir() && !w.isRemoved(dir) {
			w.recipe.Dirs[dir] = e
		} else if ok && !w.isRemoved(dir) {
			return fmt.Errorf("%s is a %s in the base, but an overlay writes below it; add it to the profile's `remove`", dir, e.Type)
		}
	}
	return nil
}

// configChange returns the change from the base's config to the profile's. It unsets each variable of the base that the
// profile neither sets nor keeps.
func (w *work) configChange() (build.ConfigChange, error) {
	c := w.in.Profile.Config
	change := build.ConfigChange{
		Env: c.Env, Labels: c.Labels, WorkingDir: c.WorkingDir, User: c.User,
		ExposedPorts: c.ExposedPorts, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
	}
	config, err := w.recipe.Base.Image.ConfigFile()
	if err != nil {
		return change, err
	}
	w.imagePath = c.Env["PATH"]
	for _, kv := range config.Config.Env {
		name, value, _ := strings.Cut(kv, "=")
		if name == "PATH" && slices.Contains(c.KeepEnv, name) {
			w.imagePath = cmp.Or(w.imagePath, value)
		}
		if _, set := c.Env[name]; !set && !slices.Contains(c.KeepEnv, name) && !slices.Contains(change.UnsetEnv, name) {
			change.UnsetEnv = append(change.UnsetEnv, name)
		}
	}
	slices.Sort(change.UnsetEnv)
	if h := c.Healthcheck; h != nil {
		change.Healthcheck = &v1.HealthConfig{
			Test: h.Test, Interval: time.Duration(h.Interval), Timeout: time.Duration(h.Timeout),
			StartPeriod: time.Duration(h.StartPeriod), Retries: h.Retries,
		}
	}
	return change, nil
}
