package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
)

// hubPath is where every line's start script and hub look for the hub's configuration.
const hubPath = "/opt/gem/mcp-hub.json"

// work is one platform being resolved.
type work struct {
	in       Input
	base     view
	line     profile.Line
	platform v1.Platform
	recipe   *build.Recipe
	removed  map[string]build.Remove
	laid     map[string]string // path → overlay
}

func (w *work) run(ctx context.Context) error {
	w.removed, w.laid = map[string]build.Remove{}, map[string]string{}
	p := w.in.Profile
	if !slices.Contains(p.Base.Lines, w.line) {
		return fmt.Errorf("base %s is of line %s; profile %s is for %s: add the line to base.lines once its removals are known to fit",
			w.in.Reference, w.line, p.Name, joinLines(p.Base.Lines))
	}
	if len(p.Strip) > 0 {
		return fmt.Errorf("profile %s strips paths out of base layers, which no engine can do yet; use a profile without `strip`", p.Name)
	}
	var errs []error
	for i, r := range p.Remove {
		if err := w.remove(r); err != nil {
			errs = append(errs, fmt.Errorf("%s: remove[%d]: %w", at(r.Position), i, err))
		}
	}
	overlays, err := w.in.Overlays(ctx, w.platform)
	if err != nil {
		return err
	}
	for _, o := range p.Overlays {
		lay, ok, err := w.overlay(o)
		if err != nil {
			errs = append(errs, fmt.Errorf("overlay %s: %w", o.Name, err))
		}
		if ok {
			overlays = append(overlays, lay)
		}
	}
	hub, err := hubOverlay(p.Hub)
	if err != nil {
		return err
	}
	overlays = append(overlays, hub)
	names := map[string]bool{build.RemoveLayer: true}
	for i := range overlays {
		if names[overlays[i].Name] {
			errs = append(errs, fmt.Errorf("overlay %s: the name is slimctl's own; choose another", overlays[i].Name))
		}
		names[overlays[i].Name] = true
		if err := w.lay(&overlays[i]); err != nil {
			errs = append(errs, fmt.Errorf("overlay %s: %w", overlays[i].Name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := w.closed(); err != nil {
		return err
	}
	for _, r := range w.removals() {
		w.recipe.Steps = append(w.recipe.Steps, r)
	}
	for _, o := range overlays {
		if len(o.Files) > 0 {
			w.recipe.Steps = append(w.recipe.Steps, o)
		}
	}
	w.recipe.Steps = append(w.recipe.Steps, build.Configure{Change: configChange(p.Config)})
	return w.parents()
}

func joinLines(lines []profile.Line) string {
	s := make([]string, len(lines))
	for i, l := range lines {
		s[i] = string(l)
	}
	return strings.Join(s, ", ")
}

func at(p profile.Position) string {
	if p.File == "" {
		return "profile"
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// holds tells whether a condition holds on this base and platform.
func (w *work) holds(c profile.When) (bool, error) {
	if len(c.Line) > 0 && !slices.Contains(c.Line, w.line) {
		return false, nil
	}
	if len(c.Platform) > 0 && !slices.Contains(c.Platform, profile.Platform(w.platform.String())) {
		return false, nil
	}
	for p, want := range map[string]bool{c.Exists: true, c.Missing: false} {
		if p == "" {
			continue
		}
		_, ok, err := w.lookup(p)
		if err != nil || ok != want {
			return false, err
		}
	}
	return true, nil
}

// lookup finds what is at p in the base, with symlinks among its parents followed.
func (w *work) lookup(p string) (image.Entry, bool, error) {
	real, err := w.base.Resolve(p)
	if err != nil {
		return image.Entry{}, false, err
	}
	return w.base.Lookup(real)
}

func (w *work) remove(r profile.Removal) error {
	if ok, err := w.holds(r.When); err != nil || !ok {
		return err
	}
	var paths []string
	var err error
	if r.Glob != "" {
		if paths, err = w.glob(r.Glob, r.Except); err != nil {
			return err
		}
	} else {
		real, err := w.base.Resolve(r.Path)
		if err != nil {
			return err
		}
		paths = []string{real}
	}
	found := false
	for _, p := range paths {
		e, ok, err := w.base.Lookup(p)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		found = true
		if _, again := w.removed[p]; !again {
			w.removed[p] = build.Remove{Path: p, Type: e.Type, Why: r.Why, Source: at(r.Position)}
		}
	}
	if !found && r.IfMissing != "ignore" {
		what := r.Path
		if r.Glob != "" {
			what = "glob " + r.Glob
		}
		return fmt.Errorf("%s matches nothing in base %s (line %s); correct it, or write `ifMissing: ignore`", what, w.in.Reference, w.line)
	}
	return nil
}

func (w *work) glob(pattern string, except []string) ([]string, error) {
	paths, err := w.match(pattern)
	if err != nil {
		return nil, err
	}
	for _, e := range except {
		real, err := w.real(e)
		if err != nil {
			return nil, err
		}
		paths = slices.DeleteFunc(paths, func(p string) bool { return matchesAny(real, p) })
	}
	return paths, nil
}

// match lists what a pattern matches in the base. Symlinks in the part of it that has no wildcard are followed, as they
// are in a path without any; what a wildcard matches is not.
func (w *work) match(pattern string) ([]string, error) {
	patterns, err := w.real(pattern)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range patterns {
		paths, err := w.base.Glob(p)
		if err != nil {
			return nil, err
		}
		out = append(out, paths...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// real gives the patterns that a pattern's alternatives come to with the base's symlinks followed.
func (w *work) real(pattern string) ([]string, error) {
	var out []string
	for _, p := range expandBraces(pattern) {
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

// expandBraces writes a pattern's alternatives out: /{a,b}/c is /a/c and /b/c.
func expandBraces(pattern string) []string {
	open, class := -1, false
	depth, start := 0, 0
	var parts []string
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '{':
			if depth == 0 {
				open, start = i, i+1
			}
			depth++
		case c == ',' && depth == 1:
			parts, start = append(parts, pattern[start:i]), i+1
		case c == '}' && depth == 1:
			parts = append(parts, pattern[start:i])
			var out []string
			for _, part := range parts {
				out = append(out, expandBraces(pattern[:open]+part+pattern[i+1:])...)
			}
			return out
		case c == '}' && depth > 1:
			depth--
		}
	}
	return []string{pattern}
}

// removals lists what is removed, without what lies below another removal.
func (w *work) removals() []build.Remove {
	var out []build.Remove
	for p, r := range w.removed {
		if !w.gone(path.Dir(p)) {
			out = append(out, r)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

// gone tells whether p or a directory above it is removed.
func (w *work) gone(p string) bool {
	for ; p != "/"; p = path.Dir(p) {
		if _, ok := w.removed[p]; ok {
			return true
		}
	}
	return false
}

// overlay makes the tree of an overlay that the profile writes.
func (w *work) overlay(o profile.Overlay) (build.Lay, bool, error) {
	if ok, err := w.holds(o.When); err != nil || !ok {
		return build.Lay{}, false, err
	}
	lay := build.Lay{Name: o.Name, Why: o.Why}
	var errs []error
	for _, f := range o.Files {
		ok, err := w.holds(f.When)
		if err == nil && ok {
			var file image.File
			if file, err = w.file(f); err == nil {
				lay.Files = append(lay.Files, file)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	return lay, true, errors.Join(errs...)
}

func (w *work) file(f profile.File) (image.File, error) {
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
		uid, gid, _ := strings.Cut(f.Owner, ":")
		var err1, err2 error
		out.UID, err1 = strconv.Atoi(uid)
		out.GID, err2 = strconv.Atoi(gid)
		if err := errors.Join(err1, err2); err != nil {
			return image.File{}, fmt.Errorf("owner %q: %w", f.Owner, err)
		}
	}
	return out, nil
}

// hubOverlay writes the hub's configuration: the profile's servers and no other.
func hubOverlay(h profile.Hub) (build.Lay, error) {
	type server struct {
		Type    string            `json:"type"`
		Command string            `json:"command"`
		Args    []string          `json:"args,omitempty"`
		Env     map[string]string `json:"env,omitempty"`
	}
	servers := map[string]server{}
	for name, s := range h.Servers {
		servers[name] = server{Type: "stdio", Command: s.Command, Args: s.Args, Env: s.Env}
	}
	data, err := json.MarshalIndent(map[string]any{"mcpServers": servers}, "", "  ")
	if err != nil {
		return build.Lay{}, err
	}
	return build.Lay{
		Name: "hub", Why: "the hub serves the profile's MCP servers and no other",
		Files: []image.File{image.Bytes(hubPath, 0o644, append(data, '\n'))},
	}, nil
}

// lay moves each file to where the base's symlinks lead, and clears its way: what a file replaces in the base must
// be a regular file, or it is removed first, since engines differ on the rest.
func (w *work) lay(o *build.Lay) error {
	o.Files = slices.Clone(o.Files) // the caller may use them for another platform
	var errs []error
	for i := range o.Files {
		if err := w.layFile(o.Name, &o.Files[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (w *work) layFile(overlay string, f *image.File) error {
	real, err := w.base.Resolve(f.Path)
	if err != nil {
		return err
	}
	f.Path = real
	if other, ok := w.laid[real]; ok {
		return fmt.Errorf("%s is laid by overlay %s too", real, other)
	}
	w.laid[real] = overlay
	e, ok, err := w.base.Lookup(real)
	if err != nil || !ok || w.gone(real) {
		return err
	}
	switch {
	case e.IsDir() && f.IsDir(), e.Type == image.TypeFile && f.Type == image.TypeFile:
	case e.IsDir():
		return fmt.Errorf("%s is a directory in the base; remove it first to put a %s there", real, f.Type)
	default:
		w.removed[real] = build.Remove{Path: real, Type: e.Type, Why: fmt.Sprintf("overlay %s puts a %s there", overlay, f.Type)}
	}
	return nil
}

// parents notes the base's metadata of each directory that a layer will have to carry.
func (w *work) parents() error {
	var paths []string
	for _, r := range w.recipe.Removals() {
		paths = append(paths, r.Path)
	}
	for _, o := range w.recipe.Overlays() {
		for _, f := range o.Files {
			paths = append(paths, f.Path)
			if f.IsDir() {
				paths = append(paths, f.Path+"/x")
			}
		}
	}
	for _, dir := range build.ParentsOf(paths) {
		e, ok, err := w.base.Lookup(dir)
		if err != nil {
			return err
		}
		if ok && e.IsDir() && !w.gone(dir) {
			w.recipe.Dirs[dir] = e
		} else if ok && !w.gone(dir) {
			return fmt.Errorf("%s is a %s in the base, and something is laid below it", dir, e.Type)
		}
	}
	return nil
}

// closed checks that of each place that must be closed nothing stays but what the profile names.
func (w *work) closed() error {
	var findings []string
	for i, c := range w.in.Profile.Expect.Closed {
		ok, err := w.holds(c.When)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		paths, err := w.match(c.Glob)
		if err != nil {
			return err
		}
		real, err := w.real(c.Glob)
		if err != nil {
			return err
		}
		paths = slices.DeleteFunc(paths, w.gone)
		for p := range w.laid {
			if matchesAny(real, p) {
				paths = append(paths, p)
			}
		}
		slices.Sort(paths)
		for _, p := range slices.Compact(paths) {
			if !slices.ContainsFunc(c.Allow, func(a string) bool { return doublestar.MatchUnvalidated(a, p) }) {
				findings = append(findings, fmt.Sprintf(
					"%s would stay in the image, and profile %s doesn't name it (line %s): remove it, or add %q to expect.closed[%d].allow (%s)",
					p, w.in.Profile.Name, w.line, p, i, c.Glob))
			}
		}
	}
	if len(findings) > 0 {
		return &ClosedError{Findings: findings}
	}
	return nil
}

func configChange(c profile.Config) build.ConfigChange {
	change := build.ConfigChange{
		Env: c.Env, UnsetEnv: c.UnsetEnv, Labels: c.Labels, WorkingDir: c.WorkingDir, User: c.User,
		ExposedPorts: c.ExposedPorts, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
	}
	if h := c.Healthcheck; h != nil {
		change.Healthcheck = &v1.HealthConfig{
			Test: h.Test, Interval: time.Duration(h.Interval), Timeout: time.Duration(h.Timeout),
			StartPeriod: time.Duration(h.StartPeriod), Retries: h.Retries,
		}
	}
	return change
}
