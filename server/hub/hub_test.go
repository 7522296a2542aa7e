package hub

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// TestSlow: a slow request is cut off, a slow call is not.
func TestSlow(t *testing.T) {
	const d = 400 * time.Millisecond
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "cut", http.StatusRequestTimeout)
			return
		}
		select {
		case <-r.Context().Done():
			http.Error(w, "cancelled", http.StatusInternalServerError)
		case <-time.After(4 * d):
			_, _ = w.Write(body)
		}
	}), d, time.Minute)
	srv.Start()
	defer srv.Close()

	slow, w := io.Pipe()
	go func() {
		_, _ = w.Write([]byte("{"))
		time.Sleep(8 * d)
		w.Close()
	}()
	post := func(t *testing.T, body io.Reader) string {
		t.Helper()
		res, err := http.Post(srv.URL, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %s", res.StatusCode, strings.TrimSpace(string(b)))
	}
	t.Run("a slow call", func(t *testing.T) {
		var got string
		need.Eventually(t, func() bool { // a busy machine may take the time that a request has to arrive
			got = post(t, strings.NewReader("hello"))
			return got == "200 hello"
		}, func() string { return got })
	})
	t.Run("a slow request", func(t *testing.T) {
		if got := post(t, slow); got != "408 cut" {
			t.Errorf("got %s", got)
		}
	})
}

// TestNeverReads: a client that doesn't take its answer holds nothing up for long.
func TestNeverReads(t *testing.T) {
	ended := make(chan error, 1)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for range 64 {
			if _, err = w.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		ended <- err
	}), time.Minute, 200*time.Millisecond)
	srv.Start()
	defer srv.Close()
	c := dial(t, srv.Listener.Addr())
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("64 MiB were taken by nobody")
		}
	case <-time.After(need.Patience):
		t.Fatal("it is still being written to")
	}
}

func dial(t *testing.T, a net.Addr) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// serve returns the address of a hub.
func serve(t *testing.T) net.Addr {
	t.Helper()
	u, err := url.Parse(newTestHub(t, servers(t, "bare")).serve(t))
	if err != nil {
		t.Fatal(err)
	}
	addr, err := net.ResolveTCPAddr("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

const post = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: "

// TestSlowClients: 100 clients that send slowly, some of them large bodies,
// don't keep another one waiting.
func TestSlowClients(t *testing.T) {
	addr := serve(t)
	for i := range 100 {
		c := dial(t, addr)
		switch i % 4 {
		case 0: // nothing
		case 1:
			fmt.Fprint(c, post[:50])
		case 2:
			fmt.Fprint(c, post+"900000\r\n\r\n{")
		case 3:
			fmt.Fprint(c, post+"900000\r\n\r\n"+strings.Repeat(" ", 100<<10))
		}
	}
	begin := time.Now()
	if got := ping(t, addr); !strings.Contains(got, `"result":{}`) {
		t.Errorf("answered %s", got)
	}
	if d := time.Since(begin); d > headerTime { // when the first of them are cut off
		t.Errorf("it took %s", d)
	}
}

// TestTooManyClients: those beyond the limit are let in when others leave.
func TestTooManyClients(t *testing.T) {
	addr := serve(t)
	var clients []net.Conn
	for range maxClients {
		c := dial(t, addr)
		fmt.Fprint(c, post+"900000\r\n\r\n{")
		clients = append(clients, c)
	}
	time.Sleep(100 * time.Millisecond) // all are accepted
	got := make(chan string, 1)
	go func() { got <- ping(t, addr) }()
	select {
	case s := <-got:
		t.Fatalf("one too many is answered: %s", s)
	case <-time.After(300 * time.Millisecond):
	}
	clients[5].Close()
	select {
	case s := <-got:
		if !strings.Contains(s, `"result":{}`) {
			t.Errorf("answered %s", s)
		}
	case <-time.After(need.Patience):
		t.Error("no answer after another client left")
	}
}

func ping(t *testing.T, a net.Addr) string {
	c, err := net.Dial("tcp", a.String())
	if err != nil {
		t.Error(err)
		return ""
	}
	defer c.Close()
	const body = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	fmt.Fprintf(c, "%s%d\r\nConnection: close\r\n\r\n%s", post, len(body), body)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestListen(t *testing.T) {
	for address, remote := range map[string]bool{"127.0.0.1:0": false, "[::1]:0": false, "0.0.0.0:0": true} {
		l, err := Listen(address, remote)
		if err != nil {
			if strings.Contains(address, "::1") && strings.Contains(err.Error(), "assign") {
				continue // no IPv6 here
			}
			t.Errorf("%s: %v", address, err)
			continue
		}
		l.Close()
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "10.0.0.1:0", ":8079", "localhost:8079", "127.0.0.1", ""} {
		if l, err := Listen(address, false); err == nil {
			l.Close()
			t.Errorf("listens on %q", address)
		}
	}
	// Taken ports are an error, not another port.
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if l, err := Listen(first.Addr().String(), false); err == nil {
		l.Close()
		t.Error("took a port that is in use")
	}
}
