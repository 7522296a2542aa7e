package hub

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// sessionIdle is the time without a request after which a client's session of the older era ends.
	sessionIdle = 30 * time.Minute
	// maxBody is the size of a request, which holds the largest arguments that the rules may allow.
	maxBody = 17 << 20
)

// Handler returns the handler of /mcp, /v1/mcp and /healthz. Each request needs the token as Bearer, if there is one. It
// refuses requests that a web page may have sent.
func (h *Hub) Handler(token string) http.Handler {
	get := func(*http.Request) *mcp.Server { return h.mcp }
	older := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{SessionTimeout: sessionIdle, MaxRequestBodyBytes: maxBody})
	newer := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxBody})
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= newEra {
			newer.ServeHTTP(w, r)
			return
		}
		older.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		sendJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	h.addAPI(mux)
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		as := *r
		as.Method = http.MethodPost // GET, too, is not for another site's page
		switch {
		case origin.Check(&as) != nil || !isLoopback(r.Host):
			sendRefusal(w, http.StatusForbidden, "this request came from a web page, or names another host than 127.0.0.1 or localhost")
		case token != "" && !hasToken(r, token):
			w.Header().Set("WWW-Authenticate", "Bearer")
			sendRefusal(w, http.StatusUnauthorized, "send the token in the header Authorization: Bearer TOKEN")
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

func hasToken(r *http.Request, token string) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(token))
	return ok && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// isLoopback reports whether a Host header names this machine. A name that was rebound to it does not.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// toolStatus describes a tool to the operator.
type toolStatus struct {
	Name        string `json:"name"`   // as clients see it
	Server      string `json:"server"` // name of its server
	Description string `json:"description,omitempty"`
	Blocked     bool   `json:"blocked,omitempty"` // by the rules: hidden from clients
}

// serverStatus is the status of one server with the end of its log.
type serverStatus struct {
	Status
	Log string `json:"log,omitempty"`
}

// addAPI adds the management API.
func (h *Hub) addAPI(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/mcp/servers", func(w http.ResponseWriter, _ *http.Request) {
		all := []Status{}
		for _, s := range h.servers {
			all = append(all, s.Status())
		}
		sendJSON(w, http.StatusOK, map[string]any{"servers": all})
	})
	mux.HandleFunc("GET /v1/mcp/servers/{name}", h.withServer(func(s *server) any {
		return serverStatus{s.Status(), string(s.log.Bytes())}
	}))
	for action, do := range map[string]func(*server){"start": (*server).start, "stop": (*server).stop, "restart": (*server).restart} {
		mux.HandleFunc("POST /v1/mcp/servers/{name}/"+action, h.withServer(func(s *server) any {
			do(s)
			return s.Status()
		}))
	}
	mux.HandleFunc("GET /v1/mcp/tools", func(w http.ResponseWriter, _ *http.Request) {
		sendJSON(w, http.StatusOK, map[string]any{"tools": h.tools()})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		sendRefusal(w, http.StatusNotFound, "nothing answers %s %s; see /mcp, /v1/mcp/servers and /v1/mcp/tools", r.Method, r.URL.Path)
	})
}

// tools returns all tools in the order of the file.
func (h *Hub) tools() []toolStatus {
	all := []toolStatus{}
	for _, s := range h.servers {
		s.mu.Lock()
		list := s.offer.tools
		s.mu.Unlock()
		for _, t := range list {
			all = append(all, toolStatus{h.config.Naming.alias(s.Name, t.Name), s.Name, t.Description, !s.Rules.Visible(s.Name, t.Name, isReadOnly(t))})
		}
	}
	return all
}

// withServer returns a handler for the routes of one server.
func (h *Hub) withServer(do func(*server) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, s := range h.servers {
			if s.Name == r.PathValue("name") {
				sendJSON(w, http.StatusOK, do(s))
				return
			}
		}
		sendRefusal(w, http.StatusNotFound, "no server of this name; GET /v1/mcp/servers lists them")
	}
}

func sendRefusal(w http.ResponseWriter, status int, format string, args ...any) {
	sendJSON(w, status, map[string]string{"error": fmt.Sprintf(format, args...)})
}

func sendJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails if the client has left
}
