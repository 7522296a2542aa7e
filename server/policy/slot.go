package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// slot checks one positional or option value and returns the text for agent-browser. at names the position for the
// error ("argv[1]").
type slot func(p *Policy, at, s string) (string, *Refusal)

const (
	maxSelector = 2048
	maxText     = 64 << 10
	maxDepth    = 100
	maxPixels   = 10000
)

var (
	// flagWord and flagAssign match words that the parser of either generation could read as an option. "-5", "-" and
	// "--- x" are plain text to both.
	flagWord   = lazyregexp.New(`^(--[A-Za-z]\S*|-[A-Za-z])$`)
	flagAssign = lazyregexp.New(`^--[A-Za-z][A-Za-z0-9-]*=`)

	reference = lazyregexp.New(`^(?:ref=)?@?(e[0-9]{1,6})$`)

	digits   = lazyregexp.New(`^\+?[0-9]+$`)
	number   = lazyregexp.New(`^[0-9]{1,6}$`)
	attrName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$`)
	pasteKey = lazyregexp.New(`^(.*\+)?((Control|Meta)\+(.*\+)?[vV]|Shift\+(.*\+)?Insert)$`) // the clipboard is shared by all sessions
	keyName  = lazyregexp.New(`^((Control|Alt|Shift|Meta)\+){0,3}(Enter|Tab|Escape|Backspace|Delete|Insert|Space|Home|End|PageUp|PageDown|Arrow(Up|Down|Left|Right)|F([1-9]|1[0-2])|[!-~])$`)
	shotName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(png|jpg|jpeg|webp)$`)
	shotExt  = lazyregexp.New(`(?i)\.(png|jpe?g|webp)$`)
	pdfName  = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.pdf$`)
	shotPath = lazyregexp.New(`(?i)^(~|file:)|[/\\]|\.\.`)
)

// isFlagLike reports whether agent-browser could read s as an option.
func isFlagLike(s string) bool { return flagWord.MatchString(s) || flagAssign.MatchString(s) }

// oneLine refuses characters that only a text may contain, and a leading dash.
func oneLine(at, s string, limit int) *Refusal {
	switch {
	case s == "":
		return blocked("value.empty", "%s is empty", at)
	case len(s) > limit:
		return blocked("value.length", "%s is longer than %d bytes; use a shorter value", at, limit)
	case strings.HasPrefix(s, "-"):
		return blocked("value.dash", "%s begins with a dash, which only text may", at)
	case strings.ContainsAny(s, "\n\t"):
		return blocked("argv.control", "%s holds a line break or a tab, which only text may", at)
	}
	return nil
}

// selector admits an element reference from a snapshot (@e1; without its @ and as ref=e1 it means the same) or a CSS
// selector.
func selector(_ *Policy, at, s string) (string, *Refusal) {
	if r := oneLine(at, s, maxSelector); r != nil {
		return "", r
	}
	if m := reference.FindStringSubmatch(s); m != nil {
		return "@" + m[1], nil
	}
	if !strings.ContainsFunc(s, func(c rune) bool { return c == '*' || unicode.IsLetter(c) || unicode.IsDigit(c) }) {
		return "", blocked("value.selector", "%s is no selector; use a reference from snapshot -i such as @e3, or a CSS selector such as #send", at)
	}
	return s, nil
}

// pattern admits a URL glob for `wait --url`.
func pattern(_ *Policy, at, s string) (string, *Refusal) {
	return s, oneLine(at, s, maxSelector)
}

// text admits the text for a field; it may be empty and contain line breaks.
func text(_ *Policy, at, s string) (string, *Refusal) {
	if len(s) > maxText {
		return "", blocked("value.length", "%s is longer than %d bytes; use a shorter value", at, maxText)
	}
	return s, nil
}

// filledText admits a text that is not empty.
func filledText(_ *Policy, at, s string) (string, *Refusal) {
	return s, oneLine(at, s, maxText)
}

// key admits one key with modifiers: Enter, Control+a. It also admits common other names: Return, Esc, Ctrl+A.
func key(_ *Policy, at, s string) (string, *Refusal) {
	s = canonicalKey(s)
	if !keyName.MatchString(s) {
		return "", blocked("press.key", "%s is not a key; use one of Enter, Tab, Escape, Backspace, Delete, Space, Home, End, PageUp, PageDown, ArrowUp, F1..F12 or one character, with Control+, Alt+, Shift+ or Meta+ in front", at)
	}
	if pasteKey.MatchString(s) {
		return "", blocked("press.paste", "%s would paste what another session or a person copied; use fill or type", at)
	}
	return s, nil
}

// keyNames maps other names of keys and modifiers, in lower case, to agent-browser's.
var keyNames = map[string]string{
	"ctrl": "Control", "control": "Control", "cmd": "Meta", "command": "Meta", "super": "Meta", "win": "Meta", "meta": "Meta",
	"option": "Alt", "alt": "Alt", "shift": "Shift",
	"return": "Enter", "enter": "Enter", "tab": "Tab", "esc": "Escape", "escape": "Escape", "del": "Delete", "delete": "Delete", "ins": "Insert", "insert": "Insert",
	"backspace": "Backspace", "space": "Space", "spacebar": "Space", "home": "Home", "end": "End",
	"up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight",
	"arrowup": "ArrowUp", "arrowdown": "ArrowDown", "arrowleft": "ArrowLeft", "arrowright": "ArrowRight",
	"pgup": "PageUp", "pageup": "PageUp", "pgdn": "PageDown", "pgdown": "PageDown", "pagedown": "PageDown",
}

// canonicalKey returns agent-browser's name of a key. A letter with Control, Alt or Meta and without Shift becomes
// lower case: both spellings name the same shortcut.
func canonicalKey(s string) string {
	if s == " " {
		return "Space"
	}
	parts := strings.Split(s, "+")
	if s == "+" || strings.HasSuffix(s, "++") { // the plus key itself
		parts = append(parts[:len(parts)-2], "+")
	}
	for i, part := range parts {
		if name, ok := keyNames[strings.ToLower(part)]; ok {
			parts[i] = name
		}
	}
	if last := len(parts) - 1; last > 0 && len(parts[last]) == 1 && !slices.Contains(parts, "Shift") {
		parts[last] = strings.ToLower(parts[last])
	}
	return strings.Join(parts, "+")
}

// name admits the name of an attribute.
func name(_ *Policy, at, s string) (string, *Refusal) {
	if !attrName.MatchString(s) {
		return "", blocked("value.name", "%s is not an attribute name", at)
	}
	return s, nil
}

func depth(_ *Policy, at, s string) (string, *Refusal)  { return bounded(at, s, 0, maxDepth) }
func pixels(_ *Policy, at, s string) (string, *Refusal) { return bounded(at, s, 1, maxPixels) }

// millis admits the milliseconds of a wait. A second of the call's time is left for everything else.
func millis(p *Policy, at, s string) (string, *Refusal) {
	v, r := bounded(at, s, 0, (p.Limits.MaxTimeoutSec-1)*1000)
	if r != nil {
		r.Message += fmt.Sprintf(" in a call of %d seconds; its timeout can be up to 120", p.Limits.MaxTimeoutSec)
	}
	return v, r
}

// bounded admits a whole number from least to most.
func bounded(at, s string, least, most int) (string, *Refusal) {
	n, err := strconv.Atoi(s)
	if err != nil || !number.MatchString(s) || n < least || n > most {
		return "", blocked("value.number", "%s must be a whole number from %d to %d", at, least, most)
	}
	return strconv.Itoa(n), nil
}

// waitTarget admits milliseconds or a selector. agent-browser also reads "+30000" as a number, so a word that looks
// like a number must be one within bounds.
func waitTarget(p *Policy, at, s string) (string, *Refusal) {
	if digits.MatchString(s) {
		return millis(p, at, s)
	}
	return selector(p, at, s)
}

// oneOf admits one of a few words.
func oneOf(words ...string) slot {
	return func(_ *Policy, at, s string) (string, *Refusal) {
		if !slices.Contains(words, s) {
			return "", blocked("value.word", "%s must be one of %s", at, strings.Join(words, ", "))
		}
		return s, nil
	}
}

// shotTarget admits a selector, or a bare file name with an image's ending. agent-browser takes a word with a slash or
// an image's ending for a path.
func shotTarget(p *Policy, at, s string) (string, *Refusal) {
	if shotPath.MatchString(s) || shotExt.MatchString(s) && !shotName.MatchString(s) {
		return "", refuse(SandboxViolation, "screenshot.path", "%s is a path; browser-shell chooses the directory: give a bare file name (letters, digits, `.`, `_`, `-`, ending in .png, .jpg, .jpeg or .webp) or none", at)
	}
	if shotName.MatchString(s) {
		return s, nil
	}
	return selector(p, at, s)
}

// pdfTarget admits a bare file name that ends in .pdf.
func pdfTarget(_ *Policy, at, s string) (string, *Refusal) {
	if !pdfName.MatchString(s) {
		return "", refuse(SandboxViolation, "pdf.path", "%s is no bare file name; browser-shell chooses the directory: give a name (letters, digits, `.`, `_`, `-`, ending in .pdf) or none", at)
	}
	return s, nil
}

// webURL admits the address of a page to open; see url.go.
func webURL(p *Policy, _, s string) (string, *Refusal) {
	u, r := p.CheckURL(s)
	return u.Href, r
}
