package diff

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// compareLayers returns both images' layers, each once: common ones in base's order, then base's own, then slim's.
func (c *comparison) compareLayers() ([]Layer, error) {
	var both, own []Layer
	for _, side := range []struct {
		img, other *tree.Image
		in         string
	}{{c.base, c.slim, InBase}, {c.slim, c.base, InSlim}} {
		digests, contents := map[v1.Hash]bool{}, map[v1.Hash]bool{}
		for _, l := range side.other.Layers {
			digests[l.Digest], contents[l.DiffID] = true, true
		}
		seen := map[v1.Hash]bool{}
		below, n := tree.New(), 0 // the tree of the first n layers
		for i, l := range side.img.Layers {
			if seen[l.Digest] {
				continue
			}
			seen[l.Digest] = true
			out := Layer{
				Digest: l.Digest.String(), DiffID: l.DiffID.String(), CreatedBy: l.CreatedBy,
				Size: l.Size, Unpacked: l.Unpacked, Unread: l.Unread, In: side.in,
			}
			if digests[l.Digest] {
				if side.in == InBase {
					out.In = InBoth
					both = append(both, out)
				}
				continue
			}
			if !contents[l.DiffID] {
				var err error
				if below, err = below.Merge(side.img.Layers[:i], n); err != nil {
					return nil, err
				}
				with, err := below.Merge(side.img.Layers[:i+1], i)
				if err != nil {
					return nil, err
				}
				c.compareLayer(&out, below, with)
				below, n = with, i+1
			}
			own = append(own, out)
		}
	}
	return append(both, own...), nil
}

// compareLayer sets a layer's changes: below is the tree without it, with the tree with it.
func (c *comparison) compareLayer(l *Layer, below, with *tree.Tree) {
	gone := "" // the last removed path, which has nothing below it any more
	for change := range c.changes(below, with) {
		if !c.paths.isSelected(change.Path) {
			continue
		}
		l.Counts.add(change)
		// The content of a removed directory is implied.
		if c.list && (gone == "" || !image.Within(change.Path, gone)) {
			l.Files = append(l.Files, change)
			if change.New == nil || !change.New.IsDir() {
				gone = change.Path
			}
		}
	}
}
