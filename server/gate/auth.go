package gate

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

const (
	maxURI   = 16 << 10 // bytes; nginx forwards no longer line
	maxToken = 8 << 10  // bytes of a JWT
)

// desktopPath matches the paths that a ticket opens. nginx selects a location after it has decoded and cleaned a path.
// These paths are unambiguous: nothing is encoded, no segment is empty or begins with a dot.
var desktopPath = lazyregexp.New(`^/(websockify|vnc/([A-Za-z0-9_-][A-Za-z0-9._-]*/)*([A-Za-z0-9_-][A-Za-z0-9._-]*)?)$`)

// parseTarget returns the target of a request: X-Original-URI from nginx, otherwise the request's own. That header
// grants nothing by itself; it only locates the ticket. ok is false for an ambiguous target.
func parseTarget(r *http.Request) (path string, query url.Values, ok bool) {
	uri := r.RequestURI
	switch v := r.Header.Values("X-Original-URI"); len(v) {
	case 0:
	case 1:
		uri = v[0]
	default:
		return "", nil, false
	}
	if len(uri) > maxURI {
		return "", nil, false
	}
	path, raw, _ := strings.Cut(uri, "?")
	query, err := url.ParseQuery(raw)
	return path, query, err == nil
}

// checks verifies keys and tokens. Failed attempts are unlimited: the minimum length prevents guessing a key, and a
// limit would lock out the owner while a stranger guesses.
type checks struct {
	anonymous bool
	key       []byte         // SHA-256 of the API key, or nil
	token     *rsa.PublicKey // for the tokens, or nil
	parser    *jwt.Parser
}

// holder is the owner of a valid credential.
type holder struct {
	subject string    // key:ID, sub:SUBJECT, token, or "" for nobody
	until   time.Time // the credential's end, or zero
}

// identifyHolder returns the owner of a request's credential: the API key in X-AIO-API-Key, as api_key in the query or
// as Bearer, or a token as Bearer. A request with two credentials, of whatever kind, has no owner: another reader might
// use the other one.
func (k checks) identifyHolder(h http.Header, query url.Values) holder {
	given := append(slices.Clone(h.Values("X-AIO-API-Key")), query["api_key"]...)
	authorization := h.Values("Authorization")
	for _, v := range authorization {
		if scheme, text, _ := strings.Cut(v, " "); strings.EqualFold(scheme, "Bearer") {
			given = append(given, strings.TrimSpace(text))
		}
	}
	if len(given) != 1 || len(authorization) > 1 {
		return holder{}
	}
	if k.isKey(given[0]) {
		return holder{subject: k.keyID()}
	}
	if len(authorization) == 1 && len(h.Values("X-AIO-API-Key")) == 0 && len(query["api_key"]) == 0 {
		return k.readToken(given[0])
	}
	return holder{}
}

func (k checks) isKey(s string) bool {
	sum := sha256.Sum256([]byte(s))
	return len(k.key) == len(sum) && subtle.ConstantTimeCompare(sum[:], k.key) == 1
}

// keyID returns "key:" and the first 8 hexadecimal digits of the key's SHA-256: enough to distinguish keys, too little
// to find one.
func (k checks) keyID() string { return "key:" + hex.EncodeToString(k.key[:4]) }

// newParser returns a parser that accepts RS256 only (RFC 8725 3.1) and requires exp; the base accepted tokens without
// it. If audience and issuer are not empty, a token must match them.
func newParser(audience, issuer string) *jwt.Parser {
	options := []jwt.ParserOption{jwt.WithValidMethods([]string{"RS256"}), jwt.WithExpirationRequired(), jwt.WithStrictDecoding()}
	if audience != "" {
		options = append(options, jwt.WithAudience(audience))
	}
	if issuer != "" {
		options = append(options, jwt.WithIssuer(issuer))
	}
	return jwt.NewParser(options...)
}

// maxSubject limits the reported part of a token's sub, in bytes.
const maxSubject = 120

// readToken returns "sub:" and the subject of a valid token, "token" for one without a subject, and no holder for an
// invalid one. It verifies with the one configured key, whatever kid, jku, x5u or jwk the token has.
func (k checks) readToken(s string) holder {
	if k.token == nil || s == "" || len(s) > maxToken {
		return holder{}
	}
	t, err := k.parser.Parse(s, func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok { // RFC 7515 4.1.11: unsupported, so refused
			return nil, errors.New("crit")
		}
		return k.token, nil
	})
	if err != nil {
		return holder{}
	}
	end, err := t.Claims.GetExpirationTime()
	if err != nil || end == nil {
		return holder{}
	}
	subject, err := t.Claims.GetSubject()
	if err != nil || subject == "" {
		return holder{"token", end.Time}
	}
	subject = url.PathEscape(subject) // it becomes a header
	if len(subject) > maxSubject {    // subjects with a common beginning stay distinct
		sum := sha256.Sum256([]byte(subject))
		id := "#" + hex.EncodeToString(sum[:16])
		subject = subject[:maxSubject-len(id)] + id
	}
	return holder{"sub:" + subject, end.Time}
}
