package acceptance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// answer is the answer to one raw request. Status 0 stands for a connection that was closed without an answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// maxBody limits the part of an answer that is read, in bytes.
const maxBody = 1 << 20

// sendRaw sends bytes that need not be HTTP, and reads one answer.
func (b *box) sendRaw(ctx context.Context, method, request string) (answer, error) {
	const patience = 20 * time.Second
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", b.address)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, err
	}
	if _, err := io.WriteString(c, request); err != nil {
		return answer{}, nil // refused before it was read: no answer
	}
	res, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, maxBody)), &http.Request{Method: method})
	if err != nil {
		return answer{}, nil // no answer
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body) // as far as it is there
	return answer{res.StatusCode, res.Header, string(body)}, nil
}

// request formats a request. A target that isn't a path is the absolute form.
func request(method, target, host string, headers ...string) string {
	lines := append([]string{method + " " + target + " HTTP/1.1", "Host: " + host}, headers...)
	return strings.Join(append(lines, "Connection: close"), "\r\n") + "\r\n\r\n"
}

// probe is a request that the image must refuse.
type probe struct {
	hole           string // a letter of the list of holes, or empty
	method, target string
	host           string
	headers        []string
	want           []int // nil: refused
}

var refused = []int{400, 403, 405}

// upgrade holds the headers that open a WebSocket (RFC 6455, section 4.1).
var upgrade = []string{"Upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}

// paths maps the holes to the bases' answering paths, besides those that a profile allows.
var paths = []struct{ hole, paths string }{
	{"a", `/ /v1/docs /v1/shell /v1/shell/ws /v1/ping /v1/proxy /v1/sandbox/hooks /v1/mcp/servers /json /json/version /json/list /jsonx
		/devtools/page/1 /devtools/browser/x /cdp/ /cdp/json/version /cdp/devtools/x /auth /_auth /_empty /actions /screenshot
		/code-server/ /proxy/9222/json /proxy/8079/mcp /absproxy/8079/mcp /jupyter /terminal /terminal/ /browser-ui
		/static/sandbox/x /opencode /codex /claudecode /index.html /health /healthz /metrics /favicon.ico /robots.txt
		/.well-known/x /server/discover`},
	{"g", `/v1/mcp`},
	{"h", `/mcp/../v1/docs /mcp/%2e%2e/json/version /mcp%2f..%2fjson /mcpfoo /mcp/x /mcp/ //mcp /MCP /tickets/ /tickets/x
		/vnc/..%2f..%2fetc/passwd /vnc../gem/supervisord.conf /websockify/x`},
	{"j", `/llms.txt`},
	{"k", `/ws`},
	{"l", `/sse /message /messages`},
	{"m", `/v1/proxy/map`},
}

// probes returns all requests that must be refused, with or without a key: each path of the bases with each trick.
func probes() []probe {
	var out []probe
	for _, of := range paths {
		for p := range strings.FieldsSeq(of.paths) {
			out = append(out,
				probe{hole: of.hole, method: "GET", target: p, host: "sandbox"},
				probe{hole: of.hole, method: "POST", target: p, host: "sandbox", headers: []string{"Content-Length: 0"}},
				probe{hole: "i", method: "GET", target: p + "?x=.js", host: "sandbox"},
				probe{hole: "b", method: "GET", target: p, host: "9222-x"},
				probe{hole: "b", method: "GET", target: p, host: "8079-evil.example"},
				probe{hole: "c", method: "GET", target: "http://9222-evil" + p, host: "sandbox"},
				probe{hole: "f", method: "GET", target: p, host: "sandbox", headers: []string{"x-aio-proxy-port: 9222"}},
				probe{hole: "k", method: "GET", target: p, host: "localhost", headers: upgrade},
			)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "FOO"} {
		for _, target := range []string{"/", "/v1/docs", "/json/version"} {
			out = append(out, probe{method: method, target: target, host: "sandbox", headers: []string{"Content-Length: 0"}})
		}
	}
	return append(out,
		probe{method: "CONNECT", target: "127.0.0.1:9222", host: "127.0.0.1:9222"},
		probe{hole: "d", method: "GET", target: "/auth", host: "8088-x"},
		probe{hole: "a", method: "GET", target: "/", host: "sandbox", headers: []string{"X-Original-URI: /vnc/?ticket=x", "X-Accel-Redirect: /mcp"}},
	)
}

// strangers tests the surfaces without a valid key.
func (b *box) strangers(ctx context.Context) {
	closed := []int{401, 403}
	var all []probe
	for _, key := range []string{"", "X-AIO-API-Key: wrong", "X-AIO-API-Key: " + b.key[1:], "Authorization: Bearer " + b.key + "x", "X-AIO-API-Key: "} {
		var with []string
		if key != "" {
			with = []string{key}
		}
		for _, target := range []string{"/mcp", "/mcp?x=.js", "/mcp?api_key=wrong", "/vnc/index.html", "/vnc/index.html?x=.js", "/vnc/?ticket=x", "/vnc/index.html?ticket="} {
			all = append(all, probe{hole: "i", method: "GET", target: target, host: "sandbox", headers: with, want: closed})
		}
		for _, target := range []string{"/websockify", "/websockify?x=.js", "/vnc/websockify", "/websockify?ticket=x"} {
			all = append(all, probe{hole: "i", method: "GET", target: target, host: "sandbox", headers: slices.Concat(upgrade, with), want: closed})
		}
		all = append(all,
			probe{hole: "d", method: "POST", target: "/tickets", host: "8088-x", headers: append([]string{"Content-Length: 0"}, with...), want: closed},
			probe{method: "POST", target: "/mcp", host: "sandbox", headers: append([]string{"Content-Length: 0"}, with...), want: closed},
		)
	}
	// A page of another site, in the browser of a key's owner.
	foreign := []string{"Origin: https://evil.example", "X-AIO-API-Key: " + b.key, "Content-Length: 0"}
	all = append(all,
		probe{method: "POST", target: "/mcp", host: "sandbox", headers: foreign, want: closed},
		probe{method: "POST", target: "/tickets", host: "sandbox", headers: foreign, want: closed},
		probe{method: "GET", target: "/websockify", host: "sandbox", headers: slices.Concat(upgrade, foreign[:2]), want: closed},
	)
	b.trySend(ctx, "run-auth", all)
}

// routes tests paths that no profile allows, and none of the profile's own routes.
func (b *box) routes(ctx context.Context, key string) {
	all := slices.DeleteFunc(probes(), func(p probe) bool { return b.isNamed(p.target) })
	if key != "" {
		for i := range all {
			all[i].headers = append(slices.Clone(all[i].headers), "X-AIO-API-Key: "+key)
		}
	}
	b.trySend(ctx, "run-routes", all)
}

// isNamed reports whether a profile allows a target, with a parser other than nginx's.
func (b *box) isNamed(target string) bool {
	target, _, _ = strings.Cut(target, "?")
	if u, err := url.Parse(target); err == nil && u.IsAbs() {
		target = u.Path
	}
	return slices.ContainsFunc(b.Expect.Routes, func(r string) bool {
		return r == target || r != "/" && strings.HasSuffix(r, "/") && strings.HasPrefix(target, r) && !strings.Contains(target, "%2f")
	})
}

// trySend sends requests, several at a time, and reports unexpected answers.
func (b *box) trySend(ctx context.Context, rule string, all []probe) {
	answers, errs := make([]answer, len(all)), make([]error, len(all))
	limited, cancel := context.WithTimeout(ctx, b.Patience)
	defer cancel()
	var wg sync.WaitGroup
	const workers = 8
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(all) && limited.Err() == nil; i += workers {
				answers[i], errs[i] = b.sendRaw(limited, all[i].method, request(all[i].method, all[i].target, all[i].host, all[i].headers...))
			}
		})
	}
	wg.Wait()
	silent := 0
	for i, p := range all {
		a, want := answers[i], p.want
		if want == nil {
			want = refused
		}
		shown := fmt.Sprintf("%s %s (Host: %s%s)", p.method, p.target, p.host, b.hide(p.headers))
		if p.hole != "" {
			shown += ", hole " + p.hole
		}
		switch {
		case errs[i] != nil:
			b.addFinding(rule, p.target, "%s can't be tried: %s", shown, quote(errs[i].Error()))
		case a.status == 0:
			silent++
		case !slices.Contains(want, a.status):
			b.addFinding(rule, p.target, "%s is answered with %d, want one of %v: %s", shown, a.status, want, quote(a.body))
		case a.body != "" && (a.status != http.StatusUnauthorized || !strings.Contains(a.body, "X-AIO-API-Key")): // a 401 names the required header
			b.addFinding("run-answers", p.target, "%s is refused with %d and a text: %s", shown, a.status, quote(a.body))
		case strings.ContainsAny(a.header.Get("Server"), "/0123456789"):
			b.addFinding("run-answers", "Server", "a refusal names its server: %s", quote(a.header.Get("Server")))
		}
	}
	if silent > len(all)/20 {
		b.addFinding(rule, "", "%d of %d requests got no answer", silent, len(all))
	}
}

// hide formats headers without the key.
func (b *box) hide(headers []string) string {
	var out strings.Builder
	for _, h := range headers {
		out.WriteString(", " + strings.ReplaceAll(h, b.key, "KEY"))
	}
	return out.String()
}

// bounded adds headers to requests and limits answers.
type bounded struct {
	header http.Header
	next   http.RoundTripper
}

func (t *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for k, v := range t.header {
		r.Header[k] = v
	}
	res, err := t.next.RoundTrip(r)
	if err == nil {
		if _, both := res.Body.(io.Writer); !both { // keeps an upgraded connection intact
			res.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(res.Body, 8*maxBody), res.Body}
		}
	}
	return res, err
}
