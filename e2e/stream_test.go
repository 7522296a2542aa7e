package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// signer returns a key that signs tokens, and its public half as JWT_PUBLIC_KEY takes it.
func signer(t *testing.T) (*rsa.PrivateKey, string) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return private, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// openStream opens an MCP session's stream with a token that ends at the given time, and tells when the stream has.
func openStream(t *testing.T, w *world, private *rsa.PrivateKey, end time.Time) (ended <-chan time.Time) {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"sub": "e2e", "exp": end.Unix()}).SignedString(private)
	if err != nil {
		t.Fatal(err)
	}
	client := w.client()
	client.Timeout = 0
	send := func(method, session, body string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+public+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Content-Type", "application/json")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
			req.Header.Set("MCP-Protocol-Version", "2025-11-25")
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		if res.StatusCode >= 300 {
			t.Fatalf("%s %.40s: %s", method, body, res.Status)
		}
		return res
	}
	session := send("POST", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`).
		Header.Get("Mcp-Session-Id")
	send("POST", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	stream := send("GET", session, "")
	over := make(chan time.Time, 1)
	go func() {
		_, _ = io.Copy(io.Discard, stream.Body)
		over <- time.Now()
	}()
	return over
}
