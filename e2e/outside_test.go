package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const public = sandboxIP + ":8080"

// answer is what came back for a request as it was written.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

// raw sends bytes that need be no HTTP, and reads one answer. Status 0 is a connection that was closed without one.
func (w *world) raw(t *testing.T, method, request string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := w.dial(ctx, "tcp", public)
	if err != nil {
		t.Fatalf("connect to %s: %v", public, err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, request); err != nil {
		return answer{}
	}
	a, _ := readAnswer(bufio.NewReader(c), method)
	return a
}

func readAnswer(r *bufio.Reader, method string) (answer, bool) {
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		return answer{}, false
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return answer{res.StatusCode, res.Header, string(body)}, err == nil && !res.Close
}

func get(target string, headers ...string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: sandbox\r\n" + strings.Join(append(headers, "Connection: close"), "\r\n") + "\r\n\r\n"
}

// client speaks HTTP from the world.
func (w *world) client() *http.Client {
	return &http.Client{
		Timeout:       time.Minute,
		Transport:     &http.Transport{DialContext: w.dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// holes are what a naive slimming leaves open (facts/aio-base.md 4.4), each as somebody outside would try it.
var holes = []struct {
	name, method, request string
	want                  []int
}{
	{"a: a longer location wins", "GET", get("/v1/docs"), []int{403}},
	{"a: the debugging port's list", "GET", get("/json/version"), []int{403}},
	{"a: a prefix of it", "GET", get("/jsonx"), []int{403}},
	{"a: the debugging port", "GET", get("/devtools/browser/x"), []int{403}},
	{"a: gem-server's browser", "GET", get("/cdp/json/version"), []int{403}},
	{"a: mouse and keyboard", "POST", "POST /actions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", []int{403, 405}},
	{"a: pictures", "GET", get("/screenshot"), []int{403}},
	{"a: any port through code-server", "GET", get("/proxy/8079/mcp"), []int{403}},
	{"a: any port, absolute", "GET", get("/absproxy/8079/mcp"), []int{403}},
	{"a: the editor", "GET", get("/code-server/"), []int{403}},
	{"a: notebooks", "GET", get("/jupyter"), []int{403}},
	{"a: a terminal", "GET", get("/terminal"), []int{403}},
	{"a: the shell's socket", "GET", get("/v1/shell/ws", "Upgrade: websocket", "Connection: upgrade"), []int{403}},
	{"b: a port in the Host", "GET", "GET /json/version HTTP/1.1\r\nHost: 9222-x\r\nConnection: close\r\n\r\n", []int{403}},
	{"b: the hub's port in the Host", "GET", "GET /mcp/ HTTP/1.1\r\nHost: 8079-evil.example\r\nConnection: close\r\n\r\n", []int{403}},
	{"c: a port in an absolute form", "GET", "GET http://9222-evil/json/version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", []int{403}},
	{"d: past the key by a Host", "POST", "POST /tickets HTTP/1.1\r\nHost: 8088-x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", []int{401}},
	{"d: the gate itself", "GET", "GET /auth HTTP/1.1\r\nHost: 8088-x\r\nConnection: close\r\n\r\n", []int{403}},
	{"e, f: a port in a header", "GET", get("/", "x-aio-proxy-port: 9222"), []int{403}},
	{"f: on a path of nobody's", "GET", get("/nothing/here", "X-AIO-Proxy-Port: 8079"), []int{403}},
	{"g: what a regular expression would open", "GET", get("/v1/mcp"), []int{403}},
	{"h: dots", "GET", get("/mcp/../v1/docs"), []int{403}},
	{"h: encoded dots", "GET", get("/mcp/%2e%2e/json/version"), []int{403}},
	{"h: an encoded slash", "GET", get("/mcp%2f..%2fjson"), []int{403}},
	{"h: a prefix", "GET", get("/mcpfoo"), []int{403}},
	{"h: below", "GET", get("/mcp/x"), []int{403}},
	{"h: out of noVNC's files", "GET", get("/vnc/..%2f..%2fetc/passwd"), []int{403, 400}},
	{"h: out of them, plainly", "GET", get("/vnc../gem/supervisord.conf"), []int{403, 400}},
	{"i: a query that looks like a file", "GET", get("/mcp?x=.js"), []int{401}},
	{"i: the same for the desktop's socket", "GET", get("/websockify?x=.js", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="), []int{401, 403}},
	{"i: the same for its page", "GET", get("/vnc/index.html?x=.js"), []int{401}},
	{"j: a rendered snippet's route", "GET", get("/llms.txt"), []int{403}},
	{"k: a snippet that is rendered anew", "GET", get("/ws", "Upgrade: websocket"), []int{403}},
	{"l: the old server's routes", "GET", get("/sse"), []int{403}},
	{"l: and its messages", "POST", "POST /message HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", []int{403}},
	{"m: the mapping of ports at run time", "POST", "POST /v1/proxy/map HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", []int{403}},
	{"the hub's management", "GET", get("/v1/mcp/servers"), []int{403}},
	{"metrics", "GET", get("/metrics"), []int{403}},
	{"the way nginx asks the gate", "GET", get("/_auth"), []int{403}},
	{"a tunnel", "CONNECT", "CONNECT 127.0.0.1:9222 HTTP/1.1\r\nHost: 127.0.0.1:9222\r\n\r\n", []int{400, 403, 405}},
	{"two lengths", "POST", "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /json HTTP/1.1\r\nHost: x\r\n\r\n", []int{400, 401}},
	{"no HTTP", "GET", "\x16\x03\x01\x02\x00\x01\x00", []int{0, 400}},
}

// testHoles tries each hole. A key is set and none is given.
func testHoles(t *testing.T, w *world) {
	for _, h := range holes {
		t.Run(h.name, func(t *testing.T) {
			a := w.raw(t, h.method, h.request)
			if !slices.Contains(h.want, a.Status) {
				t.Errorf("%q: %d, want %v\n%s", h.request, a.Status, h.want, a.Body)
			}
			tellsNothing(t, a)
		})
	}
}

// testPorts tries every port: hole m, sockets beside nginx.
func testPorts(t *testing.T, w *world) {
	if open := openPorts(t, w); !slices.Equal(open, []int{8080}) {
		t.Errorf("open from outside: %v, want 8080 alone", open)
	}
}

// forgottenKey is the only body that a refusal has: clients show it to whoever forgot the key. It is the same for everybody.
const forgottenKey = `{"error":"access_denied","error_description":"Key or token missing, wrong, expired or given twice: send the value of SANDBOX_API_KEY in the header ` +
	`X-AIO-API-Key, or a token as Authorization: Bearer, once. A web browser needs a ticket for /vnc/; see docs/watch.md. There is no OAuth here; see docs/gate.md."}`

// tellsNothing checks that a refusal says neither what refuses nor why.
func tellsNothing(t *testing.T, a answer) {
	t.Helper()
	if a.Status < 400 {
		return
	}
	if a.Body != "" && !(a.Status == http.StatusUnauthorized && a.Body == forgottenKey) {
		t.Errorf("%d has a body: %.200q", a.Status, a.Body)
	}
	if s := a.Header.Get("Server"); strings.ContainsAny(s, "/0123456789") {
		t.Errorf("Server: %s", s)
	}
}

// openPorts tries every TCP port of the container from outside, by plain system calls: the net package takes ten times as long.
func openPorts(t *testing.T, w *world) (open []int) {
	t.Helper()
	try := func(port int) (bool, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return false, err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 30}); err != nil {
			return false, err
		}
		for {
			switch err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(sandboxIP).As4()}); err {
			case unix.ECONNREFUSED:
				return false, nil
			case unix.EINTR, unix.EALREADY: // a signal of Go's scheduler; the kernel goes on
			case nil, unix.EISCONN:
				return true, nil
			default:
				return false, fmt.Errorf("connect to port %d: %w", port, err)
			}
		}
	}
	if err := w.do(func() error {
		for port := 1; port <= 65535; port++ {
			is, err := try(port)
			if err != nil {
				return err
			}
			if is {
				open = append(open, port)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	return open
}

// known are routes that one of the bases answers, and the three surfaces.
var known = []string{
	"/mcp", "/tickets", "/vnc", "/vnc/", "/vnc/index.html", "/vnc/vnc.html", "/vnc/core/rfb.js", "/vnc/websockify", "/websockify",
	"/", "/v1/mcp", "/v1/docs", "/v1/shell", "/v1/shell/ws", "/v1/ping", "/v1/proxy", "/json", "/json/version", "/json/list", "/devtools/page/1",
	"/cdp/", "/cdp/json/version", "/cdp/devtools/x", "/auth", "/_auth", "/actions", "/screenshot", "/code-server/", "/proxy/9222/json", "/absproxy/8079/",
	"/jupyter", "/terminal", "/terminal/", "/browser-ui", "/static/sandbox/x", "/index.html", "/llms.txt", "/health", "/healthz", "/metrics",
	"/sse", "/message", "/messages", "/ws", "/opencode", "/codex", "/claudecode", "/favicon.ico", "/robots.txt", "/.well-known/x", "/server/discover",
}

// requests makes n of them: known routes and damaged ones, with the Hosts, methods, forms and headers that opened a
// base. The same seed makes the same ones.
func requests(n int, seed uint64) []struct{ method, target, text string } {
	r := rand.New(rand.NewPCG(seed, 4))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	damage := []func(string) string{
		func(s string) string { return s },
		func(s string) string {
			return s + pick("x", "/", "//", "/..", "/.", "%00", "%2f", ";", ".js", "?x=.js", "?ticket=x", "#", "%20", "\\")
		},
		func(s string) string {
			return pick("/", "/.", "/x/..", "/mcp/..", "/vnc/..", "/vnc", "/tickets/", "/%2e%2e", "/mcp%2f..", "/MCP/..") + s
		},
		func(s string) string { return strings.ToUpper(s) },
		func(s string) string {
			return strings.ReplaceAll(s, "/", pick("//", "/./", "%2f", "\\", "/%2e/", "/x/../"))
		},
		func(s string) string { // a byte of it in hex
			i := r.IntN(len(s))
			return s[:i] + fmt.Sprintf("%%%02x", s[i]) + s[i+1:]
		},
		func(s string) string { // a byte of it anew
			i := r.IntN(len(s))
			return s[:i] + string(rune(33+r.IntN(94))) + s[i+1:]
		},
	}
	out := make([]struct{ method, target, text string }, n)
	for i := range out {
		target := known[r.IntN(len(known))]
		for range r.IntN(3) {
			target = damage[r.IntN(len(damage))](target)
		}
		if !strings.HasPrefix(target, "/") {
			target = "/" + target
		}
		method := pick("GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "get", "FOO")
		host := pick("sandbox", "localhost", "127.0.0.1:8080", "9222-x", "8079-evil", "8088-a.b", "8091-x", "[::1]", "x:80", "", "a b", "sandbox.", "..", "-")
		line := target
		if r.IntN(4) == 0 {
			line = "http://" + pick("sandbox", "9222-evil", "8079-x", "127.0.0.1:9222", "user@localhost") + target
		}
		headers := pick("", "x-aio-proxy-port: 9222\r\n", "X-Original-URI: /vnc/?ticket=x\r\n", "Upgrade: websocket\r\nConnection: upgrade\r\n",
			"X-Forwarded-For: 127.0.0.1\r\n", "Origin: http://localhost:8080\r\n", "X-Accel-Redirect: /mcp\r\n", "Content-Length: 0\r\n", "Expect: 100-continue\r\n")
		out[i] = struct{ method, target, text string }{method, target, method + " " + line + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers + "\r\n"}
	}
	return out
}

// surface reports whether a target means one of the three, by a reading of it that is not nginx's.
func surface(target string) bool {
	p, _, _ := strings.Cut(target, "#")
	p, _, _ = strings.Cut(p, "?")
	p, err := url.PathUnescape(p)
	if err != nil {
		return false
	}
	clean := (&url.URL{Path: "/"}).ResolveReference(&url.URL{Path: p}).Path // dots go (RFC 3986 5.2.4), doubled slashes stay
	return slices.Contains([]string{"/mcp", "/tickets", "/vnc", "/websockify"}, clean) || strings.HasPrefix(clean, "/vnc/")
}

// testRoutes sends n requests, and looks at which answer anything but a refusal.
func testRoutes(t *testing.T, w *world, n int, key string) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const workers = 8
	all := requests(n, seed)
	var (
		mu     sync.Mutex
		counts = map[int]int{}
		wg     sync.WaitGroup
	)
	for worker := range workers {
		wg.Go(func() {
			var c net.Conn
			var in *bufio.Reader
			for i := worker; i < len(all); i += workers {
				q := all[i]
				text := q.text
				if key != "" {
					text = strings.Replace(text, "\r\n", "\r\nX-AIO-API-Key: "+key+"\r\n", 1)
				}
				if c == nil {
					var err error
					if c, err = w.dial(t.Context(), "tcp", public); err != nil {
						t.Errorf("connect: %v", err)
						return
					}
					in = bufio.NewReader(c)
				}
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, err := io.WriteString(c, text)
				a, more := readAnswer(in, q.method)
				if err != nil || !more || a.Status < 200 {
					c.Close()
					c = nil
				}
				mu.Lock()
				counts[a.Status]++
				mu.Unlock()
				if !slices.Contains([]int{0, 400, 403, 405}, a.Status) && !surface(q.target) {
					t.Errorf("%q: %d %.100q", text, a.Status, a.Body)
				}
			}
			if c != nil {
				c.Close()
			}
		})
	}
	wg.Wait()
	t.Logf("answers by status: %v", counts)
	if counts[403] < n/4 {
		t.Errorf("only %d of %d were refused: %v", counts[403], n, counts)
	}
	if n := counts[0]; n > len(all)/20 {
		t.Errorf("%d got no answer", n)
	}
}
