package output

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// askLess ends a cut snapshot.
const askLess = "; ask for less: snapshot -i, -c, -d 3 or -s SELECTOR"

// room is the maximum size of a marker, its escaped newline included.
const room = len(`\n[truncated:  characters removed]`) + 20

// Truncate limits a line of JSON to limit bytes (of UTF-8, newline included) and returns the number of removed
// characters. The result is valid JSON. It cuts the snapshot between two lines, then the longest texts; a marker has
// the size of the missing part. If that is not enough, the result is {"truncated":true,"removed":N}.
func Truncate(stdout string, limit int) (string, int) {
	if len(stdout) <= limit {
		return stdout, 0
	}
	before := utf8.RuneCountInString(strings.TrimSuffix(stdout, "\n"))
	limit-- // the newline
	data, err := parse(stdout)
	if err != nil {
		return lastResort(before, limit)
	}
	cut := 0
	over := len(format(data)) - limit
	if over <= 0 {
		return format(data) + "\n", 0
	}
	if s := findMember(&data, "snapshot"); s != nil && isText(s) {
		cut += cutText(s, over, askLess)
		over = len(format(data)) - limit
	}
	texts := findTexts(&data, nil)
	slices.SortStableFunc(texts, func(a, b *node) int { return len(b.Value.(string)) - len(a.Value.(string)) })
	for _, text := range texts {
		if over <= 0 {
			break
		}
		was := len(format(*text))
		cut += cutText(text, over, "")
		over -= was - len(format(*text))
	}
	if out := format(data); len(out) <= limit {
		return out + "\n", cut
	}
	return lastResort(before, limit)
}

func isText(n *node) bool {
	_, ok := n.Value.(string)
	return ok
}

func lastResort(removed, limit int) (string, int) {
	for _, s := range []string{fmt.Sprintf(`{"truncated":true,"removed":%d}`, removed), "{}"} {
		if len(s) <= limit {
			return s + "\n", removed
		}
	}
	return "", removed
}

// findTexts adds the texts that can be cut to all.
func findTexts(n *node, all []*node) []*node {
	if isText(n) && len(n.Value.(string)) > 2*room {
		all = append(all, n)
	}
	for i := range n.Items {
		all = findTexts(&n.Items[i], all)
	}
	for i := range n.Members {
		all = findTexts(&n.Members[i].Node, all)
	}
	return all
}

// cutText cuts a text by over bytes of JSON, as far as it can. With a hint, which follows the number of removed
// characters, it cuts between two lines.
func cutText(n *node, over int, hint string) (cut int) {
	text := n.Value.(string)
	keep := text[:fitting(text, len(quote(text))-2-over-room-len(hint))]
	if line := strings.LastIndexByte(keep, '\n'); hint == "" || strings.HasPrefix(text[len(keep):], "\n") {
	} else if line >= 0 {
		keep = keep[:line]
	} else if open := strings.LastIndexByte(keep, '['); open >= 0 && len(keep)-open < 200 && strings.IndexByte(keep[open:], ']') < 0 {
		keep = keep[:open] // half a ref is a wrong one
	}
	if cut = utf8.RuneCountInString(text[len(keep):]); cut > 0 {
		n.Value = fmt.Sprintf("%s\n[truncated: %d characters removed%s]", keep, cut, hint)
	}
	return cut
}

// fitting returns the length of the longest beginning of complete runes with at most most bytes of JSON.
func fitting(text string, most int) int {
	size := 0
	for i, r := range text {
		if size += width(r); size > most {
			return i
		}
	}
	return len(text)
}

// width returns the size of a rune in JSON; see quote.
func width(r rune) int {
	switch {
	case strings.ContainsRune("\"\\\n\t\r\b\f", r):
		return 2
	case r < ' ', r == '\u2028', r == '\u2029':
		return 6
	}
	return utf8.RuneLen(r)
}

// TruncateText limits plain text to limit bytes and returns the number of removed characters.
func TruncateText(stderr string, limit int) (string, int) {
	if len(stderr) <= limit {
		return stderr, 0
	}
	const form = "\n[stderr truncated: %d characters removed]\n"
	n := max(0, limit-len(fmt.Sprintf(form, len(stderr))))
	for n > 0 && !utf8.RuneStart(stderr[n]) {
		n--
	}
	cut := utf8.RuneCountInString(stderr[n:])
	out := stderr[:n] + fmt.Sprintf(form, cut)
	if len(out) > limit {
		return "", utf8.RuneCountInString(stderr)
	}
	return out, cut
}
