package shell

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// script is a file that may be a shell script, parsed when it is one.
type script struct {
	path  string // links followed
	file  *syntax.File
	bash  bool
	why   string // the reason that it can't be followed; empty for a script that can
	shell bool   // it is a shell script, whether it can be followed or not
}

// parseScript parses text as bash. When it can't, file is nil and why is the reason, as part of a note.
func parseScript(text string) (file *syntax.File, why string) {
	if len(text) > maxScript {
		return nil, fmt.Sprintf("it has %d bytes; more than %d are not read", len(text), maxScript)
	}
	if nestingBound(text) > maxNesting {
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

// parseText sets the fields of s from the text of its file.
func (s *script) parseText(text string) {
	interpreter := interpreterOf(text)
	s.bash, s.shell = interpreter == "bash", slices.Contains(shells, interpreter)
	switch {
	case strings.HasPrefix(text, "\x7fELF"):
		s.why = isProgram
	case interpreter != "" && !s.shell:
		s.why = "it is a script for " + interpreter
	default:
		s.file, s.why = parseScript(text)
		s.shell = s.shell || s.why == "" // without a first line it is sourced, or run by a shell that is named
	}
}

// nestingBound returns an upper bound on how deeply text can be nested, in units of about 4 kB of the parser's stack:
// it counts every sign that opens something as open at once. The parser recurses, and Go can't recover from a stack
// that is full.
func nestingBound(text string) int {
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

// interpreterOf returns the base name of the interpreter in a script's first line, or "" when the line names none.
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

// maxNesting is the largest nestingBound of a text that is parsed.
const maxNesting = 30_000
