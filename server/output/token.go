package output

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// tokenForm is a form of tokens: a prefix and the rest. A group in rest is the part to hide. isToken, if set, tells a token
// from words that look alike.
type tokenForm struct {
	prefixes []string // searched first, since most texts have none
	expr     *lazyregexp.Regexp
	isToken  func(before, text string) bool
}

func newTokenForm(prefixes, rest string, isToken func(before, text string) bool) tokenForm {
	list := strings.Fields(prefixes)
	quoted := make([]string, len(list))
	for i, prefix := range list {
		quoted[i] = regexp.QuoteMeta(prefix)
	}
	return tokenForm{list, lazyregexp.New("(?:" + strings.Join(quoted, "|") + ")" + rest), isToken}
}

// tokenForms has prefixes so unusual that they need no word boundary before them.
var tokenForms = []tokenForm{
	newTokenForm("xoxb- xoxa- xoxp- xoxe- xoxo- xoxr- xoxs- xoxc- xoxd- xapp- sk_live_ sk_test_ rk_live_ rk_test_", `[\w-]{10,}`, nil),
	newTokenForm("glpat- gldt- glrt- glptt- glcbt- gloas-", `[\w-]{16,}`, nil),
	newTokenForm("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ dckr_pat_ GOCSPX- whsec_ tskey- hvs. ya29.", `[\w-]{20,}`, nil),
	newTokenForm("AIza npm_ hf_ shpat_ shpss_ pypi-AgEI lin_api_ r8_ gsk_ dop_v1_ doo_v1_ AGE-SECRET-KEY-1", `[\w-]{30,}`, nil),
	newTokenForm("EAAC xai-", `[\w-]{60,}`, nil),
	newTokenForm("AKIA ASIA ABIA ACCA", `[A-Z0-9]{16}`, nil),
	newTokenForm("eyJ", `[\w-]*\.[\w-]*\.[\w-]*(?:\.[\w-]+){0,2}`, nil), // RFC 7519, signed or encrypted
	newTokenForm("SG.", `[\w-]{16,}\.[\w-]{16,}`, nil),
	newTokenForm("hooks.slack.com/services/", `([\w/-]{16,})`, nil),
	newTokenForm("sk-", `[\w-]{20,}`, func(before, text string) bool { // not task-list-item, sk-container-fluid
		return (before == "" || !isWord(before[len(before)-1])) && hasLongPart(text[len("sk-"):])
	}),
	newTokenForm("Bearer bearer BEARER", `(?: +|%20)([\w.~+/=%-]{8,})`, func(_, text string) bool { // RFC 6750, not prose
		return len(text) >= 24 || strings.ContainsAny(text, "0123456789_=+/~")
	}),
	newTokenForm("Basic basic BASIC", `(?: +|%20)([\w+/-]{4,}=*)`, func(_, text string) bool { // RFC 7617, not prose
		text = strings.TrimRight(text, "=")
		plain, err := base64.RawStdEncoding.DecodeString(text)
		if err != nil {
			plain, err = base64.RawURLEncoding.DecodeString(text)
		}
		return err == nil && utf8.Valid(plain) && strings.Contains(string(plain), ":")
	}),
}

func findTokens(s string) (found []span) {
	for _, form := range tokenForms {
		if !slices.ContainsFunc(form.prefixes, func(prefix string) bool { return strings.Contains(s, prefix) }) {
			continue
		}
		for _, m := range form.expr.FindAllStringSubmatchIndex(s, -1) {
			if at := (span{m[len(m)-2], m[len(m)-1]}); form.isToken == nil || form.isToken(s[:m[0]], s[at.from:at.to]) {
				found = append(found, at)
			}
		}
	}
	return found
}

// hasLongPart reports whether a run of letters and digits is too long for a word.
func hasLongPart(s string) bool {
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '-' || r == '_' }) {
		if len(part) >= 20 || len(part) >= 12 && strings.ContainsAny(part, "0123456789") {
			return true
		}
	}
	return false
}

const (
	keyBegin = "-----BEGIN"
	keyEnd   = "-----END"
	maxKey   = 64 << 10
)

// findKeys finds private keys (RFC 7468), up to their END or to the first text unlike a key.
func findKeys(s string) (found []span) {
	for at := 0; ; {
		n := strings.Index(s[at:], keyBegin)
		if n < 0 {
			return found
		}
		from := at + n
		at = from + len(keyBegin)
		label, _, ok := strings.Cut(s[at:min(len(s), at+80)], "-----")
		if !ok || !strings.Contains(label, "PRIVATE KEY") {
			continue
		}
		at += len(label) + len("-----")
		rest := s[at:min(len(s), at+maxKey)]
		if n := strings.Index(rest, keyEnd); n >= 0 {
			at += n + len(keyEnd)
			label, _, _ := strings.Cut(s[at:min(len(s), at+80)], "-----")
			at = min(len(s), at+len(label)+len("-----"))
		} else {
			at += len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool {
				return r < 0x80 && (isWord(byte(r)) || strings.ContainsRune("+/=\\\r\n\t :,.", r))
			}))
		}
		found = append(found, span{from, at})
	}
}

// findUsers finds the user and password of scheme://user:password@host, or a long user without a password, which is a
// token.
func findUsers(s string) (found []span) {
	for from := 0; ; {
		n := strings.Index(s[from:], "://")
		if n < 0 {
			return found
		}
		from += n + len("://")
		authority := s[from:min(len(s), from+1024)]
		if end := strings.IndexAny(authority, "/?#\\ \t\n\"'<>`"); end >= 0 {
			authority = authority[:end]
		}
		at := strings.LastIndexByte(authority, '@')
		if at > 0 && (strings.Contains(authority[:at], ":") || at >= 16 && random(authority[:at])) {
			found = append(found, span{from, from + at})
		}
	}
}
