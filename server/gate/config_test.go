package gate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const apiKey = "0123456789abcdef-KEY"

// signer is the pair of keys of the tests' tokens.
var signer = sync.OnceValue(func() *rsa.PrivateKey { return newRSA(2048) })

func newRSA(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		panic(err)
	}
	return key
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func publicPEM(key any) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(err)
	}
	return pemOf("PUBLIC KEY", der)
}

func sumOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestFromEnv(t *testing.T) {
	good := publicPEM(&signer().PublicKey)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	wrapped := b64(good)
	wrapped = wrapped[:76] + "\n" + wrapped[76:] + "\n" // as base64(1) does

	type env map[string]string
	for name, c := range map[string]struct {
		env  env
		want Config
		err  string // of the variable and the reason
	}{
		"key":                   {env: env{"SANDBOX_API_KEY": apiKey}, want: Config{APIKeySHA256: sumOf(apiKey), TicketTTL: time.Hour}},
		"token":                 {env: env{"JWT_PUBLIC_KEY": b64(good)}, want: Config{JWTPublicKey: good, TicketTTL: time.Hour}},
		"wrapped token":         {env: env{"JWT_PUBLIC_KEY": wrapped}, want: Config{JWTPublicKey: good, TicketTTL: time.Hour}},
		"all":                   {env: env{"SANDBOX_API_KEY": apiKey, "JWT_PUBLIC_KEY": b64(good), "TICKET_TTL_SECONDS": "3600"}, want: Config{APIKeySHA256: sumOf(apiKey), JWTPublicKey: good, TicketTTL: time.Hour}},
		"anonymous":             {env: env{"SLIM_ALLOW_ANONYMOUS": "true"}, want: Config{Anonymous: true, TicketTTL: time.Hour}},
		"loopback":              {env: env{"SLIM_LISTEN": "loopback", "SLIM_ALLOW_ANONYMOUS": "false"}, want: Config{Anonymous: true, TicketTTL: time.Hour}},
		"key beats anonymous":   {env: env{"SANDBOX_API_KEY": apiKey, "SLIM_ALLOW_ANONYMOUS": "true", "SLIM_LISTEN": "loopback"}, want: Config{APIKeySHA256: sumOf(apiKey), TicketTTL: time.Hour}},
		"nothing":               {err: "no key is set"},
		"blank":                 {env: env{"SANDBOX_API_KEY": "", "JWT_PUBLIC_KEY": "\n"}, err: "no key is set"},
		"not allowed":           {env: env{"SLIM_ALLOW_ANONYMOUS": "false"}, err: "no key is set"},
		"spaces":                {env: env{"SANDBOX_API_KEY": strings.Repeat(" ", 20)}, err: "SANDBOX_API_KEY: must be"},
		"short":                 {env: env{"SANDBOX_API_KEY": "hunter2"}, err: "SANDBOX_API_KEY: must be"},
		"short and anonymous":   {env: env{"SANDBOX_API_KEY": "hunter2", "SLIM_ALLOW_ANONYMOUS": "true"}, err: "SANDBOX_API_KEY: must be"},
		"long":                  {env: env{"SANDBOX_API_KEY": strings.Repeat("a", 1025)}, err: "SANDBOX_API_KEY: must be"},
		"newline at the end":    {env: env{"SANDBOX_API_KEY": apiKey + "\n"}, err: "SANDBOX_API_KEY: must be"},
		"umlaut":                {env: env{"SANDBOX_API_KEY": apiKey + "ä"}, err: "SANDBOX_API_KEY: must be"},
		"not base64":            {env: env{"JWT_PUBLIC_KEY": good}, err: "JWT_PUBLIC_KEY: must be the base64 of a PEM file; make it with: base64 -w0"},
		"not PEM":               {env: env{"JWT_PUBLIC_KEY": b64("key")}, err: "JWT_PUBLIC_KEY: must be one public key"},
		"private key":           {env: env{"JWT_PUBLIC_KEY": b64(pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(signer())))}, err: "JWT_PUBLIC_KEY: must be one public key"},
		"private after public":  {env: env{"JWT_PUBLIC_KEY": b64(good + pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(signer())))}, err: "JWT_PUBLIC_KEY: must be one public key"},
		"text before public":    {env: env{"JWT_PUBLIC_KEY": b64("x\n" + good)}, err: "JWT_PUBLIC_KEY: must be one public key"},
		"elliptic":              {env: env{"JWT_PUBLIC_KEY": b64(publicPEM(&ec.PublicKey))}, err: "JWT_PUBLIC_KEY: must be an RSA public key"},
		"1024 bits":             {env: env{"JWT_PUBLIC_KEY": b64(publicPEM(&newRSA(1024).PublicKey))}, err: "JWT_PUBLIC_KEY: the RSA key has 1024 bits"},
		"bad token key and key": {env: env{"SANDBOX_API_KEY": apiKey, "JWT_PUBLIC_KEY": "!"}, err: "JWT_PUBLIC_KEY: must be the base64 of a PEM file"},
		"TTL 0":                 {env: env{"SANDBOX_API_KEY": apiKey, "TICKET_TTL_SECONDS": "0"}, err: "TICKET_TTL_SECONDS: must be"},
		"TTL 86401":             {env: env{"SANDBOX_API_KEY": apiKey, "TICKET_TTL_SECONDS": "86401"}, err: "TICKET_TTL_SECONDS: must be"},
		"TTL huge":              {env: env{"SANDBOX_API_KEY": apiKey, "TICKET_TTL_SECONDS": "99999999999999999999"}, err: "TICKET_TTL_SECONDS: must be"},
		"TTL negative":          {env: env{"SANDBOX_API_KEY": apiKey, "TICKET_TTL_SECONDS": "-30"}, err: "TICKET_TTL_SECONDS: must be"},
		"TTL words":             {env: env{"SANDBOX_API_KEY": apiKey, "TICKET_TTL_SECONDS": "30s"}, err: "TICKET_TTL_SECONDS: must be"},
		"anonymous yes":         {env: env{"SLIM_ALLOW_ANONYMOUS": "yes"}, err: "SLIM_ALLOW_ANONYMOUS: must be"},
		"anonymous TRUE":        {env: env{"SANDBOX_API_KEY": apiKey, "SLIM_ALLOW_ANONYMOUS": "TRUE"}, err: "SLIM_ALLOW_ANONYMOUS: must be"},
		"listen everywhere":     {env: env{"SLIM_LISTEN": "0.0.0.0"}, err: "SLIM_LISTEN: must be"},
		"listen and key":        {env: env{"SANDBOX_API_KEY": apiKey, "SLIM_LISTEN": "localhost"}, err: "SLIM_LISTEN: must be"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromEnv(func(name string) string { return c.env[name] })
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				for _, value := range c.env {
					if len(value) > 5 && err != nil && strings.Contains(err.Error(), value) {
						t.Errorf("the error tells a value: %v", err)
					}
				}
				if got != (Config{}) {
					t.Errorf("an error and yet %+v", got)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
			if _, err := New(got, "127.0.0.1:5900", unlogged); err != nil {
				t.Errorf("New refuses it: %v", err)
			}
		})
	}

	_, err = FromEnv(func(name string) string { return "x y" })
	for _, name := range []string{"SANDBOX_API_KEY", "JWT_PUBLIC_KEY", "TICKET_TTL_SECONDS", "SLIM_ALLOW_ANONYMOUS", "SLIM_LISTEN"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the error doesn't name %s: %v", name, err)
		}
	}
}

func TestLoad(t *testing.T) {
	want := Config{APIKeySHA256: sumOf(apiKey), JWTPublicKey: publicPEM(&signer().PublicKey), TicketTTL: time.Hour}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(apiKey)) {
		t.Error("the configuration holds the key")
	}
	path := filepath.Join(t.TempDir(), "gate.json")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(string(text), 0o400)
	if got, err := Load(path); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}

	sum := `"api_key_sha256":"` + sumOf(apiKey) + `"`
	for name, text := range map[string]string{
		"empty":               ``,
		"null":                `null`,
		"list":                `[]`,
		"no key":              `{"ticket_ttl":30000000000}`,
		"no TTL":              `{` + sum + `}`,
		"small TTL":           `{` + sum + `,"ticket_ttl":30}`,
		"large TTL":           `{` + sum + `,"ticket_ttl":86400000000001}`,
		"short sum":           `{"api_key_sha256":"abcd","ticket_ttl":30000000000}`,
		"key for sum":         `{"api_key_sha256":"` + apiKey + `","ticket_ttl":30000000000}`,
		"not a public key":    `{"jwt_public_key":"x","ticket_ttl":30000000000}`,
		"unknown":             `{` + sum + `,"ticket_ttl":30000000000,"x":1}`,
		"twice":               `{` + sum + `,"ticket_ttl":30000000000,"ticket_ttl":40000000000}`,
		"other case":          `{` + sum + `,"ticket_ttl":30000000000,"Anonymous":false}`,
		"null value":          `{` + sum + `,"ticket_ttl":30000000000,"anonymous":null}`,
		"wrong type":          `{` + sum + `,"ticket_ttl":{}}`,
		"anonymous and a key": `{` + sum + `,"ticket_ttl":30000000000,"anonymous":true}`,
		"two values":          `{` + sum + `,"ticket_ttl":30000000000}{}`,
		"cut off":             `{` + sum + `,"ticket_ttl":30000000000`,
		"too large":           `{` + sum + `,"ticket_ttl":30000000000}` + strings.Repeat(" ", maxConfig),
	} {
		write(text, 0o400)
		if got, err := Load(path); err == nil || got != (Config{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		} else if strings.Contains(err.Error(), apiKey) {
			t.Errorf("%s: the error tells the key: %v", name, err)
		}
	}

	for _, mode := range []os.FileMode{0o602, 0o620, 0o666} {
		write(string(text), mode)
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "others may write") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if os.Getuid() == 0 { // the rule "root's or mine" needs a third user to see it at work
		write(string(text), 0o400)
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "another user") {
			t.Errorf("another user's: %v", err)
		}
	}
	_ = os.Remove(path)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("a FIFO was read")
	}
	if _, err := Load(filepath.Dir(path)); err == nil {
		t.Error("a directory was read")
	}
	if _, err := Load(path + "x"); err == nil {
		t.Error("a missing file was read")
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{Anonymous: true, TicketTTL: time.Second}
	for _, vnc := range []string{"", "127.0.0.1", "127.0.0.1:0", "0.0.0.0:5900", "192.0.2.1:5900", "localhost:5900", "127.0.0.1:5900x", "[::]:5900"} {
		if _, err := New(good, vnc, unlogged); err == nil {
			t.Errorf("VNC at %q", vnc)
		}
	}
	for _, c := range []Config{{}, {TicketTTL: time.Second}, {Anonymous: true}, {Anonymous: true, TicketTTL: time.Second, APIKeySHA256: sumOf(apiKey)}} {
		if _, err := New(c, "127.0.0.1:5900", unlogged); err == nil {
			t.Errorf("%+v", c)
		}
	}
	if _, err := New(good, "[::1]:5900", unlogged); err != nil {
		t.Error(err)
	}
}
