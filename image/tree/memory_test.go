package tree_test

import (
	"testing"

	"github.com/slimctl/slimctl/image/tree"
)

// Indexing and looking up leave little to the garbage collector. Before, an entry took 3,500 bytes, and looking one up 3
// allocations.
func TestIndexAllocatesLittle(t *testing.T) {
	const entries, most = 4000, 2800
	img := newImage(t, fileLayer(1, entries, 1, "none"))
	var im *tree.Image
	taken := allocated(func() {
		var err error
		if im, err = (tree.Cache{}).Open(t.Context(), img, tree.Options{}); err != nil {
			t.Fatal(err)
		}
	})
	if taken/entries > most {
		t.Errorf("indexing an entry allocates %d bytes, more than %d", taken/entries, most)
	}
	p := im.Layers[0].Entries[entries/2].Path
	found := true
	allocations := testing.AllocsPerRun(100, func() {
		_, ok := im.Lookup(p)
		found = found && ok
	})
	if !found || allocations > 0 {
		t.Errorf("looking up %s allocates %v times (found: %t)", p, allocations, found)
	}
}
