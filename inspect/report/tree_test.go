package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/inspect/diff"
)

// sketch draws nodes so that a test can be read: a line each, indented by depth, with what lies in it.
func sketch(nodes []node) string {
	var b strings.Builder
	for i, n := range nodes {
		kind := " "
		if n.change != nil {
			kind = n.change.Kind
		}
		fmt.Fprintf(&b, "%s%s%s %d below, %s, %d bytes\n", kind, strings.Repeat("  ", int(n.depth)-1), n.name, int(n.end)-i-1, n.sums, n.sums.bytes)
	}
	return b.String()
}

func TestTreeOf(t *testing.T) {
	changes := []diff.Change{
		added(file("/a/b/c/new", 0o644, 10)),
		removed(dir("/a/b/gone")),
		removed(file("/a/b/gone/x", 0o644, 5)),
		changed(diff.Meta, dir("/a/b2"), dir("/a/b2"), "mode"),
		changed(diff.Modified, file("/z", 0o644, 1), file("/z", 0o644, 4), "content"),
	}
	want := strings.TrimPrefix(`
 a 6 below, +1 -2 U1, 5 bytes
   b 4 below, +1 -2, 5 bytes
     c 1 below, +1, 10 bytes
+      new 0 below, +1, 10 bytes
-    gone 1 below, -2, -5 bytes
-      x 0 below, -1, -5 bytes
U  b2 0 below, U1, 0 bytes
Mz 0 below, M1, 3 bytes
`, "\n")
	if d := cmp.Diff(want, sketch(treeOf(changes))); d != "" {
		t.Error(d)
	}
}

func TestCompact(t *testing.T) {
	changes := []diff.Change{
		removed(dir("/opt/node/22/lib")),
		removed(file("/opt/node/22/lib/a.js", 0o644, 5)),
		added(file("/usr/share/one/file", 0o644, 1)),
		added(file("/usr/share/two/deep/down/file", 0o644, 1)),
		changed(diff.Meta, dir("/var/lib"), dir("/var/lib"), "mode"),
		added(dir("/var/lib/x")),
	}
	want := strings.TrimPrefix(`
-opt/node/22/lib 1 below, -2, -5 bytes
-  a.js 0 below, -1, -5 bytes
 usr/share 4 below, +2, 2 bytes
   one 1 below, +1, 1 bytes
+    file 0 below, +1, 1 bytes
   two/deep/down 1 below, +1, 1 bytes
+    file 0 below, +1, 1 bytes
Uvar/lib 1 below, +1 U1, 0 bytes
+  x 0 below, +1, 0 bytes
`, "\n")
	if d := cmp.Diff(want, sketch(compact(treeOf(changes)))); d != "" {
		t.Error(d)
	}
}

// A path of a hostile image can have as many levels as tar allows, and a walk's order may be broken.
func TestTreeOfStrangePaths(t *testing.T) {
	deep := "/" + strings.Repeat("d/", 100_000) + "f"
	nodes := compact(treeOf([]diff.Change{added(file(deep, 0o644, 1)), added(file("/b", 0, 1)), added(file("/a", 0, 1)), added(file("/", 0, 1)), added(file("", 0, 1))}))
	if last := nodes[len(nodes)-1]; int(last.end) != len(nodes) {
		t.Errorf("the last node ends at %d of %d", last.end, len(nodes))
	}
	if len(nodes) != 6 { // the deep one is its directory and itself
		t.Errorf("%d nodes", len(nodes))
	}
}

func TestTreeHasRoom(t *testing.T) {
	var changes []diff.Change
	for i := range 50 {
		for j := range 20 {
			changes = append(changes, added(file(fmt.Sprintf("/a/%02d/%02d", i, j), 0o644, 1)))
		}
	}
	nodes := treeOf(changes)
	if got := level(nodes, 100); got != 2 {
		t.Errorf("a tree of 1 + 50 + 1000 nodes is shown to level %d of 100 nodes", got)
	}
	if got := level(nodes, len(nodes)); got < 3 {
		t.Errorf("there is room for all, and it is shown to level %d", got)
	}
	data, shown := dataOf(&diff.Diff{}, nodes, nil, 100)
	if shown != 51 || len(data.shown) != 51 {
		t.Errorf("%d of %d nodes are shown", shown, len(nodes))
	}
	if d := cmp.Diff([]int64{20, 20, 0, 0, 0, 0}, data.rest(1)); d != "" {
		t.Errorf("what isn't shown of the first directory: %s", d)
	}
	flat := treeOf(changes[:20])
	if _, shown := dataOf(&diff.Diff{}, flat, nil, 10); shown > 10 {
		t.Errorf("%d nodes are shown of at most 10", shown)
	}
}
