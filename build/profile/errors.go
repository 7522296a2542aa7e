package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxErrors is the number of problems that are listed; the others are only counted.
const maxErrors = 100

// String returns "file:line:column", or the file alone if there is no line. Columns count characters.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one problem in a profile.
type Error struct {
	Position Position
	// Path is the path of the key, such as remove[3].when.line; empty for the file as a whole.
	Path string
	Msg  string
	// Hint is what to do, such as `did you mean "platforms"?`, or empty.
	Hint string
}

// Error returns "file:line:column: key.path: problem; hint".
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

// Errors holds all problems in a profile and in what it extends, in the order of the chain, then by line.
type Errors []*Error

// Error returns one problem per line, at most maxErrors of them.
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

// Unwrap returns the single problems, for errors.As.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, one := range e {
		out[i] = one
	}
	return out
}

// sort orders the problems by file, in the order of chain, then by position.
func (e Errors) sort(chain []string) {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(slices.Index(chain, a.Position.File), slices.Index(chain, b.Position.File)),
			cmp.Compare(a.Position.Line, b.Position.Line),
			cmp.Compare(a.Position.Column, b.Position.Column),
		)
	})
}
