package resolve

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/slimctl/slimctl/image"
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

// recorder answers from the tree and notes each answer in the footprint.
type recorder struct {
	files *tree.Tree
	foot  *Footprint
	seen  map[string]bool
}

func newRecorder(files *tree.Tree, foot *Footprint) *recorder {
	return &recorder{files: files, foot: foot, seen: map[string]bool{}}
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

// sorted makes the footprint's order that of its paths, so that two runs write the same lock.
func (f *Footprint) sorted() {
	sort.Slice(f.Entries, func(i, j int) bool { return f.Entries[i].Path < f.Entries[j].Path })
	sort.Strings(f.Absent)
}
