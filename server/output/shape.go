package output

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// shape is the form of a secret: its prefix, and a function for its extent.
type shape struct {
	prefix  string
	anyCase bool
	match   func(p *scanner, i int) (from, to int) // from == to: no match
}

// shapes lists the forms by prefix. Most prefixes are so unusual that they need no word boundary before them.
var shapes = func() map[string]shape {
	m := map[string]shape{}
	for prefix, most := range map[string]int{ // minimum number of bytes after the prefix
		"ghp_": 20, "gho_": 20, "ghu_": 20, "ghs_": 20, "ghr_": 20, "github_pat_": 20,
		"glpat-": 16, "gldt-": 16, "glrt-": 16, "glptt-": 16, "glcbt-": 16, "gloas-": 16,
		"xoxb-": 10, "xoxa-": 10, "xoxp-": 10, "xoxe-": 10, "xoxo-": 10, "xoxr-": 10, "xoxs-": 10, "xoxc-": 10, "xoxd-": 10, "xapp-": 10,
		"AIza": 30, "npm_": 30, "hf_": 30, "dop_v1_": 40, "doo_v1_": 40, "shpat_": 30, "shpss_": 30, "whsec_": 24,
		"sk_live_": 10, "sk_test_": 10, "rk_live_": 10, "rk_test_": 10, "GOCSPX-": 20, "pypi-AgEI": 30, "lin_api_": 30,
		"dckr_pat_": 20, "AGE-SECRET-KEY-1": 40, "EAAC": 60, "r8_": 36, "gsk_": 40, "xai-": 60, "tskey-": 20, "hvs.": 20, "ya29.": 20,
	} {
		m[prefix] = shape{prefix, false, func(p *scanner, i int) (int, int) { return i, p.token(i, i+len(prefix), most) }}
	}
	for _, prefix := range []string{"AKIA", "ASIA", "ABIA", "ACCA"} {
		m[prefix] = shape{prefix, false, awsKey}
	}
	for _, s := range []shape{
		{"sk-", false, skKey},
		{"SG.", false, sendGrid},
		{"eyJ", false, jwt},
		{"-----BEGIN", false, pem},
		{"://", false, userinfo},
		{"bearer ", true, bearer},
		{"bearer%20", true, bearer},
		{"basic ", true, basic},
		{"basic%20", true, basic},
		{"hooks.slack.com/services/", true, slackHook},
	} {
		m[s.prefix] = s
	}
	return m
}()

var shapesAt = func() map[uint32][]shape {
	m := map[uint32][]shape{}
	for prefix, s := range shapes {
		k := trigram(prefix[0], prefix[1], prefix[2])
		m[k] = append(m[k], s)
	}
	return m
}()

// runOf returns the end of the run at i of word bytes and bytes of more, limited to most bytes.
func (p *scanner) runOf(i, most int, more string) int {
	end := min(len(p.s), i+most)
	for i < end && (isWord(p.s[i]) || strings.IndexByte(more, p.s[i]) >= 0) {
		i++
	}
	return i
}

// wordRun returns the end of the run of word bytes at i.
func (p *scanner) wordRun(i int) int {
	if i < p.run && i >= p.runFrom {
		return p.run
	}
	p.runFrom, p.run = i, p.runOf(i, len(p.s), "")
	return p.run
}

// token returns the end of a token whose body is a run of word bytes, or i.
func (p *scanner) token(i, body, least int) int {
	if end := p.wordRun(body); end-body >= least {
		return end
	}
	return i
}

func awsKey(p *scanner, i int) (int, int) {
	j := i + 4
	for j < len(p.s) && j < i+20 && (p.s[j] >= 'A' && p.s[j] <= 'Z' || p.s[j] >= '0' && p.s[j] <= '9') {
		j++
	}
	if j < i+20 {
		return i, i
	}
	return i, j
}

// skKey matches sk-…, where a run of letters and digits is too long for words.
func skKey(p *scanner, i int) (int, int) {
	if i > 0 && isWord(p.s[i-1]) {
		return i, i // risk-, task-
	}
	end := p.wordRun(i)
	if end-i < 23 {
		return i, i
	}
	for _, part := range strings.FieldsFunc(p.s[i+3:end], func(r rune) bool { return r == '-' || r == '_' }) {
		if len(part) >= 20 || len(part) >= 12 && strings.ContainsAny(part, "0123456789") {
			return i, end
		}
	}
	return i, i
}

func sendGrid(p *scanner, i int) (int, int) {
	dot := p.wordRun(i + 3)
	if dot-i < 19 || dot >= len(p.s) || p.s[dot] != '.' {
		return i, i
	}
	return i, max(i, p.token(i, dot+1, 16))
}

// jwt matches header.payload.signature, and the five parts of an encrypted one.
func jwt(p *scanner, i int) (int, int) {
	if i < p.noJWT {
		return i, i
	}
	end := p.wordRun(i)
	p.noJWT = end
	parts := 1
	for end < len(p.s) && p.s[end] == '.' && parts < 5 {
		n := p.runOf(end+1, len(p.s), "")
		if n == end+1 && parts > 2 { // a full stop
			break
		}
		end = n
		parts++
	}
	if parts < 3 {
		return i, i
	}
	return i, end
}

// pem matches a private key, up to its END or to the first text unlike a key.
func pem(p *scanner, i int) (int, int) {
	s := p.s
	head := s[i:min(len(s), i+80)]
	n := strings.Index(head[len("-----BEGIN"):], "-----")
	if n < 0 || !strings.Contains(head[:len("-----BEGIN")+n], "PRIVATE KEY") {
		return i, i
	}
	body := i + len("-----BEGIN") + n + len("-----")
	if !p.noEnd {
		if end := strings.Index(s[body:], "-----END"); end >= 0 && end < 64<<10 {
			end += body + len("-----END")
			if n := strings.Index(s[end:min(len(s), end+80)], "-----"); n >= 0 {
				end += n + len("-----")
			}
			return p.lines(i, body, end)
		} else if end < 0 {
			p.noEnd = true
		}
	}
	return p.lines(i, body, p.runOf(body, len(s), "+/=\\\r\n\t :,."))
}

// lines hides a key. If a snapshot's elements are between its lines, it hides only text like base64.
func (p *scanner) lines(from, body, to int) (int, int) {
	if !strings.Contains(p.s[from:to], "ref=e") {
		return from, to
	}
	p.add(from, body)
	for j := body; j < to; {
		k := p.runOf(j, to-j, "+/=")
		if k-j >= 12 {
			p.add(j, k)
		}
		j = k + 1
	}
	p.covered = max(p.covered, to)
	return from, from
}

// userinfo matches the user and password of scheme://user:password@host, or a long user without a password, which is a
// token.
func userinfo(p *scanner, i int) (int, int) {
	from := i + len("://")
	at, to := -1, min(len(p.s), from+1024)
	colon := false
	for j := from; j < to; j++ {
		switch p.s[j] {
		case '@':
			at = j
		case ':':
			colon = colon || at < 0
		case '/', '?', '#', '\\', ' ', '\t', '\n', '"', '\'', '<', '>', '`':
			to = j
		}
	}
	if at < 0 || !colon && (at-from < 16 || !random(p.s[from:at])) {
		return i, i
	}
	return from, at
}

// bearer matches a token after the word, unlike a word of a language.
func bearer(p *scanner, i int) (int, int) {
	from := p.after(i, len("bearer"))
	to := p.runOf(from, 8192, ".~+/=%")
	v := strings.TrimRight(p.s[from:to], ".")
	odd := strings.ContainsAny(v, "0123456789_=+/~")
	for j := 1; j < len(v) && !odd; j++ {
		odd = v[j] >= 'A' && v[j] <= 'Z' && v[j-1] >= 'a' && v[j-1] <= 'z'
	}
	if len(v) < 8 || !odd && len(v) < 24 {
		return i, i
	}
	return from, from + len(v)
}

// basic matches base64 of user:password after the word.
func basic(p *scanner, i int) (int, int) {
	from := p.after(i, len("basic"))
	to := p.runOf(from, 4096, "+/=")
	text := strings.TrimRight(p.s[from:to], "=")
	if len(text) < 4 {
		return i, i
	}
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		b, err = base64.RawURLEncoding.DecodeString(text)
	}
	if err != nil || !utf8.Valid(b) || !strings.Contains(string(b), ":") {
		return i, i
	}
	return from, to
}

// after returns the position after a word and its space (or %20).
func (p *scanner) after(i, word int) int {
	i += word
	if strings.HasPrefix(p.s[i:], "%20") {
		return i + len("%20")
	}
	for i < len(p.s) && p.s[i] == ' ' {
		i++
	}
	return i
}

func slackHook(p *scanner, i int) (int, int) {
	from := i + len("hooks.slack.com/services/")
	to := p.runOf(from, len(p.s), "/")
	if to-from < 16 {
		return i, i
	}
	return from, to
}
