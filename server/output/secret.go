package output

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
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
		random := len(v) <= 4096 && longWord.MatchString(v) && isRandom(v)
		if r.grade(name) >= strong || strings.Contains(v, "PRIVATE KEY-----") || random && !publicName.MatchString(splitName(name)) {
			list = append(list, v)
		}
	}
	return list
}

var (
	publicName = lazyregexp.New(`(?:^|-)(?:path|home|pwd|oldpwd|lang|lc|term|shell|user|logname|hostname|host|display|commit|sha|digest` +
		`|version|revision|ref|image|tag|build|release|flags|options|opts|args)(?:-|$)`)
	longWord = lazyregexp.New(`^[\w+/=~-]{20,}$`)
)

// forms returns the forms of a secret in a text: unchanged, escaped for URLs, JSON and HTML, in hexadecimal, and inside
// base64 at each of its three offsets (without the characters shared with its neighbours).
func forms(secret string) []string {
	if len(secret) < minSecret {
		return nil
	}
	all := escape(secret)
	digits := hex.EncodeToString([]byte(secret))
	all = append(all, strings.ReplaceAll(all[1], "/", `\/`), digits, strings.ToUpper(digits))
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
