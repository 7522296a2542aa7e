// Package gate answers who may come in: tickets for the desktop, keys and tokens for the rest, and the desktop's WebSocket.
package gate

import (
	"net/http"
	"time"
)

// Config is the gate's; `browser-shell init` writes it as JSON for the hub's process. It holds no key, only what checks one.
type Config struct {
	APIKeySHA256 string        `json:"api_key_sha256,omitempty"` // hex
	JWTPublicKey string        `json:"jwt_public_key,omitempty"` // PEM, RSA of 2048 bits or more
	TicketTTL    time.Duration `json:"ticket_ttl"`               // 1 s to 1 h
	Anonymous    bool          `json:"anonymous,omitempty"`      // let everybody in
}

// FromEnv reads SANDBOX_API_KEY, JWT_PUBLIC_KEY, TICKET_TTL_SECONDS, SLIM_ALLOW_ANONYMOUS and SLIM_LISTEN. Without any key it
// is an error unless SLIM_ALLOW_ANONYMOUS is true or SLIM_LISTEN is loopback. It says which variable is wrong, never its value.
func FromEnv(getenv func(string) string) (Config, error) { panic("not built") }

// Load reads a Config that was written as JSON. Unknown keys are an error.
func Load(path string) (Config, error) { panic("not built") }

// New gives the handler of /tickets, /auth and /websockify, which leads to the VNC server at vnc (127.0.0.1:5900).
func New(c Config, vnc string) (http.Handler, error) { panic("not built") }
