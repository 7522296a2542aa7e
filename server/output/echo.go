package output

import (
	"html"
	"net/url"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

const (
	// argMarker stands where a request argument was.
	argMarker = "[argument]"
	// minArgument: shorter arguments would take words apart.
	minArgument = 4
	// maxWords bounds what is kept of the program's words, in bytes.
	maxWords = 64 << 10
)

var isReference = lazyregexp.New(`^@?(ref=)?e[0-9]{1,6}$`)

// echoes are the forms in which the program may repeat request arguments.
type echoes []string

func newEchoes(args []string) echoes {
	var all echoes
	seen := map[string]bool{}
	for _, arg := range args {
		if isReference.MatchString(arg) {
			continue
		}
		for _, form := range echoForms(arg) {
			if len(form) >= minArgument && !seen[form] {
				seen[form] = true
				all = append(all, form)
			}
		}
	}
	return all
}

// echoForms gives an argument as it is, without blanks around it, as a URL
// without the slash at its end, and each of these escaped for URLs, JSON, Go
// and HTML.
func echoForms(arg string) []string {
	bare := strings.TrimSpace(arg)
	plain := []string{arg, bare, strings.TrimSuffix(bare, "/")}
	if s, err := url.PathUnescape(bare); err == nil {
		plain = append(plain, s)
	}
	var all []string
	for _, s := range plain {
		if len(s) < minArgument {
			continue
		}
		query, path, whole := url.QueryEscape(s), url.PathEscape(s), (&url.URL{Path: s}).EscapedPath()
		quoted, goQuoted, ascii := quote(s), strconv.Quote(s), strconv.QuoteToASCII(s)
		all = append(all, s, query, path, whole, lowerHex(query), lowerHex(path), lowerHex(whole), html.EscapeString(s),
			quoted[1:len(quoted)-1], goQuoted[1:len(goQuoted)-1], ascii[1:len(ascii)-1])
	}
	return all
}

// words gives what the program said, without the arguments, without the parts
// of it that are for its developers, and no more than maxWords of it.
func (e echoes) words(said string) string {
	return withoutTraces(e.hide(valid(said)))
}

// hide puts a marker in the place of each argument that begins in the first
// maxWords of s, and drops the rest.
func (e echoes) hide(s string) string {
	most := min(len(s), maxWords)
	var spans []span
	for _, form := range e {
		window := s[:min(len(s), maxWords+len(form)-1)]
		for from := 0; ; {
			at := strings.Index(window[from:], form)
			if at < 0 {
				break
			}
			spans = append(spans, span{from + at, from + at + len(form)})
			from += at + len(form)
		}
	}
	for _, sp := range spans {
		most = max(most, sp.to)
	}
	return valid(replace(s[:most], spans, argMarker))
}

// withoutTraces cuts Playwright's call log and stack traces.
func withoutTraces(s string) string {
	var b strings.Builder
	inLog := false
	for line := range strings.Lines(s) {
		if inLog && strings.TrimLeft(line, " \t\r\n-\x1b") != line {
			continue
		}
		if strings.HasPrefix(line, "    at ") {
			continue
		}
		line, _, inLog = strings.Cut(line, "Call log:")
		b.WriteString(line)
		if inLog && line != "" {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
