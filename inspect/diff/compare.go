package diff

import (
	"cmp"

	"github.com/slimctl/slimctl/image/tree"
)

// Trees lists the changes between two merged trees, sorted by path as a walk has them. Times don't count.
func Trees(base, slim *tree.Image) []Change {
	d := &Diff{}
	c := comparison{base: base, slim: slim}
	c.files(d)
	return d.Files
}

// Entries lists the changes between what two layers say, tree.Layer's Entries: a whiteout is an entry as any other. Times
// count.
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
		if change, ok := c.change(a, b, a, b); ok {
			out = append(out, change)
		}
	}
	return out
}

// saysOf orders what a layer says of one path: that it hides something comes before what it brings.
func saysOf(e *tree.Entry) int {
	switch e.Type {
	case tree.TypeWhiteout:
		return 0
	case tree.TypeOpaque:
		return 1
	}
	return 2
}
