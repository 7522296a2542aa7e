package policy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// slot checks one positional or option value and gives the text to hand to
// agent-browser. at names the place for the error ("argv[1]").
type slot func(p *Policy, at, s string) (string, *Refusal)

const (
	maxSelector = 2048
	maxText     = 64 << 10
	maxWaitMS   = 25000 // 0.8.x sends a command again after 30 s
	maxDepth    = 100
	maxPixels   = 10000
)

var (
	// flagWord and flagAssign are the words that either generation's parser
	// could take for an option. "-5", "-" and "--- x" are plain text to both.
	flagWord   = regexp.MustCompile(`^(--[A-Za-z]\S*|-[A-Za-z])$`)
	flagAssign = regexp.MustCompile(`^--[A-Za-z][A-Za-z0-9-]*=`)

	digits   = regexp.MustCompile(`^\+?[0-9]+$`)
	number   = regexp.MustCompile(`^[0-9]{1,5}$`)
	attrName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$`)
	keyName  = regexp.MustCompile(`^((Control|Alt|Shift|Meta)\+){0,3}(Enter|Tab|Escape|Backspace|Delete|Insert|Space|Home|End|PageUp|PageDown|Arrow(Up|Down|Left|Right)|F([1-9]|1[0-2])|[!-~])$`)
	shotName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(png|jpg|jpeg|webp)$`)
	shotExt  = regexp.MustCompile(`(?i)\.(png|jpe?g|webp)$`)
	shotPath = regexp.MustCompile(`(?i)^(~|file:)|[/\\]|\.\.`)
)

// flagLike tells whether agent-browser could read s as an option.
func flagLike(s string) bool { return flagWord.MatchString(s) || flagAssign.MatchString(s) }

// oneLine refuses what only a text may hold, and a leading dash.
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

// selector: an element reference from a snapshot (@e1) or a CSS selector.
func selector(_ *Policy, at, s string) (string, *Refusal) {
	return s, oneLine(at, s, maxSelector)
}

// pattern: a URL glob for `wait --url`.
func pattern(_ *Policy, at, s string) (string, *Refusal) {
	return s, oneLine(at, s, maxSelector)
}

// text: what goes into a field; may be empty, may hold line breaks.
func text(_ *Policy, at, s string) (string, *Refusal) {
	if len(s) > maxText {
		return "", blocked("value.length", "%s is longer than %d bytes; use a shorter value", at, maxText)
	}
	return s, nil
}

// filledText: a text that may not be empty.
func filledText(_ *Policy, at, s string) (string, *Refusal) {
	return s, oneLine(at, s, maxText)
}

// key: one key, with modifiers: Enter, Control+a.
func key(_ *Policy, at, s string) (string, *Refusal) {
	if !keyName.MatchString(s) {
		return "", blocked("press.key", "%s is not a key; use one of Enter, Tab, Escape, Backspace, Delete, Space, Home, End, PageUp, PageDown, ArrowUp, F1..F12 or one character, with Control+, Alt+, Shift+ or Meta+ in front", at)
	}
	return s, nil
}

// name: an attribute's name.
func name(_ *Policy, at, s string) (string, *Refusal) {
	if !attrName.MatchString(s) {
		return "", blocked("value.name", "%s is not an attribute name", at)
	}
	return s, nil
}

func depth(_ *Policy, at, s string) (string, *Refusal)  { return bounded(at, s, 0, maxDepth) }
func millis(_ *Policy, at, s string) (string, *Refusal) { return bounded(at, s, 0, maxWaitMS) }
func pixels(_ *Policy, at, s string) (string, *Refusal) { return bounded(at, s, 1, maxPixels) }

// bounded: a whole number from least to most.
func bounded(at, s string, least, most int) (string, *Refusal) {
	n, err := strconv.Atoi(s)
	if err != nil || !number.MatchString(s) || n < least || n > most {
		return "", blocked("value.number", "%s must be a whole number from %d to %d", at, least, most)
	}
	return strconv.Itoa(n), nil
}

// waitTarget: milliseconds or a selector. agent-browser reads "+30000" as a
// number too, so whatever looks like one must be one within bounds.
func waitTarget(p *Policy, at, s string) (string, *Refusal) {
	if digits.MatchString(s) {
		return millis(p, at, s)
	}
	return selector(p, at, s)
}

// oneOf: one of a few words.
func oneOf(words ...string) slot {
	return func(_ *Policy, at, s string) (string, *Refusal) {
		if !slices.Contains(words, s) {
			return "", blocked("value.word", "%s must be one of %s", at, strings.Join(words, ", "))
		}
		return s, nil
	}
}

// shotTarget: a selector, or a bare file name with an image's ending.
// agent-browser takes any word with a slash or an image's ending for a path.
func shotTarget(p *Policy, at, s string) (string, *Refusal) {
	if shotPath.MatchString(s) || shotExt.MatchString(s) && !shotName.MatchString(s) {
		return "", refuse(SandboxViolation, "screenshot.path", "%s is a path; browser-shell chooses the directory: give a bare file name (letters, digits, `.`, `_`, `-`, ending in .png, .jpg, .jpeg or .webp) or none", at)
	}
	if shotName.MatchString(s) {
		return s, nil
	}
	return selector(p, at, s)
}

// webURL: a page that open may go to; see url.go.
func webURL(p *Policy, _, s string) (string, *Refusal) {
	u, r := p.CheckURL(s)
	return u.Href, r
}
