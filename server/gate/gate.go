// Package gate answers who may come in: tickets for the desktop, keys and tokens for the rest, and the desktop's WebSocket.
package gate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Config is the gate's; `browser-shell init` writes it as JSON for the hub's process. It holds no key, only what checks one.
type Config struct {
	APIKeySHA256 string        `json:"api_key_sha256,omitempty"` // hex
	JWTPublicKey string        `json:"jwt_public_key,omitempty"` // PEM, RSA of 2048 to 8192 bits
	TicketTTL    time.Duration `json:"ticket_ttl"`               // 1 s to 1 h, in nanoseconds
	Anonymous    bool          `json:"anonymous,omitempty"`      // let everybody in; never together with a key
}

type gate struct {
	checks
	tickets tickets
	desktop desktop
}

// New gives the handler of /tickets, /auth and /websockify, which leads to the VNC server at vnc, a loopback address and
// port (127.0.0.1:5900). Everything else is 404, and no answer but a new ticket has a body. The server around it has to
// bound the size and time of a request's head; when the request's context ends, an open desktop closes. It may be served
// on a unix socket: nothing depends on who is at the other end.
func New(c Config, vnc string) (http.Handler, error) {
	k, err := c.checks()
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	if ap, err := netip.ParseAddrPort(vnc); err != nil || !ap.Addr().IsLoopback() || ap.Port() == 0 {
		return nil, fmt.Errorf("gate: VNC address %q: give a loopback address and a port, for instance 127.0.0.1:5900", vnc)
	}
	return &gate{checks: k, tickets: newTickets(c.TicketTTL), desktop: newDesktop(vnc)}, nil
}

// ServeHTTP compares the path as it was sent: another spelling of a name is another name.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	path, _, _ := strings.Cut(r.RequestURI, "?")
	switch path {
	case "/tickets":
		if only(http.MethodPost, w, r) && g.enter(w, r, g.mayAsk(r)) {
			g.issue(w)
		}
	case "/auth":
		if _, caller := g.mayPass(r); only(http.MethodGet, w, r) && g.enter(w, r, caller != "") {
			w.Header().Set("X-Browser-Shell-Caller", cmp.Or(caller, "anonymous")) // nginx hands it to the hub
			w.WriteHeader(http.StatusNoContent)
		}
	case "/websockify":
		if ticket, caller := g.mayPass(r); only(http.MethodGet, w, r) && g.enter(w, r, caller != "") {
			g.desktop.serve(w, r, ticket)
		}
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func only(method string, w http.ResponseWriter, r *http.Request) bool {
	if r.Method == method {
		return true
	}
	w.Header().Set("Allow", method)
	w.WriteHeader(http.StatusMethodNotAllowed)
	return false
}

func (g *gate) enter(w http.ResponseWriter, r *http.Request, may bool) bool {
	if !g.ownPage(r) {
		w.WriteHeader(http.StatusForbidden)
		return false
	}
	if may || g.anonymous {
		return true
	}
	// RFC 9110 11.6.1: a 401 has one. "Bearer" would send MCP clients to look for OAuth.
	w.Header().Set("WWW-Authenticate", `ApiKey header="X-AIO-API-Key"`)
	w.WriteHeader(http.StatusUnauthorized)
	return false
}

// mayAsk says whether a request may have a ticket. A ticket counts for nothing here: it would renew itself for ever.
func (g *gate) mayAsk(r *http.Request) bool {
	_, query, ok := asked(r)
	return ok && g.known(r.Header, query) != ""
}

// mayPass says whether a request may go where it wants to. If that is the desktop and there is a ticket, the ticket alone
// decides, as in the base: clients learn of an old ticket by the 401. It gives the ticket that let the request in, if one did,
// and who the caller is: "" for one who may not.
func (g *gate) mayPass(r *http.Request) (ticket, caller string) {
	path, query, ok := asked(r)
	if !ok {
		return "", ""
	}
	if given := query["ticket"]; len(given) > 0 && desktopPath.MatchString(path) {
		if last := given[len(given)-1]; g.tickets.valid(last) {
			return last, "ticket"
		}
		return "", ""
	}
	return "", g.known(r.Header, query)
}

func (g *gate) issue(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct { // who asked may be gone
		Ticket    string `json:"ticket"`
		ExpiresIn int    `json:"expires_in"` // seconds
	}{g.tickets.issue(), int(g.tickets.ttl.Seconds())})
}
