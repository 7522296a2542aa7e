package assets_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/internal/need"
)

// upstream is a stub on loopback that keeps what reached it.
type upstream struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
}

func startUpstream(t *testing.T, answer http.HandlerFunc) *upstream {
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen = append(u.seen, r)
		u.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

// take gives what reached the stub since the last call.
func (u *upstream) take() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen := u.seen
	u.seen = nil
	return seen
}

func (u *upstream) address() string { return u.Listener.Addr().String() }

// sandbox is nginx with the configuration of one line, in front of stubs.
type sandbox struct {
	addr           string // a unix socket
	conf           string
	hub, gate, vnc *upstream
}

// auth answers as the base's does: a ticket in the query of the original URI counts alone, then the keys.
func auth(w http.ResponseWriter, r *http.Request) {
	asked, _ := url.Parse(r.Header.Get("X-Original-URI"))
	switch {
	case r.URL.Path == "/tickets" && r.Method == http.MethodPost:
		fmt.Fprint(w, `{"ticket":"good","expires_in":30}`)
	case r.URL.Path != "/auth" || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
	case asked != nil && asked.Query().Has("ticket"):
		if asked.Query().Get("ticket") != "good" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	case r.Header.Get("Authorization") != "Bearer key" && r.Header.Get("X-AIO-API-Key") != "key":
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func upgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Upgrade", "websocket")
	w.Header().Set("Connection", "Upgrade")
	w.WriteHeader(http.StatusSwitchingProtocols)
}

// place writes the configuration of a line as its start script leaves it, moved to a directory of its own, listening on
// sockets there, and nothing else changed.
func place(t *testing.T, line profile.Line, active string) *sandbox {
	t.Helper()
	files := laid(t, loadProfile(t, "l0"), line)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // nginx's workers are nobody
		t.Fatal(err)
	}
	for _, d := range []string{"tmp", "nginx", "novnc/app"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &sandbox{
		addr: filepath.Join(dir, "socket"),
		conf: filepath.Join(dir, "nginx.conf"),
		hub:  startUpstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hub") }),
		gate: startUpstream(t, auth),
		vnc:  startUpstream(t, upgrade),
	}
	gate := map[profile.Line]string{"A": "127.0.0.1:8088", "B": "127.0.0.1:8091", "C": "127.0.0.1:8091"}[line]
	move := strings.NewReplacer(
		"/opt/gem/", dir+"/", "/opt/novnc/", dir+"/novnc/", "/var/lib/nginx/", dir+"/tmp/",
		"/var/run/nginx.pid", dir+"/nginx.pid", "/dev/stderr", dir+"/error.log", "/dev/stdout", dir+"/access.log",
		"listen 8080 ", "listen unix:"+s.addr+" ", "listen [::]:8080 ", "listen unix:"+s.addr+"6 ",
		"127.0.0.1:8079", s.hub.address(), gate, s.gate.address(), "127.0.0.1:6080", s.vnc.address())
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, vars := range rendered[line] {
		name := map[string]string{
			active:                       "nginx-server-active.conf",
			"/opt/gem/nginx.legacy.conf": "nginx/legacy.conf",
			"/opt/gem/nginx.srv.conf":    "nginx/srv.conf",
			"/opt/gem/nginx.vnc.conf":    "nginx/vnc.conf",
			"/opt/gem/nginx-server-port-proxy.conf.template": "nginx-server-port-proxy.conf",
		}[path]
		if name == "" {
			continue
		}
		write(name, move.Replace(envsubst(files[path], strings.Fields(vars), func(string) string { return hostile })))
	}
	for _, name := range []string{"nginx.conf", "nginx-upstreams.conf"} {
		write(name, move.Replace(files["/opt/gem/"+name]))
	}
	write("novnc/index.html", "desktop")
	write("novnc/vnc.html", "desktop")
	write("novnc/app/ui.js", "script")
	write("nginx/zz_evil.conf", "server { listen 127.0.0.1:1; } this is no configuration")
	return s
}

func (s *sandbox) start(t *testing.T) {
	t.Helper()
	log, err := os.Create(filepath.Join(filepath.Dir(s.conf), "start.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(need.Program(t, "nginx"), "-c", s.conf, "-g", "daemon off;")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("unix", s.addr)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("nginx does not listen: %v\n%s", err, said)
		}
	}
}

// send writes a request as it stands and gives the answer.
func (s *sandbox) send(t *testing.T, raw string) *http.Response {
	t.Helper()
	c, err := net.Dial("unix", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	go io.WriteString(c, raw)
	method, _, _ := strings.Cut(raw, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.80q: %v", raw, err)
	}
	return resp
}

func TestNginxAcceptsEveryLine(t *testing.T) {
	program := need.Program(t, "nginx")
	for _, line := range lines {
		for _, active := range []string{withAuth, withoutAuth} {
			t.Run(string(line)+filepath.Base(active), func(t *testing.T) {
				s := place(t, line, active)
				out, err := exec.Command(program, "-T", "-c", s.conf).CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if bytes.Contains(out, []byte("[warn]")) {
					t.Errorf("nginx warns:\n%s", out)
				}
				text := laid(t, loadProfile(t, "l0"), line)[active]
				if got := listen.FindAllString(text, -1); !slices.Equal(got, []string{"listen 8080 default_server;", "listen [::]:8080 default_server;"}) {
					t.Errorf("it listens on %q", got)
				}
				checkDump(t, loadProfile(t, "l0"), string(out), active == withAuth)
			})
		}
	}
}

var (
	comment   = regexp.MustCompile(`(?m)^\s*#.*$`)
	listen    = regexp.MustCompile(`listen .*;`)
	directive = regexp.MustCompile(`(?m)^\s*(server \{|listen .*|location .*\{|proxy_pass .*|include .*)`)
)

// checkDump looks at the whole configuration as nginx read it: one server, two sockets, the profile's routes, and no
// upstream whose address or path a request could choose.
func checkDump(t *testing.T, p *profile.Profile, dump string, auth bool) {
	t.Helper()
	var routes []string
	servers, listens, includes := 0, 0, 0
	for _, m := range directive.FindAllStringSubmatch(comment.ReplaceAllString(dump, ""), -1) {
		switch f := strings.Fields(m[1]); f[0] {
		case "server":
			servers++
		case "listen":
			listens++
		case "include":
			includes++
			if strings.Contains(m[1], "*") {
				t.Errorf("an include by glob: %s", m[1])
			}
		case "location":
			routes = append(routes, strings.TrimSuffix(strings.Join(f[1:], " "), " {"))
		case "proxy_pass":
			if strings.Contains(m[1], "$") || strings.Count(m[1], "/") < 3 {
				t.Errorf("the upstream's path is the request's: %s", m[1])
			}
		}
	}
	if servers != 1 || listens != 2 || includes != 3 {
		t.Errorf("%d servers, %d listens, %d includes; want 1, 2 and 3", servers, listens, includes)
	}
	want := []string{"/"}
	for _, r := range p.Expect.Routes {
		if !strings.HasSuffix(r, "/") {
			r = "= " + r
		}
		want = append(want, r)
	}
	if auth {
		want = append(want, "= /_auth", "@closed", `~ "^/vnc/[^.].*\.(?:js|css|svg|png|ico|ttf|woff2?|json|mp3|oga)$"`)
	}
	slices.Sort(want)
	slices.Sort(routes)
	if diff := cmp.Diff(want, routes); diff != "" {
		t.Errorf("locations (-want +got):\n%s", diff)
	}
}

// A request of the tables below. Every case must leave all stubs untouched but the one that it names.
type request struct {
	line   string   // method and target
	header []string // beside Host
	host   string   // "sandbox" when empty
	body   string
	want   []int
	reach  string // "hub /mcp": which stub gets it, and under which target
}

func (r request) raw() string {
	host := r.host
	if host == "" {
		host = "sandbox"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s HTTP/1.1\r\nHost: %s\r\n", r.line, host)
	for _, h := range r.header {
		b.WriteString(h + "\r\n")
	}
	if r.body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.body))
	}
	b.WriteString("\r\n" + r.body)
	return b.String()
}

func (s *sandbox) check(t *testing.T, r request) {
	t.Helper()
	resp := s.send(t, r.raw())
	if !slices.Contains(r.want, resp.StatusCode) {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		t.Errorf("%s: %d, want %v\n%s", r.line, resp.StatusCode, r.want, body)
	}
	if loc := resp.Header.Get("Location"); strings.Contains(loc, "//") {
		t.Errorf("%s: leads away: %s", r.line, loc)
	}
	if v := resp.Header.Get("Server"); v != "nginx" {
		t.Errorf("%s: Server: %s", r.line, v)
	}
	var reached []string
	for name, u := range map[string]*upstream{"hub": s.hub, "gate": s.gate, "vnc": s.vnc} {
		for _, got := range u.take() {
			if got.URL.Path == "/auth" && name == "gate" {
				continue
			}
			reached = append(reached, name+" "+got.URL.RequestURI())
			for _, h := range []string{"Authorization", "X-Aio-Api-Key", "Cookie", "Origin"} {
				if got.Header.Get(h) != "" {
					t.Errorf("%s: %s gets the caller's %s", r.line, name, h)
				}
			}
		}
	}
	if got := strings.Join(reached, ", "); got != r.reach {
		t.Errorf("%s: reached %q, want %q", r.line, got, r.reach)
	}
}

var (
	closed = []int{403}
	ws     = []string{"Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}
)

// anyway are requests that are answered alike with and without a key.
func anyway() []request {
	var out []request
	// Every route of the base on any line, and what resembles one of ours.
	for _, p := range strings.Fields(`/ /index.html /_auth /auth /auth?ticket=good /v1 /v1/docs /v1/mcp /v1/ping /v1/shell/ws /v1/file/read
		/llms.txt /health /json /jsonx /json/version /devtools/page/1 /cdp/ /cdp/json /cdp/json/version /cdp/devtools/x /screenshot
		/actions /code-server/ /proxy/9222/json /absproxy/9222/json /jupyter /jupyter/lab /terminal /terminal/ /browser-ui
		/opencode /codex /claudecode /static/sandbox/x.js /sse /message /ws /wsX /websockifyX /websockify/ /websockify/x
		/mcpfoo /mcp/ /mcp/x /mcp.js /MCP //mcp /mcp// /mcp/../v1/docs /mcp/..%2fv1/docs /mcp/%2e%2e/v1/docs /mcp;x
		/tickets/ /tickets/x /ticketsX /tickets.js //tickets /vncX /vnc.html /vnc../etc/passwd /vnc/../etc/passwd
		/vnc/%2e%2e/etc/passwd /vnc/..%2fetc%2fpasswd /vnc/app/../../etc/passwd /vnc/.. /vnc/../v1/docs?x=.js //vnc/ /nginx_status
		/v1/docs?x=.js /cdp/json/version?x=.js /x.js /etc/passwd /opt/gem/nginx.conf`) {
		out = append(out, request{line: "GET " + p, want: closed}, request{line: "POST " + p, want: closed})
	}
	for _, host := range []string{"9222-x", "8091-x.example", "8079-", "8081-x", "localhost", "127.0.0.1:8080", "[::1]", "_", "evil.example"} {
		out = append(out,
			request{line: "GET /json/version", host: host, want: closed},
			request{line: "GET /", host: host, want: closed},
			request{line: "GET /v1/docs", host: host, header: []string{"x-aio-proxy-port: 8091"}, want: closed})
	}
	return append(out,
		request{line: "GET http://9222-evil/json/version", want: closed},
		request{line: "GET http://127.0.0.1:9222/json/version", want: closed},
		request{line: "POST http://8091-x/v1/shell/exec", host: "8091-x", want: closed},
		request{line: "GET /x", header: []string{"x-aio-proxy-port: 9222"}, want: closed},
		request{line: "GET /", header: []string{"x-aio-proxy-port: 9222"}, want: closed},
		request{line: "GET /v1/docs", header: []string{"Authorization: Bearer key"}, want: closed},
		request{line: "GET /_auth?ticket=good", header: []string{"Authorization: Bearer key"}, want: closed},
		request{line: "CONNECT 127.0.0.1:9222", want: []int{400, 405}},
		request{line: "TRACE /mcp", want: []int{403, 405}},
		request{line: "GET *", want: []int{400}},
		request{line: "GET /../mcp", want: []int{400}},
		request{line: "GET /vnc/..%2f..%2fetc%2fpasswd", want: []int{400}},
		request{line: "GET /mcp%00.js", want: []int{400}},
		request{line: "GET /vnc/index.html%00.js", want: []int{400}},
		request{line: "GET /vnc", host: "evil.example", want: []int{302}},
		request{line: "GET /vnc?ticket=good", want: []int{302}},
		request{line: "GET //evil.example/%2e%2e/vnc", want: []int{302, 403}},
		request{line: "POST /mcp", header: []string{"X-Large: " + strings.Repeat("x", 20_000)}, want: []int{400, 431}},
		request{line: "POST /tickets", header: []string{"Content-Length: 99999", "Authorization: Bearer key"}, want: []int{413}},
		request{line: "POST /mcp", header: []string{"Content-Length: 4194305", "Authorization: Bearer key"}, want: []int{413}},
	)
}

func TestRoutesWithoutKey(t *testing.T) {
	for _, line := range lines {
		t.Run(string(line), func(t *testing.T) {
			t.Parallel()
			s := place(t, line, withoutAuth)
			s.start(t)
			for _, r := range append(anyway(), []request{
				{line: "POST /mcp", body: "{}", want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", body: strings.Repeat("x", 1<<20), want: []int{200}, reach: "hub /mcp"},
				{line: "GET /mcp", want: []int{200}, reach: "hub /mcp"},
				{line: "DELETE /mcp", want: []int{200}, reach: "hub /mcp"},
				{line: "GET /mcp?search=shell", want: []int{200}, reach: "hub /mcp"},
				{line: "POST /%6dcp", want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", host: "9222-x", want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", header: []string{"Authorization: Bearer x", "X-AIO-API-Key: x", "Cookie: a=b"}, want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", header: []string{"Origin: http://sandbox"}, want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", host: "localhost:8080", header: []string{"Origin: https://LOCALHOST:8080"}, want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", header: []string{"Origin: http://evil.example"}, want: closed},
				{line: "POST /mcp", header: []string{"Origin: http://sandbox.evil.example"}, want: closed},
				{line: "POST /mcp", header: []string{"Origin: http://evil.example/ sandbox"}, want: closed},
				{line: "POST /mcp", header: []string{"Origin: null"}, want: closed},
				{line: "PUT /mcp", want: closed},
				{line: "OPTIONS /mcp", want: closed},
				{line: "POST /tickets", want: []int{200}, reach: "gate /tickets"},
				{line: "POST /tickets?x=1", want: []int{200}, reach: "gate /tickets"},
				{line: "GET /tickets", want: closed},
				{line: "POST /tickets", header: []string{"Origin: http://evil.example"}, want: closed},
				{line: "GET /vnc/", want: []int{200}},
				{line: "GET /vnc/index.html", want: []int{200}},
				{line: "GET /vnc/app/ui.js", want: []int{200}},
				{line: "GET /vnc/nothing", want: []int{404}},
				{line: "GET /vnc/app/", want: closed},
				{line: "POST /vnc/index.html", want: closed},
				{line: "GET /websockify", want: closed},
				{line: "GET /vnc/websockify", want: closed},
				{line: "GET /websockify", header: []string{"Upgrade: h2c", "Connection: Upgrade"}, want: closed},
				{line: "GET /websockify?x=y", header: ws, want: []int{101}, reach: "vnc /"},
				{line: "GET /vnc/websockify", header: ws, want: []int{101}, reach: "vnc /"},
				{line: "GET /websockify", header: append([]string{"Origin: http://sandbox"}, ws...), want: []int{101}, reach: "vnc /"},
				{line: "GET /websockify", header: append([]string{"Origin: http://evil.example"}, ws...), want: closed},
				{line: "GET /vnc/websockify", header: append([]string{"Origin: http://evil.example"}, ws...), want: closed},
				{line: "GET /websockifyX", header: ws, want: closed},
				{line: "GET /ws", header: ws, want: closed},
				{line: "GET /vnc/websockifyX", header: ws, want: []int{404}},
			}...) {
				s.check(t, r)
			}
		})
	}
}

func TestRoutesWithKey(t *testing.T) {
	key := []string{"Authorization: Bearer key"}
	for _, line := range lines {
		t.Run(string(line), func(t *testing.T) {
			t.Parallel()
			s := place(t, line, withAuth)
			s.start(t)
			no := []int{401}
			for _, r := range append(anyway(), []request{
				{line: "POST /mcp", want: no},
				{line: "GET /mcp?x=.js", want: no},
				{line: "POST /mcp?x=.js", want: no},
				{line: "POST /mcp", header: []string{"Authorization: Bearer wrong"}, want: no},
				{line: "POST /mcp?ticket=good", want: no},
				{line: "POST /mcp?ticket=good&x=.js", want: no},
				{line: "POST /mcp", header: []string{"X-Original-URI: /vnc/?ticket=good"}, want: no},
				{line: "POST /mcp", header: []string{"Referer: http://sandbox/vnc/?ticket=good"}, want: no},
				{line: "POST /mcp", host: "8081-x", want: no},
				{line: "POST http://8081-x/mcp", want: no},
				{line: "POST /mcp", header: key, body: "{}", want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp?ticket=bad", header: key, want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", header: []string{"X-AIO-API-Key: key"}, want: []int{200}, reach: "hub /mcp"},
				{line: "POST /mcp", header: append([]string{"Origin: http://evil.example"}, key...), want: closed},
				{line: "PUT /mcp", header: key, want: closed},
				{line: "POST /tickets", want: no},
				{line: "POST /tickets?ticket=good", want: no},
				{line: "POST /tickets?x=.js", want: no},
				{line: "POST /tickets", header: key, want: []int{200}, reach: "gate /tickets"},
				{line: "GET /tickets?ticket=good", want: closed},
				{line: "GET /vnc/", want: no},
				{line: "GET /vnc/?x=.js", want: no},
				{line: "GET /vnc/index.html", want: no},
				{line: "GET /vnc/vnc.html", want: no},
				{line: "GET /vnc/index.html?x=.js", want: no},
				{line: "GET /vnc/app/..%2findex.html", want: no},
				{line: "GET /vnc/./index.html", want: no},
				{line: "GET /vnc/x.js/../index.html", want: no},
				{line: "GET /vnc/index.html?ticket=bad", want: no},
				{line: "GET /vnc/index.html?ticket=bad", header: key, want: no},
				{line: "GET /vnc/?ticket=good", want: []int{200}},
				{line: "GET /vnc/index.html?ticket=good&path=websockify%3Fticket%3Dgood", want: []int{200}},
				{line: "GET /vnc/index.html", header: key, want: []int{200}},
				{line: "GET /vnc/app/ui.js", want: []int{200}},
				{line: "POST /vnc/app/ui.js", want: []int{403, 405}},
				{line: "GET /vnc/index.html/x.js", want: []int{404}},
				{line: "GET /websockify", header: ws, want: no},
				{line: "GET /websockify?x=.js", header: ws, want: no},
				{line: "GET /vnc/websockify?x=.js", header: ws, want: no},
				{line: "GET /websockify?ticket=bad", header: ws, want: no},
				{line: "GET /websockify?ticket=good", header: ws, want: []int{101}, reach: "vnc /"},
				{line: "GET /vnc/websockify?ticket=good", header: ws, want: []int{101}, reach: "vnc /"},
				{line: "GET /websockify?ticket=good", want: closed},
				{line: "GET /websockify?ticket=good", header: append([]string{"Origin: http://evil.example"}, ws...), want: closed},
			}...) {
				s.check(t, r)
			}
		})
	}
}

// Without a gate nobody gets in.
func TestGateDown(t *testing.T) {
	s := place(t, "A", withAuth)
	s.start(t)
	s.gate.Close()
	for _, r := range []request{
		{line: "POST /mcp", header: []string{"Authorization: Bearer key"}, want: []int{500}},
		{line: "GET /vnc/?ticket=good", want: []int{500}},
		{line: "GET /websockify?ticket=good", header: ws, want: []int{500}},
	} {
		s.check(t, r)
	}
}

// The access log must not hold tickets and keys.
func TestAccessLogHasNoQuery(t *testing.T) {
	s := place(t, "B", withAuth)
	s.start(t)
	s.send(t, request{line: "GET /vnc/?ticket=good&api_key=secret"}.raw())
	name := filepath.Join(filepath.Dir(s.conf), "access.log")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for {
		log, _ := os.ReadFile(name)
		if bytes.Contains(log, []byte("/vnc/")) {
			if bytes.Contains(log, []byte("good")) || bytes.Contains(log, []byte("secret")) {
				t.Errorf("access log: %s", log)
			}
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("nothing in the access log: %q", log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
