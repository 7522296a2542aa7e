package resolve

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// A base may reach a directory by a symlink; a glob must not miss there what a path would find.
func TestMatchFollowsSymlinksBeforeTheFirstWildcard(t *testing.T) {
	w := &work{base: lock.NewView(t.Context(), &tree.Image{Tree: treeOf(t,
		image.Bytes("/opt/fnm/[22]/bin/tool-real", 0o755, nil),
		image.Bytes("/opt/fnm/[22]/bin/node", 0o755, nil),
		image.Bytes("/opt/fnm/2/bin/tool-real", 0o755, nil), // what [22] would match, unescaped
		image.Symlink("/opt/nodejs/22", "/opt/fnm/[22]"),
		image.Bytes("/usr/local/bin/tool-real", 0o755, nil),
	)}, &lock.Footprint{Globs: map[string][]string{}, Links: map[string]string{}})}
	for pattern, want := range map[string][]string{
		"/{usr/local/bin,opt/nodejs/22/bin,opt/nodejs/20/bin}/tool-real": {"/opt/fnm/[22]/bin/tool-real", "/usr/local/bin/tool-real"},
		"/opt/nodejs/22/bin/*": {"/opt/fnm/[22]/bin/node", "/opt/fnm/[22]/bin/tool-real"},
		"/opt/nodejs/*":        {"/opt/nodejs/22"},
		"/nothing/here/*":      nil,
	} {
		got, err := w.match(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
	got, err := w.glob("/opt/nodejs/22/bin/*", []string{"/opt/nodejs/22/bin/node"})
	if err != nil || !slices.Equal(got, []string{"/opt/fnm/[22]/bin/tool-real"}) {
		t.Errorf("with an exception: %q, %v", got, err)
	}
}

// An interrupt ends the questions, and what was not answered is no empty base.
func TestMatchStops(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	foot := &lock.Footprint{Globs: map[string][]string{}, Links: map[string]string{}}
	w := &work{base: lock.NewView(ctx, &tree.Image{Tree: treeOf(t, image.Bytes("/a/x", 0o644, nil), image.Bytes("/b/x", 0o644, nil))}, foot)}
	if got, err := w.match("/a/*"); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	stop(stopped)
	if got, _ := w.match("/{b,c,d}/*"); len(got) > 0 || !errors.Is(w.base.Err, stopped) || len(foot.Globs) != 1 {
		t.Errorf("%v, %v, after %d globs", got, w.base.Err, len(foot.Globs))
	}
}

func treeOf(t *testing.T, files ...image.File) *tree.Tree {
	t.Helper()
	var entries []image.Entry
	for _, f := range files {
		entries = append(entries, f.Entry)
	}
	merged, err := tree.Of(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}
