package diff

import (
	"cmp"
	"slices"

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

func (c Component) change() int64 { return max(c.Slim-c.Base, c.Base-c.Slim) }
