package report

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"

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

// Limits of a page. The page reports omitted parts.
const (
	maxNodes   = 400_000 // of the tree
	maxRows    = 4_000   // of one table
	maxText    = 16 << 20
	maxHTML    = 2_000 // columns of a cell
	openRows   = 32    // a longer table is folded
	shortCell  = 26    // maximum columns of a cell that isn't wrapped
	manyLayers = 500
)

// policy allows this one style and this one script only. A script that got into the page in spite of all escaping would
// not run.
func policy() string {
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; script-src " + hash(scriptJS) + "; style-src " + hash(styleCSS) + "; base-uri 'none'; form-action 'none'"
}

// The types that page.html renders. All strings are quoted, and html/template escapes them.
type (
	htmlPage struct {
		Command, Title, Policy string
		Version                string
		Banner                 banner
		Style                  template.CSS
		Script                 template.JS
		Panels                 []panel
	}
	// banner is the verdict.
	banner struct {
		Class, Title, Words string
		Findings            []string
	}
	// panel is one platform.
	panel struct {
		Platform   string
		References []string
		Facts      []fact
		Summary    []string
		Cards      []card
		Quiet      []card // folded
		Footer     []fact
		Parts      []part
		Maps       []treemap
		Stacks     []stack
		Legend     []key
		Kinds      []htmlMark
		Trees      []string // choices for the tree
		Texts      []textChange
		maps       []map[string]any
		trees      []*treeData
	}
	card struct {
		What, Was, Is, Note string
		Bar                 bool
		WasBar, IsBar, More float64 // in percent
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
		Numbers                 bool // few columns, at most one of them with words
		Marks                   []htmlMark
		Columns                 []column
		Rows                    []htmlRow
		More                    string
		Same                    []string
		ManySame                string // number of equal names, if they are folded
	}
	htmlMark struct{ Mark, Class, Title, N string }
	htmlRow  struct {
		Mark  htmlMark
		Quiet bool
		Cells []htmlCell
		Share float64
	}
	htmlCell struct {
		Label, Class string
		Value        []piece // a line may end between pieces; none for an empty value
		Span         int
	}
	piece struct {
		Text  string
		Whole bool // no line break inside
		Other bool // the other side differs here
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
	textChange struct {
		Node           int
		Path           string
		Added, Removed string
	}
)

// marks maps the marks to the page's signs.
var marks = map[string]htmlMark{
	diff.Added:    {Mark: diff.Added, Class: "add", Title: "added"},
	diff.Removed:  {Mark: diff.Removed, Class: "del", Title: "removed"},
	diff.Modified: {Mark: diff.Modified, Class: "mod", Title: "changed"},
	diff.Type:     {Mark: diff.Type, Class: "typ", Title: "type"},
	diff.Meta:     {Mark: diff.Meta, Class: "meta", Title: "rights"},
	"=":           {Mark: "=", Class: "eq", Title: "on both sides"},
}

func surfacesHTML(w io.Writer, surfaces []*inspect.Surface) error {
	page := htmlPage{Command: "inspect"}
	for i, s := range surfaces {
		p := surfacePage(s)
		page.Title = quote(s.Reference) + " · slimctl inspect"
		v := panel{
			Platform: p.Platform, References: []string{p.Facts[0].Value}, Facts: p.Facts[1:], Summary: p.Summary, Cards: surfaceCards(s),
		}
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
		v.maps = cells
		page.Panels = append(page.Panels, v)
	}
	return page.write(w)
}

func diffsHTML(w io.Writer, diffs []*diff.Diff, o Options) error {
	page := htmlPage{Command: "diff", Version: o.Version, Banner: bannerOf(o.Verdict)}
	for i, d := range diffs {
		page.Title = quote(d.Base.Reference) + " → " + quote(d.Slim.Reference) + " · slimctl diff"
		page.Panels = append(page.Panels, diffPanel(d, i, o, maxNodes/len(diffs)))
	}
	return page.write(w)
}

// diffPanel returns a panel with at most room nodes of trees.
func diffPanel(d *diff.Diff, at int, o Options, room int) panel {
	p := diffPage(d)
	footer := []fact{{"base", quote(d.Base.Digest)}, {"slim", quote(d.Slim.Digest)}}
	if o.Verdict != nil {
		footer = append([]fact{{"profile", quote(o.Verdict.Profile)}}, footer...)
	}
	v := panel{
		Footer: footer,

		Platform: p.Platform, References: []string{quote(d.Base.Reference), quote(d.Slim.Reference)}, Summary: p.Summary,
		Facts: []fact{{"base", quote(d.Base.Digest)}, {"slim", quote(d.Slim.Digest)}, {"platform", p.Platform}},
	}
	if len(p.Sections) == 0 {
		return v
	}
	v.Cards, v.Quiet = diffCards(d)
	surface := part{ID: "surface", Title: "Surface"}
	for _, t := range p.Sections {
		switch {
		case t.ID == "image-config":
		case len(t.Rows) > 0:
			surface.Sections = append(surface.Sections, toHTML(t, at))
		default:
			surface.Same += ", " + t.Title + " " + t.Count
		}
	}
	if surface.Same != "" {
		surface.Same = "The same on both sides: " + strings.TrimPrefix(surface.Same, ", ") + "."
	}
	nodes := compact(treeOf(d.Files))
	texts, left := textsOf(nodes)
	merged, shown := dataOf(d, nodes, texts, room)
	merged.why = o.Why
	files := part{ID: "files", Title: "Files"}
	if shown < len(nodes) {
		files.Intro = fmt.Sprintf("%s paths are only counted below; slimctl diff --format json has all.", number(len(nodes)-shown))
	}
	v.trees = []*treeData{merged}
	v.Trees = []string{"all layers merged"}
	for _, l := range d.Layers {
		if !o.Layers || l.In == diff.InBoth {
			continue
		}
		data, _ := dataOf(d, compact(treeOf(l.Files)), nil, max(room-shown, maxRows)/len(d.Layers))
		v.trees = append(v.trees, data)
		v.Trees = append(v.Trees, fmt.Sprintf("layer %s of %s: %s", short(l.Digest), quote(l.In), cut(quote(l.CreatedBy), 60)))
	}
	v.Parts = []part{
		surface,
		{ID: "config", Title: "Configuration", Sections: []htmlSection{toHTML(config(d), at)}},
		{ID: "size", Title: "Size", Sections: sizeSections(d, at)},
		files,
	}
	if len(texts) > 0 {
		lines := part{ID: "texts", Title: "Changed lines"}
		if left > 0 {
			lines.Intro = "The changed lines of " + count(left, "more file") + " are not here; slimctl diff --format json has them."
		}
		v.Texts, v.Parts = texts, append(v.Parts, lines)
	}
	for _, k := range strings.Split(order, "") {
		v.Kinds = append(v.Kinds, marks[k])
	}
	sides := []size.Sizes{d.Base.Size, d.Slim.Size}
	v.Maps = []treemap{
		{"base", "base", Bytes(d.Base.Size.Visible) + " visible", mapLabel("base", d.Base.Size)},
		{"slim", "slim", Bytes(d.Slim.Size.Visible) + " visible", mapLabel("slim", d.Slim.Size)},
	}
	v.Stacks, v.Legend = stacks([]string{"base", "slim"}, sides)
	v.maps = mapCells(sides)
	return v
}

func sizeSections(d *diff.Diff, at int) []htmlSection {
	out := []htmlSection{toHTML(componentChanges(d), at)}
	if len(d.Size.Ledger) > 0 {
		out = append(out, toHTML(ledgerChanges(d), at))
	}
	return append(out, toHTML(layerChanges(d), at))
}

func (p htmlPage) write(w io.Writer) error {
	p.Policy, p.Style, p.Script = policy(), template.CSS(styleCSS), template.JS(scriptJS) //nolint:gosec // both are ours
	p.Title = cmp.Or(p.Title, "slimctl "+p.Command)
	out := bufio.NewWriterSize(w, 1<<16)
	if err := htmlTemplate.Execute(out, p); err != nil {
		return err
	}
	j := jsonWriter{w: out}
	for i, v := range p.Panels {
		j.put(fmt.Sprintf("<script type=\"application/json\" id=\"data-%d\">", i))
		v.write(&j)
		j.put("</script>\n")
	}
	if j.err != nil {
		return j.err
	}
	if err := htmlTemplate.ExecuteTemplate(out, "end", p); err != nil {
		return err
	}
	return out.Flush()
}

// write writes the data for the script.
func (v panel) write(j *jsonWriter) {
	j.put("{")
	comma := ""
	if v.maps != nil {
		j.put(`"maps":`)
		j.compact(v.maps)
		comma = ","
	}
	for i, t := range v.trees {
		if i == 0 {
			comma += `"trees":[`
		}
		j.put(comma)
		t.write(j)
		comma = ","
	}
	if len(v.trees) > 0 {
		j.put("]")
	}
	j.put("}")
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
	tally := s.marks()
	for _, k := range strings.Split(order+"=", "") {
		if n := tally[k]; n > 0 {
			m := marks[k]
			m.N = number(n)
			out.Marked, out.Marks = true, append(out.Marks, m)
		}
	}
	if n := len(s.Rows) - maxRows; n > 0 {
		out.More = more(n) + "; --format json has all"
	}
	for _, r := range s.Rows[:min(len(s.Rows), maxRows)] {
		row := htmlRow{Mark: marks[r.Mark], Quiet: r.Quiet, Share: r.Share}
		for i, c := range s.Columns {
			class := "c"
			switch {
			case c.Number:
				class = "n"
			case c.Words:
				class = "w"
			}
			value := cut(r.Cells[i], maxHTML)
			cell := htmlCell{Label: c.Name, Class: class}
			switch {
			case value == "":
			case out.Changes && r.Mark == diff.Modified && i > 0:
				cell.Value = changedWords(value, cut(r.Cells[3-i], maxHTML))
			case columns(value) <= shortCell:
				cell.Class += " s"
				cell.Value = []piece{{Text: value}}
			default:
				cell.Value = pieces(value)
			}
			if out.Changes && r.Mark == diff.Removed && i > 0 { // the old value gets the whole width
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

// pieces splits a long value after the slashes of paths, and before flags such as --no-sandbox: a browser breaks lines
// after any hyphen.
func pieces(s string) []piece {
	var out []piece
	from := 0 // beginning of the part that isn't in out yet
	put := func(to int, whole bool) {
		if to > from {
			out = append(out, piece{Text: s[from:to], Whole: whole})
			from = to
		}
	}
	for at := 0; at < len(s); {
		n := strings.IndexByte(s[at:], ' ')
		if n < 0 {
			n = len(s) - at
		}
		switch word := s[at : at+n]; {
		case strings.Contains(word, "/"):
			for i := 1; i < n; i++ {
				if word[i] == '/' {
					put(at+i+1, false)
				}
			}
		case strings.Contains(word, "-") && columns(word) <= shortCell:
			put(at, false)
			put(at+n, true)
		}
		at += n + 1
	}
	put(len(s), false)
	return out
}

// changedWords returns the pieces of a value, with the words marked that other lacks in their order.
func changedWords(value, other string) []piece {
	words := strings.Split(value, " ")
	var out []piece
	put := func(from, to int, isOther bool) {
		run := strings.Join(words[from:to], " ")
		if from < to && to < len(words) {
			run += " "
		}
		for _, p := range pieces(run) {
			p.Other = isOther
			out = append(out, p)
		}
	}
	at := 0
	for _, d := range lcs.DiffLines(words, strings.Split(other, " ")) {
		put(at, d.Start, false)
		put(d.Start, d.End, true)
		at = d.End
	}
	put(at, len(words), false)
	return out
}

// mostFindings limits the findings in the banner.
const mostFindings = 5

func bannerOf(v *Verdict) banner {
	if v == nil {
		return banner{Class: "none", Title: "Not verified", Words: "Pass --profile NAME to verify the slim image and to see why each file changed."}
	}
	out := banner{Class: "passed", Title: "Verified", Words: fmt.Sprintf("profile %s: %s", quote(v.Profile), v.Words)}
	if !v.Passed {
		out.Class, out.Title = "failed", "Failed"
	}
	for _, f := range v.Findings[:min(len(v.Findings), mostFindings)] {
		out.Findings = append(out.Findings, quote(cut(f, 300)))
	}
	if n := len(v.Findings) - mostFindings; n > 0 {
		out.Findings = append(out.Findings, more(n)+"; slimctl verify prints all")
	}
	return out
}

// weight holds the order of cards by a reader's interest. Cards with other titles are folded.
var weight = []string{
	"answer from outside", "tools", "programs", "download", "visible", "MCP servers", "listeners", "privileged files", "hooks", "switches",
}

// diffCards returns the cards by weight, and the folded ones: those of less weight, and those with equal content on
// both sides.
func diffCards(d *diff.Diff) (out, quiet []card) {
	put := func(c card, same bool) {
		if same || !slices.Contains(weight, c.What) {
			quiet = append(quiet, c)
		} else {
			out = append(out, c)
		}
	}
	defer func() {
		slices.SortStableFunc(out, func(a, b card) int {
			return cmp.Compare(slices.Index(weight, a.What), slices.Index(weight, b.What))
		})
	}()
	ratio := func(c card, base, slim float64) card {
		if most := max(base, slim); most > 0 {
			c.Bar, c.WasBar, c.IsBar, c.More = true, 100*base/most, 100*slim/most, 100*(slim-base)/most
		}
		return c
	}
	if n := d.Surface.Outside; n.Base+n.Slim > 0 {
		c := card{What: "answer from outside", Was: number(n.Base), Is: number(n.Slim), Note: "routes"}
		put(ratio(c, float64(n.Base), float64(n.Slim)), n.Base == n.Slim)
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
		}
		put(ratio(c, float64(g.of.Base), float64(g.of.Slim)), len(words) == 0)
	}
	for _, s := range sizeLines(d) {
		c := card{What: s.what, Is: Bytes(s.slim), Note: change(s.slim-s.base) + ", was " + Bytes(s.base)}
		if s.what == "download" {
			c.Note = s.words
		} else if s.base == s.slim {
			c.Note = "the same"
		}
		put(ratio(c, float64(s.base), float64(s.slim)), s.base == s.slim)
	}
	return out, quiet
}

func surfaceCards(s *inspect.Surface) []card {
	public, heard := s.Outside()
	tools := tools(s)
	out := []card{
		{What: "programs", Is: number(len(s.Programs)), Note: "that supervisord runs"},
		{What: "routes", Is: number(public), Note: "answer to the outside, of " + number(len(s.Routes))},
		{What: "listeners", Is: number(heard), Note: fmt.Sprintf("public, %s on loopback", number(len(s.Listeners)-heard))},
		{What: "tools", Is: number(len(tools.Rows)), Note: "of " + count(len(servers(s).Rows), "MCP server")},
		{What: "switches", Is: number(len(switches(s).Rows)), Note: "and " + count(len(hooks(s).Rows), "hook") + ", in the environment"},
		{What: "privileged files", Is: number(len(privileged(s).Rows)), Note: "and " + count(len(sudo(s).Rows), "sudo rule")},
		{What: "packages", Is: number(len(s.Packages)), Note: "dpkg, pip and npm"},
		{What: "download", Is: Bytes(s.Size.Transfer), Note: "in " + count(len(s.Size.Layers), "layer")},
		{What: "visible", Is: Bytes(s.Size.Visible), Note: "in " + count(s.Size.Files, "file")},
		{What: "hidden", Is: Bytes(s.Size.Hidden), Note: "downloaded, but out of sight"},
	}
	if n := len(notes(s).Rows); n > 0 {
		out = append(out, card{What: "notes", Is: number(n), Note: "not understood, or wouldn't work"})
	}
	return out
}
