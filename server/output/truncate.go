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
	data, err := parse(stdout, false)
	if err != nil {
		return lastResort(before, limit)
	}
	cut := 0
	over := len(data.String()) - limit
	if over <= 0 {
		return data.String() + "\n", 0
	}
	if s := data.member("snapshot"); s != nil && s.kind == '"' {
		cut += cutSnapshot(&data, s, limit)
		over = len(data.String()) - limit
	}
	if over > 0 {
		cut += cutTexts(&data, over)
	}
	if out := data.String(); len(out) <= limit {
		return out + "\n", cut
	}
	return lastResort(before, limit)
}

func lastResort(removed, limit int) (string, int) {
	for _, s := range []string{fmt.Sprintf(`{"truncated":true,"removed":%d}`, removed), "{}"} {
		if len(s) <= limit {
			return s + "\n", removed
		}
	}
	return "", removed
}

// cutSnapshot keeps as many lines of the snapshot as fit.
func cutSnapshot(data, snapshot *node, limit int) int {
	text := snapshot.text
	total := len(data.String()) - (len(quote(text)) - 2) + room + len(askLess) // without the text
	kept := 0
	for kept < len(text) {
		end := kept + 1 + strings.IndexByte(text[kept:], '\n')
		if end == kept {
			end = len(text)
		}
		line := text[kept:end]
		size := len(quote(line)) - 2
		if total+size > limit {
			if kept == 0 { // one long line
				kept = beforeBracket(line[:fitting(line, limit-total)])
			}
			break
		}
		total, kept = total+size, end
	}
	return mark(snapshot, text, strings.TrimSuffix(text[:kept], "\n"), askLess)
}

// beforeBracket returns the length of text before an incomplete bracket: half a ref is a wrong one.
func beforeBracket(text string) int {
	i := strings.LastIndexByte(text, '[')
	if i >= 0 && len(text)-i < 200 && strings.IndexByte(text[i:], ']') < 0 {
		return i
	}
	return len(text)
}

// cutTexts cuts the longest texts by over bytes in total.
func cutTexts(data *node, over int) int {
	var texts []*node
	var collect func(n *node)
	collect = func(n *node) {
		if n.kind == '"' && len(n.text) > 2*room {
			texts = append(texts, n)
		}
		for i := range n.kids {
			collect(&n.kids[i])
		}
	}
	collect(data)
	slices.SortStableFunc(texts, func(a, b *node) int { return len(b.text) - len(a.text) })
	cut := 0
	for _, n := range texts {
		if over <= 0 {
			break
		}
		text, was := n.text, len(quote(n.text))
		cut += mark(n, text, text[:fitting(text, was-2-over-room)], "")
		over -= was - len(quote(n.text))
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

// mark sets n to keep, the beginning of text, and a note about the rest.
func mark(n *node, text, keep, hint string) int {
	cut := utf8.RuneCountInString(text) - utf8.RuneCountInString(keep)
	if cut == 0 {
		return 0
	}
	n.text = fmt.Sprintf("%s\n[truncated: %d characters removed%s]", keep, cut, hint)
	return cut
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
