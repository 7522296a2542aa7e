// Package admin is the hub's management API on a unix socket or a loopback port, for its operator.
package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sort"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/slimctl/slimctl/server/hub/upstream"
	"github.com/slimctl/slimctl/server/output"
)

// Tool is a tool in the hub's list.
type Tool struct {
	Name        string `json:"name"`   // as clients see it
	Server      string `json:"server"` // name of its server
	Description string `json:"description,omitempty"`
	Blocked     bool   `json:"blocked,omitempty"` // by hub.policy.json: hidden from clients
}

// Hub is what the API manages.
type Hub interface {
	Servers() []upstream.Status
	Server(name string) (upstream.Status, bool)
	Log(name string) []byte
	Start(name string) error
	Stop(ctx context.Context, name string) error
	Restart(ctx context.Context, name string) error
	Tools() []Tool
	Reload() error
	// Ready returns the reason why the hub can't serve, or nil if every server runs.
	Ready() error
}

// Server is the status of one server with the end of its log.
type Server struct {
	upstream.Status
	Log string `json:"log"`
}

// Detail is the amount of detail of /healthz.
type Detail string

// Minimal is the default: a health page that others may see names no server, process or path.
const (
	Minimal Detail = "minimal" // the status
	Basic   Detail = "basic"   // and each server's state
	Full    Detail = "full"    // and the reason, with everything known about the servers
)

// Careful is a Hub with warnings about probable mistakes of its operator.
type Careful interface {
	Warnings() []error
}

// Health is the answer of /healthz.
type Health struct {
	Status   string                    `json:"status"`             // ok (200) or down (503)
	Servers  map[string]upstream.State `json:"servers,omitempty"`  // Basic
	Reason   string                    `json:"reason,omitempty"`   // Full
	Warnings []string                  `json:"warnings,omitempty"` // Full
	Details  []upstream.Status         `json:"details,omitempty"`  // Full
}

// Limits for clients.
const (
	maxClients = 32
	headerTime = 5 * time.Second
	idleTime   = 30 * time.Second
	stopTime   = 30 * time.Second // for a server to end; the ending continues after the client has left
	writeTime  = stopTime + 30*time.Second
	endTime    = 5 * time.Second
)

// Serve serves on l until ctx ends. l comes from Listen or ListenTCP. It refuses a TCP address other than loopback, and
// one without a token, which each request must send as Bearer.
func Serve(ctx context.Context, l net.Listener, h Hub, m *Metrics, token string) error {
	handler, err := newAPI(l.Addr(), h, m, token)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: 16 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(netutil.LimitListener(l, maxClients)) }()
	select {
	case err := <-failed:
		return fmt.Errorf("management API on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return errors.Join(err, srv.Close())
	}
	return nil
}

// api is the handler.
type api struct {
	Hub
	metrics  *Metrics
	mux      *http.ServeMux
	redactor *output.Redactor
	tcp      bool
	token    []byte // SHA-256; nil: no token is required
}

func newAPI(addr net.Addr, h Hub, m *Metrics, token string) (*api, error) {
	redactor, err := output.NewRedactor(nil, nil, nil)
	if err != nil {
		return nil, err
	}
	a := &api{Hub: h, metrics: m, mux: http.NewServeMux(), redactor: redactor, tcp: addr.Network() == "tcp"}
	if t, ok := addr.(*net.TCPAddr); ok && !t.IP.IsLoopback() {
		return nil, fmt.Errorf("management API on %s: give a loopback address, for instance 127.0.0.1:8787", addr)
	}
	if a.tcp {
		if token == "" {
			return nil, fmt.Errorf("management API on %s: a port needs a token; give --manage-token FILE", addr)
		}
		sum := sha256.Sum256([]byte(token))
		a.token = sum[:]
	}
	a.mux.HandleFunc("GET /healthz", a.writeHealth)
	a.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(a.metrics.formatText(a.Servers()))
	})
	a.mux.HandleFunc("GET /v1/mcp/servers", func(w http.ResponseWriter, _ *http.Request) {
		sendJSON(w, http.StatusOK, map[string]any{"servers": a.statuses()})
	})
	a.mux.HandleFunc("GET /v1/mcp/tools", func(w http.ResponseWriter, _ *http.Request) {
		tools := append([]Tool{}, a.Tools()...)
		sort.Slice(tools, func(i, j int) bool { // slices.SortFunc adds 13 kB to the program
			a, b := tools[i], tools[j]
			return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Name, b.Name)) < 0
		})
		sendJSON(w, http.StatusOK, map[string]any{"tools": tools})
	})
	a.mux.HandleFunc("GET /v1/mcp/servers/{name}", a.withServer(func(w http.ResponseWriter, _ *http.Request, s upstream.Status) {
		sendJSON(w, http.StatusOK, Server{s, a.redactor.String(string(a.Log(s.Name)))})
	}))
	for action, do := range map[string]func(context.Context, string) error{
		"start": func(_ context.Context, name string) error { return a.Start(name) }, "stop": a.Stop, "restart": a.Restart,
	} {
		a.mux.HandleFunc("POST /v1/mcp/servers/{name}/"+action, a.withServer(func(w http.ResponseWriter, r *http.Request, s upstream.Status) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), stopTime)
			defer cancel()
			if err := do(ctx, s.Name); err != nil {
				sendRefusal(w, http.StatusInternalServerError, "%s %s: %s", action, s.Name, a.redactor.String(err.Error()))
				return
			}
			now, _ := a.Server(s.Name)
			sendJSON(w, http.StatusOK, a.hideSecrets(now))
		}))
	}
	a.mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Reload(); err != nil {
			sendRefusal(w, http.StatusUnprocessableEntity, "not reloaded, what was before stays: %s", a.redactor.String(err.Error()))
			return
		}
		sendJSON(w, http.StatusOK, map[string]any{"servers": a.statuses()})
	})
	return a, nil
}

// withServer returns a handler for the routes of one server.
func (a *api) withServer(do func(http.ResponseWriter, *http.Request, upstream.Status)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, ok := a.Server(r.PathValue("name"))
		if !ok {
			sendRefusal(w, http.StatusNotFound, "no server of this name; GET /v1/mcp/servers lists them")
			return
		}
		do(w, r, a.hideSecrets(s))
	}
}

// hideSecrets hides secrets in a server's texts.
func (a *api) hideSecrets(s upstream.Status) upstream.Status {
	s.LastError = a.redactor.String(s.LastError)
	return s
}

func (a *api) statuses() []upstream.Status {
	all := []upstream.Status{}
	for _, s := range a.Servers() {
		all = append(all, a.hideSecrets(s))
	}
	return all
}

func (a *api) writeHealth(w http.ResponseWriter, r *http.Request) {
	detail := Detail(r.URL.Query().Get("detail"))
	h, status := Health{Status: "ok"}, http.StatusOK
	err := a.Ready()
	if err != nil {
		h.Status, status = "down", http.StatusServiceUnavailable
	}
	switch detail {
	case "", Minimal:
	case Basic, Full:
		h.Servers = map[string]upstream.State{}
		for _, s := range a.Servers() {
			h.Servers[s.Name] = s.State
		}
		if detail == Full {
			h.Details = a.statuses()
			if careful, ok := a.Hub.(Careful); ok {
				for _, w := range careful.Warnings() {
					h.Warnings = append(h.Warnings, a.redactor.String(w.Error()))
				}
			}
			if err != nil {
				h.Reason = a.redactor.String(err.Error())
			}
		}
	default:
		sendRefusal(w, http.StatusBadRequest, "detail must be minimal, basic or full")
		return
	}
	sendJSON(w, status, h)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if why := a.isForeign(r); why != "" {
		sendRefusal(w, http.StatusForbidden, "%s", why)
		return
	}
	if !a.isAdmitted(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		sendRefusal(w, http.StatusUnauthorized, "send the management token in the header Authorization: Bearer TOKEN")
		return
	}
	h, pattern := a.mux.Handler(r)
	if pattern != "" {
		a.mux.ServeHTTP(w, r)
		return
	}
	p := probe{header: w.Header()} // the mux answers in plain text
	h.ServeHTTP(&p, r)
	sendRefusal(w, p.status, "%s", http.StatusText(p.status))
}

// isAdmitted reports whether a request has the token, if one is required.
func (a *api) isAdmitted(r *http.Request) bool {
	if a.token == nil {
		return true
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(given))
	return ok && subtle.ConstantTimeCompare(sum[:], a.token) == 1
}

// isForeign reports whether a web page may have sent the request. The API has no credentials, so a browser on this
// machine has its user's rights. Host reveals a name that was rebound to this machine.
func (a *api) isForeign(r *http.Request) string {
	for _, header := range []string{"Origin", "Sec-Fetch-Site"} {
		if r.Header.Get(header) != "" {
			return "a browser made this request (it has " + header + ")"
		}
	}
	if a.tcp && !isLoopbackHost(r.Host) {
		return "Host names another machine; use the loopback address"
	}
	return ""
}

func isLoopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// probe records the status and the headers of an answer.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) WriteHeader(status int)      { p.status = status }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }

func sendRefusal(w http.ResponseWriter, status int, format string, args ...any) {
	sendJSON(w, status, map[string]string{"error": fmt.Sprintf(format, args...)})
}

func sendJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails if the client has left
}
