//go:build linux

package harness

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table is a Markdown table with aligned columns.
type Table struct{ w *tabwriter.Writer }

// NewTable writes the head of a table. The first column holds words, the others numbers.
func NewTable(w io.Writer, columns ...string) Table {
	t := Table{tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.Debug)}
	t.Row(columns...)
	rule := make([]string, len(columns))
	for i := range rule {
		rule[i] = "--:"
	}
	rule[0] = "---"
	t.Row(rule...)
	return t
}

// Row writes one row.
func (t Table) Row(cells ...string) { fmt.Fprintf(t.w, "| %s \t\n", strings.Join(cells, "\t ")) }

// Rowf writes one row. Tabs in format separate cells.
func (t Table) Rowf(format string, args ...any) {
	t.Row(strings.Split(fmt.Sprintf(format, args...), "\t")...)
}

// End writes the aligned table.
func (t Table) End() error { return t.w.Flush() }
