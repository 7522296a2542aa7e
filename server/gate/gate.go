// Package gate decides about access: tickets for the desktop, keys and tokens for everything else. It also serves the
// desktop's WebSocket.
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

// Config configures the gate; `browser-shell init` writes it as JSON for `serve`. It holds verifiers, not
// keys.
type Config struct {
	APIKeySHA256 string        `json:"api_key_sha256,omitempty"` // hex
	JWTPublicKey string        `json:"jwt_public_key,omitempty"` // PEM, RSA of 2048 to 8192 bits
	JWTAudience  string        `json:"jwt_audience,omitempty"`   // required in a token's aud
	JWTIssuer    string        `json:"jwt_issuer,omitempty"`     // required as a token's iss
	TicketTTL    time.Duration `json:"ticket_ttl"`               // 1 s to 24 h, in nanoseconds
	Anonymous    bool          `json:"anonymous,omitempty"`      // admit everybody; never together with a key
}

// Gate is the handler of /tickets, /auth and /websockify; other paths get 404.
type Gate struct {
	checks
	tickets *tickets
	desktop desktop
}

// New returns a Gate whose /websockify connects to the VNC server at vnc, a loopback address and port (127.0.0.1:5900).
// It passes events of tickets with input to log; while log fails, there is no input. Only new tickets and errors about
// requests for them have a body. The surrounding server must limit the size and time of a request's head. The end of a
// request's context closes its desktop. It may be served on a unix socket: nothing depends on the peer's address.
func New(c Config, vnc string, log func(Event) error) (*Gate, error) {
	k, err := c.newChecks()
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	if ap, err := netip.ParseAddrPort(vnc); err != nil || !ap.Addr().IsLoopback() || ap.Port() == 0 {
		return nil, fmt.Errorf("gate: VNC address %q: give a loopback address and a port, for instance 127.0.0.1:5900", vnc)
	}
	return &Gate{checks: k, tickets: newTickets(c.TicketTTL, log), desktop: newDesktop(vnc)}, nil
}

// Close ends all tickets and returns when their ends are logged. No request may be running.
func (g *Gate) Close() { g.tickets.close() }

// ServeHTTP compares the raw path: another spelling of a name is another name.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	path, query, _ := strings.Cut(r.RequestURI, "?")
	switch path {
	case "/tickets":
		who := g.identifyKeyHolder(r)
		if !checkMethod(w, r, http.MethodPost, http.MethodDelete) || !g.checkAccess(w, r, who.subject != "") {
			return
		}
		if r.Method == http.MethodPost {
			g.issueTicket(w, r, who)
		} else {
			g.revokeTicket(w, query)
		}
	case "/auth":
		if e := g.findEntry(r); checkMethod(w, r, http.MethodGet) && g.checkAccess(w, r, e.subject != "") {
			// nginx forwards these to MCP.
			w.Header().Set("X-Browser-Shell-Caller", cmp.Or(e.subject, anonymous))
			if !e.until.IsZero() {
				w.Header().Set("X-Browser-Shell-Until", strconv.FormatInt(e.until.Unix(), 10))
			}
			w.WriteHeader(http.StatusNoContent)
		}
	case "/websockify":
		if e := g.findEntry(r); checkMethod(w, r, http.MethodGet) && g.checkAccess(w, r, e.subject != "") {
			g.desktop.serve(w, r, e)
		}
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// anonymous is the subject of a caller without a credential.
const anonymous = "anonymous"

func checkMethod(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	w.WriteHeader(http.StatusMethodNotAllowed)
	return false
}

func (g *Gate) checkAccess(w http.ResponseWriter, r *http.Request, may bool) bool {
	if !g.isOwnPage(r) {
		w.WriteHeader(http.StatusForbidden)
		return false
	}
	if may || g.anonymous {
		return true
	}
	// RFC 9110 11.6.1 requires this header in a 401. "Bearer" would make MCP clients look for OAuth.
	w.Header().Set("WWW-Authenticate", `ApiKey header="X-AIO-API-Key"`)
	w.WriteHeader(http.StatusUnauthorized)
	return false
}

// identifyKeyHolder returns the caller if he may have a ticket. A ticket is no credential here, since it could renew
// itself forever.
func (g *Gate) identifyKeyHolder(r *http.Request) holder {
	_, query, ok := parseTarget(r)
	if !ok {
		return holder{}
	}
	return g.identifyHolder(r.Header, query)
}

// entry is a permission: the caller, and the ticket that decided, if one did.
type entry struct {
	holder
	ticket *ticket
}

// findEntry returns the caller if he may access the request's target. For the desktop a ticket in the request alone
// decides, as in the base: the 401 informs clients of an expired ticket.
func (g *Gate) findEntry(r *http.Request) entry {
	path, query, ok := parseTarget(r)
	if !ok {
		return entry{}
	}
	if given := query["ticket"]; len(given) > 0 && desktopPath.MatchString(path) {
		if t := g.tickets.find(given[len(given)-1]); t != nil {
			return entry{holder{subject: "ticket"}, t}
		}
		return entry{}
	}
	return entry{g.identifyHolder(r.Header, query), nil}
}

// maxOrder limits the body of a request for a ticket, in bytes.
const maxOrder = 1024

// issueTicket answers a request for a ticket. The body is {"input": true}, {} or empty.
func (g *Gate) issueTicket(w http.ResponseWriter, r *http.Request, who holder) {
	input, err := readOrder(http.MaxBytesReader(w, r.Body, maxOrder))
	if err != nil {
		sendJSON(w, http.StatusBadRequest, struct {
			Error string `json:"error"`
		}{err.Error() + `; send {"input": true} or no body`})
		return
	}
	who.subject = cmp.Or(who.subject, anonymous)
	text, t, err := g.tickets.issue(who, input)
	if err != nil { // it can't be logged
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	sendJSON(w, http.StatusOK, struct {
		Ticket    string `json:"ticket"`
		ExpiresIn int    `json:"expires_in"` // seconds
		Input     bool   `json:"input,omitempty"`
	}{text, int(time.Until(t.until).Round(time.Second).Seconds()), input})
}

// readOrder reads the body of a request for a ticket.
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

// revokeTicket ends the ticket in the query, and the desktops that it opened.
func (g *Gate) revokeTicket(w http.ResponseWriter, query string) {
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

// sendJSON sends JSON. The client may have left.
func sendJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
