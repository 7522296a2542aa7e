package output

import (
	"slices"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// grade is the certainty with which a name belongs to a secret.
type grade int

const (
	plain  grade = iota
	weak         // its value is hidden if it looks random
	strong       // its value is always hidden
	header       // its value is the rest of the line
)

// The expressions for names as splitName returns them, for instance api-key.
var (
	headerName = lazyregexp.New(`^(?:(?:proxy-?)?authorization|(?:set-?)?cookie|x-?api-?key|x-?auth-?token)$`)
	strongName = lazyregexp.New(`(?:passwords?|passwd|passphrase|secret|token|authorization|cookie|credentials?|(?:signing|encryption|account|master)-?key)(?:-|$)` +
		`|(?:^|-)(?:passcode|passwort|kennwort|bearer)(?:-|$)|-pwd(?:-|$)|^pwd-|(?:api|private|access|secret)-?key`)
	weakName = lazyregexp.New(`(?:^|-)(?:sessions?|session-?id|sessid|sid|jsessionid|phpsessid|auth|otp|pin|tokens|secrets|cookies|signature|sig|csrf|xsrf|key)(?:-id)?$`)
	// aboutName matches the endings of names that describe a secret but aren't one.
	aboutName = lazyregexp.New(`-(?:type|name|policy|expires|expiry|expiration|expired|in|at|ttl|url|uri|endpoint|file|path|dir|sock|socket|field|label` +
		`|length|count|limit|hint|help|placeholder|strength|manager|required|enabled|disabled|visible|page|form|settings|notice|banner|consent|preferences)$`)
	// fieldName matches the label or the selector of a field that contains a secret.
	fieldName = lazyregexp.New(`(?:^|-)(?:pw|pass|pin|otp|cvv|cvc|csc|ssn|tan|totp|mfa|2fa|iban)(?:-|$)`)

	innerCapital = lazyregexp.New(`([a-z])([A-Z])`)
	separators   = lazyregexp.New(`[0-9]*(?:[\x00-/:-@\[-` + "`" + `{-\x7f]+|$)`)
)

// hints has a part of every name that can be graded: a fast rejection of all others.
var hints = strings.Fields("pas sec tok key coo cre aut ses sid otp pin sig pwd srf ken bea")

// grade returns the grade of a name, for instance "apiKey", "DB_PASSWORD", "set-cookie".
func (r *Redactor) grade(name string) grade {
	lower := strings.ToLower(name)
	if name == "" || len(r.keys) == 0 && !slices.ContainsFunc(hints, func(hint string) bool { return strings.Contains(lower, hint) }) {
		return plain
	}
	name = splitName(name)
	switch {
	case r.isKey(name):
		return strong
	case headerName.MatchString(name):
		return header
	case aboutName.MatchString(name):
		return plain
	case strongName.MatchString(name):
		return strong
	case weakName.MatchString(name):
		return weak
	}
	return plain
}

// isSecretField reports whether the label or the selector of a field names a secret.
func (r *Redactor) isSecretField(label string) bool {
	label = splitName(label)
	return r.isKey(label) || fieldName.MatchString(label) || strongName.MatchString(label)
}

// isKey reports whether up to four words in a row are one of the policy's keys.
func (r *Redactor) isKey(name string) bool {
	if len(r.keys) == 0 {
		return false
	}
	words := strings.Split(name, "-")
	for i := range words {
		for n := range min(4, len(words)-i) {
			if r.keys[strings.Join(words[i:i+n+1], "")] {
				return true
			}
		}
	}
	return false
}

// splitName returns the words of a name in lower case, joined by dashes, without the digits at their end.
func splitName(name string) string {
	name = strings.ToLower(innerCapital.ReplaceAllString(name, "$1-$2"))
	return strings.Trim(separators.ReplaceAllString(name, "-"), "-")
}

// isRandom reports whether a value looks random. Markers don't count: the rest beside a marker would look more random
// than the whole value did, and be hidden only in a second pass.
func isRandom(v string) bool {
	v = strings.ReplaceAll(v, Marker, "")
	count := func(first, last byte) (n int) {
		for i := range len(v) {
			if first <= v[i] && v[i] <= last {
				n++
			}
		}
		return n
	}
	digit, lower, upper := count('0', '9'), count('a', 'z'), count('A', 'Z')
	return len(v) >= 8 && (digit > 0 && lower+upper > 0 || len(v) >= 20 && lower > 3 && upper > 3 || digit >= 16)
}
