// Package gate answers who may come in: tickets for the desktop, keys and tokens for the rest, and the desktop's WebSocket.
package gate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/strictjson"
)

// Config is the gate's; `browser-shell init` writes it as JSON for the hub's process. It holds no key, only what checks one.
type Config struct {
	APIKeySHA256 string        `json:"api_key_sha256,omitempty"` // hex
	JWTPublicKey string        `json:"jwt_public_key,omitempty"` // PEM, RSA of 2048 to 8192 bits
	JWTAudience  string        `json:"jwt_audience,omitempty"`   // what a token's aud must name
	JWTIssuer    string        `json:"jwt_issuer,omitempty"`     // what a token's iss must be
	TicketTTL    time.Duration `json:"ticket_ttl"`               // 1 s to 24 h, in nanoseconds
	Anonymous    bool          `json:"anonymous,omitempty"`      // let everybody in; never together with a key
}

// Gate is the handler of /tickets, /auth and /websockify. Everything else is 404.
type Gate struct {
	checks
	tickets *tickets
	desktop desktop
}

// New returns a Gate whose /websockify leads to the VNC server at vnc, a loopback address and port (127.0.0.1:5900). It
// passes to log what happens to tickets with input; where log fails there is no input. No answer has a body but a new ticket
// and an error about a request for one. The server around it has to bound the size and time of a request's head; when the
// request's context ends, an open desktop closes. It may be served on a unix socket: nothing depends on who is at the other
// end.
func New(c Config, vnc string, log func(Event) error) (*Gate, error) {
	k, err := c.checks()
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	if ap, err := netip.ParseAddrPort(vnc); err != nil || !ap.Addr().IsLoopback() || ap.Port() == 0 {
		return nil, fmt.Errorf("gate: VNC address %q: give a loopback address and a port, for instance 127.0.0.1:5900", vnc)
	}
	return &Gate{checks: k, tickets: newTickets(c.TicketTTL, log), desktop: newDesktop(vnc)}, nil
}

// Close ends all tickets and returns when their ends are logged. Nothing may be served any more.
func (g *Gate) Close() { g.tickets.close() }

// ServeHTTP compares the path as it was sent: another spelling of a name is another name.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	path, query, _ := strings.Cut(r.RequestURI, "?")
	switch path {
	case "/tickets":
		who := g.mayAsk(r)
		if !only(w, r, http.MethodPost, http.MethodDelete) || !g.enter(w, r, who.subject != "") {
			return
		}
		if r.Method == http.MethodPost {
			g.issue(w, r, who)
		} else {
			g.revoke(w, query)
		}
	case "/auth":
		if e := g.mayPass(r); only(w, r, http.MethodGet) && g.enter(w, r, e.subject != "") {
			// nginx hands these to the hub.
			w.Header().Set("X-Browser-Shell-Caller", cmp.Or(e.subject, anonymous))
			if !e.until.IsZero() {
				w.Header().Set("X-Browser-Shell-Until", strconv.FormatInt(e.until.Unix(), 10))
			}
			w.WriteHeader(http.StatusNoContent)
		}
	case "/websockify":
		if e := g.mayPass(r); only(w, r, http.MethodGet) && g.enter(w, r, e.subject != "") {
			g.desktop.serve(w, r, e)
		}
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// anonymous is the subject of who comes in without a credential.
const anonymous = "anonymous"

func only(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	w.WriteHeader(http.StatusMethodNotAllowed)
	return false
}

func (g *Gate) enter(w http.ResponseWriter, r *http.Request, may bool) bool {
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

// mayAsk returns who may have a ticket. A ticket counts for nothing here: it would renew itself for ever.
func (g *Gate) mayAsk(r *http.Request) holder {
	_, query, ok := asked(r)
	if !ok {
		return holder{}
	}
	return g.known(r.Header, query)
}

// entry is who may go where a request wants to, and the ticket that decided it, if one did.
type entry struct {
	holder
	ticket *ticket
}

// mayPass returns who may go where a request wants to. If that is the desktop and there is a ticket, the ticket alone
// decides, as in the base: clients learn of an old ticket by the 401.
func (g *Gate) mayPass(r *http.Request) entry {
	path, query, ok := asked(r)
	if !ok {
		return entry{}
	}
	if given := query["ticket"]; len(given) > 0 && desktopPath.MatchString(path) {
		if t := g.tickets.find(given[len(given)-1]); t != nil {
			return entry{holder{subject: "ticket"}, t}
		}
		return entry{}
	}
	return entry{g.known(r.Header, query), nil}
}

// maxOrder bounds the body of a request for a ticket, in bytes.
const maxOrder = 1024

// issue answers a request for a ticket. Its body, if it has one, is {"input": true} or {}.
func (g *Gate) issue(w http.ResponseWriter, r *http.Request, who holder) {
	input, err := readOrder(http.MaxBytesReader(w, r.Body, maxOrder))
	if err != nil {
		answer(w, http.StatusBadRequest, struct {
			Error string `json:"error"`
		}{err.Error() + `; send {"input": true} or no body`})
		return
	}
	who.subject = cmp.Or(who.subject, anonymous)
	text, t, err := g.tickets.issue(who, input)
	if err != nil { // it can't be recorded
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	answer(w, http.StatusOK, struct {
		Ticket    string `json:"ticket"`
		ExpiresIn int    `json:"expires_in"` // seconds
		Input     bool   `json:"input,omitempty"`
	}{text, int(time.Until(t.until).Round(time.Second).Seconds()), input})
}

// readOrder reads what kind of ticket is wanted.
func readOrder(body io.Reader) (input bool, err error) {
	text, err := io.ReadAll(body)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return false, err
	}
	node, err := strictjson.Parse(text)
	if err != nil {
		return false, err
	}
	members, err := node.Object("the body", "input")
	if err != nil || len(members) == 0 {
		return false, err
	}
	input, ok := members[0].Value.(bool)
	if !ok {
		return false, errors.New("input must be true or false")
	}
	return input, nil
}

// revoke ends the ticket that the query names, with the desktops that it opened.
func (g *Gate) revoke(w http.ResponseWriter, query string) {
	values, err := url.ParseQuery(query)
	if given := values["ticket"]; err == nil && len(given) == 1 {
		if t := g.tickets.find(given[0]); t != nil {
			t.end(errTicketEnded)
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
}

// answer sends JSON. Who asked may be gone.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
