package assets_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/internal/need"
)

// upstream is a stub on a unix socket that keeps what reached it.
type upstream struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
}

// front is who browser-shell stands for on the machine that tests, and who its group is.
var front = struct {
	uid, gid int
	group    string
}{2, 1, "daemon"}

// startUpstream listens as the image's MCP endpoint and gate do: its socket is its own's and its group's.
func startUpstream(t *testing.T, path string, answer http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen = append(u.seen, r)
		u.mu.Unlock()
		answer(w, r)
	}))
	u.Listener.Close()
	var err error
	if u.Listener, err = net.Listen("unix", path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(path, front.uid, front.gid); err != nil {
			t.Fatal(err)
		}
	}
	u.Start()
	t.Cleanup(u.Close)
	return u
}

// take returns what reached the stub since the last call.
func (u *upstream) take() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen := u.seen
	u.seen = nil
	return seen
}

// sandbox is nginx with the image's configuration, in front of stubs.
type sandbox struct {
	addr      string // a unix socket
	conf      string
	mcp, gate *upstream
}

// gate answers as the real one does: a ticket in the query of the original URI counts alone for the desktop, keys for all.
func gate(anonymous bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		asked, err := url.Parse(r.Header.Get("X-Original-URI"))
		given := slices.Concat(r.Header.Values("Authorization"), r.Header.Values("X-AIO-API-Key"))
		known := slices.Equal(given, []string{"Bearer key"}) || slices.Equal(given, []string{"key"})
		if err == nil && asked.Query().Has("ticket") && (asked.Path == "/websockify" || strings.HasPrefix(asked.Path, "/vnc/")) {
			known = asked.Query().Get("ticket") == "good"
		}
		switch {
		case asked == nil || asked.Path == "":
			w.WriteHeader(http.StatusBadRequest) // nginx always says what is asked for
		case !known && !anonymous:
			w.Header().Set("WWW-Authenticate", "ApiKey")
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/tickets" && r.Method == http.MethodPost:
			fmt.Fprint(w, `{"ticket":"good","expires_in":30}`)
		case r.URL.Path == "/tickets" && r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/auth" && r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/websockify":
			upgrade(w, r)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}
}

func upgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-WebSocket-Key") == "" || r.Header.Get("Sec-WebSocket-Version") != "13" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Upgrade", "websocket")
	w.Header().Set("Connection", "Upgrade")
	w.WriteHeader(http.StatusSwitchingProtocols)
}

// mains are nginx's main files, and what each listens to.
var mains = map[string][]string{
	"nginx.conf":               {"8080", "[::]:8080"},
	"nginx-ipv4.conf":          {"8080"},
	"nginx-loopback.conf":      {"127.0.0.1:8080", "[::1]:8080"},
	"nginx-loopback-ipv4.conf": {"127.0.0.1:8080"},
}

// place writes the image's configuration moved to a directory of its own, listening on sockets there, and nothing else changed.
func place(t *testing.T, main string, anonymous bool) *sandbox {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // nginx's workers are nobody
		t.Fatal(err)
	}
	for _, d := range []string{"tmp", "nginx", "novnc/app/locale", "novnc/vendor/pako", "novnc/tests", "novnc/utils"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/front", 0o710); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(dir+"/front", front.uid, front.gid); err != nil {
			t.Fatal(err)
		}
	}
	s := &sandbox{
		addr: filepath.Join(dir, "socket"),
		conf: filepath.Join(dir, main),
		mcp:  startUpstream(t, dir+"/front/mcp.sock", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "mcp") }),
		gate: startUpstream(t, dir+"/front/gate.sock", gate(anonymous)),
	}
	move := strings.NewReplacer(
		"/opt/gem/", dir+"/", "/opt/novnc/", dir+"/novnc/", "/run/nginx/", dir+"/tmp/", "/dev/stdout", dir+"/access.log",
		"/run/browser-shell-front/", dir+"/front/", "user nobody browser-shell;", "user nobody "+front.group+";",
		"listen 8080 ", "listen unix:"+s.addr+" ", "listen 127.0.0.1:8080 ", "listen unix:"+s.addr+" ",
		"listen [::]:8080 ", "listen unix:"+s.addr+"6 ", "listen [::1]:8080 ", "listen unix:"+s.addr+"6 ")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range laid(t, loadProfile(t, "l0"), "A") {
		if name, ok := strings.CutPrefix(path, "/opt/gem/"); ok && strings.HasPrefix(name, "nginx") {
			write(name, move.Replace(text))
		}
	}
	write("novnc/index.html", "desktop")
	write("novnc/vnc.html", "desktop")
	write("novnc/app/ui.js", "script")
	write("novnc/app/locale/zh_CN.json", "{}")
	for _, name := range []string{"", "app/", "vendor/pako/"} {
		write("novnc/"+name+"package.json", `{"version": "1.4.0"}`)
	}
	for _, name := range []string{"eslint.config.js", "tests/test.js", "utils/x.js"} {
		write("novnc/"+name, "script")
	}
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
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	for end := time.Now().Add(need.Patience); ; time.Sleep(20 * time.Millisecond) {
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
	c.SetDeadline(time.Now().Add(need.Patience))
	go io.WriteString(c, raw)
	method, _, _ := strings.Cut(raw, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.80q: %v", raw, err)
	}
	return resp
}

func TestNginxAcceptsEveryMain(t *testing.T) {
	program := need.Program(t, "nginx")
	p := loadProfile(t, "l0")
	for main, want := range mains {
		t.Run(main, func(t *testing.T) {
			s := place(t, main, false)
			out, err := exec.Command(program, "-T", "-c", s.conf).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if bytes.Contains(out, []byte("[warn]")) && os.Getuid() == 0 { // otherwise it warns that user is ignored
				t.Errorf("nginx warns:\n%s", out)
			}
			var got []string
			for _, m := range listen.FindAllStringSubmatch(laid(t, p, "A")["/opt/gem/"+main], -1) {
				got = append(got, m[1])
			}
			if !slices.Equal(got, want) {
				t.Errorf("it listens on %q, want %q", got, want)
			}
			checkDump(t, p, string(out), len(want))
		})
	}
}

var (
	comment   = regexp.MustCompile(`(?m)^\s*#.*$`)
	listen    = regexp.MustCompile(`listen (\S+) default_server;`)
	directive = regexp.MustCompile(`(?m)^\s*(server \{|listen .*|location .*\{|proxy_pass .*|include .*)`)
)

// checkDump looks at the whole configuration as nginx read it: one server, the profile's routes, and no upstream whose
// address or path a request could choose.
func checkDump(t *testing.T, p *profile.Profile, dump string, sockets int) {
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
	if servers != 1 || listens != sockets || includes != 3 {
		t.Errorf("%d servers, %d listens, %d includes; want 1, %d and 3", servers, listens, includes, sockets)
	}
	want := []string{"/", "= /_auth", "= /_empty", "= /_key", "= /register", "^~ /.well-known/oauth-", `~ "^/vnc/(?:app|core|vendor)/(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*\.(?:js|css|svg|png|ico|ttf|woff2?|mp3|oga)\z"`,
		`~ "^/vnc/app/locale/[A-Za-z_]+\.(?:json)\z"`}
	for _, r := range p.Expect.Routes {
		if !strings.HasSuffix(r, "/") {
			r = "= " + r
		}
		want = append(want, r)
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
	reach  string // "mcp /mcp": which stub gets it, and under which target
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
		t.Errorf("%s: %d, want %v", r.line, resp.StatusCode, r.want)
	}
	if resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("%s: 401 without WWW-Authenticate", r.line)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if resp.StatusCode == http.StatusUnauthorized && bytes.Contains(body, []byte("X-AIO-API-Key")) {
		body = nil // the one error that says what to do
	}
	if err != nil && resp.StatusCode >= 400 || resp.StatusCode >= 400 && len(body) > 0 {
		t.Errorf("%s: %d with a body: %s, %v", r.line, resp.StatusCode, body, err)
	}
	if loc := resp.Header.Get("Location"); strings.Contains(loc, "//") {
		t.Errorf("%s: leads away: %s", r.line, loc)
	}
	if v := resp.Header.Get("Server"); v != "nginx" {
		t.Errorf("%s: Server: %s", r.line, v)
	}
	var reached []string
	for name, u := range map[string]*upstream{"mcp": s.mcp, "gate": s.gate} {
		for _, got := range u.take() {
			if got.URL.Path == "/auth" && name == "gate" {
				continue
			}
			reached = append(reached, name+" "+got.URL.RequestURI())
			for _, h := range []string{"Authorization", "X-Aio-Api-Key", "Cookie", "Origin", "Forwarded", "Referer"} {
				if got.Header.Get(h) != "" && (name == "mcp" && h != "Forwarded" && h != "Referer" || name == "gate" && h != "Authorization" && h != "X-Aio-Api-Key") {
					t.Errorf("%s: %s gets the caller's %s", r.line, name, h)
				}
			}
			if v := got.Header.Get("X-Forwarded-For"); name == "mcp" && v != "unix:" {
				t.Errorf("%s: browser-shell is told of the address %q", r.line, v)
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

// someTicket looks like one.
const someTicket = "11111111-2222-4333-8444-555555555555"

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
		/_empty /_empty?x=.js /vnc/%2e%2e/etc/passwd /vnc/..%2fetc%2fpasswd /vnc/app/../../etc/passwd /vnc/.. /vnc/../v1/docs?x=.js //vnc/ /nginx_status
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
		request{line: "POST /tickets", header: []string{"Content-Length: 1025", "Authorization: Bearer key"}, want: []int{413}},
		request{line: "POST /mcp", header: []string{"Content-Length: 1048577", "Authorization: Bearer key"}, want: []int{413}},
		request{line: "POST /x", header: []string{"Content-Length: 99999999"}, want: closed},
		request{line: "GET /vnc/index.html", header: []string{"Content-Length: 2", "Authorization: Bearer key"}, want: []int{413}},
		request{line: "GET /" + strings.Repeat("x", 70_000), want: []int{414}},
		request{line: "GET /x", host: "a/b", want: []int{400}},
		request{line: "GET /x", header: []string{"Host: two"}, want: []int{400, 403}},
		request{line: "POST /mcp", header: []string{"Transfer-Encoding: x"}, want: []int{400, 501}},
		request{line: "POST /mcp", header: []string{"Content-Length: 1", "Transfer-Encoding: chunked"}, body: "0", want: []int{400}},
		request{line: "GET /websockify%0a", header: ws, want: closed},
		request{line: "GET /mcp%0a", want: closed},
		request{line: "GET /vnc/index.html%0a.js", want: []int{401, 404}},
	)
}

func TestRoutesWithoutKey(t *testing.T) {
	s := place(t, "nginx.conf", true)
	s.start(t)
	for _, r := range append(anyway(), []request{
		{line: "POST /mcp", body: "{}", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", body: strings.Repeat("x", 1<<20), want: []int{200}, reach: "mcp /mcp"},
		{line: "GET /mcp", want: []int{200}, reach: "mcp /mcp"},
		{line: "DELETE /mcp", want: []int{200}, reach: "mcp /mcp"},
		{line: "GET /mcp?search=shell", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp?sessionId=aB-9_x", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp?a=b&sessionId=x&ticket=good", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp?sessionid=x", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", header: []string{"X-Forwarded-For: 1.2.3.4"}, want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /tickets", body: "{}", want: []int{200}, reach: "gate /tickets"},
		{line: "POST /%6dcp", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", host: "9222-x", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", header: []string{"Authorization: Bearer x", "X-AIO-API-Key: x", "Cookie: a=b"}, want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", header: []string{"Origin: http://sandbox"}, want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", host: "localhost:8080", header: []string{"Origin: https://LOCALHOST:8080"}, want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", header: []string{"Origin: http://evil.example"}, want: closed},
		{line: "POST /mcp", header: []string{"Origin: http://sandbox.evil.example"}, want: closed},
		{line: "POST /mcp", header: []string{"Origin: http://evil.example/ sandbox"}, want: closed},
		{line: "POST /mcp", header: []string{"Origin: null"}, want: closed},
		{line: "PUT /mcp", want: closed},
		{line: "OPTIONS /mcp", want: closed},
		{line: "POST /tickets", want: []int{200}, reach: "gate /tickets"},
		{line: "POST /tickets?x=1", want: []int{200}, reach: "gate /tickets"},
		{line: "DELETE /tickets?x=1&ticket=" + someTicket, want: []int{204}, reach: "gate /tickets?ticket=" + someTicket},
		{line: "DELETE /tickets?ticket=x%26y=z", want: []int{204}, reach: "gate /tickets"},
		{line: "DELETE /tickets", header: []string{"Origin: http://evil.example"}, want: closed},
		{line: "GET /tickets", want: closed},
		{line: "POST /tickets", header: []string{"Origin: http://evil.example"}, want: closed},
		{line: "GET /vnc/package.json", want: []int{200}},
		{line: "GET /vnc/", want: []int{200}},
		{line: "GET /vnc/index.html", want: []int{200}},
		{line: "GET /vnc/app/ui.js", want: []int{200}},
		{line: "GET /vnc/nothing", want: []int{404}},
		{line: "GET /vnc/app/", want: closed},
		{line: "POST /vnc/index.html", want: closed},
		{line: "GET /websockify", want: closed},
		{line: "GET /vnc/websockify", want: closed},
		{line: "GET /websockify", header: []string{"Upgrade: h2c", "Connection: Upgrade"}, want: closed},
		{line: "GET /websockify?x=y", header: ws, want: []int{101}, reach: "gate /websockify"},
		{line: "GET /vnc/websockify", header: ws, want: []int{101}, reach: "gate /websockify"},
		{line: "GET /websockify", header: append([]string{"Origin: http://sandbox"}, ws...), want: []int{101}, reach: "gate /websockify"},
		{line: "GET /websockify", header: append([]string{"Origin: http://evil.example"}, ws...), want: closed},
		{line: "GET /vnc/websockify", header: append([]string{"Origin: http://evil.example"}, ws...), want: closed},
		{line: "GET /websockifyX", header: ws, want: closed},
		{line: "GET /ws", header: ws, want: closed},
		{line: "GET /vnc/websockifyX", header: ws, want: []int{404}},
	}...) {
		s.check(t, r)
	}
}

func TestRoutesWithKey(t *testing.T) {
	key := []string{"Authorization: Bearer key"}
	s := place(t, "nginx-loopback-ipv4.conf", false)
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
		{line: "POST /mcp", header: key, body: "{}", want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp?ticket=bad", header: key, want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", header: []string{"X-AIO-API-Key: key"}, want: []int{200}, reach: "mcp /mcp"},
		{line: "POST /mcp", header: append([]string{"Origin: http://evil.example"}, key...), want: closed},
		{line: "PUT /mcp", header: key, want: closed},
		{line: "POST /tickets", want: no},
		{line: "POST /tickets?ticket=good", want: no},
		{line: "POST /tickets?x=.js", want: no},
		{line: "DELETE /tickets?ticket=" + someTicket, want: no},
		{line: "DELETE /tickets?ticket=good", want: no},
		{line: "POST /mcp", header: []string{"X-AIO-API-Key: key", "X-AIO-API-Key: wrong"}, want: no},
		{line: "POST /mcp", header: []string{"X-AIO-API-Key: wrong", "X-AIO-API-Key: key"}, want: no},
		{line: "POST /mcp", header: []string{"X-AIO-API-Key: key", "x-aio-api-key: key"}, want: no},
		{line: "POST /mcp", header: []string{"X-AIO-API-Key: key", "Authorization: Bearer wrong"}, want: no},
		{line: "POST /tickets", header: []string{"X-AIO-API-Key: key", "X-AIO-API-Key: wrong"}, want: no},
		{line: "GET /websockify", header: append([]string{"X-AIO-API-Key: key", "X-AIO-API-Key: wrong"}, ws...), want: no},
		{line: "POST /mcp", header: append([]string{"Authorization: Bearer wrong"}, key...), want: []int{400, 401}},
		{line: "GET /vnc/package.json", want: no},
		{line: "GET /vnc/app/package.json", want: no},
		{line: "GET /vnc/vendor/pako/package.json", want: no},
		{line: "GET /vnc/app/locale/../../package.json", want: no},
		{line: "GET /vnc/app/locale/package%2ejson/x.json", want: no},
		{line: "GET /vnc/eslint.config.js", want: no},
		{line: "GET /vnc/tests/test.js", want: no},
		{line: "GET /vnc/utils/x.js", want: no},
		{line: "GET /vnc/app/locale/zh_CN.json", want: []int{200}},
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
		{line: "GET /vnc/index.html/x.js", want: no},
		{line: "GET /websockify", header: ws, want: no},
		{line: "GET /websockify?x=.js", header: ws, want: no},
		{line: "GET /vnc/websockify?x=.js", header: ws, want: no},
		{line: "GET /websockify?ticket=bad", header: ws, want: no},
		{line: "GET /websockify?ticket=good", header: ws, want: []int{101}, reach: "gate /websockify"},
		{line: "GET /vnc/websockify?ticket=good", header: ws, want: []int{101}, reach: "gate /websockify"},
		{line: "GET /websockify?ticket=good", want: closed},
		{line: "GET /websockify?ticket=good", header: append([]string{"Origin: http://evil.example"}, ws...), want: closed},
	}...) {
		s.check(t, r)
	}
}

// Without a gate nobody gets in.
func TestGateDown(t *testing.T) {
	s := place(t, "nginx.conf", false)
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

// No log holds tickets and keys, whatever goes wrong.
func TestLogsHaveNoQuery(t *testing.T) {
	s := place(t, "nginx.conf", true)
	s.start(t)
	dir := filepath.Dir(s.conf)
	logs := func() string {
		access, _ := os.ReadFile(dir + "/access.log")
		said, _ := os.ReadFile(dir + "/start.log")
		return string(access) + string(said)
	}
	raw := func(line string, header ...string) string { return request{line: line, header: header}.raw() }
	end := "Connection: close"
	n := 0
	for _, step := range []struct {
		change   func()
		requests []string
	}{
		{func() {}, []string{
			raw("GET /vnc/?ticket=good&api_key=secret", end),
			raw("GET /vnc/nothing?api_key=secret", end),
			raw("GET /vnc/app/?api_key=secret", end),
			raw("PUT /mcp?api_key=secret", end),
			raw("POST /mcp?api_key=secret", "Content-Length: 1048577"),
			raw("POST /mcp?api_key=secret", "Transfer-Encoding: x"),
			raw("GET /vnc/?api_key=secret", "X: "+strings.Repeat("x", 20_000), end),
			raw("GET /vnc/?api_key=secret&x=" + strings.Repeat("x", 20_000)),
			"GET /vnc/?api_key=secret HTTP/9.9\r\nHost: x\r\n\r\n",
			"GET /vnc/\x01?api_key=secret HTTP/1.1\r\nHost: x\r\n\r\n",
		}},
		{s.mcp.Close, []string{raw("POST /mcp?api_key=secret", end)}}, // its socket is gone
		{s.gate.Close, []string{raw("POST /mcp?api_key=secret", end), raw("GET /websockify?ticket=secret", ws...)}},
		{func() { // a socket at which nobody listens any more
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/front/gate.sock", Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
			if err := os.Chmod(dir+"/front/gate.sock", 0o666); err != nil {
				t.Fatal(err)
			}
		}, []string{raw("GET /vnc/?ticket=secret", end)}},
	} {
		step.change()
		for _, r := range step.requests {
			s.send(t, r)
			n++
		}
	}
	need.Eventually(t, func() bool { return strings.Count(logs(), "[20") >= n }, logs)
	if got := logs(); strings.Contains(got, "secret") || strings.Contains(got, "good") {
		t.Errorf("logs: %s", got)
	}
}

// The gate decides by Host and Origin too, and hears them from nginx alone.
func TestGateHearsHostAndOrigin(t *testing.T) {
	s := place(t, "nginx.conf", true)
	s.start(t)
	forged := []string{"X-Original-Host: localhost", "X-Original-Origin: http://localhost"}
	for _, line := range []string{"POST /mcp", "POST /tickets", "GET /vnc/", "GET /websockify", "GET /vnc/websockify"} {
		for _, origin := range []string{"", "http://box.example:8080"} {
			header := forged
			if origin != "" {
				header = append([]string{"Origin: " + origin}, header...)
			}
			if strings.HasSuffix(line, "websockify") {
				header = append(header, ws...)
			}
			s.send(t, request{line: line, host: "box.example:8080", header: header}.raw())
			seen := s.gate.take()
			if len(seen) == 0 {
				t.Errorf("%s: the gate isn't asked", line)
			}
			for _, r := range seen {
				if got := r.Header["X-Original-Host"]; !slices.Equal(got, []string{"box.example:8080"}) {
					t.Errorf("%s: %s hears of the host %q", line, r.URL, got)
				}
				if got := r.Header["X-Original-Origin"]; strings.Join(got, " ") != origin {
					t.Errorf("%s: %s hears of the origin %q, want %q", line, r.URL, got, origin)
				}
			}
		}
	}
}

// TestMCPHearsWhoAsks: browser-shell hears the caller from the gate, and an id that is in the access log, too; what a client says
// of both ends at nginx.
func TestMCPHearsWhoAsks(t *testing.T) {
	s := place(t, "nginx.conf", true)
	answer := s.gate.Config.Handler
	s.gate.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Browser-Shell-Caller", "sub:alice")
		if r.Header.Get("X-AIO-API-Key") == "" {
			w.Header().Set("X-Browser-Shell-Until", "4000000000")
		}
		answer.ServeHTTP(w, r)
	})
	s.start(t)
	forged := []string{"X-Browser-Shell-Caller: forged", "X-Browser-Shell-Until: 4999999999", "X-Request-Id: forged", "Connection: close"}
	s.send(t, request{line: "POST /mcp", header: forged}.raw())
	s.send(t, request{line: "POST /mcp", header: append(forged, "X-AIO-API-Key: key")}.raw())
	seen := s.mcp.take()
	if len(seen) != 2 {
		t.Fatalf("%d requests reached browser-shell", len(seen))
	}
	if with, without := seen[0].Header.Values("X-Browser-Shell-Until"), seen[1].Header.Values("X-Browser-Shell-Until"); !slices.Equal(with, []string{"4000000000"}) || without != nil {
		t.Errorf("a token ends at %q, a key at %q", with, without)
	}
	var ids []string
	for _, r := range seen {
		if got := r.Header.Values("X-Browser-Shell-Caller"); !slices.Equal(got, []string{"sub:alice"}) {
			t.Errorf("caller %q", got)
		}
		ids = append(ids, r.Header.Values("X-Request-Id")...)
	}
	if len(ids) != 2 || ids[0] == ids[1] || !regexp.MustCompile(`^[0-9a-f]{32} [0-9a-f]{32}$`).MatchString(strings.Join(ids, " ")) {
		t.Fatalf("request ids %q", ids)
	}
	access := func() string {
		text, _ := os.ReadFile(filepath.Dir(s.conf) + "/access.log")
		return string(text)
	}
	need.Eventually(t, func() bool { return strings.Contains(access(), ids[0]+"\n") && strings.Contains(access(), ids[1]+"\n") }, access)
}

// Each of these errors is nginx's own. It keeps its code, and says nothing.
func TestErrorsHaveNoBody(t *testing.T) {
	s := place(t, "nginx.conf", true)
	s.start(t)
	s.mcp.Close()
	for _, r := range []request{
		{line: "POST /mcp", want: []int{502}},
		{line: "GET /vnc/nothing", want: []int{404}},
		{line: "PUT /tickets", want: closed},
		{line: "BREW /mcp", want: []int{400, 403, 405}},
	} {
		s.check(t, r)
	}
	for _, raw := range []string{
		"x\r\n\r\n",
		"GET /mcp\r\n",                                 // HTTP/0.9
		"GET /x HTTP/9.9\r\nHost: x\r\n\r\n",           // 505
		"GET /x HTTP/1.1\r\n\r\n",                      // no Host
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",             // HTTP/2
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // TLS
		"GET /x HTTP/1.1\r\nHost: x\r\nbad header\r\n" + strings.Repeat("y: "+strings.Repeat("z", 15_000)+"\r\n", 9) + "\r\n", // 494
		"GET /vnc/ui.js HTTP/1.1\r\nHost: x\r\nRange: bytes=9-1\r\n\r\n",
		"GET /vnc/app/ui.js HTTP/1.1\r\nHost: x\r\nRange: bytes=99-100\r\nConnection: close\r\n\r\n", // 416
		"GET /vnc/app/ui.js HTTP/1.1\r\nHost: x\r\nIf-Match: \"x\"\r\nConnection: close\r\n\r\n",     // 412
		"GET /websockify HTTP/1.0\r\n\r\n",
	} {
		got := s.exchange(t, raw)
		if bytes.Contains(bytes.ToLower(got), []byte("<html")) || bytes.Contains(got, []byte("mcp")) {
			t.Errorf("%.60q: %s", raw, got)
		}
		if bytes.HasPrefix(got, []byte("HTTP/1.1 2")) {
			t.Errorf("%.60q is answered: %s", raw, got)
		}
	}
}

// exchange sends text, and gives what comes until the other side has nothing more to say.
func (s *sandbox) exchange(t *testing.T, raw string) []byte {
	t.Helper()
	c, err := net.Dial("unix", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(need.Patience))
	go func() {
		io.WriteString(c, raw)
		c.(*net.UnixConn).CloseWrite()
	}()
	got, _ := io.ReadAll(c) // a reset is an end too
	return got
}

// Browser-shell gets no more requests at a time than it takes; one more fails at once. The desktop goes on.
func TestRequestsAtMCP(t *testing.T) {
	const most = 2200
	s := place(t, "nginx.conf", true)
	block := make(chan struct{})
	defer close(block)
	var got atomic.Int32
	s.mcp.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		select {
		case <-block:
		case <-r.Context().Done():
		}
	})
	s.start(t)
	ask := func() (net.Conn, error) {
		c, err := net.Dial("unix", s.addr)
		for ; errors.Is(err, syscall.EAGAIN); c, err = net.Dial("unix", s.addr) { // nginx has not accepted those before yet
			time.Sleep(time.Millisecond)
		}
		if err == nil {
			t.Cleanup(func() { c.Close() })
			_, err = io.WriteString(c, request{line: "POST /mcp"}.raw())
		}
		return c, err
	}
	for range most {
		if _, err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	var last *http.Response
	need.Eventually(t, func() bool { // the first ones may still be on their way
		c, err := ask()
		if err != nil {
			return false
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		last, err = http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil
	}, func() string { return "no request is refused" })
	if last.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d, want 502", last.StatusCode)
	}
	need.Eventually(t, func() bool { return got.Load() >= most }, func() string { return "requests that were let through don't come" })
	if n := got.Load(); n != most {
		t.Errorf("browser-shell got %d requests, want %d", n, most)
	}
	if got := s.send(t, request{line: "GET /vnc/"}.raw()).StatusCode; got != http.StatusOK {
		t.Errorf("the desktop's page: %d", got)
	}
	if body, _ := io.ReadAll(last.Body); len(body) > 0 {
		t.Errorf("with a body: %s", body)
	}
}

// Strangers who send their bodies a byte at a time, and come back when they are let go, don't keep the owner out.
func TestSlowStrangers(t *testing.T) {
	const strangers = 140
	s := place(t, "nginx.conf", false)
	s.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	held := make(chan bool, strangers)
	for range strangers {
		all.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				c, err := net.Dial("unix", s.addr)
				if err != nil {
					continue
				}
				_, err = io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")
				if first {
					held <- true
				}
				for err == nil && ctx.Err() == nil {
					time.Sleep(50 * time.Millisecond)
					_, err = io.WriteString(c, "a")
				}
				c.Close()
			}
		})
	}
	for range strangers {
		<-held
	}
	for range 20 {
		if got := s.send(t, request{line: "POST /mcp", header: []string{"Authorization: Bearer key", "Connection: close"}}.raw()).StatusCode; got != http.StatusOK {
			t.Errorf("the owner is answered %d", got)
		}
	}
	for _, r := range s.mcp.take() {
		if r.ContentLength > 0 {
			t.Error("a stranger reaches browser-shell")
		}
	}
}

// A client that sends its request a byte at a time is let go, whether in the header or in the body.
func TestSlowClients(t *testing.T) {
	s := place(t, "nginx.conf", true)
	name := filepath.Join(filepath.Dir(s.conf), "nginx-http.conf")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	timeout := regexp.MustCompile(`(client_(?:header|body)_timeout) (?:5|10)s;`)
	if n := len(timeout.FindAll(text, -1)); n != 2 {
		t.Errorf("%d time-outs of at most ten seconds, want those of header and body", n)
	}
	if err := os.WriteFile(name, timeout.ReplaceAll(text, []byte("$1 1s;")), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	for _, head := range []string{"GET /mcp HTTP/1.1\r\nHost: x\r\n", "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"} {
		c, err := net.Dial("unix", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, head)
		c.SetReadDeadline(time.Now().Add(need.Patience))
		if got, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) || bytes.Contains(got, []byte("<html")) {
			t.Errorf("%q: %q, %v", head, got, err)
		}
	}
	if got := s.mcp.take(); len(got) > 0 {
		t.Errorf("browser-shell got %d requests", len(got))
	}
}
