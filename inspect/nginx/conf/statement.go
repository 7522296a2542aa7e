package conf

import (
	"slices"
	"strings"
)

// Statement is a directive, or a line of a block with values, such as map's.
type Statement struct {
	// Words are its name, which always exists, and its arguments, without quotes and backslashes.
	Words []string
	// Block holds the statements between its braces; IsBlock reports whether it has braces.
	Block   []*Statement
	IsBlock bool
	file    string
	line    int
}

// Name returns the name of the directive.
func (s *Statement) Name() string { return s.Words[0] }

// Arg returns an argument, counted from 1; empty if there are fewer.
func (s *Statement) Arg(n int) string {
	if n < len(s.Words) {
		return s.Words[n]
	}
	return ""
}

// Last returns the last argument.
func (s *Statement) Last() string { return s.Arg(len(s.Words) - 1) }

// valueBlocks lists blocks without directives.
var valueBlocks = []string{"map", "geo", "types", "split_clients", "charset_map", "match", "geoip2", "otel_exporter"}

// HoldsValues reports whether the lines of a block are values rather than directives.
func (s *Statement) HoldsValues() bool { return slices.Contains(valueBlocks, s.Name()) }

// String returns the statement on one line, for people.
func (s *Statement) String() string { return strings.Join(s.Words, " ") }

// Brief returns its beginning, shortened by Cut: inherited statements are repeated for each location.
func (s *Statement) Brief() string {
	n, size := 0, 0
	for n < len(s.Words) && size <= maxBrief {
		size += len(s.Words[n]) + 1
		n++
	}
	return Cut(strings.Join(s.Words[:n], " "))
}

// Only returns the statements with one of the names.
func Only(block []*Statement, names ...string) []*Statement {
	var out []*Statement
	for _, s := range block {
		for _, name := range names {
			if s.Name() == name {
				out = append(out, s)
			}
		}
	}
	return out
}
