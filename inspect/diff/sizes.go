package diff

import (
	"cmp"
	"maps"
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/size"
)

// compareSizes sets the changes of size; compareFiles has already set the hidden sizes.
func (c *comparison) compareSizes(d *Diff) {
	base, slim := d.Base.Size, d.Slim.Size
	d.Size.Transfer, d.Size.Visible = slim.Transfer-base.Transfer, slim.Visible-base.Visible
	for _, l := range d.Layers {
		if l.In == InSlim {
			d.Size.Beside += l.Size
		}
	}
	d.Size.Components = components(base.Components, slim.Components)
}

func components(base, slim []size.Component) []Component {
	byName := map[string]Component{}
	for _, s := range base {
		addSize(byName, s.Name, s.Size, 0)
	}
	for _, s := range slim {
		addSize(byName, s.Name, 0, s.Size)
	}
	maps.DeleteFunc(byName, func(_ string, c Component) bool { return c.Base == c.Slim })
	return slices.SortedFunc(maps.Values(byName), func(a, b Component) int {
		return cmp.Or(cmp.Compare(b.change(), a.change()), cmp.Compare(a.Name, b.Name))
	})
}

func addSize(to map[string]Component, name string, base, slim int64) {
	c := to[name]
	to[name] = Component{name, c.Base + base, c.Slim + slim}
}

// AddLedger sets Size.Ledger. inBase and inSlim return the component of a path; empty for none.
func (d *Diff) AddLedger(base, slim *tree.Tree, inBase, inSlim func(path string) string) {
	byName := map[string]Component{}
	for e := range base.Walk("/") {
		if name := inBase(e.Path); e.Type == image.TypeFile && name != "" {
			addSize(byName, name, e.Size, 0)
		}
	}
	for e := range slim.Walk("/") {
		if name := inSlim(e.Path); e.Type == image.TypeFile && name != "" {
			addSize(byName, name, 0, e.Size)
		}
	}
	d.Size.Ledger = slices.SortedFunc(maps.Values(byName), func(a, b Component) int {
		return cmp.Or(cmp.Compare(b.Slim, a.Slim), cmp.Compare(b.Base, a.Base), cmp.Compare(a.Name, b.Name))
	})
}

func (c Component) change() int64 { return max(c.Slim-c.Base, c.Base-c.Slim) }
