package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/policy"
)

func TestPlain(t *testing.T) {
	l := newLab(t, nil)
	var got *http.Request
	var body []byte
	port := serve(t, publicIP, func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(context.Background())
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.Header().Set("X-Site", "yes")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "hello")
	})
	target := "/a%2Fb|c//d?x=1;y=%zz"
	res, answer := l.raw(t, "POST http://SITE.test.:"+port+target+" HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 4\r\n"+
		"Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nProxy-Odd: 1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Own: 2\r\n\r\nbody")
	if res.StatusCode != http.StatusTeapot || answer != "hello" || res.Header.Get("X-Site") != "yes" {
		t.Fatalf("got %v %q", res, answer)
	}
	if string(body) != "body" || got.RequestURI != target || got.Host != "site.test:"+port || got.Header.Get("X-Own") != "2" {
		t.Errorf("the site got %q %q of %q", got.RequestURI, body, got.Host)
	}
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "Proxy-Odd", "X-Hop", "Via", "X-Forwarded-For", "Forwarded", "User-Agent", "Accept-Encoding"} {
		if v, ok := got.Header[name]; ok {
			t.Errorf("the site got %s: %q", name, v)
		}
	}
	for _, name := range []string{"Proxy-Authenticate", "Via", "Content-Type-Options"} {
		if v, ok := res.Header[name]; ok {
			t.Errorf("the browser got %s: %q", name, v)
		}
	}
	d := l.last(t)
	if d.Host != "site.test" || strconv.Itoa(d.Port) != port || d.Method != "POST" || d.Rule != "" || d.Address.String() != publicIP ||
		d.BytesIn < 50 || d.BytesOut < 50 || d.Duration <= 0 {
		t.Errorf("recorded %+v", d)
	}
	if all := l.decisions(); len(all) != 2 || all[0].Done || !all[0].Allowed {
		t.Errorf("recorded %+v", all)
	}
}

func TestNoGuessedContentType(t *testing.T) {
	l := newLab(t, nil)
	port := serve(t, publicIP, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
	})
	res, _ := l.raw(t, get("http://site.test:"+port+"/"))
	if v, ok := res.Header["Content-Type"]; ok || res.StatusCode != 200 {
		t.Errorf("got %d, content type %q", res.StatusCode, v)
	}
}

func TestTLSThroughConnect(t *testing.T) {
	l := newLab(t, nil)
	port, roots := serveTLS(t, publicIP, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	c := l.client(roots)
	res, err := c.Post("https://site.test:"+port+"/", "text/plain", bytes.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(res.Body)
	if err != nil || !bytes.Equal(got, big) {
		t.Fatalf("%d bytes came back, %v", len(got), err)
	}
	c.CloseIdleConnections()
	if d := l.last(t); d.Method != "CONNECT" || d.BytesIn < 1<<20 || d.BytesOut < 1<<20 {
		t.Errorf("recorded %+v", d)
	}
}

func TestWebSocket(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	}
	l := newLab(t, nil)
	plain := serve(t, publicIP, echo)
	secure, roots := serveTLS(t, publicIP, echo)
	for _, target := range []string{"ws://site.test:" + plain, "wss://site.test:" + secure} {
		ctx, cancel := context.WithTimeout(context.Background(), need.Patience)
		c, _, err := websocket.Dial(ctx, target, &websocket.DialOptions{HTTPClient: l.client(roots)})
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		for i := range 3 {
			word := fmt.Sprint("word ", i)
			if err := c.Write(ctx, websocket.MessageText, []byte(word)); err != nil {
				t.Fatal(err)
			}
			if _, b, err := c.Read(ctx); err != nil || string(b) != word {
				t.Fatalf("%s: got %q, %v", target, b, err)
			}
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
		cancel()
	}
}

// TestRefused holds every way that a request could name this machine, or
// something that is no request to a forward proxy.
func TestRefused(t *testing.T) {
	l := newLab(t, func(p *policy.Policy) { p.Egress.MaxConnections = 4 })
	c1, c2 := newCanary(t, "127.0.0.1"), newCanary(t, canaryIP)
	l.names.turns = map[string][]string{
		"site.test":     {publicIP},
		"internal.test": {"127.0.0.1"},
		"second.test":   {canaryIP},
		"mixed.test":    {publicIP + " 127.0.0.1"},
		"mixed2.test":   {"127.0.0.1 " + publicIP},
		"mapped.test":   {"::ffff:127.0.0.1"},
		"v6.test":       {"::1"},
		"unspec.test":   {"0.0.0.0"},
		"meta.test":     {"169.254.169.254"},
		"zone.test":     {"fe80::1%lo"},
		"empty.test":    {""},
		"broken.test":   {"SERVFAIL"},
	}
	type row struct {
		text   string
		status int
		rule   string
	}
	var rows []row
	for _, p := range []string{c1.port(), c2.port()} {
		for _, h := range []string{
			"127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0",
			"127.0.0.1.", "127.000.000.001", "127.0.0.01", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
			"[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[0:0:0:0:0:0:0:1]", "localhost", "LOCALHOST", "localhost.", "a.localhost", "A.LocalHost.",
			"internal.test", "INTERNAL.test.", "second.test", "mixed.test", "mixed2.test", "mapped.test", "v6.test", "unspec.test", "zone.test",
			"host", "169.254.169.254", "168.63.129.16", "192.0.2.2", publicIP, // a literal is judged by the real rules
		} {
			rows = append(rows, row{get("http://" + h + ":" + p + "/"), 403, "url."}, row{connect(h + ":" + p), 403, "url."})
		}
		for _, h := range []string{
			"[fe80::1%25lo]", "[::1%lo]", "127.0.0.1%00", "site.test%2e", "①②⑦.0.0.1", "127。0。0。1", "site.test@127.0.0.1", "127.0.0.1@site.test",
			"site.test\\@127.0.0.1", "site.test,127.0.0.1", "[::1", "::1", "", "[site.test]", "site.test:80",
		} {
			rows = append(rows, row{get("http://" + h + ":" + p + "/"), 400, ""}, row{connect(h + ":" + p), 400, ""})
		}
		rows = append(
			rows,
			row{get("/"), 400, "egress.form"},
			row{fmt.Sprintf("GET / HTTP/1.1\r\nHost: 127.0.0.1:%s\r\n\r\n", p), 400, "egress.form"},
			row{fmt.Sprintf("GET //127.0.0.1:%s/ HTTP/1.1\r\nHost: site.test\r\n\r\n", p), 400, "egress.form"},
			row{get("https://127.0.0.1:" + p + "/"), 400, "egress.form"},
			row{get("https://site.test:" + p + "/"), 400, "egress.form"},
			row{get("ftp://site.test:" + p + "/"), 400, "egress.form"},
			row{get("file:///etc/hostname"), 400, "egress.form"},
			row{get("ws://site.test:" + p + "/"), 400, "egress.form"},
			row{get("http:127.0.0.1:" + p), 400, "egress.form"},
			row{get("http:///127.0.0.1:" + p), 400, "egress.form"},
			row{"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1:" + p + "\r\n\r\n", 400, "egress.form"},
			row{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "egress.form"},
			row{"CONNECT /x HTTP/1.1\r\nHost: 127.0.0.1:" + p + "\r\n\r\n", 400, ""},
			row{"CONNECT site.test HTTP/1.1\r\nHost: 127.0.0.1:" + p + "\r\n\r\n", 400, "url.port"},
			row{connect("site.test:" + p + "/x"), 400, "egress.form"},
			row{connect("site.test:" + p + "?x"), 400, "egress.form"},
			row{connect("http://127.0.0.1:" + p), 400, ""},
			row{connect("u:p@site.test:" + p), 400, "egress.form"},
			row{connect("site.test:0"), 400, "url.port"},
			row{connect("site.test:65536"), 400, "url.port"},
			row{connect("site.test:-1"), 400, ""},
			row{connect("site.test:http"), 400, ""},
			row{"CONNECT site.test:" + p + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 400, "egress.form"},
			row{get("http://site.test:0/"), 400, "url.port"},
			row{get("http://u:p@site.test/"), 400, "egress.form"},
			row{get("http://@site.test/"), 400, "egress.form"},
			row{fmt.Sprintf("GET http://site.test/ HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nHost: x\r\n\r\n", p), 400, ""},
			row{"GET http://site.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, ""},
			row{"GET http://site.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 501, ""},
			row{"GET http://site.test/ HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n", 400, ""},
		)
	}
	rows = append(
		rows,
		row{get("http://empty.test/"), 502, "url.unresolved"}, row{get("http://none.test/"), 502, "url.unresolved"},
		row{get("http://broken.test/"), 502, "url.unresolved"}, row{connect("broken.test:443"), 502, "url.unresolved"},
		row{get("http://meta.test/latest/meta-data/"), 403, "url.private"},
		row{"GET http://site.test/ HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", 431, ""},
	)
	for _, r := range rows {
		res, body := l.raw(t, r.text)
		said := res.Header.Get(policy.RefusalHeader)
		if res.StatusCode != r.status || !strings.Contains(said, ") "+r.rule) && r.rule != "" {
			t.Errorf("%.80q: %d %q, not %d %s", r.text, res.StatusCode, said, r.status, r.rule)
		}
		if r.rule != "" && (body != "" || res.ContentLength != 0 || res.Header.Get("Location") != "" || res.Header.Get("Access-Control-Allow-Origin") != "" ||
			res.Header.Get("Cache-Control") != "no-store" || !res.Close || policy.ParseRefusal(said) == nil) {
			t.Errorf("%.80q: headers %v, body %q", r.text, res.Header, body)
		}
		if r.rule != "" && (strings.Contains(said, "127.") || strings.Contains(said, "::") || strings.Contains(said, ".test")) {
			t.Errorf("%.80q: the answer tells %q", r.text, said)
		}
	}
	if n := c1.hits.Load() + c2.hits.Load(); n != 0 {
		t.Errorf("%d connections to the canaries", n)
	}
	for _, d := range l.decisions() {
		if d.Allowed || d.Rule == "" {
			t.Errorf("recorded %+v", d)
		}
	}
	get, err := http.Get("http://" + c2.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	get.Body.Close()
	if c2.hits.Load() != 1 {
		t.Error("the canary does not count")
	}
}

// A site that looks public but is this machine, and the proxy itself.
func TestNotThisMachine(t *testing.T) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	p := New(policy.Default(), policy.Network{Public: func(netip.Addr) bool { return true }}, nil, nil)
	q := &request{Proxy: p, policy: policy.Default(), sites: p.network}
	if r := q.checkAddress(netip.MustParseAddr("8.8.8.8")); r != nil {
		t.Fatalf("8.8.8.8 is refused: %v", r)
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err != nil || q.checkAddress(prefix.Addr()) == nil {
			t.Errorf("%s may be reached: %v", a, err)
		}
	}
	own := netip.MustParseAddr("127.77.3.3")
	if r := q.checkAddress(own); r != nil {
		t.Fatalf("the test's own address is refused: %v", r)
	}
	p.listen.Store(&own)
	if q.checkAddress(own) == nil || q.checkAddress(netip.MustParseAddr("::ffff:127.77.3.3")) == nil {
		t.Error("the proxy may be reached through itself")
	}
}

// The address that was checked is the one that is dialled, however the
// resolver changes its mind; each request asks once.
func TestRebinding(t *testing.T) {
	l := newLab(t, nil)
	ls := samePort(t, "127.0.0.1", publicIP)
	c, l2 := canaryOn(t, ls[0]), ls[1]
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "public") }))
	site.Listener.Close()
	site.Listener = l2
	site.Start()
	t.Cleanup(site.Close)
	turns := make([]string, 0, 40)
	for range 20 {
		turns = append(turns, publicIP, "127.0.0.1")
	}
	l.names.turns["flip.test"] = turns
	client := l.client(nil)
	for i := range 20 {
		res, err := client.Get("http://flip.test:" + c.port() + "/")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		want := "public"
		if i%2 == 1 {
			want = "POLICY_BLOCKED"
		}
		if r := Why(t.Context(), l.addr, res.Header.Get(policy.RefusalHeader)); r != nil {
			b = append(b, r.Header()...)
		}
		if !strings.HasPrefix(string(b), want) {
			t.Errorf("request %d: %q", i, b)
		}
	}
	if n := l.names.asked["flip.test"]; n != 20 {
		t.Errorf("%d look-ups for 20 requests", n)
	}
	if c.hits.Load() != 0 {
		t.Error("the canary was reached")
	}
}

// The socket's own check holds even if the list before it were wrong.
func TestDialCheck(t *testing.T) {
	l := newLab(t, nil)
	c := newCanary(t, "127.0.0.1")
	port, _ := strconv.Atoi(c.port())
	q := &request{Proxy: l.Proxy, Decision: Decision{Port: port}, addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	if _, err := q.connect(t.Context()); err == nil {
		t.Error("an internal address was dialled")
	}
	want := netip.MustParseAddr(publicIP)
	if conn, err := q.dialer(want).DialContext(t.Context(), "tcp", c.Addr().String()); err == nil {
		conn.Close()
		t.Error("another address than the checked one was dialled")
	}
	r, err := http.NewRequest("GET", "http://"+c.Addr().String()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := newPlain(nil).Transport.RoundTrip(r); err == nil {
		res.Body.Close()
		t.Error("a request without a decision went out")
	}
	if c.hits.Load() != 0 {
		t.Error("the canary was reached")
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	l := newLab(t, nil)
	c := newCanary(t, canaryIP)
	port := serve(t, publicIP, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+c.Addr().String()+"/", http.StatusFound)
	})
	res, _ := l.raw(t, get("http://site.test:"+port+"/"))
	if res.StatusCode != http.StatusFound {
		t.Errorf("got %d", res.StatusCode)
	}
	r, err := l.client(nil).Get("http://site.test:" + port + "/") // which follows
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusForbidden || c.hits.Load() != 0 {
		t.Errorf("got %d, %d hits", r.StatusCode, c.hits.Load())
	}
}

// One connection of the browser carries requests for many hosts, each with its
// own decision, and no connection to a site is used twice.
func TestKeepAliveAcrossHosts(t *testing.T) {
	l := newLab(t, nil)
	c := newCanary(t, "127.0.0.1")
	l.names.turns["internal.test"] = []string{"127.0.0.1"}
	who := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host+" "+r.RemoteAddr) }
	port1, port2 := serve(t, publicIP, who), serve(t, "127.77.0.2", who)
	conn, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	br := bufio.NewReader(conn)
	seen := map[string]bool{}
	for _, host := range []string{"site.test:" + port1, "other.test:" + port2, "site.test:" + port1, "site.test:" + port1, "internal.test:" + c.port()} {
		fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: site.test:%s\r\n\r\n", host, port1)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		if strings.HasPrefix(host, "internal") {
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %d", host, res.StatusCode)
			}
			continue
		}
		name, from, _ := strings.Cut(string(b), " ")
		if name != host || seen[from] {
			t.Errorf("%s: answered by %q", host, b)
		}
		seen[from] = true
	}
	if c.hits.Load() != 0 {
		t.Error("the canary was reached")
	}
}

// What is hidden behind one body length must not become a second request.
func TestSmuggling(t *testing.T) {
	l := newLab(t, nil)
	var mu sync.Mutex
	var seen []string
	port := serve(t, publicIP, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprintf("%s %q %d %v", r.URL.Path, b, r.ContentLength, r.TransferEncoding))
	})
	hidden := "0\r\n\r\nGET http://127.0.0.1/hidden HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	text := fmt.Sprintf("POST http://site.test:%s/one HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", port, len(hidden), hidden)
	res, _ := l.raw(t, text)
	if res.StatusCode != 200 && res.StatusCode != 400 {
		t.Errorf("got %d", res.StatusCode)
	}
	time.Sleep(50 * time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	for _, s := range seen {
		if !strings.HasPrefix(s, `/one ""`) {
			t.Errorf("the site got %s", s)
		}
	}
}

// TestWhy: a refusal can be asked for by its number, for some time; the last one of a tunnel by its target.
func TestWhy(t *testing.T) {
	var kept told
	numbers := []string{}
	for range len(kept.last) + 1 {
		numbers = append(numbers, kept.keepRefusal(rand.Text(), timedOut))
	}
	for i, number := range append(numbers, "", "x") {
		if known := kept.findRefusal(number) == timedOut; known != (i > 0 && i < len(numbers)) {
			t.Errorf("number %d (%q): known is %v", i, number, known)
		}
	}
	l := newLab(t, nil)
	if r := Why(t.Context(), l.addr, "x"); r != nil {
		t.Errorf("an unknown number: %v", r)
	}
	if d := l.decisions(); len(d) > 0 {
		t.Errorf("a question was recorded: %+v", d)
	}
	for target, rule := range map[string]string{"10.0.0.1:443": "url.private", "LocalHost:443": "url.loopback", "[::1]:8443": "url.loopback"} {
		l.raw(t, connect(target))
		if r := Why(t.Context(), l.addr, strings.ToLower(target)); r == nil || r.Rule != rule {
			t.Errorf("%s: %v, want %s", target, r, rule)
		}
	}
	kept.keepRefusal("a.test:443", timedOut)
	kept.keepRefusal("a.test:443", reset)
	if r := kept.findRefusal("a.test:443"); r != reset {
		t.Errorf("a target that was refused twice: %v", r)
	}
}

func TestPolicyDecides(t *testing.T) {
	l := newLab(t, func(p *policy.Policy) { p.Open.AllowHosts = []string{"site.test"} })
	port := serve(t, publicIP, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	want := func(text string, status int, rule string) {
		t.Helper()
		if res, body := l.raw(t, text); res.StatusCode != status || !strings.Contains(body+res.Header.Get(policy.RefusalHeader), rule) {
			t.Errorf("%.60q: got %d %q, want %d %s", text, res.StatusCode, res.Header, status, rule)
		}
		l.last(t) // its end comes after its answer, and must not follow the next one's
	}
	want(get("http://site.test:"+port), 200, "ok")
	want(get("http://other.test:"+port), 403, "url.host-not-allowed")
	pol := policy.Default()
	pol.Egress.AllowPorts = []int{1}
	l.Reload(pol)
	want(get("http://site.test:"+port), 403, "egress.port")
	want(connect("site.test:"+port), 403, "egress.port")
	pol = policy.Default()
	pol.Open.AllowSchemes = []string{"https"}
	l.Reload(pol)
	want(get("http://site.test:"+port), 403, "url.scheme")
	want(connect("site.test:"+port), 200, "")
	pol = policy.Default()
	pol.Open.AllowSchemes = []string{"http"}
	l.Reload(pol)
	want(connect("site.test:"+port), 403, "url.scheme")
	l.Reload(policy.Default())
	want(connect("site.test:1"), 502, "site.refused")
	if d := l.last(t); !d.Allowed || d.Rule != "site.refused" || !d.Done {
		t.Errorf("recorded %+v", d)
	}
}

func TestNothingGoesOutUnrecorded(t *testing.T) {
	l := newLab(t, nil)
	hits := 0
	port := serve(t, publicIP, func(http.ResponseWriter, *http.Request) { hits++ })
	l.fail.Store(true)
	for _, text := range []string{get("http://site.test:" + port), connect("site.test:" + port), get("http://127.0.0.1/")} {
		if res, body := l.raw(t, text); res.StatusCode != 503 || !strings.Contains(res.Header.Get(policy.RefusalHeader), "egress.audit") {
			t.Errorf("%.50q: got %d %q", text, res.StatusCode, body)
		}
	}
	l.fail.Store(false)
	if res, _ := l.raw(t, get("http://site.test:"+port)); res.StatusCode != 200 || hits != 1 {
		t.Errorf("afterwards got %d, %d hits", res.StatusCode, hits)
	}
}

// An address that does not answer leaves time for the next one.
func TestNextAddress(t *testing.T) {
	l := newLabWith(t, nil, func(p *Proxy) { p.dial = 5 * time.Second })
	port := serve(t, "127.77.0.2", func(http.ResponseWriter, *http.Request) {})
	l.names.turns["two.test"] = []string{"127.77.0.9 127.77.0.2"}
	if res, _ := l.raw(t, get("http://two.test:"+port+"/")); res.StatusCode != 200 {
		t.Errorf("got %d", res.StatusCode)
	}
	if d := l.last(t); d.Address.String() != "127.77.0.2" {
		t.Errorf("recorded %+v", d)
	}
}

func TestHalfClose(t *testing.T) {
	l := newLab(t, nil)
	site, err := net.Listen("tcp", publicIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer site.Close()
	go func() { // answers only when it has read all
		c, err := site.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		time.Sleep(50 * time.Millisecond)
		fmt.Fprintf(c, "%d bytes", len(b))
	}()
	_, port, _ := net.SplitHostPort(site.Addr().String())
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(need.Patience))
	// The first bytes come with the request, before its answer.
	_, _ = io.WriteString(c, connect("site.test:"+port)+"early")
	br := bufio.NewReader(c)
	if res, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	_, _ = io.WriteString(c, " and late")
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(br); err != nil || string(b) != "14 bytes" {
		t.Errorf("got %q, %v", b, err)
	}
	if d := l.last(t); d.BytesOut != 14 || d.BytesIn != 8 {
		t.Errorf("recorded %+v", d)
	}
}

func TestIdleEnds(t *testing.T) {
	t.Parallel()                 // it waits
	const idle = 3 * time.Second // a busy machine may make pauses
	l := newLabWith(t, nil, func(p *Proxy) { p.idle = idle })
	port := serve(t, publicIP, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if res, _ := l.raw(t, get("http://site.test:"+port+"/")); res.StatusCode != 502 {
		t.Errorf("got %d", res.StatusCode)
	}
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, connect("site.test:"+port))
	// What goes one way keeps both open.
	for start := time.Now(); time.Since(start) < idle+idle/2; time.Sleep(100 * time.Millisecond) {
		if _, err := io.WriteString(c, "G"); err != nil {
			t.Fatal(err)
		}
	}
	if d := l.decisions(); d[len(d)-1].Done {
		t.Fatalf("ended while bytes passed: %+v", d)
	}
	_ = c.SetReadDeadline(time.Now().Add(need.Patience)) // without an idle time it would be 5 minutes
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it does not end")
	}
	l.last(t)
}

// Clients that send slowly are cut off, and do not keep others out.
func TestSlowloris(t *testing.T) {
	t.Parallel() // it waits
	l := newLabWith(t, func(p *policy.Policy) { p.Egress.MaxConnections = 4 }, func(p *Proxy) { p.header = 3 * time.Second })
	port := serve(t, publicIP, func(http.ResponseWriter, *http.Request) {})
	var slow []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET http://site.test/ HTTP/1.1\r\n")
		slow = append(slow, c)
	}
	if n := l.clients.Load(); n > 21 {
		t.Errorf("%d connections", n)
	}
	for _, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(need.Patience))
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a slow connection stays")
		}
	}
	if res, _ := l.raw(t, get("http://site.test:"+port)); res.StatusCode != 200 {
		t.Errorf("got %d", res.StatusCode)
	}
}

// TestConnectionCap: when all connections are taken, a further request is refused, and those that are open stay.
func TestConnectionCap(t *testing.T) {
	l := newLab(t, func(p *policy.Policy) { p.Egress.MaxConnections = 2 })
	port := serve(t, publicIP, func(http.ResponseWriter, *http.Request) {})
	tunnel := func() (net.Conn, *http.Response) {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, connect("site.test:"+port))
		res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"})
		if err != nil {
			t.Fatal(err)
		}
		return c, res
	}
	one, _ := tunnel()
	two, _ := tunnel()
	if res, body := l.raw(t, get("http://site.test:"+port)); res.StatusCode != 503 || !strings.Contains(res.Header.Get(policy.RefusalHeader), "egress.connections") {
		t.Errorf("a request: %d %q %v", res.StatusCode, body, res.Header)
	}
	_, res := tunnel()
	if r := policy.ParseRefusal(res.Header.Get(policy.RefusalHeader)); res.StatusCode != 503 || r == nil || r.Rule != "egress.connections" {
		t.Errorf("a tunnel: %d %v", res.StatusCode, r)
	}
	if d := l.decisions(); d[len(d)-1].Host != "site.test" || d[len(d)-1].Rule != "egress.connections" {
		t.Errorf("recorded %+v", d)
	}
	_, _ = io.WriteString(two, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := http.ReadResponse(bufio.NewReader(two), nil); err != nil {
		t.Errorf("a tunnel that may stay: %v", err)
	}
	one.Close()
	need.Eventually(t, func() bool { res, _ := l.raw(t, get("http://site.test:"+port)); return res.StatusCode == 200 },
		func() string { return "the place of a tunnel that has ended isn't free" })
}

func TestParallelAndNoLeak(t *testing.T) {
	l := newLab(t, nil)
	port := serve(t, publicIP, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	sport, roots := serveTLS(t, publicIP, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	round := func() {
		c := l.client(roots)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				target := fmt.Sprintf("http://site.test:%s/%d", port, i)
				if i%2 == 1 {
					target = fmt.Sprintf("https://site.test:%s/%d", sport, i)
				}
				res, err := c.Get(target)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if b, _ := io.ReadAll(res.Body); string(b) != fmt.Sprint("/", i) {
					t.Errorf("%s: %q", target, b)
				}
			})
		}
		wg.Wait()
		c.CloseIdleConnections()
	}
	settle := func(most int) (n int) {
		t.Helper()
		need.Eventually(t, func() bool {
			n = runtime.NumGoroutine()
			return l.active.Load() == 0 && l.clients.Load() == 0 && n <= most
		}, func() string {
			return fmt.Sprintf("%d requests and %d connections are left, and %d goroutines, where %d may be", l.active.Load(), l.clients.Load(), n, most)
		})
		return n
	}
	round()
	before := settle(math.MaxInt)
	for range 3 {
		round()
	}
	settle(before + 20)
	begun, ended := 0, 0
	for _, d := range l.decisions() {
		if d.Done {
			ended++
		} else if d.Allowed {
			begun++
		}
	}
	if begun != ended || begun < 200 {
		t.Errorf("%d begun, %d ended", begun, ended)
	}
}

func TestServeEnds(t *testing.T) {
	l := newLab(t, nil)
	port := serve(t, publicIP, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	var open []net.Conn
	for _, text := range []string{connect("site.test:" + port), get("http://site.test:" + port)} {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, text)
		open = append(open, c)
	}
	need.Eventually(t, func() bool { return len(l.decisions()) == 2 }, func() string { return fmt.Sprint(l.decisions()) })
	l.stop()
	select {
	case err := <-l.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(need.Patience): // what does not end within endTime is an error
		t.Error("it did not end")
	}
	for _, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(need.Patience))
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection stays open")
		}
	}
	if all := l.decisions(); len(all) != 4 {
		b, _ := json.Marshal(all)
		t.Errorf("recorded %s", b)
	}
}

func TestListen(t *testing.T) {
	for _, s := range []string{"", "0.0.0.0:0", ":8118", "192.0.2.2:1", "localhost:0", "[::]:0"} {
		if l, err := Listen(s); err == nil {
			l.Close()
			t.Errorf("%q is taken", s)
		}
	}
}

// rawSite answers each connection with text, and closes it.
func rawSite(t *testing.T, text string) (port string) {
	t.Helper()
	site, err := net.Listen("tcp", publicIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { site.Close() })
	go func() {
		for {
			c, err := site.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, text)
			c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(site.Addr().String())
	return port
}

// A site's broken answer is refused, or arrives broken; it never looks whole.
func TestBrokenSites(t *testing.T) {
	l := newLab(t, nil)
	for _, text := range []string{
		"", "nonsense\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 300<<10) + "\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\nab",
	} {
		res, body := l.raw(t, get("http://site.test:"+rawSite(t, text)+"/"))
		refusal := policy.ParseRefusal(res.Header.Get(policy.RefusalHeader))
		if res.StatusCode != 502 || body != "" || refusal == nil || refusal.Code != policy.Unreachable || !refusal.Retryable {
			t.Errorf("%.40q: got %d %.80q", text, res.StatusCode, body)
		}
		if d := l.last(t); refusal != nil && d.Rule != refusal.Rule {
			t.Errorf("%.40q: recorded %+v", text, d)
		}
	}
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		res, err := l.client(nil).Get("http://site.test:" + rawSite(t, text) + "/")
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Errorf("%q: half an answer looks whole", text)
		}
		if d := l.last(t); !d.Done || !d.Allowed {
			t.Errorf("recorded %+v", d)
		}
	}
	if n := l.active.Load(); n > 1 {
		t.Errorf("%d requests are still counted", n)
	}
}

// TestPrivateHosts: a private address may be dialled for the host that the
// policy names with its range, and for no other.
func TestPrivateHosts(t *testing.T) {
	l := newLab(t, func(p *policy.Policy) {
		p.Egress.PrivateHosts = []string{"wiki.test=10.1.2.0/24", "wiki.test=fd12::/16"}
	})
	for _, tt := range []struct{ host, answer, rule string }{
		{"wiki.test", "10.1.2.3", ""},
		{"wiki.test", "10.1.2.3 fd12::7", ""},
		{"else.test", "10.1.2.3", "url.private"},
		{"mixed.wiki.test", "10.1.2.3", "url.private"},
		{"wiki.test", "10.1.3.3", "url.private"},
		{"wiki.test", "127.0.0.1", "url.private"},
		{"wiki.test", "169.254.169.254", "url.private"},
		{"wiki.test", "10.1.2.3 127.0.0.1", "url.private"},
		{"wiki.test", "10.1.2.3 10.9.9.9", "url.private"},
	} {
		l.names.mu.Lock()
		l.names.turns[tt.host] = []string{tt.answer}
		l.names.mu.Unlock()
		q := &request{Proxy: l.Proxy}
		r := httptest.NewRequest("GET", "http://"+tt.host+"/", nil)
		switch refusal := q.checkTarget(r, l.policy.Load()); {
		case refusal == nil && (tt.rule != "" || !q.Private || len(q.addrs) != len(strings.Fields(tt.answer))):
			t.Errorf("%s at %s: private %v, %v; want %q", tt.host, tt.answer, q.Private, q.addrs, tt.rule)
		case refusal != nil && refusal.Rule != tt.rule:
			t.Errorf("%s at %s: got %s, want %q", tt.host, tt.answer, refusal.Rule, tt.rule)
		}
	}
	q := &request{Proxy: l.Proxy}
	if r := q.checkTarget(httptest.NewRequest("GET", "http://site.test/", nil), l.policy.Load()); r != nil || q.Private {
		t.Errorf("a public host: %v, private %v", r, q.Private)
	}
}

// TestPrivateHostsNotThisMachine: an address in the range that is this
// machine's own stays refused, and the socket's check holds by itself.
func TestPrivateHostsNotThisMachine(t *testing.T) {
	l := newLab(t, func(p *policy.Policy) { p.Egress.PrivateHosts = []string{"wiki.test=10.0.0.0/8"} })
	here, there := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.4")
	l.local.mu.Lock()
	l.local.own, l.local.read = []netip.Addr{here}, time.Now().Add(time.Hour) // as if an interface had it
	l.local.mu.Unlock()
	pol := l.policy.Load()
	q := &request{Proxy: l.Proxy, policy: pol, sites: pol.NetworkFor(l.network, "wiki.test")}
	q.Host = "wiki.test"
	if q.checkAddress(here) == nil || q.checkAddress(there) != nil {
		t.Errorf("this machine: %v, another: %v", q.checkAddress(here), q.checkAddress(there))
	}
	other := &request{Proxy: l.Proxy, policy: pol, sites: pol.NetworkFor(l.network, "else.test"), addrs: []netip.Addr{there}}
	if _, err := other.connect(t.Context()); !errors.Is(err, errNotChecked) {
		t.Errorf("another host's socket: %v", err)
	}
}
