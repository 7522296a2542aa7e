package shell

import (
	"fmt"
	"path"
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

// parse takes the text of a file in.
func (s *script) parse(text string) {
	var interpreter string
	interpreter, s.shell, s.bash = isShell(text)
	switch {
	case strings.HasPrefix(text, "\x7fELF"):
		s.why = isProgram
		return
	case interpreter != "" && !s.shell:
		s.why = "it is a script for " + interpreter
		return
	}
	s.file, s.why = parse(text)
	if s.why == "" && interpreter == "" {
		s.shell = true // sourced, or run by a shell that is named
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

// isShell tells what runs a script by its first line.
func isShell(content string) (interpreter string, shell, bash bool) {
	line, _, _ := strings.Cut(content, "\n")
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if !strings.HasPrefix(line, "#!") || len(words) == 0 {
		return "", false, false
	}
	interpreter = path.Base(words[0])
	if interpreter == "env" {
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
				interpreter = path.Base(w)
				break
			}
		}
	}
	switch interpreter {
	case "bash":
		return interpreter, true, true
	case "sh", "dash", "ash", "ksh", "zsh", "rbash":
		return interpreter, true, false
	}
	return interpreter, false, false
}

// maxNesting bounds what nesting gives.
const maxNesting = 30_000
