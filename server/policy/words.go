package policy

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Words splits the string form of a call into argv, for clients that only know sandbox_execute_bash. No shell
// interprets it: Words admits only plain and quoted words. It drops a first word agent-browser.
//
// Such clients were also taught AGENT_BROWSER_SESSION=ID before the command, and the options --cdp PORT and --json,
// which agent-browser reads at any place. The first sets session, unchanged. The options are dropped, since
// browser-shell sets them itself: --cdp only if it names cdpPort, and both only outside quotes.
//
// The refusals are argv.empty (no words), argv.size (more than 256 KiB), argv.count (more than 69 words) and, for
// shell syntax, SANDBOX_VIOLATION shell.syntax.
func Words(cmd string, cdpPort int) (words []string, session string, r *Refusal) {
	all, r := splitWords(cmd)
	if r != nil {
		return nil, "", r
	}
	for len(all) > 0 && assignment.MatchString(all[0].unquoted()) {
		name, value, _ := strings.Cut(string(all[0].text), "=")
		if name != sessionVariable || session != "" {
			return nil, "", notWords("an assignment other than one " + sessionVariable + "=ID")
		}
		if value == "" {
			return nil, "", notWords("an empty " + sessionVariable)
		}
		session, all = value, all[1:]
	}
	if len(all) > 0 && string(all[0].text) == "agent-browser" {
		all = all[1:]
	}
	for i := 0; i < len(all); i++ {
		text := string(all[i].text)
		switch quoted := text != all[i].unquoted(); {
		case text == "--json" && !quoted:
		case text == "--cdp" && !quoted && i+1 < len(all) && string(all[i+1].text) == strconv.Itoa(cdpPort):
			i++
		default:
			words = append(words, text)
		}
	}
	if len(words) == 0 {
		return nil, "", refuse(InvalidParams, "argv.empty", "the command is empty; give a subcommand and its arguments, for instance snapshot -i")
	}
	return words, session, nil
}

// sessionVariable is the one variable that may be assigned before the command.
const sessionVariable = "AGENT_BROWSER_SESSION"

// assignment matches a first word that a shell reads as an assignment.
var assignment = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*\+?=`)

func notWords(what string) *Refusal {
	return refuse(SandboxViolation, "shell.syntax", "the command holds %s, and no shell reads it: send one agent-browser command of plain words, and put a word with other characters in single quotes, for instance open 'https://example.com/?a=1&b=2'", what)
}

// unquoted maps characters that a command can't contain outside quotes, because a shell gives them a meaning. A
// question mark and an equals sign can stand there: addresses have them.
var unquoted = map[rune]string{
	'\n': "a line break outside quotes", '\\': "a backslash", '$': "an expansion ($)", '`': "a command substitution",
	'*': "a pattern (*)", '[': "a pattern ([)", ']': "a pattern (])", '{': "a brace", '}': "a brace",
	'~': "a tilde", '(': "a parenthesis", ')': "a parenthesis", '<': "a redirection", '>': "a redirection",
	'|': "a pipe", '&': "a background or && sign", ';': "a second command (;)", '!': "an exclamation mark", '^': "a caret",
}

// word is one word of a command.
type word struct {
	text  []byte
	plain int // the length of the part before the first quote
}

// unquoted returns the part of the word before its first quote.
func (w word) unquoted() string { return string(w.text[:w.plain]) }

// splitWords splits a command at its blanks and removes the quotes. It refuses all that a shell would interpret.
func splitWords(cmd string) (words []word, r *Refusal) {
	if len(cmd) > maxArgvSize {
		return nil, refuse(BudgetExceeded, "argv.size", "the command is larger than %d bytes; send less", maxArgvSize)
	}
	if !utf8.ValidString(cmd) || strings.ContainsRune(cmd, utf8.RuneError) {
		return nil, notWords("bytes that are not clean UTF-8")
	}
	quote, quoted, between := rune(0), false, true
	for _, c := range cmd {
		blank := quote == 0 && (c == ' ' || c == '\t')
		switch {
		case unicode.IsControl(c) && c != '\n' && c != '\t':
			return nil, notWords("a control character")
		case quote == '"' && (c == '$' || c == '`' || c == '\\'):
			return nil, notWords(unquoted[c] + " in double quotes")
		case quote == 0 && unquoted[c] != "":
			return nil, notWords(unquoted[c])
		case quote == 0 && between && c == '#':
			return nil, notWords("a comment (#)")
		case quote == 0 && !blank && (unicode.IsSpace(c) || unicode.In(c, unicode.Cf)):
			return nil, notWords("an invisible character or a blank that is no space")
		}
		if !blank && between {
			words, quoted = append(words, word{}), false
		}
		between = blank
		switch {
		case blank:
		case quote == 0 && (c == '"' || c == '\''):
			quote, quoted = c, true
		case c == quote:
			quote = 0
		default:
			w := &words[len(words)-1]
			w.text = utf8.AppendRune(w.text, c)
			if !quoted {
				w.plain = len(w.text)
			}
		}
	}
	if quote != 0 {
		return nil, notWords("a quote that is not closed")
	}
	if len(words) > maxArgs+5 { // and the words that Words drops
		return nil, refuse(BudgetExceeded, "argv.count", "the command has more than %d words; send fewer", maxArgs)
	}
	return words, nil
}
