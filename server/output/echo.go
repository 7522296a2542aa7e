package output

import (
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

const (
	// argMarker replaces a request argument.
	argMarker = "[argument]"
	// minArgument is the length below which an argument isn't replaced, since it would break up words.
	minArgument = 4
	// maxWords limits the kept part of the program's text, in bytes.
	maxWords = 64 << 10
)

var isReference = lazyregexp.New(`^@?(ref=)?e[0-9]{1,6}$`)

// echoes holds the forms in which the program may repeat request arguments.
type echoes []string

func newEchoes(args []string) echoes {
	var all echoes
	for _, arg := range args {
		if !isReference.MatchString(arg) {
			all = append(all, echoForms(arg)...)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(form string) bool { return len(form) < minArgument })
}

// echoForms returns an argument unchanged, without surrounding blanks, as a URL without the final slash, and each of
// these escaped for URLs, JSON, Go and HTML.
func echoForms(arg string) []string {
	bare := strings.TrimSpace(arg)
	plain := []string{arg, bare, strings.TrimSuffix(bare, "/")}
	if s, err := url.PathUnescape(bare); err == nil {
		plain = append(plain, s)
	}
	var all []string
	for _, s := range plain {
		if len(s) >= minArgument {
			whole, quoted, ascii := (&url.URL{Path: s}).EscapedPath(), strconv.Quote(s), strconv.QuoteToASCII(s)
			all = append(append(all, escape(s)...), whole, lowerHex(whole), quoted[1:len(quoted)-1], ascii[1:len(ascii)-1])
		}
	}
	return all
}

// escape returns a text unchanged and escaped for URLs, JSON and HTML.
func escape(s string) []string {
	quoted, query, path := quote(s), url.QueryEscape(s), url.PathEscape(s)
	return []string{s, quoted[1 : len(quoted)-1], query, path, lowerHex(query), lowerHex(path), html.EscapeString(s)}
}

// lowerHex writes %2F as %2f.
func lowerHex(s string) string { return escapedByte.ReplaceAllStringFunc(s, strings.ToLower) }

var escapedByte = regexp.MustCompile(`%[0-9A-F]{2}`)

// words returns the program's text without the arguments and without the parts for its developers, at most maxWords of
// it.
func (e echoes) words(said string) string {
	return stackLine.ReplaceAllString(callLog.ReplaceAllString(e.hide(valid(said)), "\n"), "")
}

// hide replaces each argument that begins in the first maxWords of s by a marker, and drops the rest.
func (e echoes) hide(s string) string {
	end, longest := min(len(s), maxWords), 0
	for _, form := range e {
		longest = max(longest, len(form))
	}
	spans := findValues(s[:min(len(s), maxWords+longest)], e)
	spans = slices.DeleteFunc(spans, func(sp span) bool { return sp.from >= maxWords })
	for _, sp := range spans {
		end = max(end, sp.to)
	}
	return valid(replace(s[:end], spans, argMarker))
}

// callLog and stackLine match Playwright's call log and the lines of a stack trace.
var (
	callLog   = lazyregexp.New(`\n?Call log:.*(?:\n(?:[ \t\r\x1b-].*)?)*`)
	stackLine = lazyregexp.New(`(?m)^    at .*\n?`)
)
