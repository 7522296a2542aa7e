package resolve

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/slimctl/slimctl/image"
	loader "github.com/slimctl/slimctl/image/elf"
	"github.com/slimctl/slimctl/image/tree"
)

// view is what resolving asks of a base's merged tree. The answers, all together, are what a lock must hold.
type view interface {
	// Lookup gives what is at a path, with no symlink followed.
	Lookup(p string) (image.Entry, bool, error)
	// Resolve follows the symlinks among a path's parents.
	Resolve(p string) (string, error)
	// Glob lists the paths that a pattern matches, sorted.
	Glob(pattern string) ([]string, error)
	// Below lists what lies below a directory, relative to it, parents before their content; directories end in "/".
	Below(dir string) ([]string, error)
	// Privileged lists the files with setuid, setgid or file capabilities, sorted.
	Privileged() ([]string, error)
	// Machine gives the machine of an ELF program; zero for what is none.
	Machine(p string) (elf.Machine, error)
	// Servers lists the names of the MCP servers in a JSON file of the base's hub, sorted; none where it can't be read as one.
	Servers(file string) ([]string, error)
}

// stoppable answers until its context ends. Every loop of resolving asks the base.
type stoppable struct {
	ctx context.Context //nolint:containedctx // of one call of Resolve
	view
}

func (s stoppable) Lookup(p string) (image.Entry, bool, error) {
	if err := context.Cause(s.ctx); err != nil {
		return image.Entry{}, false, err
	}
	return s.view.Lookup(p)
}

func (s stoppable) Resolve(p string) (string, error) {
	if err := context.Cause(s.ctx); err != nil {
		return "", err
	}
	return s.view.Resolve(p)
}

func (s stoppable) Glob(pattern string) ([]string, error) {
	if err := context.Cause(s.ctx); err != nil {
		return nil, err
	}
	return s.view.Glob(pattern)
}

func (s stoppable) Below(dir string) ([]string, error) {
	if err := context.Cause(s.ctx); err != nil {
		return nil, err
	}
	return s.view.Below(dir)
}

// recorder answers from the tree and notes each answer in the footprint.
type recorder struct {
	ctx   context.Context //nolint:containedctx // of one call of Resolve
	files *tree.Image
	foot  *Footprint
	seen  map[string]bool
	elfs  map[tree.Digest]*loader.File
}

func newRecorder(ctx context.Context, files *tree.Image, foot *Footprint) *recorder {
	return &recorder{ctx: ctx, files: files, foot: foot, seen: map[string]bool{}}
}

func (r *recorder) Lookup(p string) (image.Entry, bool, error) {
	found, ok := r.files.Lookup(p)
	e := found.Entry
	if !r.seen[p] {
		r.seen[p] = true
		if ok {
			r.foot.Entries = append(r.foot.Entries, e)
		} else {
			r.foot.Absent = append(r.foot.Absent, p)
		}
	}
	return e, ok, nil
}

func (r *recorder) Resolve(p string) (string, error) {
	to, err := r.files.Resolve(p)
	if err == nil && to != p {
		r.foot.Links[p] = to
	}
	return to, err
}

func (r *recorder) Glob(pattern string) ([]string, error) {
	paths, err := r.files.Glob(pattern)
	if err == nil {
		r.foot.Globs[pattern] = paths
	}
	return paths, err
}

func (r *recorder) Below(dir string) ([]string, error) {
	var out []string
	for e := range r.files.Walk(dir) {
		if e.Path == dir {
			continue
		}
		rel := strings.TrimPrefix(e.Path, strings.TrimSuffix(dir, "/")+"/")
		if e.IsDir() {
			rel += "/"
		}
		out = append(out, rel)
	}
	r.foot.Below[dir] = out
	return out, nil
}

func (r *recorder) Privileged() ([]string, error) {
	var out []string
	for e := range r.files.Walk("/") {
		mode, capability := r.files.Rights(e)
		if (e.Type == image.TypeFile || e.Type == image.TypeLink) && (mode&0o6000 != 0 || capability != "") {
			out = append(out, e.Path)
		}
	}
	sort.Strings(out)
	r.foot.Privileged = out
	return out, nil
}

func (r *recorder) Machine(p string) (elf.Machine, error) {
	e, ok := r.files.Lookup(p)
	if !ok {
		return 0, nil
	}
	if r.elfs == nil {
		var err error
		if r.elfs, err = r.files.ELF(); err != nil {
			return 0, err
		}
	}
	f := r.elfs[e.Digest]
	if f == nil {
		return 0, nil
	}
	r.foot.Machines[p] = uint16(f.Machine)
	return f.Machine, nil
}

func (r *recorder) Servers(file string) ([]string, error) {
	e, ok := r.files.Stat(file)
	if !ok || e.Type != image.TypeFile || e.Size > tree.MaxRead {
		return nil, nil
	}
	contents, err := r.files.ReadFiles(r.ctx, e.Path)
	if err != nil {
		return nil, err
	}
	var hub struct {
		MCPServers map[string]json.RawMessage `json:"mcpServers"`
	}
	_ = json.Unmarshal(contents[e.Path], &hub) // a template need not be JSON; it goes in any case
	names := slices.Sorted(maps.Keys(hub.MCPServers))
	r.foot.Servers = append(r.foot.Servers, names...)
	return names, nil
}

// errNotInLock is a question that the lock can't answer: it was written for another profile.
var errNotInLock = errors.New("not in the lock; run `slimctl lock` again")

// replay answers from a lock's footprint.
type replay struct {
	entries map[string]image.Entry
	absent  map[string]bool
	foot    *Footprint
}

func newReplay(foot *Footprint) *replay {
	r := &replay{entries: map[string]image.Entry{}, absent: map[string]bool{}, foot: foot}
	for _, e := range foot.Entries {
		r.entries[e.Path] = e
	}
	for _, p := range foot.Absent {
		r.absent[p] = true
	}
	return r
}

func (r *replay) Lookup(p string) (image.Entry, bool, error) {
	if e, ok := r.entries[p]; ok {
		return e, true, nil
	}
	if r.absent[p] {
		return image.Entry{}, false, nil
	}
	return image.Entry{}, false, fmt.Errorf("%s: %w", p, errNotInLock)
}

func (r *replay) Resolve(p string) (string, error) {
	if to, ok := r.foot.Links[p]; ok {
		return to, nil
	}
	return p, nil
}

func (r *replay) Glob(pattern string) ([]string, error) {
	paths, ok := r.foot.Globs[pattern]
	if !ok {
		return nil, fmt.Errorf("glob %s: %w", pattern, errNotInLock)
	}
	return paths, nil
}

func (r *replay) Below(dir string) ([]string, error) {
	below, ok := r.foot.Below[dir]
	if !ok {
		return nil, fmt.Errorf("what lies below %s: %w", dir, errNotInLock)
	}
	return below, nil
}

func (r *replay) Servers(string) ([]string, error) { return r.foot.Servers, nil }

func (r *replay) Machine(p string) (elf.Machine, error) { return elf.Machine(r.foot.Machines[p]), nil }

func (r *replay) Privileged() ([]string, error) { return r.foot.Privileged, nil }

// sorted makes the footprint's order that of its paths, so that two runs write the same lock.
func (f *Footprint) sorted() {
	sort.Slice(f.Entries, func(i, j int) bool { return f.Entries[i].Path < f.Entries[j].Path })
	sort.Strings(f.Absent)
}
