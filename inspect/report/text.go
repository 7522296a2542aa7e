package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// text is the report on one platform.
type text struct {
	platform string
	// head identifies the image.
	head string
	// blocks holds headings, each with its content.
	blocks []string
}

// writeTexts writes the reports on several platforms, and a hint to further details. It writes parts that are equal on
// all platforms once.
func writeTexts(w io.Writer, texts []text, more string) error {
	out := bufio.NewWriter(w) // keeps the first error
	put := func(blocks ...string) {
		for _, b := range blocks {
			_, _ = out.WriteString(b)
		}
	}
	var names, all []string
	for i, t := range texts {
		put(strings.Repeat("\n", min(i, 1)), t.head)
		names = append(names, t.platform)
	}
	if len(texts) > 1 {
		for _, b := range texts[0].blocks {
			if !slices.ContainsFunc(texts, func(t text) bool { return !slices.Contains(t.blocks, b) }) {
				all = append(all, b)
			}
		}
	}
	if len(all) > 0 {
		put("\nOn each of " + strings.Join(names, ", ") + "\n")
		put(all...)
	}
	for _, t := range texts {
		rest := slices.DeleteFunc(t.blocks, func(b string) bool { return slices.Contains(all, b) })
		if len(texts) > 1 && len(rest) > 0 {
			put("\nOnly on " + t.platform + "\n")
		}
		put(rest...)
	}
	put(more)
	return out.Flush()
}

func surfacesText(w io.Writer, surfaces []*inspect.Surface, o Options) error {
	t := texter{o}
	var texts []text
	for _, s := range surfaces {
		p := surfacePage(s)
		var blocks []string
		for _, s := range p.Sections {
			blocks = append(blocks, t.section(s))
		}
		texts = append(texts, text{p.Platform, t.head(p), blocks})
	}
	more := ""
	if !o.All {
		more = "\n" + t.wrap("Shortened: --all has everything, with the file and line that say so.", 0)
	}
	return writeTexts(w, texts, more)
}

func diffsText(w io.Writer, diffs []*diff.Diff, o Options) error {
	t := texter{o}
	var texts []text
	more := ""
	for _, d := range diffs {
		p := diffPage(d)
		var blocks []string
		if len(p.Sections) > 0 {
			blocks = t.difference(d, p.Sections)
			if !o.All {
				more = "\n" + t.wrap("Shortened: --all has every name, path and changed line; --depth has more levels of files; a PATH after -- has its changed lines.", 0)
			}
		}
		texts = append(texts, text{p.Platform, t.head(p), blocks})
	}
	return writeTexts(w, texts, more)
}

// difference draws the exposure first, then the sizes, then the files.
func (t texter) difference(d *diff.Diff, sections []section) []string {
	var out []string
	same := ""
	for _, s := range sections {
		if len(s.Rows) > 0 {
			s.First = t.o.All || len(out) == 0
			out = append(out, t.free(s)+t.group(s))
		} else {
			same += ", " + s.Title + " " + s.Count
		}
	}
	if same != "" {
		out = append(out, t.wrap("The same: "+strings.TrimPrefix(same, ", ")+".", 2))
	}
	out = append(out, "\n"+t.title("size", "")+t.sizes(d), "\n"+t.title("files", "")+"  "+t.wrap(legend, 2), t.tree(d.Files))
	if t.o.Layers {
		out = append(out, t.layers(d)...)
	}
	return append(out, t.texts(d.Files)...)
}

// texter draws for a terminal.
type texter struct{ o Options }

// defaultWidth is the width of a text without a terminal.
const defaultWidth = 100

func (t texter) width() int {
	if t.o.Width > 0 {
		return max(t.o.Width, 40)
	}
	return defaultWidth
}

// Colours from ECMA-48, "Select graphic rendition".
const (
	bold = "1"
	dim  = "2"
)

var colors = map[string]string{diff.Added: "32", diff.Removed: "31", diff.Modified: "33", diff.Type: "35", diff.Meta: "36"}

func (t texter) color(code, s string) string {
	if !t.o.Color || code == "" || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t texter) title(title, count string) string {
	out := t.color(bold, title)
	if count != "" {
		out += "  " + count
	}
	return out + "\n"
}

func (t texter) head(p page) string {
	var b strings.Builder
	wide := 0
	for _, f := range p.Facts {
		wide = max(wide, columns(f.Name))
	}
	for _, f := range p.Facts {
		if !t.o.All {
			f.Value = cut(f.Value, maxFact)
		}
		b.WriteString(t.color(bold, pad(f.Name, wide, false)) + "  " + t.wrap(f.Value, wide+2))
	}
	b.WriteString("\n")
	for _, s := range p.Summary {
		b.WriteString(t.wrap(s, 2))
	}
	return b.String()
}

// maxFact limits the width of a fact.
const maxFact = 400

// wrap writes words in lines. It indents the lines after the first; the first line's indentation is already written.
func (t texter) wrap(s string, indent int) string {
	var b strings.Builder
	at := indent
	for i, word := range strings.Fields(s) {
		switch n := columns(word) + 1; {
		case i == 0:
			at += n
		case at+n > t.width()+1:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent + n
		default:
			b.WriteString(" ")
			at += n
		}
		b.WriteString(word)
	}
	return b.String() + "\n"
}

// free is the empty line above a section.
func (t texter) free(s section) string {
	if s.First || t.o.All {
		return "\n"
	}
	return ""
}

func (t texter) section(s section) string {
	switch {
	case !t.o.All && (s.Detail || s.Brief != nil && len(s.Brief.Rows) == 0 && s.Brief.Left == "" && len(s.Rows) > 0):
		return ""
	case len(s.Rows) == 0:
		return t.free(s) + t.title(s.Title, "none")
	case !t.o.All && s.Brief != nil:
		return t.free(s) + t.title(s.Title, s.Count) + t.brief(s)
	}
	return t.free(s) + t.title(s.Title, s.Count) + t.table(s)
}

// brief draws the common values in columns, and their names in lines beside them.
func (t texter) brief(s section) string {
	of := s.Brief
	shown := of.Rows
	if s.Limit > 0 {
		shown = shown[:min(len(shown), s.Limit)]
	}
	var wide []int
	for _, r := range shown {
		if wide == nil {
			wide = make([]int, len(r.Cells))
		}
		for i, c := range r.Cells {
			wide[i] = min(max(wide[i], columns(c)), 2*t.width()/(5+i))
		}
	}
	var b strings.Builder
	for _, r := range shown {
		lead, indent := "", 2
		for i, c := range r.Cells {
			lead += pad(cut(c, wide[i]), wide[i], false) + "  "
			indent += wide[i] + 2
		}
		line := "  " + lead + t.list(r.Names, indent, of.Lines)
		if r.Quiet {
			line = t.color(dim, line)
		}
		b.WriteString(line + "\n")
	}
	if n := len(of.Rows) - len(shown); n > 0 {
		b.WriteString("  " + more(n) + "\n")
	}
	if of.Left != "" {
		b.WriteString("  " + of.Left + "\n")
	}
	return b.String()
}

// maxLines limits the lines of a list of names.
const maxLines = 3

// list joins names with commas in at most that many lines, 0 meaning maxLines; it indents the lines after the first.
func (t texter) list(names []string, indent, most int) string {
	if most == 0 {
		most = maxLines
	}
	var b strings.Builder
	at, lines := indent, 1
	for i, s := range names {
		switch {
		case t.o.All:
		case len(names) == 1:
			return cut(s, max(t.width()-indent, maxName))
		default:
			s = cut(s, maxName)
		}
		n := columns(s) + 2
		room := t.width()
		if last := i == len(names)-1; lines == most && !t.o.All && !last {
			room -= columns(more(len(names) - i))
		}
		switch {
		case i == 0:
			at += n
		case at+n <= room:
			b.WriteString(", ")
			at += n
		case lines == most && !t.o.All:
			return b.String() + " " + more(len(names)-i)
		default:
			b.WriteString(",\n" + strings.Repeat(" ", indent))
			at = indent + n
			lines++
		}
		b.WriteString(s)
	}
	return b.String()
}

// table aligns the rows of s, cuts cells to one width so that lines fit, and omits rows beyond the limit.
func (t texter) table(s section) string {
	shown := s.Rows
	if s.Limit > 0 && !t.o.All {
		shown = shown[:min(len(shown), s.Limit)]
	}
	var cols, wide []int
	for i, c := range s.Columns {
		if c.Detail && !t.o.All {
			continue
		}
		n := columns(c.Name)
		for _, r := range shown {
			n = max(n, columns(cut(r.Cells[i], t.width())))
		}
		cols, wide = append(cols, i), append(wide, n)
	}
	most := t.width() // of a column
	for total := most + 1; total > t.width() && most > leastColumn; most-- {
		total = 2 * len(wide)
		for _, n := range wide {
			total += min(n, most-1)
		}
	}
	var b strings.Builder
	put := func(code string, cells func(i int) string) {
		line := ""
		for at, i := range cols {
			cell := cells(i)
			if !t.o.All {
				cell = cut(cell, most)
			}
			line += "  " + pad(cell, min(wide[at], most), s.Columns[i].Number)
		}
		b.WriteString(t.color(code, strings.TrimRight(line, " ")) + "\n")
	}
	put(dim, func(i int) string { return strings.ToUpper(s.Columns[i].Name) })
	for _, r := range shown {
		code := ""
		if r.Quiet {
			code = dim
		}
		put(code, func(i int) string { return r.Cells[i] })
	}
	if n := len(s.Rows) - len(shown); n > 0 {
		b.WriteString("  " + more(n) + "\n")
	}
	return b.String()
}

// leastColumn is the least width to which cells are cut.
const leastColumn = 8

// maxName limits a name in a list with values.
const maxName = 50

// group is a section of a diff: names on one side only in one list, and each changed value on a line of its own.
func (t texter) group(s section) string {
	var b strings.Builder
	n := s.marks()
	left := s.Limit
	for _, mark := range strings.Split(order, "") {
		if n[mark] == 0 {
			continue
		}
		var rows []row
		for _, r := range s.Rows {
			if r.Mark == mark {
				rows = append(rows, r)
			}
		}
		if names := packable(mark, rows); names != nil {
			b.WriteString("  " + t.color(colors[mark], mark) + " " + t.list(names, 4, 0) + "\n")
			continue
		}
		for i, r := range rows {
			if left--; left < 0 && !t.o.All {
				fmt.Fprintf(&b, "  %s %s\n", t.color(colors[mark], mark), more(len(rows)-i))
				break
			}
			called, old, now := r.Cells[0], r.Cells[1], r.Cells[2]
			if !t.o.All {
				called = cut(called, maxName)
			}
			value := old + " → " + now
			switch mark {
			case diff.Added:
				value = now
			case diff.Removed:
				value = old
			}
			switch room := t.width() - columns(called) - 6; {
			case columns(value) <= room || t.o.All && mark != diff.Modified:
				value = "  " + value
			case t.o.All:
				value = "\n      " + old + "\n    → " + now
			case mark == diff.Modified:
				was := cut(old, max((room-3)/2, room-3-columns(now)))
				value = "  " + was + " → " + cut(now, room-3-columns(was))
			default:
				value = "  " + cut(value, room)
			}
			fmt.Fprintf(&b, "  %s %s\n", t.color(colors[mark], mark), strings.TrimRight(called+value, " "))
		}
	}
	if len(s.Same) > 0 {
		fmt.Fprintf(&b, "  = %s the same\n", number(len(s.Same)))
	}
	return t.title(s.Title, s.Count) + b.String()
}

// packable returns the names on one side only, if they are many and contain no comma.
func packable(mark string, rows []row) []string {
	if mark != diff.Added && mark != diff.Removed || len(rows) < 4 {
		return nil
	}
	var names []string
	for _, r := range rows {
		if strings.Contains(r.Cells[0], ",") {
			return nil
		}
		names = append(names, r.Cells[0])
	}
	return names
}

// maxTree limits the lines of the tree without an explicit depth, unless its first level has more.
const maxTree = 40

// maxWhole limits the listed part of a directory that was added or removed as a whole.
const maxWhole = 8

// tree draws changes: mark, bytes added or removed, name, differences.
func (t texter) tree(changes []diff.Change) string {
	if len(changes) == 0 {
		return "  none\n"
	}
	nodes := treeOf(changes)
	if t.o.Depth == 0 {
		nodes = compact(nodes)
	}
	deepest := t.o.Depth
	if deepest == 0 && !t.o.All {
		deepest = t.fitting(nodes)
	}
	var b strings.Builder
	if deepest == 0 {
		b.Grow(64 * len(nodes)) // avoids copying during growth
	}
	for i := 0; i < len(nodes); i = t.next(nodes, i, deepest) {
		n := &nodes[i]
		mark, words, called := " ", "", quote(n.name)
		if n.isDir() {
			called += "/"
		}
		if n.depth == 1 {
			called = "/" + called
		}
		if n.change != nil {
			mark, words = n.change.Kind, describeChange(n.change)
		}
		if int(n.end) > i+1 {
			words = strings.TrimSpace(words + "  " + n.sums.String())
		}
		size := ""
		if n.sums.bytes != 0 {
			size = change(n.sums.bytes)
		}
		indent := strings.Repeat("  ", min(int(n.depth)-1, 40))
		if !t.o.All {
			called, words = cut(called, 80), cut(words, max(t.width()-len(indent)-16-columns(cut(called, 80)), 20))
		}
		line := fmt.Sprintf("  %s %9s  %s%s", t.color(colors[mark], mark), size, indent, called)
		if words != "" {
			line += "  " + t.color(dim, words)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// next returns the node after node i in a tree of depth deepest; 0 is any depth.
func (t texter) next(nodes []node, i, deepest int) int {
	n := &nodes[i]
	end := int(n.end)
	if deepest > 0 && int(n.depth) >= deepest || !t.o.All && n.whole() != "" && end-i-1 > maxWhole {
		return end
	}
	return i + 1
}

// fitting returns the depth of a tree with at most maxTree lines; 0 if all of it fits.
func (t texter) fitting(nodes []node) int {
	for depth := 1; ; depth++ {
		lines, deeper := 0, false
		for i := 0; i < len(nodes) && lines <= maxTree; i = t.next(nodes, i, depth) {
			lines++
			deeper = deeper || int(nodes[i].depth) == depth && t.next(nodes, i, 0) == i+1 && int(nodes[i].end) > i+1
		}
		switch {
		case lines > maxTree:
			return max(depth-1, 1)
		case !deeper:
			return 0
		}
	}
}

func (t texter) layers(d *diff.Diff) []string {
	var out []string
	for _, l := range d.Layers {
		if l.In == diff.InBoth {
			continue
		}
		sizes := fmt.Sprintf("%s to download, %s unpacked", Bytes(l.Size), Bytes(l.Unpacked))
		head := "\n" + t.title("layer "+short(l.Digest)+" of "+quote(l.In), sizes)
		body := ""
		if l.CreatedBy != "" {
			by := quote(l.CreatedBy)
			if !t.o.All {
				by = cut(by, t.width()-2)
			}
			body = "  " + by + "\n"
		}
		out = append(out, head+body+t.tree(l.Files))
	}
	return out
}

func (t texter) sizes(d *diff.Diff) string {
	s := section{Columns: []column{words(""), numeral("base"), numeral("slim"), numeral("change"), words("")}}
	for _, l := range sizeLines(d) {
		s.add(l.what, Bytes(l.base), Bytes(l.slim), change(l.slim-l.base), l.words)
	}
	out := t.table(s)
	for _, s := range []section{componentChanges(d), ledgerChanges(d)} {
		if len(s.Rows) > 0 {
			out += "\n" + t.table(s)
		}
	}
	return out
}

// maxChanged limits the changed lines of text files without an explicit request.
const maxChanged = 60

// texts draws the unified diffs.
func (t texter) texts(changes []diff.Change) []string {
	var out []string
	files, lines := 0, 0
	for _, c := range changes {
		if c.Text != "" {
			files++
			lines += strings.Count(c.Text, "\n")
		}
	}
	if lines > maxChanged && !t.o.All && !t.o.Lines {
		return []string{"\n" + t.wrap(fmt.Sprintf("The changed lines of %s are not here (%s).", count(files, "file"), count(lines, "line")), 0)}
	}
	for _, c := range changes {
		if c.Text == "" {
			continue
		}
		var b strings.Builder
		for s := range strings.Lines(c.Text) {
			s = line(strings.TrimSuffix(s, "\n"))
			code := ""
			switch {
			case strings.HasPrefix(s, "@@"):
				code = colors[diff.Meta]
			case strings.HasPrefix(s, "+"):
				code = colors[diff.Added]
			case strings.HasPrefix(s, "-"):
				code = colors[diff.Removed]
			}
			b.WriteString(t.color(code, s) + "\n")
		}
		out = append(out, "\n"+t.title(quote(c.Path), "")+b.String())
	}
	return out
}
