package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxErrors is how many problems are listed; the rest is only counted.
const maxErrors = 100

// String gives "file:line:column"; the column counts characters. Without a line it gives the file alone.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one problem of a profile.
type Error struct {
	Position Position
	// Path is the key's path, such as remove[3].when.line; empty for the file as a whole.
	Path string
	Msg  string
	// Hint says what to do, such as `did you mean "platforms"?`; it may be empty.
	Hint string
}

// Error gives "file:line:column: key.path: what was wrong; hint".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Position.String() + ": ")
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Msg)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Errors are all the problems found in a profile and in what it extends: in the order of the chain, then by line.
type Errors []*Error

// Error gives one problem a line, the first hundred of them.
func (e Errors) Error() string {
	var lines []string
	for _, one := range e[:min(len(e), maxErrors)] {
		lines = append(lines, one.Error())
	}
	if more := len(e) - maxErrors; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more problems", more))
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the problems one by one, for errors.As.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, one := range e {
		out[i] = one
	}
	return out
}

// sort orders the problems by file, in the order of chain, and by place in the file.
func (e Errors) sort(chain []string) {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(slices.Index(chain, a.Position.File), slices.Index(chain, b.Position.File)),
			cmp.Compare(a.Position.Line, b.Position.Line),
			cmp.Compare(a.Position.Column, b.Position.Column),
		)
	})
}
