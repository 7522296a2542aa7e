package main_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

const gateAnonymous = `{"ticket_ttl":30000000000,"anonymous":true}`

// startGate starts a server with a gate whose desktop is a server that sends back
// what it gets.
func startGate(t *testing.T, config string) (*lab, *running) {
	t.Helper()
	vnc, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vnc.Close() })
	go func() {
		for {
			c, err := vnc.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 1024)
				// RFB 3.8, no password, a screen without a name.
				for _, step := range []struct {
					say  string
					hear int
				}{{"RFB 003.008\n", 12}, {"\x01\x01", 1}, {"\x00\x00\x00\x00", 1}, {strings.Repeat("\x00", 24), 0}} {
					_, _ = io.WriteString(c, step.say)
					if _, err := io.ReadFull(c, buf[:step.hear]); err != nil {
						return
					}
				}
				for n, err := c.Read(buf); err == nil; n, err = c.Read(buf) {
					_, _ = c.Write(buf[:n])
				}
			}()
		}
	}()
	l := newLab(t)
	gate := l.write(t, "gate.json", config, 0o600)
	cmd := l.serveCommand(t, "--gate", gate, "--gate-listen", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, vncVariable+"="+vnc.Addr().String())
	return l, startServeCommand(t, cmd)
}

func (h *running) ask(t *testing.T, method, path string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.on["gate"]+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body.String()
}

// TestServeGate: with --gate the same process gives tickets and answers nginx.
func TestServeGate(t *testing.T) {
	t.Parallel()
	const key = "a-key-of-enough-characters"
	_, h := startGate(t, fmt.Sprintf(`{"ticket_ttl":30000000000,"api_key_sha256":"%x"}`, sha256.Sum256([]byte(key))))
	if code, _ := h.ask(t, "POST", "/tickets"); code != 401 {
		t.Errorf("a ticket without a key: %d", code)
	}
	code, body := h.ask(t, "POST", "/tickets", "X-AIO-API-Key", key)
	var given struct{ Ticket string }
	if err := json.Unmarshal([]byte(body), &given); err != nil || code != 200 {
		t.Fatalf("%d %q %v", code, body, err)
	}
	long := strings.Repeat("x", 15<<10) // nginx lets three such lines through
	for _, tt := range []struct {
		uri  string
		want int
	}{{"/vnc/index.html?ticket=" + given.Ticket, 204}, {"/mcp?ticket=" + given.Ticket, 401}, {"/mcp", 401}} {
		if code, _ := h.ask(t, "GET", "/auth", "X-Original-URI", tt.uri, "X-Long", long, "Authorization", "Basic "+long); code != tt.want {
			t.Errorf("%s: %d, want %d", tt.uri, code, tt.want)
		}
	}
	if code, _ := h.ask(t, "POST", "/mcp"); code != 404 {
		t.Errorf("MCP at the gate: %d", code)
	}
	c, err := net.Dial("tcp", h.on["gate"])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	answer := make([]byte, 12)
	if _, err := c.Read(answer); err != nil || string(answer) != "HTTP/1.1 404" {
		t.Errorf("OPTIONS *: %q %v", answer, err)
	}
}

// TestServeInput: what a ticket with input is used for is in the audit log, in the chain of the calls, also when the image stops.
func TestServeInput(t *testing.T) {
	t.Parallel()
	l, h := startGate(t, gateAnonymous)
	res, err := http.Post("http://"+h.on["gate"]+"/tickets", "", strings.NewReader(`{"input":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var given struct{ Ticket string }
	if err := json.NewDecoder(res.Body).Decode(&given); err != nil || res.StatusCode != 200 {
		t.Fatalf("%d %v", res.StatusCode, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), need.Patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+h.on["gate"]+"/websockify?ticket="+given.Ticket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	conn := websocket.NetConn(ctx, ws, websocket.MessageBinary)
	const greeting, press = "RFB 003.008\n\x01\x01", "\x04\x01\x00\x00\x00\x00\x00a"
	if _, err := io.WriteString(conn, greeting+press+press); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 12+2+4+24+2*len(press))); err != nil {
		t.Fatal(err)
	}
	h.stop(t)
	log := l.log(t, "audit.jsonl")
	for _, want := range []string{
		`"event":"DESKTOP_INPUT_GRANTED","subject":"anonymous"`, `"event":"DESKTOP_INPUT_BEGAN","subject":"anonymous"`,
		`"event":"DESKTOP_INPUT_ENDED","subject":"anonymous"`, `"messages":2`,
	} {
		if strings.Count(log, want) != 1 {
			t.Errorf("not once %s in\n%s", want, log)
		}
	}
	if strings.Contains(log, given.Ticket) {
		t.Error("the log has the ticket")
	}
}

// TestServeDesktop: a desktop on which nothing happens stays, longer than any
// deadline of the server's; when the image stops its client is told.
func TestServeDesktop(t *testing.T) {
	t.Parallel() // it waits
	_, h := startGate(t, gateAnonymous)
	ctx, cancel := context.WithTimeout(t.Context(), 2*need.Patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+h.on["gate"]+"/websockify", &websocket.DialOptions{Subprotocols: []string{"binary"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	const greeting, look = "RFB 003.008\n\x01\x01", "\x03\x01\x00\x00\x00\x00\x00\x01\x00\x01"
	for i, step := range []struct {
		say  string
		hear int
		idle time.Duration
	}{{greeting, 12 + 2 + 4 + 24 + len(" (view only)"), 0}, {look, len(look), 0}, {look, len(look), 7 * time.Second}} {
		time.Sleep(step.idle) // a request's head has 5 s
		if err := ws.Write(ctx, websocket.MessageBinary, []byte(step.say)); err != nil {
			t.Fatal(err)
		}
		for left := step.hear; left > 0; {
			_, b, err := ws.Read(ctx)
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			left -= len(b)
		}
	}
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var closed websocket.CloseError
	if _, _, err := ws.Read(ctx); !errors.As(err, &closed) || closed.Code != websocket.StatusGoingAway {
		t.Errorf("at the end: %v", err)
	}
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestServeEgress: with --egress the same process is the browser's proxy.
func TestServeEgress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["egress"] = map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))}
	h := startServe(t, l, "--egress")
	if !strings.Contains(h.said.String(), "browser-shell: pages may be opened on: any public host\n") {
		t.Errorf("it doesn't say what may be opened: %s", h.said.String())
	}
	proxy := h.on["egress proxy"]
	if code, body := through(t, proxy, "http://127.0.0.1:9/"); code != 403 || !strings.Contains(body, "url.loopback") {
		t.Errorf("got %d %q", code, body)
	}
	if out, err := output(l.command(t, "egress")); err == nil || !strings.Contains(out, "egress.jsonl: another process writes it") {
		t.Errorf("a second proxy: %v %s", err, out)
	}
	l.policy["open"] = map[string]any{"allow_hosts": []string{"site.example"}}
	l.serveCommand(t) // writes the policy
	h.reload(t)
	if code, body := through(t, proxy, "http://other.example/"); code != 403 || !strings.Contains(body, "url.host-not-allowed") {
		t.Errorf("got %d %q", code, body)
	}
	h.stop(t)
	if log := l.log(t, "egress.jsonl"); !strings.Contains(log, `"START"`) || !strings.Contains(log, `"RELOAD"`) || !strings.Contains(log, `"STOP"`) {
		t.Errorf("recorded %s", log)
	}
}
