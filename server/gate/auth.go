package gate

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"

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
}

// known tells whose credential a request has, or "" if it has no good one: the API key in X-AIO-API-Key, as the last api_key
// of the query or as Bearer, or a token as Bearer.
func (k checks) known(h http.Header, query url.Values) (caller string) {
	scheme, bearer, _ := strings.Cut(single(h, "Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		bearer = ""
	}
	bearer = strings.TrimSpace(bearer)
	given := []string{single(h, "X-AIO-API-Key"), bearer}
	if v := query["api_key"]; len(v) > 0 {
		given = append(given, v[len(v)-1])
	}
	for _, s := range given {
		if k.isKey(s) {
			return k.keyID()
		}
	}
	return k.tokenSubject(bearer)
}

// single gives the value of a header that is there once. nginx sends none twice.
func single(h http.Header, name string) string {
	if v := h.Values(name); len(v) == 1 {
		return v[0]
	}
	return ""
}

func (k checks) isKey(s string) bool {
	sum := sha256.Sum256([]byte(s))
	return len(k.key) == len(sum) && subtle.ConstantTimeCompare(sum[:], k.key) == 1
}

// keyID is "key:" and the first 8 hexadecimal digits of the key's SHA-256: enough to tell keys apart, too little to find one.
func (k checks) keyID() string { return "key:" + hex.EncodeToString(k.key[:4]) }

// tokens pins RS256 (RFC 8725 3.1). The base took tokens without exp for good.
var tokens = jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithExpirationRequired(), jwt.WithStrictDecoding())

// maxSubject bounds what is told of a token's sub, in bytes.
const maxSubject = 120

// tokenSubject gives "sub:" and the subject of a good token, "token" for one without a subject, and "" for a bad one. It
// checks with the one key there is, whatever kid, jku, x5u or jwk in the token say.
func (k checks) tokenSubject(s string) string {
	if k.token == nil || s == "" || len(s) > maxToken {
		return ""
	}
	t, err := tokens.Parse(s, func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok { // RFC 7515 4.1.11: not understood, so refused
			return nil, errors.New("crit")
		}
		return k.token, nil
	})
	if err != nil {
		return ""
	}
	subject, err := t.Claims.GetSubject()
	if err != nil || subject == "" {
		return "token"
	}
	subject = url.PathEscape(subject) // it becomes a header
	return "sub:" + subject[:min(len(subject), maxSubject)]
}
