package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/size"
)

var (
	//go:embed html/page.html
	pageHTML string
	//go:embed html/style.css
	styleCSS string
	//go:embed html/script.js
	scriptJS string

	htmlTemplate = template.Must(template.New("page").Parse(pageHTML))
)

// What a page has at most; whatever is left out is told of.
const (
	maxNodes   = 400_000 // of the tree
	maxRows    = 4_000   // of one table
	maxText    = 16 << 20
	maxHTML    = 600 // columns of a cell
	openRows   = 32  // a table with more is folded
	shortCell  = 20  // a cell of so many columns isn't wrapped
	manyLayers = 500
)

// policy allows this one style and this one script, and nothing from anywhere: a script that got into the page in spite of
// all escaping would not run.
func policy() string {
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; base-uri 'none'; form-action 'none'", hash(scriptJS), hash(styleCSS))
}

// The types that page.html draws. All strings are quoted, and escaped by html/template.
type (
	htmlPage struct {
		Command, Title, Policy string
		Style                  template.CSS
		Script                 template.JS
		Panels                 []panel
	}
	// panel is one platform.
	panel struct {
		Platform   string
		References []string
		Facts      []fact
		Summary    []string
		Cards      []card
		Parts      []part
		Maps       []treemap
		Stacks     []stack
		Legend     []key
		Kinds      []kindButton
		Trees      []string // what there is to choose from
		Texts      []textChange
		Data       template.JS
	}
	card struct {
		What, Was, Is, Note string
		Bar, Quiet          bool
		WasBar, IsBar, More float64 // of 100
	}
	part struct {
		ID, Title, Intro, Same string
		Sections               []htmlSection
	}
	htmlSection struct {
		ID, Title, Count, Short string
		Panel                   int
		Open, Marked, Bars      bool
		Changes                 bool // names with a value on each side
		Numbers                 bool // few columns, and but one of words
		Marks                   []htmlMark
		Columns                 []column
		Rows                    []htmlRow
		More                    string
		Same                    []string
		ManySame                string // how many, when they are folded
	}
	htmlMark struct {
		Mark, Class, Title, N string
	}
	htmlRow struct {
		Mark, Class, MarkTitle string
		Quiet                  bool
		Cells                  []htmlCell
		Share                  float64
	}
	htmlCell struct {
		Label, Class string
		Value        []string // in pieces, between which a line may end
		Span         int
	}
	treemap struct{ Side, Title, Note, Label string }
	stack   struct {
		Side, Label, Total string
		Bars               []bar
	}
	bar struct {
		Class, Title string
		X, Width     float64
	}
	key        struct{ Class, Words string }
	kindButton struct{ Mark, Class, Words string }
	textChange struct {
		Node           int
		Path           string
		Added, Removed string
	}
)

var markClasses = map[string]htmlMark{
	diff.Added:    {Class: "add", Title: "added"},
	diff.Removed:  {Class: "del", Title: "removed"},
	diff.Modified: {Class: "mod", Title: "changed"},
	diff.Type:     {Class: "typ", Title: "type changed"},
	diff.Meta:     {Class: "meta", Title: "mode, owner or xattr changed"},
	"=":           {Class: "eq", Title: "on both sides"},
}

func surfacesHTML(w io.Writer, surfaces []*inspect.Surface) error {
	page := htmlPage{Command: "inspect"}
	for i, s := range surfaces {
		p := surfacePage(s)
		page.Title = quote(s.Reference) + " · slimctl inspect"
		v := panel{Platform: p.Platform, References: []string{p.Facts[0].Value}, Facts: p.Facts[1:], Summary: p.Summary, Cards: surfaceCards(s)}
		sections := map[string]htmlSection{}
		for _, t := range p.Sections {
			sections[t.ID] = toHTML(t, i)
		}
		for _, t := range []struct{ id, title, sections string }{
			{"surface", "Surface", "programs listeners routes mcp tools sockets"},
			{"switched", "What changes it", "hooks switches scripts environment"},
			{"rights", "Rights", "privileged users sudo"},
			{"size", "Size", "components directories layers"},
			{"software", "Packages", "packages biggest-packages"},
			{"understood", "Not understood", "notes"},
		} {
			part := part{ID: t.id, Title: t.title}
			for _, id := range strings.Fields(t.sections) {
				part.Sections = append(part.Sections, sections[id])
			}
			v.Parts = append(v.Parts, part)
		}
		cells := mapCells([]size.Sizes{s.Size})
		v.Maps = []treemap{{Title: "Components", Note: Bytes(s.Size.Visible) + " visible", Label: mapLabel("the image", s.Size)}}
		v.Stacks, v.Legend = stacks([]string{""}, []size.Sizes{s.Size})
		data, err := safeJSON(map[string]any{"maps": cells})
		if err != nil {
			return err
		}
		v.Data = data
		page.Panels = append(page.Panels, v)
	}
	return page.write(w)
}

func diffsHTML(w io.Writer, diffs []*diff.Diff, o Options) error {
	page := htmlPage{Command: "diff"}
	for i, d := range diffs {
		p := diffPage(d)
		page.Title = quote(d.Base.Reference) + " → " + quote(d.Slim.Reference) + " · slimctl diff"
		v := panel{
			Platform: p.Platform, References: []string{quote(d.Base.Reference), quote(d.Slim.Reference)}, Summary: p.Summary,
			Facts: []fact{{"base", quote(d.Base.Digest)}, {"slim", quote(d.Slim.Digest)}, {"platform", p.Platform}},
		}
		if len(p.Sections) == 0 {
			v.Data = "{}"
			page.Panels = append(page.Panels, v)
			continue
		}
		v.Cards = diffCards(d)
		surface := part{ID: "surface", Title: "Surface"}
		for _, t := range p.Sections {
			switch {
			case t.ID == "config":
			case len(t.Rows) > 0:
				surface.Sections = append(surface.Sections, toHTML(t, i))
			default:
				surface.Same += fmt.Sprintf("%s %s, ", t.Title, t.Count)
			}
		}
		if surface.Same != "" {
			surface.Same = "The same on both sides: " + strings.TrimSuffix(surface.Same, ", ") + "."
		}
		settings := config(d)
		settings.Title = "image config"
		nodes := compact(treeOf(d.Files))
		texts, left := textsOf(nodes)
		room := maxNodes / len(diffs)
		merged, shown := dataOf(d, nodes, texts, room)
		trees := []*treeData{merged}
		v.Trees = []string{"all layers merged"}
		if o.Layers {
			for _, l := range d.Layers {
				if l.In == diff.InBoth {
					continue
				}
				data, n := dataOf(d, compact(treeOf(l.Files)), nil, max(room-shown, maxRows)/len(d.Layers))
				room -= n
				trees = append(trees, data)
				v.Trees = append(v.Trees, fmt.Sprintf("layer %s of %s: %s", short(l.Digest), l.In, cut(quote(l.CreatedBy), 60)))
			}
		}
		files := part{ID: "files", Title: "Files"}
		if shown < len(nodes) {
			files.Intro = fmt.Sprintf("%s paths are only counted below; slimctl diff --format json has all.", number(len(nodes)-shown))
		}
		v.Parts = []part{
			surface,
			{ID: "config", Title: "Configuration", Sections: []htmlSection{toHTML(settings, i)}},
			{ID: "size", Title: "Size", Sections: []htmlSection{toHTML(componentChanges(d), i), toHTML(layerChanges(d), i)}},
			files,
		}
		if len(texts) > 0 {
			lines := part{ID: "texts", Title: "Changed lines"}
			if left > 0 {
				lines.Intro = fmt.Sprintf("The changed lines of %s are not here; slimctl diff --format json has them.", count(left, "more file"))
			}
			v.Texts, v.Parts = texts, append(v.Parts, lines)
		}
		for _, k := range strings.Split(order, "") {
			v.Kinds = append(v.Kinds, kindButton{k, markClasses[k].Class, map[string]string{diff.Added: "added", diff.Removed: "removed", diff.Modified: "changed", diff.Type: "type", diff.Meta: "rights"}[k]})
		}
		sides := []size.Sizes{d.Base.Size, d.Slim.Size}
		v.Maps = []treemap{
			{"base", "base", Bytes(d.Base.Size.Visible) + " visible", mapLabel("base", d.Base.Size)},
			{"slim", "slim", Bytes(d.Slim.Size.Visible) + " visible", mapLabel("slim", d.Slim.Size)},
		}
		v.Stacks, v.Legend = stacks([]string{"base", "slim"}, sides)
		var err error
		if v.Data, err = safeJSON(map[string]any{"maps": mapCells(sides), "trees": trees}); err != nil {
			return err
		}
		page.Panels = append(page.Panels, v)
	}
	return page.write(w)
}

func (p htmlPage) write(w io.Writer) error {
	p.Policy, p.Style, p.Script = policy(), template.CSS(styleCSS), template.JS(scriptJS) //nolint:gosec // both are ours
	p.Title = cmp.Or(p.Title, "slimctl "+p.Command)
	return htmlTemplate.Execute(w, p)
}

// safeJSON is JSON that can stand in a script element: encoding/json escapes <, > and &, and so no string can end it.
func safeJSON(v any) (template.JS, error) {
	data, err := json.Marshal(v)
	return template.JS(printableJSON(data)), err //nolint:gosec // see above
}

func toHTML(s section, at int) htmlSection {
	out := htmlSection{ID: s.ID, Title: s.Title, Count: s.Count, Panel: at, Columns: s.Columns, Bars: s.Bars}
	out.Changes = len(s.Columns) == 3 && s.Columns[1].Name == "base"
	out.Numbers = len(s.Columns) <= 4 && !slices.ContainsFunc(s.Columns[1:], func(c column) bool { return !c.Number })
	out.Short, _, _ = strings.Cut(s.Count, ",")
	out.Open = len(s.Rows) > 0 && len(s.Rows) <= openRows
	out.Same = s.Same[:min(len(s.Same), maxRows)]
	if n := len(s.Same); n > openRows {
		out.ManySame = number(n)
	}
	marks := s.marks()
	for _, k := range strings.Split(order+"=", "") {
		if n := marks[k]; n > 0 {
			out.Marked = true
			m := markClasses[k]
			out.Marks = append(out.Marks, htmlMark{k, m.Class, m.Title, number(n)})
		}
	}
	if n := len(s.Rows) - maxRows; n > 0 {
		out.More = more(n) + "; --format json has all"
	}
	for _, r := range s.Rows[:min(len(s.Rows), maxRows)] {
		row := htmlRow{Mark: r.Mark, Class: markClasses[r.Mark].Class, MarkTitle: markClasses[r.Mark].Title, Quiet: r.Quiet, Share: r.Share}
		for i, c := range s.Columns {
			class := "c"
			switch {
			case c.Number:
				class = "n"
			case c.Words:
				class = "w"
			}
			value := cut(r.Cells[i], maxHTML)
			if columns(value) <= shortCell {
				class += " s"
			}
			cell := htmlCell{Label: c.Name, Class: class, Value: strings.SplitAfter(value, "/")}
			if out.Changes && r.Mark == diff.Removed && i > 0 { // what was has all the room
				if cell.Span = 2; i == 2 {
					continue
				}
			}
			row.Cells = append(row.Cells, cell)
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

func diffCards(d *diff.Diff) []card {
	var out []card
	ratio := func(c card, base, slim float64) card {
		if most := max(base, slim); most > 0 {
			c.Bar, c.WasBar, c.IsBar, c.More = true, 100*base/most, 100*slim/most, 100*(slim-base)/most
		}
		return c
	}
	for _, g := range groups(d) {
		if g.of.Base == 0 && g.of.Slim == 0 {
			continue
		}
		c := card{What: g.title, Is: number(g.of.Slim), Note: "the same"}
		gone, came, other := g.tally()
		var words []string
		for _, k := range []struct {
			n    int
			what string
		}{{gone, "gone"}, {came, "new"}, {other, "changed"}} {
			if k.n > 0 {
				words = append(words, number(k.n)+" "+k.what)
			}
		}
		if len(words) > 0 {
			c.Note, c.Was = strings.Join(words, ", "), number(g.of.Base)
		} else {
			c.Quiet = true
		}
		out = append(out, ratio(c, float64(g.of.Base), float64(g.of.Slim)))
	}
	for _, s := range sizeLines(d) {
		c := card{What: s.what, Is: Bytes(s.slim), Note: change(s.slim-s.base) + ", was " + Bytes(s.base)}
		if s.base == s.slim {
			c.Note, c.Quiet = "the same", true
		}
		out = append(out, ratio(c, float64(s.base), float64(s.slim)))
	}
	return out
}

func surfaceCards(s *inspect.Surface) []card {
	public := 0
	for _, r := range s.Routes {
		if r.Public && r.Answers {
			public++
		}
	}
	heard := 0
	for _, l := range s.Listeners {
		if !l.Loopback {
			heard++
		}
	}
	tools := tools(s)
	out := []card{
		{What: "programs", Is: number(len(s.Programs)), Note: "that supervisord runs"},
		{What: "routes", Is: number(public), Note: "answer to the outside, of " + number(len(s.Routes))},
		{What: "listeners", Is: number(heard), Note: fmt.Sprintf("public, %s on loopback", number(len(s.Listeners)-heard))},
		{What: "tools", Is: number(len(tools.Rows)), Note: "of " + count(len(servers(s).Rows), "MCP server")},
		{What: "switches", Is: number(len(switches(s).Rows)), Note: fmt.Sprintf("and %s, in the environment", count(len(hooks(s).Rows), "hook"))},
		{What: "privileged files", Is: number(len(privileged(s).Rows)), Note: "and " + count(len(sudo(s).Rows), "sudo rule")},
		{What: "packages", Is: number(len(s.Packages)), Note: "dpkg, pip and npm"},
		{What: "to pull", Is: Bytes(s.Size.Transfer), Note: "in " + count(len(s.Size.Layers), "layer")},
		{What: "visible", Is: Bytes(s.Size.Visible), Note: "in " + count(s.Size.Files, "file")},
		{What: "hidden", Is: Bytes(s.Size.Hidden), Note: "pulled, but out of sight"},
	}
	if n := len(notes(s).Rows); n > 0 {
		out = append(out, card{What: "notes", Is: number(n), Note: "not understood, or wouldn't work"})
	}
	return out
}

// mapCells are the cells of a treemap for each side. One component has one color on all sides.
func mapCells(sides []size.Sizes) []map[string]any {
	type cell struct {
		Name  string `json:"name"`
		Bytes int64  `json:"bytes"`
		Color int    `json:"color"`
		Only  bool   `json:"only,omitempty"` // on this side
		Note  string `json:"note,omitempty"`
	}
	by := make([]map[string]int64, len(sides))
	most := map[string]int64{}
	for i, s := range sides {
		by[i] = map[string]int64{}
		for _, c := range s.Components {
			by[i][c.Name] += c.Size
			most[c.Name] = max(most[c.Name], by[i][c.Name])
		}
	}
	names := make([]string, 0, len(most))
	for name := range most {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(a, b)) })
	const colors = 9
	color := map[string]int{}
	for _, name := range names {
		if color[name] = colors; name != "other" && len(color) <= colors {
			color[name] = len(color) - 1
		}
	}
	out := make([]map[string]any, len(sides))
	for i := range sides {
		cells, total := []cell{}, int64(0)
		for _, name := range names {
			bytes := by[i][name]
			if bytes <= 0 {
				continue
			}
			c := cell{Name: quote(cut(name, maxCell)), Bytes: bytes, Color: color[name]}
			if len(sides) == 2 {
				if other, both := by[1-i][name]; !both {
					c.Only, c.Note = true, []string{"gone in slim", "new in slim"}[i]
				} else if i == 1 && bytes != other {
					c.Note = change(bytes - other)
				}
			}
			total += bytes
			cells = append(cells, c)
		}
		slices.SortStableFunc(cells, func(a, b cell) int { return cmp.Compare(b.Bytes, a.Bytes) })
		out[i] = map[string]any{"total": total, "cells": cells[:min(len(cells), 400)]}
	}
	return out
}

func mapLabel(side string, s size.Sizes) string {
	var words []string
	for _, c := range s.Components[:min(len(s.Components), 5)] {
		words = append(words, quote(cut(c.Name, 60))+" "+Bytes(c.Size))
	}
	return fmt.Sprintf("Treemap of %s by component: %s; the table below has all", side, strings.Join(words, ", "))
}

// stacks are the layers of each side, as wide as what a puller transfers.
func stacks(names []string, sides []size.Sizes) ([]stack, []key) {
	most := int64(1)
	in := map[string]int{}
	for _, s := range sides {
		most = max(most, s.Transfer)
		for _, l := range s.Layers {
			in[l.Digest]++
		}
	}
	classes := map[string]bool{}
	var out []stack
	for i, s := range sides {
		k := stack{Side: names[i], Total: Bytes(s.Transfer), Label: strings.TrimSpace(names[i] + " " + count(len(s.Layers), "layer") + ", " + Bytes(s.Transfer) + " to pull")}
		x := 0.0
		for n, l := range s.Layers[:min(len(s.Layers), manyLayers)] {
			wide := 1000 * float64(l.Size) / float64(most)
			class := "both"
			if len(sides) == 2 && in[l.Digest] < 2 {
				class = k.Side
			}
			title := fmt.Sprintf("layer %d, %s: %s to pull, %s unpacked, %s of that visible. %s", n+1, short(l.Digest), Bytes(l.Size), Bytes(l.Unpacked), Bytes(l.Visible), cut(quote(l.CreatedBy), maxCell))
			k.Bars = append(k.Bars, bar{class, title, x, max(0, wide-0.8)})
			classes[class] = true
			if l.Unpacked > 0 && l.Visible < l.Unpacked && !l.Unread {
				hidden := wide * (1 - float64(max(l.Visible, 0))/float64(l.Unpacked))
				k.Bars = append(k.Bars, bar{"hidden", title, x + max(0, wide-0.8-hidden), min(hidden, max(0, wide-0.8))})
				classes["hidden"] = true
			}
			x += wide
		}
		out = append(out, k)
	}
	words := map[string]string{"both": "shared by both", "base": "only in base", "slim": "only in slim", "hidden": "hidden by a layer above, and still transferred"}
	if len(sides) == 1 {
		words["both"] = "visible"
	}
	var legend []key
	for _, class := range []string{"both", "base", "slim", "hidden"} {
		if classes[class] {
			legend = append(legend, key{class, words[class]})
		}
	}
	return out, legend
}

// textsOf are the files whose changed lines the page has, and how many it has no room for.
func textsOf(nodes []node) (texts []textChange, left int) {
	bytes := 0
	for i, n := range nodes {
		if n.change == nil || n.change.Text == "" {
			continue
		}
		if bytes += len(n.change.Text); bytes > maxText {
			left++
			continue
		}
		added, removed := 0, 0
		for s := range strings.Lines(n.change.Text) {
			switch {
			case strings.HasPrefix(s, "+++ "), strings.HasPrefix(s, "--- "):
			case strings.HasPrefix(s, "+"):
				added++
			case strings.HasPrefix(s, "-"):
				removed++
			}
		}
		texts = append(texts, textChange{i, quote(n.change.Path), number(added), number(removed)})
	}
	return texts, left
}

// treeData is the tree for the script: one element of each list for each node, in the order of a walk.
type treeData struct {
	Kinds  string   `json:"kinds"` // a space is a directory above changes
	Dirs   string   `json:"dirs"`  // 1 for a directory
	Depths []int    `json:"depths"`
	Names  []string `json:"names"`
	// Was and Is are sizes in base and slim; WasAttr and IsAttr are positions in Attrs, -1 for nothing.
	Was     []int64 `json:"was"`
	Is      []int64 `json:"is"`
	WasAttr []int   `json:"wasAttr"`
	IsAttr  []int   `json:"isAttr"`
	// Attrs are type, mode, owner, layer.
	Attrs [][4]string `json:"attrs"`
	// The others are by node.
	Words map[int]string    `json:"words"`
	Links map[int][2]string `json:"links"`
	Texts map[int]string    `json:"texts"`
	// Rest is what there is no room for below a node: bytes more, paths by kind.
	Rest map[int][]int64 `json:"rest"`
}

// dataOf gives as many levels of nodes as limit has room for, and how many nodes these are.
func dataOf(d *diff.Diff, nodes []node, texts []textChange, limit int) (*treeData, int) {
	deepest := level(nodes, limit)
	out := &treeData{Attrs: [][4]string{}, Words: map[int]string{}, Links: map[int][2]string{}, Texts: map[int]string{}, Rest: map[int][]int64{}}
	var kinds, dirs strings.Builder
	attrs := map[[4]string]int{}
	attr := func(e *tree.Entry, layers []size.Layer) int {
		if e == nil {
			return -1
		}
		a := [4]string{quote(string(e.Type)), mode(*e), owner(*e), ""}
		if e.Type == image.TypeSymlink {
			a[1] = ""
		}
		if e.Layer >= 0 && e.Layer < len(layers) {
			a[3] = fmt.Sprintf("layer %d, %s", e.Layer+1, short(layers[e.Layer].Digest))
		}
		at, ok := attrs[a]
		if !ok {
			at = len(out.Attrs)
			attrs[a] = at
			out.Attrs = append(out.Attrs, a)
		}
		return at
	}
	position := make(map[int]int, len(texts)) // from nodes to what is given
	for i := range nodes {
		n := &nodes[i]
		if n.depth > deepest {
			continue
		}
		if len(out.Names) == limit {
			break
		}
		at := len(out.Names)
		position[i] = at
		kind, dir := " ", "0"
		c := n.change
		if n.isDir() {
			dir = "1"
		}
		if c == nil {
			c = &diff.Change{}
		} else {
			kind = c.Kind
			if w := what(c); w != "" {
				out.Words[at] = w
			}
			if old, now := linkOf(c.Old), linkOf(c.New); old != "" || now != "" {
				out.Links[at] = [2]string{old, now}
			}
		}
		if markClasses[kind].Class == "" {
			kind = " "
		}
		kinds.WriteString(kind)
		dirs.WriteString(dir)
		out.Depths = append(out.Depths, n.depth)
		out.Names = append(out.Names, quote(n.name))
		out.Was, out.Is = append(out.Was, sizeOf(c.Old)), append(out.Is, sizeOf(c.New))
		out.WasAttr = append(out.WasAttr, attr(c.Old, d.Base.Size.Layers))
		out.IsAttr = append(out.IsAttr, attr(c.New, d.Slim.Size.Layers))
		if n.depth == deepest && n.end > i+1 {
			var rest sums
			for j := i + 1; j < n.end; j = nodes[j].end {
				rest.add(nodes[j].sums)
			}
			out.Rest[at] = []int64{rest.bytes, int64(rest.added), int64(rest.removed), int64(rest.modified), int64(rest.typ), int64(rest.meta)}
		}
	}
	for i := range texts {
		t := &texts[i]
		at, ok := position[t.Node]
		var b strings.Builder
		for s := range strings.Lines(nodes[t.Node].change.Text) {
			b.WriteString(line(strings.TrimSuffix(s, "\n")) + "\n")
		}
		if !ok { // deeper than the tree goes
			at = -1 - i
		}
		t.Node = at
		out.Texts[at] = b.String()
	}
	out.Kinds, out.Dirs = kinds.String(), dirs.String()
	if out.Names == nil {
		out.Names, out.Depths = []string{}, []int{}
	}
	return out, len(out.Names)
}

func linkOf(e *tree.Entry) string {
	if e == nil {
		return ""
	}
	return quote(e.Link)
}

// level is how deep a tree of at most limit nodes goes.
func level(nodes []node, limit int) int {
	if len(nodes) <= limit {
		return math.MaxInt
	}
	by := map[int]int{}
	for _, n := range nodes {
		by[n.depth]++
	}
	depth := 1
	for sum := by[1]; by[depth+1] > 0 && sum+by[depth+1] <= limit; depth++ {
		sum += by[depth+1]
	}
	return depth
}
