package report

import "strings"

// page is the report on one platform, independent of its form: text, Markdown and HTML render it. All of its strings
// are already quoted.
type page struct {
	Platform string
	Facts    []fact
	// Summary holds sentences with the main results.
	Summary  []string
	Sections []section
}

type fact struct{ Name, Value string }

// section is one table of a page.
type section struct {
	// ID is stable: an anchor in HTML.
	ID, Title string
	// Count is the text beside the title: "17", "17 → 5".
	Count   string
	Columns []column
	Rows    []row
	// Limit is the maximum number of rows in the text; 0 means all.
	Limit int
	// Detail omits the section from the text unless Options.All is set.
	Detail bool
	// Brief replaces the rows in the text unless Options.All is set; an empty one omits the section.
	Brief *brief
	// First precedes the section by an empty line in the text.
	First bool
	// Bars draws each row's Share in HTML.
	Bars bool
	// Same lists equal names, in a section of a diff.
	Same []string
}

type column struct {
	Name string
	// Number aligns the column to the right.
	Number bool
	// Words marks a column of our own texts; other columns have the image's.
	Words bool
	// Detail omits the column from the text.
	Detail bool
}

type row struct {
	// Mark is one of diff's kinds, or "=" for a row on both sides; empty in a surface.
	Mark  string
	Cells []string
	// Quiet marks a row of less importance.
	Quiet bool
	// Share is the percentage of the whole.
	Share float64
}

// brief is a table with one row for all names that have the same values.
type brief struct {
	Rows []briefRow
	// Lines limits the lines for the names of a row; 0 is maxLines.
	Lines int
	// Left summarizes the omitted rest in words.
	Left string
	at   map[string]int // by the common values
}

type briefRow struct {
	Cells, Names []string
	Quiet        bool
}

// add adds a name to the row with these values.
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

// counted sets the number of rows beside the title.
func (s section) counted() section {
	s.Count = number(len(s.Rows))
	return s
}

func (s *section) add(cells ...string) { s.Rows = append(s.Rows, row{Cells: cells}) }

func name(s string) column    { return column{Name: s} }
func numeral(s string) column { return column{Name: s, Number: true, Words: true} }
func words(s string) column   { return column{Name: s, Words: true} }
func detail(s string) column  { return column{Name: s, Detail: true} }
