package diff

import (
	"cmp"

	"github.com/slimctl/slimctl/image/tree"
)

// Trees returns the changes between two merged trees, in the order of a walk. It ignores times.
func Trees(base, slim *tree.Image) []Change {
	d := &Diff{}
	c := comparison{base: base, slim: slim}
	c.compareFiles(d)
	return d.Files
}

// Entries returns the changes between the Entries of two layers (tree.Layer); a whiteout is an ordinary entry. It
// includes times.
func Entries(old, new []tree.Entry) []Change {
	c := comparison{times: true}
	var out []Change
	for len(old) > 0 || len(new) > 0 {
		order := -1
		if len(old) == 0 {
			order = 1
		} else if len(new) > 0 {
			order = cmp.Or(comparePaths(old[0].Path, new[0].Path), cmp.Compare(saysOf(&old[0]), saysOf(&new[0])))
		}
		var a, b *tree.Entry
		if order <= 0 {
			a, old = &old[0], old[1:]
		}
		if order >= 0 {
			b, new = &new[0], new[1:]
		}
		if change, ok := c.compareEntries(a, b, a, b); ok {
			out = append(out, change)
		}
	}
	return out
}

// saysOf sorts a layer's entries of one path: those that hide it come before those that add it.
func saysOf(e *tree.Entry) int {
	switch e.Type {
	case tree.TypeWhiteout:
		return 0
	case tree.TypeOpaque:
		return 1
	}
	return 2
}
