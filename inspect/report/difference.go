package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/size"
)

// legend explains the marks, with the words of restic's diff.
const legend = "+ added, - removed, M content or link changed, T type changed, U mode, owner or xattr changed"

// diffPage returns the page of a difference, without the tree of files and the texts.
func diffPage(d *diff.Diff) page {
	p := page{Platform: quote(d.Platform), Facts: []fact{
		{"base", strings.TrimSpace(quote(d.Base.Reference) + "  " + quote(d.Base.Digest))},
		{"slim", strings.TrimSpace(quote(d.Slim.Reference) + "  " + quote(d.Slim.Digest))},
		{"platform", quote(d.Platform)},
	}}
	p.Summary = remarks(d)
	switch {
	case d.Missing != "":
		missing := "Only the other image has this platform: there is none in " + quote(d.Missing) + "."
		p.Summary = append([]string{missing}, p.Summary...)
		return p
	case d.Same:
		p.Summary = append([]string{"Nothing differs but names."}, p.Summary...)
		return p
	}
	notes := p.Summary
	p.Summary = nil
	p.Summary = append(p.Summary, surfaceSummary(d), downloadSummary(d), visibleSummary(d.Size), layerSummary(d), fileSummary(d.Counts))
	p.Summary = append(p.Summary, notes...)
	p.Sections = append(surfaceGroups(d), config(d))
	return p
}

// surfaceSummary returns the summary of a surface; routes reachable from outside come first.
func surfaceSummary(d *diff.Diff) string {
	s := d.Surface
	out := "Routes that answer from outside: " + fromTo(s.Outside) + "."
	for _, g := range []struct {
		title string
		of    diff.Group
	}{{"Tools", s.Tools}, {"MCP servers", s.MCPServers}, {"Programs", s.Programs}, {"Listeners", s.Listeners}} {
		if g.of.Base+g.of.Slim > 0 {
			out += " " + g.title + ": " + fromTo(diff.Count{Base: g.of.Base, Slim: g.of.Slim}) + "."
		}
	}
	return out
}

// fromTo returns "29 → 7", or "7" if both sides are equal.
func fromTo(c diff.Count) string {
	if c.Base == c.Slim {
		return number(c.Base)
	}
	return number(c.Base) + " → " + number(c.Slim)
}

// enumerate returns "a, b and c".
func enumerate(of []string) string {
	if len(of) < 2 {
		return strings.Join(of, "")
	}
	return strings.Join(of[:len(of)-1], ", ") + " and " + of[len(of)-1]
}

// maxRemarks limits the remarks at the top; the JSON has all.
const maxRemarks = 20

// remarks returns the parts that were not compared.
func remarks(d *diff.Diff) []string {
	var out []string
	for _, n := range d.Notes {
		out = append(out, "Note: "+cut(quote(n), 300)+".")
	}
	for _, u := range d.Unmatched {
		out = append(out, fmt.Sprintf("Note: %s matches nothing in either image.", cut(quote(u), 300)))
	}
	if n := len(out) - maxRemarks; n > 0 {
		out = append(out[:maxRemarks], fmt.Sprintf("Note: %s.", count(n, "more note")))
	}
	return out
}

func layerSummary(d *diff.Diff) string {
	n := map[string]int{}
	for _, l := range d.Layers {
		n[l.In]++
	}
	return fmt.Sprintf("%s shared, %s only in base, %s only in slim.",
		count(n[diff.InBoth], "layer"), number(n[diff.InBase]), number(n[diff.InSlim]))
}

func fileSummary(c diff.Counts) string {
	return fmt.Sprintf("Paths: %s added (%s), %s removed (%s), %s with other content, %s of another type, %s with other rights.",
		number(c.Added), Bytes(c.AddedBytes), number(c.Removed), Bytes(c.RemovedBytes),
		number(c.Modified), number(c.Type), number(c.Meta))
}

func downloadSummary(d *diff.Diff) string {
	return fmt.Sprintf("Download: %s if you have the base, %s if not.", Bytes(d.Size.Beside), Bytes(d.Slim.Size.Transfer))
}

// visibleSummary returns how much smaller the download is, and how much is only hidden by a layer above.
func visibleSummary(s diff.Size) string {
	return fmt.Sprintf("Visible in a container: %s. Of the base's files, %s are no longer downloaded; %s are hidden but still downloaded.",
		change(s.Visible), Bytes(s.Gone), Bytes(s.Hidden))
}

type group struct {
	id, title string
	of        diff.Group
}

// tally counts removed, added and changed things.
func (g group) tally() (gone, came, other int) {
	for _, f := range g.of.Items {
		switch {
		case !f.InSlim:
			gone++
		case !f.InBase:
			came++
		default:
			other++
		}
	}
	return gone, came, other
}

// groups returns those of a surface, in inspect's order.
func groups(d *diff.Diff) []group {
	s := d.Surface
	return []group{
		{"programs", "programs", s.Programs},
		{"listeners", "listeners", s.Listeners},
		{"routes", "routes", s.Routes},
		{"mcp", "MCP servers", s.MCPServers},
		{"tools", "tools", s.Tools},
		{"hooks", "hooks", s.Hooks},
		{"switches", "switches", s.Switches},
		{"privileged", "privileged files", s.Privileged},
		{"users", "users", s.Users},
		{"sudo", "sudo", s.Sudo},
		{"packages", "packages", s.Packages},
	}
}

func surfaceGroups(d *diff.Diff) []section {
	var out []section
	for _, g := range groups(d) {
		t := fields(g.of.Items)
		t.ID, t.Title = g.id, g.title
		if g.id == "programs" {
			for _, r := range t.Rows {
				r.Cells[1], r.Cells[2] = variable.ReplaceAllString(r.Cells[1], "$$$1"), variable.ReplaceAllString(r.Cells[2], "$$$1")
			}
		}
		t.Count = fromTo(diff.Count{Base: g.of.Base, Slim: g.of.Slim})
		for _, n := range g.of.Same {
			t.Same = append(t.Same, quote(n))
		}
		out = append(out, t)
	}
	return out
}

// sizeLine is one size on both sides.
type sizeLine struct {
	what       string
	base, slim int64
	words      string
}

func sizeLines(d *diff.Diff) []sizeLine {
	base, slim := d.Base.Size, d.Slim.Size
	return []sizeLine{
		{"download", base.Transfer, slim.Transfer, Bytes(d.Size.Beside) + " if you have the base"},
		{"visible", base.Visible, slim.Visible, ""},
		{"hidden", base.Hidden, slim.Hidden, Bytes(d.Size.Hidden) + " hidden by slim but still downloaded"},
	}
}

func componentChanges(d *diff.Diff) section {
	s := sizeChanges("components", "components", "component", d.Size.Components)
	s.Limit = 8
	return s
}

// ledgerChanges returns the components that define the slim image's layers.
func ledgerChanges(d *diff.Diff) section {
	return sizeChanges("ledger", "by slim's ledger", "layer", d.Size.Ledger)
}

func sizeChanges(id, title, what string, of []diff.Component) section {
	s := newSection(id, title, name(what), numeral("base"), numeral("slim"), numeral("change"))
	for _, c := range of {
		s.add(quote(c.Name), Bytes(c.Base), Bytes(c.Slim), change(c.Slim-c.Base))
	}
	return s
}

// layerChanges returns all layers of both images: their download, and their visible part.
func layerChanges(d *diff.Diff) section {
	s := section{ID: "layers", Title: "layers", Count: layerSummary(d), Columns: []column{
		name("digest"), numeral("download"), numeral("unpacked"),
		numeral("seen in base"), numeral("seen in slim"), name("created by"),
	}}
	seen := func(of size.Sizes) map[string]string {
		out := map[string]string{}
		for _, l := range of.Layers {
			if out[l.Digest] = Bytes(l.Visible); l.Unread {
				out[l.Digest] = "not read"
			}
		}
		return out
	}
	base, slim := seen(d.Base.Size), seen(d.Slim.Size)
	in := map[string]string{diff.InBoth: "=", diff.InBase: diff.Removed, diff.InSlim: diff.Added}
	for _, l := range d.Layers {
		cells := []string{short(l.Digest), Bytes(l.Size), Bytes(l.Unpacked), base[l.Digest], slim[l.Digest], quote(l.CreatedBy)}
		s.Rows = append(s.Rows, row{Mark: in[l.In], Cells: cells})
	}
	return s
}

func config(d *diff.Diff) section {
	t := fields(d.Config)
	t.ID, t.Title, t.Count = "image-config", "image config", count(len(d.Config), "change")
	return t
}

// fields returns a table of changed values, removed ones first.
func fields(of []diff.Field) section {
	t := section{Columns: []column{name("name"), name("base"), name("slim")}, Limit: 8}
	for _, f := range of {
		r := row{Mark: diff.Modified, Cells: []string{quote(f.Name), value(f.Old, f.InBase), value(f.New, f.InSlim)}}
		switch {
		case f.InBase && !f.InSlim:
			r.Mark = diff.Removed
		case f.InSlim && !f.InBase:
			r.Mark = diff.Added
		}
		t.Rows = append(t.Rows, r)
	}
	slices.SortStableFunc(t.Rows, func(a, b row) int { return strings.Index(order, a.Mark) - strings.Index(order, b.Mark) })
	return t
}

// value distinguishes an empty value from an absent one.
func value(s string, has bool) string {
	if has && s == "" {
		return `""`
	}
	return quote(s)
}

// order is the order of marks in lists: removed, added, changed.
const order = diff.Removed + diff.Added + diff.Type + diff.Modified + diff.Meta

// marks counts rows by mark.
func (s section) marks() map[string]int {
	n := map[string]int{}
	for _, r := range s.Rows {
		n[r.Mark]++
	}
	return n
}
