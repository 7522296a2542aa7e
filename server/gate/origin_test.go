package gate

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/coder/websocket"
)

// TestPages: which page may use a visitor's browser to come in, as nginx tells it on /auth.
func TestPages(t *testing.T) {
	const no = 403
	for _, c := range []struct {
		host, origin     string
		anonymous, keyed int
	}{
		{"sandbox.example:8080", "", 204, 204}, // no browser
		{"", "", 204, 204},
		{"127.0.0.1:8080", "http://127.0.0.1:8080", 204, 204},
		{"127.0.0.1", "http://127.0.0.1", 204, 204},
		{"127.0.0.1", "https://127.0.0.1", 204, 204},
		{"192.0.2.7:80", "http://192.0.2.7:80", 204, 204},
		{"[::1]:8080", "http://[::1]:8080", 204, 204},
		{"[::1]", "http://[::1]", 204, 204},
		{"[2001:DB8::1]:8080", "http://[2001:db8::1]:8080", 204, 204},
		{"localhost:8080", "http://localhost:8080", 204, 204},
		{"LocalHost:8080", "HTTP://LOCALHOST:8080", 204, 204},
		{"sandbox:8080", "http://sandbox:8080", 204, 204},
		{"my-sand_box", "http://my-sand_box", 204, 204},

		// Rebound: the page's own name leads here.
		{"evil.test:8080", "http://evil.test:8080", no, 204},
		{"evil.test", "https://evil.test", no, 204},
		{"evil.test.", "http://evil.test.", no, 204},
		{"EVIL.TEST", "http://evil.test", no, 204},
		{"evil.", "http://evil.", no, 204},
		{"localhost.", "http://localhost.", no, 204},
		{"a.localhost", "http://a.localhost", no, 204},
		{"localhost.evil.test", "http://localhost.evil.test", no, 204},
		{"127.0.0.1.evil.test", "http://127.0.0.1.evil.test", no, 204},
		{"127.0.0.1.", "http://127.0.0.1.", no, 204},
		{"127.1", "http://127.1", no, 204},
		{"0x7f.0.0.1", "http://0x7f.0.0.1", no, 204},
		{"256.0.0.1", "http://256.0.0.1", no, 204},
		{"127.0.0.01", "http://127.0.0.01", no, 204},
		{"xn--bcher-kva.example", "http://xn--bcher-kva.example", no, 204},

		// Another site's.
		{"127.0.0.1:8080", "http://evil.test", no, no},
		{"127.0.0.1:8080", "http://evil.test:8080", no, no},
		{"127.0.0.1:8080", "http://127.0.0.1:8081", no, no},
		{"127.0.0.1:8080", "http://127.0.0.1", no, no},
		{"127.0.0.1", "http://127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "http://localhost:8080", no, no},
		{"localhost:8080", "http://127.0.0.1:8080", no, no},
		{"sandbox", "http://sandbox.evil.test", no, no},
		{"sandbox", "http://sandbox.", no, no},
		{"127.0.0.1:8080", "null", no, no},
		{"null", "null", no, no},
		{"127.0.0.1:8080", "NULL", no, no},
		{"127.0.0.1:8080", "127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "//127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "http:127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "ws://127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "file://127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "http://127.0.0.1:8080/", no, no},
		{"127.0.0.1:8080", "http://127.0.0.1:8080, http://evil.test", no, no},
		{"127.0.0.1:8080", " http://127.0.0.1:8080", no, no},

		// Userinfo and other ways to write two names into one.
		{"127.0.0.1:8080", "http://127.0.0.1:8080@evil.test", no, no},
		{"127.0.0.1:8080", "http://evil.test@127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "http://evil.test#127.0.0.1:8080", no, no},
		{"127.0.0.1:8080", "http://evil.test\\@127.0.0.1:8080", no, no},
		{"a@localhost", "http://a@localhost", no, 204},
		{"localhost:80@evil", "http://localhost:80@evil", no, 204},
		{"localhost:x", "http://localhost:x", no, 204},
		{"localhost:", "http://localhost:", no, 204},
		{"localhost:123456", "http://localhost:123456", no, 204},
		{"localhost:1:2", "http://localhost:1:2", no, 204},
		{"localhost/evil", "http://localhost/evil", no, 204},
		{"localhost\nevil", "http://localhost\nevil", no, 204},
		{"localhost\n", "http://localhost\n", no, 204},
		{"lócalhost", "http://lócalhost", no, 204},
		{"evil。test", "http://evil。test", no, 204},
		{"::1", "http://::1", no, 204},
		{"[::1", "http://[::1", no, 204},
		{"[::1]x", "http://[::1]x", no, 204},
		{"[evil]", "http://[evil]", no, 204},
		{"[127.0.0.1]", "http://[127.0.0.1]", no, 204},
		{"[fe80::1%25eth0]", "http://[fe80::1%25eth0]", no, 204},
		{"[]", "http://[]", no, 204},

		{"", "http://", no, no},
		{"", "null", no, no},
	} {
		headers := []string{"X-AIO-API-Key", apiKey, "X-Original-Host", c.host, "X-Original-Origin", c.origin}
		if code := auth(t, newAnonymous(t), "/mcp", headers...); code != c.anonymous {
			t.Errorf("anonymous, %q from %q: %d, want %d", c.host, c.origin, code, c.anonymous)
		}
		if code := auth(t, newGate(t), "/mcp", headers...); code != c.keyed {
			t.Errorf("with a key, %q from %q: %d, want %d", c.host, c.origin, code, c.keyed)
		}
	}

	for name, c := range map[string]struct {
		headers []string
		want    int
	}{
		"no Host told":           {[]string{"X-Original-Origin", "http://localhost"}, no},
		"no Origin told":         {[]string{"X-Original-Host", "evil.test"}, 204},
		"two Origins":            {[]string{"X-Original-Host", "localhost", "X-Original-Origin", "http://localhost", "X-Original-Origin", "http://localhost"}, no},
		"two Hosts":              {[]string{"X-Original-Host", "localhost", "X-Original-Host", "localhost", "X-Original-Origin", "http://localhost"}, no},
		"own headers":            {[]string{"Origin", "http://example.com"}, no}, // the Host that httptest makes
		"told ones go first":     {[]string{"Origin", "null", "X-Original-Host", "localhost", "X-Original-Origin", "http://localhost"}, 204},
		"told ones are the page": {[]string{"Origin", "http://example.com", "X-Original-Host", "localhost", "X-Original-Origin", "null"}, no},
	} {
		if code := auth(t, newAnonymous(t), "/mcp", c.headers...); code != c.want {
			t.Errorf("%s: %d, want %d", name, code, c.want)
		}
	}

	// A page of another site gets no ticket and no desktop either, and learns of no key by that.
	evil := []string{"X-Original-Host", "evil.test", "X-Original-Origin", "http://evil.test"}
	if w := send(t, newAnonymous(t), "POST", "/tickets", evil...); w.Code != no {
		t.Errorf("/tickets: %d", w.Code)
	}
	if w := send(t, newAnonymous(t), "GET", "/websockify", evil...); w.Code != no {
		t.Errorf("/websockify: %d", w.Code)
	}
	if code := auth(t, newGate(t), "/mcp", "X-Original-Host", "localhost", "X-Original-Origin", "http://evil.test"); code != no {
		t.Errorf("a foreign page without a key: %d", code)
	}
	if code := auth(t, newGate(t), "/mcp", evil...); code != 401 {
		t.Errorf("a rebound page without the key: %d", code)
	}
}

// TestOnUnixSocket: nginx reaches the gate by a unix socket, where nobody has an address.
func TestOnUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gate.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(t)
	g.desktop.vnc = fakeVNC(t, echo)
	s := &http.Server{Handler: g}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	get := func(method, target string, h http.Header) int {
		t.Helper()
		r, err := http.NewRequestWithContext(soon(t), method, "http://127.0.0.1"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = h
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	key := http.Header{"X-Aio-Api-Key": {apiKey}}
	if a, b, c := get("POST", "/tickets", key), get("GET", "/auth", key), get("GET", "/auth", nil); a != 200 || b != 204 || c != 401 {
		t.Errorf("%d, %d, %d", a, b, c)
	}
	h := http.Header{"X-Original-Uri": {"/vnc/websockify?ticket=" + issue(t, g, false)}, "X-Original-Host": {"sandbox.example"}, "X-Original-Origin": {"https://sandbox.example"}}
	ws, _, err := websocket.Dial(soon(t), "ws://127.0.0.1/websockify", &websocket.DialOptions{HTTPClient: client, HTTPHeader: h})
	if err != nil {
		t.Fatal(err)
	}
	shake(t, ws)
	if !isOpen(t, ws) {
		t.Error("the desktop is not open")
	}
	ws.CloseNow()
	h.Set("X-Original-Origin", "http://evil.test")
	if _, answer, err := websocket.Dial(soon(t), "ws://127.0.0.1/websockify", &websocket.DialOptions{HTTPClient: client, HTTPHeader: h}); err == nil || answer == nil || answer.StatusCode != 403 {
		t.Errorf("a page of another site: %v", err)
	}
	until(t, "no desktop is left open", func() bool { return g.desktop.places.count() == 0 })
}
