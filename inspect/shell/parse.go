package shell

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// script is a parsed script.
type script struct {
	path  string // links followed
	file  *syntax.File
	bash  bool
	why   string // why it can't be followed; empty for one that can
	shell bool   // it is one, whether it can be read or not
}

// parse parses text. why says what is wrong with it.
func parse(text string) (file *syntax.File, why string) {
	if len(text) > maxScript {
		return nil, fmt.Sprintf("it has %d bytes; more than %d are not read", len(text), maxScript)
	}
	if nesting(text) > maxNesting {
		return nil, "it may be nested too deeply to be parsed"
	}
	defer func() {
		if r := recover(); r != nil {
			file, why = nil, fmt.Sprintf("it can't be parsed: %v", r)
		}
	}()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, fmt.Sprintf("it can't be parsed: %v", err)
	}
	return file, ""
}

// shells are the interpreters whose language is followed.
var shells = []string{"bash", "sh", "dash", "ash", "ksh", "zsh", "rbash"}

// parse takes the text of a file in.
func (s *script) parse(text string) {
	interpreter := interpreterOf(text)
	s.bash, s.shell = interpreter == "bash", slices.Contains(shells, interpreter)
	switch {
	case strings.HasPrefix(text, "\x7fELF"):
		s.why = isProgram
	case interpreter != "" && !s.shell:
		s.why = "it is a script for " + interpreter
	default:
		s.file, s.why = parse(text)
		s.shell = s.shell || s.why == "" // without a first line it is sourced, or run by a shell that is named
	}
}

// nesting is more than how deeply a script can be nested, in units of about 4 kB of the parser's stack: it takes every
// sign that opens something to be open at once. The parser recurses, and Go can't recover from a stack that is full.
func nesting(text string) int {
	n := 3*strings.Count(text, "(") + strings.Count(text, "{")
	for i := 1; i < len(text); i++ {
		if c := text[i-1]; text[i] == '[' && (c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9') {
			n += 4
		}
	}
	for _, word := range []string{"if", "while", "until", "for", "case", "select", "coproc", "time", "!", "?", "`"} {
		n += strings.Count(text, word)
	}
	return n
}

// interpreterOf is what runs a script by its first line.
func interpreterOf(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	line, ok := strings.CutPrefix(line, "#!")
	words := strings.Fields(line)
	if !ok || len(words) == 0 {
		return ""
	}
	for _, w := range words[1:] {
		if path.Base(words[0]) == "env" && !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
			return path.Base(w)
		}
	}
	return path.Base(words[0])
}

// maxNesting bounds what nesting gives.
const maxNesting = 30_000
