package output

import (
	"encoding/base64"
	"encoding/hex"
	"html"
	"math"
	"net/url"
	"slices"
	"strings"
)

// minSecret is the minimum length of a value to search for; shorter ones would hide a page's ordinary words.
const minSecret = 8

// Secrets returns the values of an environment (NAME=value) for NewRedactor. They have at least 8 bytes, and are named
// as a secret, or long and random, or the password of a URL. It leaves out paths, addresses and digests of known names.
func Secrets(environ []string) []string {
	var r Redactor
	var list []string
	for _, e := range environ {
		name, v, _ := strings.Cut(e, "=")
		v = strings.TrimSpace(v)
		if u, err := url.Parse(v); err == nil && u.User != nil {
			if pw, _ := u.User.Password(); len(pw) >= minSecret {
				list = append(list, pw)
			}
		}
		if len(v) < minSecret || strings.HasPrefix(v, "/") || strings.HasPrefix(v, "~/") {
			continue
		}
		if r.grade(name) >= strong || strings.Contains(v, "PRIVATE KEY-----") || !public(name) && entropic(v) {
			list = append(list, v)
		}
	}
	return list
}

var publicWords = words(`path home pwd oldpwd lang lc term shell user logname hostname host display commit sha digest version revision ref image tag build release flags options opts args`)

func public(name string) bool {
	return slices.ContainsFunc(split(name), func(w string) bool { return publicWords[w] })
}

// entropic matches one long word of letters and digits with at least 3.5 bits each.
func entropic(v string) bool {
	if len(v) < 20 || len(v) > 4096 || !random(v) {
		return false
	}
	var count [256]int
	for i := range len(v) {
		if !isWord(v[i]) && strings.IndexByte("+/=~", v[i]) < 0 {
			return false
		}
		count[v[i]]++
	}
	bits := 0.0
	for _, n := range count {
		if n > 0 {
			f := float64(n) / float64(len(v))
			bits -= f * math.Log2(f)
		}
	}
	return bits >= 3.5
}

// forms returns the forms of a secret in a text: unchanged, escaped for URLs, JSON and HTML, in hexadecimal, and inside
// base64 at each of its three offsets (without the characters shared with its neighbours).
func forms(secret string) []string {
	if len(secret) < minSecret {
		return nil
	}
	quoted := quote(secret)
	quoted = quoted[1 : len(quoted)-1]
	query, path := url.QueryEscape(secret), url.PathEscape(secret)
	all := []string{
		secret, quoted, strings.ReplaceAll(quoted, "/", `\/`), query, path, lowerHex(query), lowerHex(path),
		html.EscapeString(secret), hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
	}
	for offset := range 3 {
		b := append(make([]byte, offset), secret...)
		first := (offset*8 + 5) / 6
		last := len(b) * 8 / 6
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, enc.EncodeToString(b)[first:last])
		}
	}
	for line := range strings.Lines(secret) {
		if line = strings.TrimSpace(line); len(line) >= 16 && len(line) < len(secret) && !strings.HasPrefix(line, "-----") {
			all = append(all, line)
		}
	}
	return all
}

// lowerHex writes %2F as %2f.
func lowerHex(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], strings.ToLower(s[i+1:i+3]))
		}
	}
	return string(b)
}
