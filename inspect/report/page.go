package report

import "strings"

// page is the report on one platform before it has a form: text, Markdown and HTML all draw it. All of its strings are
// quoted already.
type page struct {
	Platform string
	Facts    []fact
	// Summary says in sentences what matters most.
	Summary  []string
	Sections []section
}

type fact struct{ Name, Value string }

// section is one table of a page.
type section struct {
	// ID is stable: an anchor in HTML.
	ID, Title string
	// Count goes beside the title: "17", "17 → 5".
	Count   string
	Columns []column
	Rows    []row
	// Limit is how many rows the text has; 0 is all of them.
	Limit int
	// Detail has the section left out of the text unless Options.All is set.
	Detail bool
	// Brief is what the text has in the place of the rows unless Options.All is set; one that is empty leaves all of it out.
	Brief *brief
	// First has the text leave a line free above.
	First bool
	// Bars has each row's Share drawn in HTML.
	Bars bool
	// Same are names that don't differ, in a section of a diff.
	Same []string
}

type column struct {
	Name string
	// Number is set to the right.
	Number bool
	// Words are ours; whatever else is in a column is the image's own.
	Words bool
	// Detail is left out of the text.
	Detail bool
}

type row struct {
	// Mark is one of diff's kinds, or "=" for what is on both sides; empty in a surface.
	Mark  string
	Cells []string
	// Quiet is true for what matters less than the rest.
	Quiet bool
	// Share is in percent of the whole.
	Share float64
}

// brief is a table in which rows that tell the same of several names are one.
type brief struct {
	Rows []briefRow
	// Lines is how many lines the names of one row have; 0 is maxLines.
	Lines int
	// Left is what else there is, in words.
	Left string
	at   map[string]int // by what is the same
}

type briefRow struct {
	Cells, Names []string
	Quiet        bool
}

// add adds a name to those of which the same is told.
func (b *brief) add(name string, quiet bool, same ...string) {
	key := strings.Join(same, "\x00")
	at, ok := b.at[key]
	if !ok {
		if b.at == nil {
			b.at = map[string]int{}
		}
		at = len(b.Rows)
		b.at[key] = at
		b.Rows = append(b.Rows, briefRow{Cells: same, Quiet: quiet})
	}
	if r := &b.Rows[at]; len(r.Names) == 0 || r.Names[len(r.Names)-1] != name {
		r.Names = append(r.Names, name)
	}
}

func newSection(id, title string, columns ...column) section {
	return section{ID: id, Title: title, Columns: columns}
}

// counted puts the number of rows beside the title.
func (s section) counted() section {
	s.Count = number(len(s.Rows))
	return s
}

func (s *section) add(cells ...string) { s.Rows = append(s.Rows, row{Cells: cells}) }

func name(s string) column    { return column{Name: s} }
func numeral(s string) column { return column{Name: s, Number: true, Words: true} }
func words(s string) column   { return column{Name: s, Words: true} }
func detail(s string) column  { return column{Name: s, Detail: true} }
