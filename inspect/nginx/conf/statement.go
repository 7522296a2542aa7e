package conf

import (
	"slices"
	"strings"
)

// Statement is a directive, or a line of a block that holds values, such as map's.
type Statement struct {
	// Words are its name, which is there always, and its arguments, without quotes and backslashes.
	Words []string
	// Block has the statements between its braces; IsBlock says that it has braces.
	Block   []*Statement
	IsBlock bool
	file    string
	line    int
}

// Name is the name of the directive.
func (s *Statement) Name() string { return s.Words[0] }

// Arg gives an argument, counted from 1; empty when there are fewer.
func (s *Statement) Arg(n int) string {
	if n < len(s.Words) {
		return s.Words[n]
	}
	return ""
}

// Last gives the last argument.
func (s *Statement) Last() string { return s.Arg(len(s.Words) - 1) }

// valueBlocks are blocks that hold no directives.
var valueBlocks = []string{"map", "geo", "types", "split_clients", "charset_map", "match", "geoip2", "otel_exporter"}

// HoldsValues tells a block whose lines are values and no directives.
func (s *Statement) HoldsValues() bool { return slices.Contains(valueBlocks, s.Name()) }

// String is the statement on one line, for people.
func (s *Statement) String() string { return strings.Join(s.Words, " ") }

// Brief is the beginning of it, as Cut gives it: what is inherited is written for each location.
func (s *Statement) Brief() string {
	n, size := 0, 0
	for n < len(s.Words) && size <= maxBrief {
		size += len(s.Words[n]) + 1
		n++
	}
	return Cut(strings.Join(s.Words[:n], " "))
}

// Only gives the statements with one of the names.
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
