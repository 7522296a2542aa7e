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
	maxURI   = 16 << 10 // bytes; nginx passes no longer line
	maxToken = 8 << 10  // bytes of a JWT
)

// desktopPath are the paths that a ticket opens. nginx picks a location after it has decoded and cleaned a path; what is
// here has one reading only: nothing encoded, no segment that is empty or begins with a dot.
var desktopPath = lazyregexp.New(`^/(websockify|vnc/([A-Za-z0-9_-][A-Za-z0-9._-]*/)*([A-Za-z0-9_-][A-Za-z0-9._-]*)?)$`)

// asked gives what a request is for: nginx tells it in X-Original-URI, otherwise it is the request's own. That header
// opens nothing by itself; it is only where the ticket is looked for. What has two readings is not ok.
func asked(r *http.Request) (path string, query url.Values, ok bool) {
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

// checks decide on keys and tokens. There is no limit on failed attempts: a key that may be set here cannot be found by
// guessing, and a limit would shut out the owner while a stranger guesses.
type checks struct {
	anonymous bool
	key       []byte         // SHA-256 of the API key, or nil
	token     *rsa.PublicKey // of the tokens, or nil
	parser    *jwt.Parser
}

// holder is who has a good credential.
type holder struct {
	subject string    // key:ID, sub:SUBJECT, token, or "" for nobody
	until   time.Time // the credential's end, or zero
}

// known returns whose credential a request has: the API key in X-AIO-API-Key, as api_key in the query or as Bearer, or a
// token as Bearer. A request with two of them, of whatever kind, has none: who reads the other one would see another caller.
func (k checks) known(h http.Header, query url.Values) holder {
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

// keyID is "key:" and the first 8 hexadecimal digits of the key's SHA-256: enough to tell keys apart, too little to find one.
func (k checks) keyID() string { return "key:" + hex.EncodeToString(k.key[:4]) }

// newParser pins RS256 (RFC 8725 3.1). The base took tokens without exp for good. What audience and issuer name a token must
// have, if they are not empty.
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

// maxSubject bounds what is told of a token's sub, in bytes.
const maxSubject = 120

// readToken returns "sub:" and the subject of a good token, "token" for one without a subject, and nobody for a bad one. It
// checks with the one key there is, whatever kid, jku, x5u or jwk in the token say.
func (k checks) readToken(s string) holder {
	if k.token == nil || s == "" || len(s) > maxToken {
		return holder{}
	}
	t, err := k.parser.Parse(s, func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok { // RFC 7515 4.1.11: not understood, so refused
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
	if len(subject) > maxSubject {    // two that begin alike are two callers
		sum := sha256.Sum256([]byte(subject))
		id := "#" + hex.EncodeToString(sum[:16])
		subject = subject[:maxSubject-len(id)] + id
	}
	return holder{"sub:" + subject, end.Time}
}
