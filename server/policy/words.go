package policy

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Words splits the string form of a call into argv, for clients that only know sandbox_execute_bash. No shell
// interprets it: Words admits only one command of plain and quoted words, which every shell reads alike. It drops a
// first word agent-browser.
//
// Such clients were also taught AGENT_BROWSER_SESSION=ID before the command and --cdp PORT after agent-browser. The
// first sets session, unchanged; the second is dropped if it names cdpPort. Other prefixes are refused.
//
// The refusals are argv.empty (no words), argv.size (more than 256 KiB), argv.count (more than 68 words) and, for all
// other shell syntax, SANDBOX_VIOLATION shell.syntax.
func Words(cmd string, cdpPort int) (words []string, session string, r *Refusal) {
	if r := limitInput(cmd); r != nil {
		return nil, "", r
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(cmd), "")
	if err != nil {
		return nil, "", notWords("an unfinished or unknown form")
	}
	words, session, r = simpleCommand(file)
	if r != nil {
		return nil, "", r
	}
	if len(words) > 0 && words[0] == "agent-browser" {
		words = words[1:]
	}
	if len(words) > 1 && words[0] == "--cdp" && words[1] == strconv.Itoa(cdpPort) {
		words = words[2:]
	}
	if len(words) == 0 {
		return nil, "", refuse(InvalidParams, "argv.empty", "the command is empty; give a subcommand and its arguments, for instance snapshot -i")
	}
	return words, session, nil
}

// sessionVariable is the one variable that may be assigned before the command.
const sessionVariable = "AGENT_BROWSER_SESSION"

// assignedSession reads the assignments before a command: none, or the one that sets the session.
func assignedSession(all []*syntax.Assign) (string, *Refusal) {
	if len(all) == 0 {
		return "", nil
	}
	a := all[0]
	if len(all) > 1 || a.Name == nil || a.Name.Value != sessionVariable || a.Value == nil || a.Append || a.Naked || a.Index != nil || a.Array != nil {
		return "", notWords("an assignment other than one " + sessionVariable + "=ID")
	}
	id, r := joinLiteral(a.Value.Parts)
	if r == nil && id == "" {
		return "", notWords("an empty " + sessionVariable)
	}
	return id, r
}

func notWords(what string) *Refusal {
	return refuse(SandboxViolation, "shell.syntax", "the command holds %s, and no shell reads it: send one agent-browser command of plain words, and put a word with other characters in single quotes, for instance open 'https://example.com/?a=1&b=2'", what)
}

// unquoted maps characters with a meaning to a shell outside quotes.
var unquoted = map[rune]string{
	'\n': "a line break outside quotes", '\\': "a backslash", '$': "an expansion ($)", '`': "a command substitution",
	'*': "a pattern (*)", '?': "a pattern (?)", '[': "a pattern ([)", ']': "a pattern (])", '{': "a brace", '}': "a brace",
	'~': "a tilde", '(': "a parenthesis", ')': "a parenthesis", '<': "a redirection", '>': "a redirection",
	'|': "a pipe", '&': "a background or && sign", ';': "a second command (;)", '!': "an exclamation mark", '^': "a caret",
}

// limitInput limits the parser's input, since its recursion is unlimited: few words, and outside quotes no character
// that opens a nested form. It is also a second opinion: the input must pass both.
func limitInput(cmd string) *Refusal {
	if len(cmd) > maxArgvSize {
		return refuse(BudgetExceeded, "argv.size", "the command is larger than %d bytes; send less", maxArgvSize)
	}
	if !utf8.ValidString(cmd) || strings.ContainsRune(cmd, utf8.RuneError) {
		return notWords("bytes that are not clean UTF-8")
	}
	quote, between, words := rune(0), true, 0
	for _, c := range cmd {
		blank := c == ' ' || c == '\t'
		begins := between && !blank
		between = quote == 0 && blank
		if begins {
			words++
		}
		switch {
		case unicode.IsControl(c) && c != '\n' && c != '\t':
			return notWords("a control character")
		case quote == '"' && (c == '$' || c == '`' || c == '\\'):
			return notWords(unquoted[c] + " in double quotes")
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case unquoted[c] != "":
			return notWords(unquoted[c])
		case begins && c == '#':
			return notWords("a comment (#)")
		case !blank && (unicode.IsSpace(c) || unicode.In(c, unicode.Cf)):
			return notWords("an invisible character or a blank that is no space")
		}
	}
	if quote != 0 {
		return notWords("a quote that is not closed")
	}
	if words > maxArgs+4 { // and the words allowed in front
		return refuse(BudgetExceeded, "argv.count", "the command has more than %d words; send fewer", maxArgs)
	}
	return nil
}

// simpleCommand returns the words of a file that is one simple command, and the session set before it.
func simpleCommand(file *syntax.File) (words []string, session string, r *Refusal) {
	if len(file.Stmts) == 0 && len(file.Last) == 0 {
		return nil, "", nil
	}
	if len(file.Stmts) != 1 || len(file.Last) != 0 {
		return nil, "", notWords("more than one command, or a comment")
	}
	s := file.Stmts[0]
	if s.Negated || s.Background || s.Coprocess || s.Disown || s.Semicolon.IsValid() || len(s.Redirs) > 0 || len(s.Comments) > 0 {
		return nil, "", notWords("a redirection, a comment or an operator")
	}
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok {
		return nil, "", notWords("a keyword of the shell's language")
	}
	if session, r = assignedSession(call.Assigns); r != nil {
		return nil, "", r
	}
	for _, w := range call.Args {
		text, r := joinLiteral(w.Parts)
		if r != nil {
			return nil, "", r
		}
		words = append(words, text)
	}
	return words, session, nil
}

// joinLiteral joins the parts of a word if all are plain or quoted text.
func joinLiteral(parts []syntax.WordPart) (string, *Refusal) {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(p.Value)
			continue
		case *syntax.SglQuoted:
			if !p.Dollar {
				b.WriteString(p.Value)
				continue
			}
		case *syntax.DblQuoted:
			if !p.Dollar {
				text, r := joinLiteral(p.Parts)
				if r != nil {
					return "", r
				}
				b.WriteString(text)
				continue
			}
		}
		return "", notWords("a word that a shell would expand")
	}
	return b.String(), nil
}
