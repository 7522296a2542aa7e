package gate

import (
	"bytes"
	"cmp"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/slimctl/slimctl/server/strictjson"
)

const (
	minKey     = 16 // characters of an API key; guesses are unlimited, so it must be long
	maxKey     = 1024
	minRSA     = 2048 // bits
	maxRSA     = 8192 // bits; the cost of a check grows with their square
	minTTL     = time.Second
	maxTTL     = 24 * time.Hour
	defaultTTL = time.Hour // then a viewer is disconnected
	maxConfig  = 64 << 10  // bytes
	maxClaim   = 1024      // bytes of an audience or issuer
)

// FromEnv returns the Config that SANDBOX_API_KEY, JWT_PUBLIC_KEY, JWT_AUDIENCE, JWT_ISSUER, TICKET_TTL_SECONDS,
// SLIM_ALLOW_ANONYMOUS and SLIM_LISTEN define. Without a key, SLIM_ALLOW_ANONYMOUS must be true or SLIM_LISTEN
// loopback; with a key these two have no effect. The error names all wrong variables, never their values.
func FromEnv(getenv func(string) string) (Config, error) {
	c := Config{TicketTTL: defaultTTL}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if key := getenv("SANDBOX_API_KEY"); key != "" {
		if len(key) < minKey || len(key) > maxKey || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
			wrong("SANDBOX_API_KEY: must be %d to %d letters, digits and signs of ASCII without spaces; make one with: openssl rand -hex 32", minKey, maxKey)
		}
		sum := sha256.Sum256([]byte(key))
		c.APIKeySHA256 = hex.EncodeToString(sum[:])
	}
	if text := strings.TrimSpace(getenv("JWT_PUBLIC_KEY")); text != "" {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			wrong("JWT_PUBLIC_KEY: must be the base64 of a PEM file; make it with: base64 -w0 FILE.pem")
		} else if _, err = parsePublicKey(key); err != nil {
			wrong("JWT_PUBLIC_KEY: %w", err)
		}
		c.JWTPublicKey = string(key)
	}
	for _, claim := range []struct {
		name string
		into *string
	}{{"JWT_AUDIENCE", &c.JWTAudience}, {"JWT_ISSUER", &c.JWTIssuer}} {
		if *claim.into = getenv(claim.name); !isPlainClaim(*claim.into) {
			wrong("%s: must be at most %d bytes without spaces and control characters", claim.name, maxClaim)
		}
	}
	if text := getenv("TICKET_TTL_SECONDS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		c.TicketTTL = time.Duration(n) * time.Second
		if err != nil || c.TicketTTL < minTTL || c.TicketTTL > maxTTL {
			wrong("TICKET_TTL_SECONDS: must be a whole number from %.0f to %.0f", minTTL.Seconds(), maxTTL.Seconds())
		}
	}
	allow, listen := cmp.Or(getenv("SLIM_ALLOW_ANONYMOUS"), "false"), getenv("SLIM_LISTEN")
	if allow != "true" && allow != "false" {
		wrong("SLIM_ALLOW_ANONYMOUS: must be true or false")
	}
	if listen != "" && listen != "loopback" {
		wrong("SLIM_LISTEN: must be loopback or empty")
	}
	if c.APIKeySHA256 == "" && c.JWTPublicKey == "" {
		c.Anonymous = allow == "true" || listen == "loopback"
		if !c.Anonymous && len(errs) == 0 {
			wrong("no key is set, so nobody could come in: set SANDBOX_API_KEY or JWT_PUBLIC_KEY; or let everybody in who " +
				"reaches the port with SLIM_ALLOW_ANONYMOUS=true, or who is in the container's network with SLIM_LISTEN=loopback")
		}
	}
	if len(errs) > 0 {
		return Config{}, errors.Join(errs...)
	}
	return c, nil
}

// Load reads a Config in JSON. It refuses unknown and repeated keys, a file that another user owns or can write, one
// that isn't regular and one larger than 64 KiB.
func Load(path string) (Config, error) {
	text, err := strictjson.ReadOwn(path, maxConfig)
	if err != nil {
		return Config{}, fmt.Errorf("gate configuration: %w", err)
	}
	c, err := parseConfig(text)
	if err != nil {
		return Config{}, fmt.Errorf("gate configuration %s:%w", path, err)
	}
	return c, nil
}

func parseConfig(text []byte) (c Config, err error) {
	node, err := strictjson.Parse(text)
	if err == nil {
		_, err = node.Object("the file", "api_key_sha256", "jwt_public_key", "jwt_audience", "jwt_issuer", "ticket_ttl", "anonymous")
	}
	if err != nil {
		return Config{}, strictjson.Locate(text, err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return Config{}, err
	}
	if _, err := c.newChecks(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// newChecks returns the verifiers for keys and tokens.
func (c Config) newChecks() (checks, error) {
	k := checks{anonymous: c.Anonymous}
	if c.TicketTTL < minTTL || c.TicketTTL > maxTTL {
		return k, fmt.Errorf("ticket_ttl: must be %d to %d nanoseconds", minTTL, maxTTL)
	}
	if c.APIKeySHA256 != "" {
		sum, err := hex.DecodeString(c.APIKeySHA256)
		if err != nil || len(sum) != sha256.Size {
			return k, fmt.Errorf("api_key_sha256: must be %d hexadecimal digits", 2*sha256.Size)
		}
		k.key = sum
	}
	if c.JWTPublicKey != "" {
		key, err := parsePublicKey([]byte(c.JWTPublicKey))
		if err != nil {
			return k, fmt.Errorf("jwt_public_key: %w", err)
		}
		k.token = key
	}
	for name, claim := range map[string]string{"jwt_audience": c.JWTAudience, "jwt_issuer": c.JWTIssuer} {
		if !isPlainClaim(claim) {
			return k, fmt.Errorf("%s: must be at most %d bytes without spaces and control characters", name, maxClaim)
		}
	}
	k.parser = newParser(c.JWTAudience, c.JWTIssuer)
	if keyless := k.key == nil && k.token == nil; keyless != c.Anonymous {
		return k, errors.New("needs api_key_sha256 or jwt_public_key, or else anonymous")
	}
	return k, nil
}

// isPlainClaim reports whether a token's claim can be compared with s.
func isPlainClaim(s string) bool {
	return len(s) <= maxClaim && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// parsePublicKey parses a PEM file with one RSA public key and nothing else.
func parsePublicKey(text []byte) (*rsa.PublicKey, error) {
	text = bytes.TrimSpace(text)
	block, rest := pem.Decode(text)
	if block == nil || !bytes.HasPrefix(text, []byte("-----BEGIN ")) || block.Type != "PUBLIC KEY" && block.Type != "RSA PUBLIC KEY" || len(rest) > 0 {
		return nil, errors.New("must be one public key in PEM, as openssl rsa -pubout writes it")
	}
	key, err := jwt.ParseRSAPublicKeyFromPEM(text)
	if err != nil {
		return nil, fmt.Errorf("must be an RSA public key: %w", err)
	}
	if n := key.N.BitLen(); n < minRSA || n > maxRSA {
		return nil, fmt.Errorf("the RSA key has %d bits; must have %d to %d", n, minRSA, maxRSA)
	}
	return key, nil
}
