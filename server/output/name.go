package output

import (
	"slices"
	"strings"
)

// grade is the certainty with which a name belongs to a secret.
type grade int

const (
	plain  grade = iota
	weak         // its value is hidden if it looks random
	strong       // its value is always hidden
	header       // its value is the rest of the line
)

// Words of a name that make its value a secret, at any position.
var strongWords = words(`password passwords passwd passphrase passcode passwort kennwort pwd secret token
	authorization cookie credential credentials bearer apikey`)

// The same without separators, also at the end of a word (dbpassword).
var strongParts = strings.Fields(`password passwd passphrase secret token authorization cookie credential credentials
	apikey privatekey accesskey secretkey signingkey encryptionkey accountkey masterkey sharedaccesskey`)

var weakWords = words(`session sessions sessionid sessid sid jsessionid phpsessid auth otp pin tokens secrets cookies signature sig csrf xsrf key`)

var headers = words(`authorization proxyauthorization cookie setcookie xapikey xauthtoken`)

// Endings of names that describe a secret but aren't one.
var about = words(`type name policy expires expiry expiration expired in at ttl url uri endpoint file path dir sock socket field label
	length count limit hint help placeholder strength manager required enabled disabled visible page form settings notice banner consent preferences`)

// In a snapshot or a selector, a field with such a word contains a secret.
var fieldWords = words(`pw pass pin otp cvv cvc csc ssn tan totp mfa 2fa iban`)

func words(list string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(list) {
		m[w] = true
	}
	return m
}

// hints has a part of every name that can be graded: a fast rejection of all others.
var hints = strings.Fields("pas sec tok key coo cre aut ses sid otp pin sig pwd srf ken bea")

// grade returns the grade of a name, for instance "apiKey", "DB_PASSWORD", "set-cookie".
func (r *Redactor) grade(name string) grade {
	if len(r.keys) == 0 && !hinted(name) {
		return plain
	}
	list := split(name)
	if len(list) == 0 {
		return plain
	}
	joined := strings.Join(list, "")
	for i := range list {
		if len(r.keys) > 0 && r.keys[strings.Join(list[i:], "")] {
			return strong
		}
	}
	switch last := list[len(list)-1]; {
	case headers[joined]:
		return header
	case len(list) > 1 && about[last]:
		return plain
	case slices.ContainsFunc(list, func(w string) bool { return strongWords[w] && (w != "pwd" || len(list) > 1) }):
		return strong
	case slices.ContainsFunc(strongParts, func(p string) bool { return strings.HasSuffix(joined, p) }):
		return strong
	case strings.Contains(joined, "apikey"), strings.Contains(joined, "privatekey"), strings.Contains(joined, "accesskey"), strings.Contains(joined, "secretkey"):
		return strong
	case weakWords[last], weakWords[joined], len(list) > 1 && last == "id" && weakWords[list[len(list)-2]]:
		return weak
	}
	return plain
}

// isSecretField reports whether the label of a field names a secret.
func (r *Redactor) isSecretField(name string) bool {
	list := split(name)
	for i, w := range list {
		if fieldWords[w] || i > 0 && r.grade(list[i-1]+w) >= strong {
			return true
		}
		if g := r.grade(w); g >= strong {
			return true
		}
	}
	return false
}

func hinted(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(hints, func(hint string) bool { return strings.Contains(name, hint) })
}

// split returns the lower-case words of a name, without the digits at their end.
func split(name string) []string {
	var list []string
	from := 0
	flush := func(to int) {
		w := strings.ToLower(name[from:to])
		if w != "2fa" {
			w = strings.TrimRight(w, "0123456789")
		}
		if w != "" {
			list = append(list, w)
		}
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case !isWord(c) && c < 0x80 || c == '_' || c == '-':
			flush(i)
			from = i + 1
		case i > from && c >= 'A' && c <= 'Z' && name[i-1] >= 'a' && name[i-1] <= 'z':
			flush(i)
			from = i
		}
	}
	flush(len(name))
	return list
}

// isWord admits letters, digits, _ and -.
func isWord(c byte) bool { return wordBytes[c] }

var wordBytes = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") {
		t[c] = true
	}
	return t
}()

// random reports whether a value looks random. Markers don't count: the rest beside a marker would look more random
// than the whole value did, and be hidden only in a second pass.
func random(v string) bool {
	v = strings.ReplaceAll(v, Marker, "")
	if len(v) < 8 {
		return false
	}
	var digit, lower, upper int
	for i := range len(v) {
		switch c := v[i]; {
		case c >= '0' && c <= '9':
			digit++
		case c >= 'a' && c <= 'z':
			lower++
		case c >= 'A' && c <= 'Z':
			upper++
		}
	}
	letters := lower + upper
	return digit > 0 && letters > 0 || len(v) >= 20 && lower > 3 && upper > 3 || digit >= 16
}
