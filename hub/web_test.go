package hub

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAPI: the routes of the management API.
func TestAPI(t *testing.T) {
	h := startHub(t, fields{"fs": childEntry(t, "new", fields{"security": fields{"blocked_tools": []string{"crash"}}}), "bad": childEntry(t, "exits", fields{"restart": false})}, nil)
	h.awaitState(t, "fs", Running)
	h.awaitState(t, "bad", Failed)
	for _, tt := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/v1/mcp/servers", 200, "map[servers:[map["},
		{"GET", "/v1/mcp/servers/fs", 200, "state:running"},
		{"GET", "/v1/mcp/servers/bad", 200, "log:no such display"},
		{"GET", "/v1/mcp/servers/none", 404, "GET /v1/mcp/servers lists them"},
		{"POST", "/v1/mcp/servers/none/start", 404, "GET /v1/mcp/servers lists them"},
		{"GET", "/v1/mcp/tools", 200, "map[blocked:true name:fs.crash server:fs]"},
		{"POST", "/v1/mcp/servers/fs/stop", 200, "state:stopped"},
		{"POST", "/v1/mcp/servers/fs/start", 200, "state:starting"},
		{"GET", "/healthz", 200, "ok"},
		{"POST", "/v1/runs", 404, "nothing answers POST /v1/runs"},
	} {
		if status, answer := h.ask(t, tt.method, tt.path, nil); status != tt.status || !strings.Contains(anyText(answer), tt.want) {
			t.Errorf("%s %s: %d %v, want %d %s", tt.method, tt.path, status, answer, tt.status, tt.want)
		}
	}
}

// TestForeign: a page in a browser on this machine reaches the port, and must get nothing, on no route.
func TestForeign(t *testing.T) {
	h := one(t, "new", nil)
	for name, tt := range map[string]struct {
		status int
		change func(*http.Request)
	}{
		"a program":       {200, func(*http.Request) {}},
		"localhost":       {200, func(r *http.Request) { r.Host = "localhost:8787" }},
		"another site":    {403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		"another port":    {403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }},
		"an old browser":  {403, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }},
		"a sandboxed one": {403, func(r *http.Request) { r.Header.Set("Origin", "null") }},
		"a rebound name":  {403, func(r *http.Request) { r.Host = "evil.example:8787" }},
	} {
		for _, route := range []string{"GET /v1/mcp/servers", "POST /v1/mcp/servers/new/start", "GET /healthz"} {
			method, path, _ := strings.Cut(route, " ")
			if status, _ := h.ask(t, method, path, tt.change); status != tt.status {
				t.Errorf("%s, %s: %d, want %d", name, route, status, tt.status)
			}
		}
		if tt.status == 403 {
			if status, _ := h.ask(t, "POST", "/mcp", tt.change); status != 403 {
				t.Errorf("%s, /mcp: %d", name, status)
			}
		}
	}
}

// TestToken: with a token no route answers without it.
func TestToken(t *testing.T) {
	h := one(t, "new", nil)
	handler := h.Handler("0123456789abcdef")
	for header, want := range map[string]int{"": 401, "Bearer 0123456789abcdeX": 401, "Basic 0123456789abcdef": 401, "0123456789abcdef": 401, "Bearer 0123456789abcdef": 200} {
		for _, path := range []string{"/v1/mcp/servers", "/healthz", "/mcp"} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://127.0.0.1:8787"+path, nil)
			r.Header.Set("Authorization", header)
			handler.ServeHTTP(w, r)
			if got := w.Code; (got == 401) != (want == 401) {
				t.Errorf("%q at %s: %d", header, path, got)
			}
		}
	}
}
