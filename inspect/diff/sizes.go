package diff

import (
	"cmp"
	"maps"
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/size"
)

// sizes says what became smaller; files said what of it is hidden.
func (c *comparison) sizes(d *Diff) {
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
		c := byName[s.Name]
		byName[s.Name] = Component{s.Name, c.Base + s.Size, c.Slim}
	}
	for _, s := range slim {
		c := byName[s.Name]
		byName[s.Name] = Component{s.Name, c.Base, c.Slim + s.Size}
	}
	var out []Component
	for _, c := range byName {
		if c.Base != c.Slim {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Component) int {
		return cmp.Or(cmp.Compare(b.change(), a.change()), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// AddLedger sets Size.Ledger. inBase and inSlim return the component of a path; empty for none.
func (d *Diff) AddLedger(base, slim *tree.Tree, inBase, inSlim func(path string) string) {
	byName := map[string]Component{}
	for i, side := range []struct {
		*tree.Tree
		of func(string) string
	}{{base, inBase}, {slim, inSlim}} {
		for e := range side.Walk("/") {
			name := side.of(e.Path)
			if e.Type != image.TypeFile || name == "" {
				continue
			}
			c := byName[name]
			if c.Name = name; i == 0 {
				c.Base += e.Size
			} else {
				c.Slim += e.Size
			}
			byName[name] = c
		}
	}
	d.Size.Ledger = slices.SortedFunc(maps.Values(byName), func(a, b Component) int {
		return cmp.Or(cmp.Compare(b.Slim, a.Slim), cmp.Compare(b.Base, a.Base), cmp.Compare(a.Name, b.Name))
	})
}

func (c Component) change() int64 { return max(c.Slim-c.Base, c.Base-c.Slim) }
