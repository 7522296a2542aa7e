package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

func request(t *testing.T, a *api, method, target string, header map[string]string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:8078"
	for k, v := range header {
		if k == "Host" {
			r.Host = v
		}
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func unixAPI(t *testing.T, h Hub) *api {
	t.Helper()
	a, err := newAPI(&net.UnixAddr{Name: "x", Net: "unix"}, h, NewMetrics(), "")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRoutes(t *testing.T) {
	for _, tt := range []struct {
		method, path string
		status       int
		want         string // in the body
	}{
		{"GET", "/v1/mcp/servers", 200, `{"servers":[{"name":"files","state":"error"`},
		{"GET", "/v1/mcp/servers/files", 200, `"attempt":2,"next_retry":"2027-01-15T08:00:02Z","last_error":"/opt/files ended`},
		{"GET", "/v1/mcp/servers/files", 200, `log of files`},
		{"GET", "/v1/mcp/servers/none", 404, `{"error":"no server of this name`},
		{"GET", "/v1/mcp/servers/a%2fb", 404, `{"error":"no server of this name`},
		{"POST", "/v1/mcp/servers/files/start", 200, `"state":"starting"`},
		{"POST", "/v1/mcp/servers/files/stop", 200, `"state":"stopped"`},
		{"POST", "/v1/mcp/servers/files/restart", 200, `"state":"starting"`},
		{"POST", "/v1/mcp/servers/none/stop", 404, `{"error":`},
		{"POST", "/v1/mcp/servers/files/kill", 404, `{"error":"Not Found"}`},
		{"GET", "/v1/mcp/servers/files/stop", 405, `{"error":"Method Not Allowed"}`},
		{"POST", "/v1/mcp/servers", 405, `{"error":"Method Not Allowed"}`},
		{"DELETE", "/v1/mcp/servers/files", 405, `{"error":`},
		{"GET", "/v1/mcp/tools", 200, `{"tools":[{"name":"browser-shell","server":"browser_shell"},{"name":"delete","server":"files","blocked":true},{"name":"read","server":"files","description":"x"}]}`},
		{"POST", "/v1/reload", 200, `{"servers":[`},
		{"GET", "/v1/reload", 405, `{"error":`},
		{"GET", "/metrics", 200, `mcp_hub_server_state{server="files",state="error"} 1`},
		{"GET", "/", 404, `{"error":"Not Found"}`},
		{"GET", "/nothing", 404, `{"error":"Not Found"}`},
		{"PUT", "/healthz", 405, `{"error":`},
	} {
		f := newFake()
		w := request(t, unixAPI(t, f), tt.method, tt.path, nil)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s %s: %d %s, not %d with %s", tt.method, tt.path, w.Code, w.Body, tt.status, tt.want)
		}
		if tt.status != 200 || tt.method == "GET" {
			if did := f.acts(); len(did) > 0 {
				t.Errorf("%s %s did %v", tt.method, tt.path, did)
			}
		}
		if tt.status == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", tt.method, tt.path)
		}
		if tt.path != "/metrics" && (!json.Valid(w.Body.Bytes()) || w.Header().Get("Content-Type") != "application/json") {
			t.Errorf("%s %s: %s %s", tt.method, tt.path, w.Header().Get("Content-Type"), w.Body)
		}
	}
}

func TestErrorsAreJSON(t *testing.T) {
	f := newFake()
	f.down, f.reload = errDown, fmt.Errorf("mcp-hub.json:3:1: unknown key")
	for path, want := range map[string]string{
		"/v1/mcp/servers/files/start": `{"error":"start files: server files is error: /opt/files is missing"}`,
		"/v1/reload":                  `{"error":"not reloaded, what was before stays: mcp-hub.json:3:1: unknown key"}`,
	} {
		w := request(t, unixAPI(t, f), "POST", path, nil)
		if w.Code < 400 || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestNoSecrets: what servers print may hold their keys.
func TestNoSecrets(t *testing.T) {
	a := unixAPI(t, newFake())
	for _, path := range []string{"/v1/mcp/servers", "/v1/mcp/servers/files", "/healthz?detail=full"} {
		body := request(t, a, "GET", path, nil).Body.String()
		if strings.Contains(body, "hunter2") || strings.Contains(body, "abcdefghijklmnopqrst") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// TestHealth: without being asked it tells of no process, path, server or error.
func TestHealth(t *testing.T) {
	for _, tt := range []struct {
		query  string
		down   error
		status int
		want   string
	}{
		{"", nil, 200, `{"status":"ok"}`},
		{"", errDown, 503, `{"status":"down"}`},
		{"?detail=minimal", errDown, 503, `{"status":"down"}`},
		{"?detail=basic", errDown, 503, `{"status":"down","servers":{"browser_shell":"running","files":"error"}}`},
		{"?detail=basic", nil, 200, `{"status":"ok","servers":{"browser_shell":"running","files":"error"}}`},
		{"?detail=all", nil, 400, `{"error":"detail must be minimal, basic or full"}`},
	} {
		f := newFake()
		f.down = tt.down
		w := request(t, unixAPI(t, f), "GET", "/healthz"+tt.query, nil)
		if w.Code != tt.status || strings.TrimSpace(w.Body.String()) != tt.want {
			t.Errorf("%q: %d %s", tt.query, w.Code, w.Body)
		}
	}
	f := newFake()
	f.down = errDown
	w := request(t, unixAPI(t, f), "GET", "/healthz?detail=full", nil)
	var h Health
	if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil || w.Code != 503 || h.Reason != errDown.Error() || len(h.Details) != 2 || h.Details[1].PID != 4711 || len(h.Warnings) != 1 {
		t.Errorf("full: %d %s", w.Code, w.Body)
	}
}

// TestForeign: a web page can reach neither the port nor, through anything, the socket.
func TestForeign(t *testing.T) {
	tcp, err := newAPI(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8787}, newFake(), NewMetrics(), "token")
	if err != nil {
		t.Fatal(err)
	}
	unix := unixAPI(t, newFake())
	for _, tt := range []struct {
		a      *api
		header map[string]string
		status int
	}{
		{tcp, map[string]string{}, 200},
		{tcp, map[string]string{"Authorization": ""}, 401},
		{tcp, map[string]string{"Authorization": "token"}, 401},
		{tcp, map[string]string{"Authorization": "Bearer tokem"}, 401},
		{tcp, map[string]string{"Host": "localhost"}, 200},
		{tcp, map[string]string{"Host": "[::1]:8078"}, 200},
		{tcp, map[string]string{"Host": "evil.example:8078"}, 403},
		{tcp, map[string]string{"Host": "127.0.0.1.evil.example"}, 403},
		{tcp, map[string]string{"Host": "localhost.evil.example"}, 403},
		{tcp, map[string]string{"Host": "127.1:8078"}, 403},
		{tcp, map[string]string{"Host": ""}, 403},
		{tcp, map[string]string{"Origin": "http://127.0.0.1:8078"}, 403},
		{tcp, map[string]string{"Origin": "null"}, 403},
		{tcp, map[string]string{"Sec-Fetch-Site": "none"}, 403},
		{tcp, map[string]string{"Sec-Fetch-Site": "same-origin"}, 403},
		{unix, map[string]string{"Host": "hub"}, 200},
		{unix, map[string]string{"Origin": "http://hub"}, 403},
	} {
		for method, path := range map[string]string{"GET": "/metrics", "POST": "/v1/reload"} {
			if _, given := tt.header["Authorization"]; tt.a == tcp && !given {
				tt.header["Authorization"] = "Bearer token"
			}
			w := request(t, tt.a, method, path, tt.header)
			if w.Code != tt.status {
				t.Errorf("%s %s %v: %d", method, path, tt.header, w.Code)
			}
		}
	}
}

func TestServeRefusesOpenPorts(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := newAPI(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, newFake(), NewMetrics(), ""); err == nil || !strings.Contains(err.Error(), "needs a token") {
		t.Errorf("without a token: %v", err)
	}
	if err := Serve(context.Background(), l, newFake(), NewMetrics(), "token"); err == nil || !strings.Contains(err.Error(), "give a loopback address") {
		t.Errorf("%v", err)
	}
}

// TestStopGoesOn: a client that goes away does not leave a server half stopped.
func TestStopGoesOn(t *testing.T) {
	f := newFake()
	f.wait = 300 * time.Millisecond
	path := socket(t)
	serve(t, listen(t, path), f, NewMetrics())
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "POST /v1/mcp/servers/files/stop HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // so that it leaves in the middle; at any other time the test holds too
	c.Close()
	need.Eventually(t, func() bool { return len(f.acts()) == 1 }, func() string { return fmt.Sprint(f.acts()) })
}

// TestBadRequests: the server lives, whatever comes in.
func TestBadRequests(t *testing.T) {
	path := socket(t)
	serve(t, listen(t, path), newFake(), NewMetrics())
	for _, raw := range []string{
		"\x00\xff\r\n\r\n",
		"GET / HTTP/9.9\r\n\r\n",
		"GET /metrics HTTP/1.1\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"POST /v1/mcp/servers/%zz/stop HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(need.Patience)); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, raw) // it may hang up early
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil && resp.StatusCode < 400 && !strings.HasPrefix(raw, "OPTIONS") {
			t.Errorf("%.40q: %d", raw, resp.StatusCode)
		}
		c.Close()
	}
	if _, err := NewClient(path).Servers(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClient(t *testing.T) {
	f, m, path := newFake(), NewMetrics(), socket(t)
	m.Denied("files", "read", "arguments.path")
	serve(t, listen(t, path), f, m)
	c, ctx := NewClient(path), t.Context()

	servers, err := c.Servers(ctx)
	if d := cmp.Diff([]string{"files", "browser_shell"}, []string{servers[0].Name, servers[1].Name}); d != "" || err != nil {
		t.Error(d, err)
	}
	one, err := c.Server(ctx, "files")
	if err != nil || one.State != upstream.Error || one.NextRetry.IsZero() || !strings.Contains(one.Log, "log of files\ufffd") {
		t.Errorf("%+v %v", one, err)
	}
	for name, do := range map[string]func(context.Context, string) (upstream.Status, error){"start": c.Start, "stop": c.Stop, "restart": c.Restart} {
		s, err := do(ctx, "files")
		if did := f.acts(); err != nil || s.Name != "files" || did[len(did)-1] != name+" files" {
			t.Errorf("%s: %+v %v, did %v", name, s, err, did)
		}
		if _, err := do(ctx, "none"); err == nil || !strings.Contains(err.Error(), "no server of this name") {
			t.Errorf("%s none: %v", name, err)
		}
		for _, bad := range []string{"", ".", "..", "a/b"} {
			if _, err := do(ctx, bad); err == nil || !strings.Contains(err.Error(), "not a server's name") {
				t.Errorf("%s %q: %v", name, bad, err)
			}
		}
	}
	tools, err := c.Tools(ctx)
	if err != nil || len(tools) != 3 || !tools[1].Blocked {
		t.Errorf("%+v %v", tools, err)
	}
	text, err := c.Metrics(ctx)
	if err != nil || !strings.Contains(string(text), `mcp_hub_tool_denied_total{server="files",tool="read",rule="arguments.path"} 1`) {
		t.Errorf("%s %v", text, err)
	}
	if _, err := c.Reload(ctx); err != nil {
		t.Error(err)
	}
	f.down = errDown
	h, err := c.Health(ctx, Full)
	if err != nil || h.Status != "down" || h.Reason != errDown.Error() {
		t.Errorf("%+v %v", h, err)
	}
	if _, err := c.Health(ctx, "x"); err == nil || err.Error() != "detail must be minimal, basic or full" {
		t.Errorf("%v", err)
	}
}

// TestClientOfStrangers: what answers on the socket may be anything.
func TestClientOfStrangers(t *testing.T) {
	for _, tt := range []struct {
		body   string
		status int
		want   string
	}{
		{"hello", 200, "is not a hub"},
		{"[]", 200, "is not a hub"},
		{"hello", 500, "is not a hub; name the hub's socket with --socket: HTTP status 500"},
		{`{"error":"x"}`, 500, "x"},
		{`{}`, 302, "is not a hub; name the hub's socket with --socket: HTTP status 302"},
	} {
		path := socket(t)
		l := listen(t, path)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		srv.Listener.Close()
		srv.Listener = l
		srv.Start()
		if _, err := NewClient(path).Servers(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %d: %v", tt.body, tt.status, err)
		}
		srv.Close()
	}
	if _, err := NewClient(socket(t)).Servers(t.Context()); err == nil || !strings.Contains(err.Error(), "no hub answers on") {
		t.Errorf("nobody there: %v", err)
	}
}
