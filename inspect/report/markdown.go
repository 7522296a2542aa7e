package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

const (
	// maxMarkdown limits a report, in bytes: GitHub accepts comments of 65,536 characters.
	maxMarkdown = 60_000
	// minPlatform is the minimum number of bytes for a platform that is included.
	minPlatform = 8_000
	// maxTable limits one table, in bytes, so that it can't displace the others.
	maxTable = 8_000
	// maxCell limits one cell, in columns.
	maxCell = 140
	// biggest limits the listed changed paths.
	biggest = 15
)

// ours matches texts that can only be words and numbers.
func ours(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" .,%+-→", r)
	}) && !strings.Contains(s, "www.")
}

// code returns an image's text as a code span, in which Markdown, HTML, links and mentions have no effect (CommonMark
// 0.31.2, section 6.1; GFM 0.29, section 4.10, requires escaped pipes in a table's cell).
func code(s string) string {
	if s = cut(s, maxCell); s == "" {
		return ""
	}
	longest, run := 0, 0
	for _, r := range s {
		if run++; r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	var b strings.Builder
	back := 0 // backslashes just before
	for _, r := range s {
		// GFM counts backslashes in pairs when it looks for a cell's end, but keeps them in a code span: an additional
		// backslash is better than an additional cell.
		if r == '|' && back%2 == 1 {
			b.WriteByte('\\')
		}
		if r == '|' {
			b.WriteByte('\\')
		}
		if back++; r != '\\' {
			back = 0
		}
		b.WriteRune(r)
	}
	if back%2 == 1 { // without the fence between them it would escape the pipe that ends the cell
		b.WriteByte(' ')
	}
	s = b.String()
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") || strings.HasPrefix(s, " ") && strings.HasSuffix(s, " ") {
		s = " " + s + " "
	}
	return fence + s + fence
}

// markdowner writes until the space is used up.
type markdowner struct {
	strings.Builder
	limit int
	// told holds the tables of earlier platforms.
	told map[string]bool
	// missing holds the titles of omitted tables, and same those that equal an earlier platform's.
	missing, same []string
}

// reserve is the space for the note about omitted tables.
const reserve = 800

func (m *markdowner) room() int { return m.limit - m.Len() - reserve }

// put writes s if it fits.
func (m *markdowner) put(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); len(s) <= m.room() {
		m.WriteString(s)
	}
}

// section writes one foldable table.
func (m *markdowner) section(s section) {
	if len(s.Rows) == 0 {
		return
	}
	var cols []column
	marks := slices.ContainsFunc(s.Rows, func(r row) bool { return r.Mark != "" })
	for _, c := range s.Columns {
		if !c.Detail {
			cols = append(cols, c)
		}
	}
	head := fmt.Sprintf("<details><summary>%s</summary>\n\n", strings.TrimSpace(s.Title+" "+s.Count))
	line := "|"
	if marks {
		head, line = head+"| ", "|---|"
	}
	for _, c := range cols {
		head += "| " + c.Name + " "
		line += "---" + map[bool]string{true: ":|", false: "|"}[c.Number]
	}
	head += "|\n" + line + "\n"
	const tail = "\n</details>\n\n"
	room := min(m.room(), maxTable) - len(head) - len(tail) - 100
	if room < 200 {
		m.missing = append(m.missing, s.Title)
		return
	}
	var body strings.Builder
	shown := 0
	for _, r := range s.Rows {
		line := "|"
		if marks {
			line = "| " + r.Mark + " |"
		}
		for i, c := range s.Columns {
			switch {
			case c.Detail:
			case c.Words && ours(r.Cells[i]):
				line += " " + r.Cells[i] + " |"
			default:
				line += " " + code(r.Cells[i]) + " |"
			}
		}
		if body.Len()+len(line)+1 > room {
			break
		}
		body.WriteString(line + "\n")
		shown++
	}
	table := head + body.String()
	if n := len(s.Rows) - shown; n > 0 {
		table += "\n" + more(n) + "\n"
	}
	if len(s.Same) > 0 {
		table += "\n" + number(len(s.Same)) + " the same\n"
	}
	if m.told[table] {
		m.same = append(m.same, s.Title)
		return
	}
	m.told[table] = true
	m.WriteString(table + tail)
}

// end writes the list of omitted tables and the link to the whole report.
func (m *markdowner) end(command string) string {
	if len(m.same) > 0 {
		fmt.Fprintf(m, "The same as above: %s.\n\n", cut(strings.Join(m.same, ", "), 300))
	}
	if len(m.missing) > 0 {
		rest := cut(strings.Join(m.missing, ", "), 300)
		fmt.Fprintf(m, "No room here for %s: `slimctl %s --format html` has all of it.\n\n", rest, command)
	}
	return m.String()
}

// writeMarkdown divides the space among the platforms.
func writeMarkdown(w io.Writer, command string, n int, write func(m *markdowner, i int)) error {
	var out strings.Builder
	told := map[string]bool{}
	for i := range n {
		left := maxMarkdown - reserve - out.Len()
		m := &markdowner{told: told, limit: min(left, max(left/(n-i), minPlatform))}
		if m.limit < minPlatform {
			fmt.Fprintf(&out, "%s, for which there is no room here: `slimctl %s --format html` has all of them.\n",
				count(n-i, "more platform"), command)
			break
		}
		write(m, i)
		out.WriteString(m.end(command))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func surfacesMarkdown(w io.Writer, surfaces []*inspect.Surface) error {
	return writeMarkdown(w, "inspect", len(surfaces), func(m *markdowner, i int) {
		p := surfacePage(surfaces[i])
		m.put("### Surface of %s on %s\n\n| | |\n|---|---|\n", code(quote(surfaces[i].Reference)), code(p.Platform))
		for _, f := range p.Facts {
			m.put("| %s | %s |\n", f.Name, code(f.Value))
		}
		m.put("\n%s\n\n| exposes | |\n|---|--:|\n", p.Summary[0])
		for _, s := range p.Sections {
			if s.Count != "" && !s.Detail {
				m.put("| %s | %s |\n", s.Title, s.Count)
			}
		}
		m.put("\n")
		for _, s := range p.Sections {
			if !s.Detail {
				m.section(s)
			}
		}
	})
}

func diffsMarkdown(w io.Writer, diffs []*diff.Diff, o Options) error {
	return writeMarkdown(w, "diff", len(diffs), func(m *markdowner, i int) {
		d := diffs[i]
		p := diffPage(d)
		m.put("### From %s to %s on %s\n\n", code(quote(d.Base.Reference)), code(quote(d.Slim.Reference)), code(p.Platform))
		if b := bannerOf(o.Verdict); o.Verdict != nil && i == 0 {
			m.put("**%s** %s\n\n", b.Title, code(b.Words))
			for _, f := range b.Findings {
				m.put("- %s\n", code(f))
			}
			m.put("\n")
		}
		if o.Link != "" && i == 0 { // first, while there is space
			m.put("[Whole report](<%s>)\n\n", o.Link)
		}
		summary := func() {
			for _, s := range p.Summary {
				if note, ok := strings.CutPrefix(s, "Note: "); ok {
					s = "Note: " + code(note)
				}
				m.put("- %s\n", s)
			}
			m.put("\n")
		}
		if len(p.Sections) == 0 {
			summary()
			return
		}
		m.put("| | base | slim | change |\n|---|--:|--:|--:|\n")
		m.put("| routes that answer from outside | %s | %s | %s |\n",
			number(d.Surface.Outside.Base), number(d.Surface.Outside.Slim), signed(d.Surface.Outside.Slim-d.Surface.Outside.Base))
		for _, g := range groups(d) {
			m.put("| %s | %s | %s | %s |\n", g.title, number(g.of.Base), number(g.of.Slim), signed(g.of.Slim-g.of.Base))
		}
		for _, s := range sizeLines(d) {
			m.put("| %s | %s | %s | %s |\n", s.what, Bytes(s.base), Bytes(s.slim), change(s.slim-s.base))
		}
		m.put("\n")
		summary()
		m.section(biggestChanges(d.Files))
		for _, s := range p.Sections {
			m.section(s)
		}
		m.section(componentChanges(d))
		if i == len(diffs)-1 && o.Link == "" {
			m.put("Whole report: `slimctl diff --format html -o diff.html` %s %s\n", code(quote(d.Base.Reference)), code(quote(d.Slim.Reference)))
		}
	})
}

// biggestChanges returns paths by the number of bytes added or removed; a directory that was added or removed as a
// whole counts as one.
func biggestChanges(changes []diff.Change) section {
	s := section{Title: "biggest changes", Columns: []column{numeral("bytes"), numeral("paths"), name("path"), name("differs")}}
	type found struct {
		path string
		n    *node
	}
	var all []found
	keep := func() {
		slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(absolute(b.n.sums.bytes), absolute(a.n.sums.bytes)) })
		all = all[:min(len(all), biggest)]
	}
	nodes := treeOf(changes)
	for i := 0; i < len(nodes); {
		n := &nodes[i]
		i++
		if n.change == nil || n.sums.paths > 1 && n.whole() == "" && n.change.Kind == diff.Meta {
			continue
		}
		if all = append(all, found{n.change.Path, n}); len(all) == 1000*biggest {
			keep()
		}
		if n.whole() != "" {
			i = int(n.end)
		}
	}
	keep()
	for _, f := range all {
		words := ""
		if f.n.whole() == "" {
			words = describeChange(f.n.change)
		}
		cells := []string{change(f.n.sums.bytes), number(int(f.n.sums.paths)), quote(f.path), words}
		s.Rows = append(s.Rows, row{Mark: f.n.change.Kind, Cells: cells})
	}
	s.Count = fmt.Sprintf("(%d of %s)", len(s.Rows), number(len(changes)))
	return s
}

func absolute(n int64) int64 { return max(n, -n) }
