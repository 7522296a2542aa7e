package gate

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

// patience is for what is sure to come, on a machine that is busy.
const patience = need.Patience

func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// fakeName is the name of a fakeVNC's desktop.
const fakeName = "fake"

// fakeVNC listens like a VNC server and shakes hands like one; each connection is then given to serve, which may leave closing
// to us.
func fakeVNC(t testing.TB, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(2 * patience))
			small(c)
			running.Go(func() {
				defer c.Close()
				if greetViewer(c, c, append(make([]byte, serverInit-1), byte(len(fakeName)), 'f', 'a', 'k', 'e')) == nil {
					serve(c.(*net.TCPConn))
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return l.Addr().String()
}

func echo(c *net.TCPConn) { _, _ = io.Copy(struct{ io.Writer }{c}, c) }

// serve returns an anonymous gate before vnc and its address; change may change the gate before it serves.
func serve(t testing.TB, vnc string, change func(*Gate, *http.Server)) (*Gate, string) {
	t.Helper()
	g := newAnonymous(t)
	g.desktop.vnc = vnc
	s := httptest.NewUnstartedServer(g)
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { small(c); return ctx }
	if change != nil {
		change(g, s.Config)
	}
	s.Start()
	t.Cleanup(func() {
		s.Close()
		until(t, "no desktop is left open", func() bool { return g.desktop.places.count() == 0 })
	})
	return g, "ws" + strings.TrimPrefix(s.URL, "http")
}

// dial opens a desktop and shakes hands.
func dial(t testing.TB, url string) *websocket.Conn {
	t.Helper()
	c := connect(t, url, nil)
	shake(t, c)
	return c
}

func connect(t testing.TB, url string, header http.Header) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(soon(t), url, &websocket.DialOptions{
		Subprotocols: []string{"binary"}, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dialSmall}}, HTTPHeader: header,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(-1)
	t.Cleanup(func() { c.CloseNow() })
	return c
}

// shake shakes hands as a viewer does, and returns the desktop's name. What the server says after that is left.
func shake(t testing.TB, c *websocket.Conn) string {
	t.Helper()
	write(t, c, []byte(hello))
	var got []byte
	for size := 0; size == 0 || len(got) < size; {
		_, b, err := c.Read(soon(t))
		if err != nil {
			t.Fatalf("no handshake: %v", err)
		}
		if got = append(got, b...); len(got) >= beforeName {
			size = beforeName + int(binary.BigEndian.Uint32(got[beforeName-4:]))
		}
	}
	return string(got[beforeName:])
}

const (
	hello      = version + "\x01\x01"              // of a viewer, all at once
	beforeName = len(version) + 2 + 4 + serverInit // of a server
)

// small keeps the system from buffering, so that what a test sends comes to a stop.
func small(c net.Conn) {
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
	_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
}

func dialSmall(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		small(c)
	}
	return c, err
}

// readAll reads to the end and gives the close code.
func readAll(t testing.TB, c *websocket.Conn) ([]byte, websocket.StatusCode) {
	t.Helper()
	ctx := soon(t)
	var all []byte
	for {
		kind, b, err := c.Read(ctx)
		if err != nil {
			return all, websocket.CloseStatus(err)
		}
		if kind != websocket.MessageBinary {
			t.Errorf("a frame of type %v", kind)
		}
		all = append(all, b...)
	}
}

func write(t testing.TB, c *websocket.Conn, b []byte) {
	t.Helper()
	if err := c.Write(soon(t), websocket.MessageBinary, b); err != nil {
		t.Fatal(err)
	}
}

func TestBridge(t *testing.T) {
	_, url := serve(t, fakeVNC(t, echo), nil)
	c := dial(t, url+"/websockify")
	if c.Subprotocol() != "binary" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	var sent []byte // fences with random payloads, which end anywhere in a WebSocket's messages
	for len(sent) < 3*chunk+17 {
		fence := make([]byte, 9+len(sent)%65)
		rand.Read(fence)
		fence[0], fence[8] = 248, byte(len(fence)-9)
		sent = append(sent, fence...)
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 10_007)
			_ = c.Write(context.Background(), websocket.MessageBinary, rest[:n])
			rest = rest[n:]
		}
	}()
	var got []byte
	for len(got) < len(sent) {
		_, b, err := c.Read(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
	}
	if !bytes.Equal(got, sent) {
		t.Error("what came back is not what was sent")
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("closing: %v", err)
	}

	plain, _, err := websocket.Dial(soon(t), url+"/websockify", nil)
	if err != nil || plain.Subprotocol() != "" {
		t.Errorf("without a subprotocol: %v", err)
	} else {
		plain.CloseNow()
	}
}

func TestWhoMayConnect(t *testing.T) {
	g := newGate(t)
	g.desktop.vnc = fakeVNC(t, echo)
	s := httptest.NewServer(g)
	defer s.Close()
	ticket, host := issue(t, g, false), strings.TrimPrefix(s.URL, "http://")
	for name, c := range map[string]struct {
		path    string
		headers []string
		want    int
	}{
		"ticket":               {"/websockify?ticket=" + ticket, nil, 101},
		"ticket by nginx":      {"/websockify", []string{"X-Original-URI", "/vnc/websockify?ticket=" + ticket}, 101},
		"key":                  {"/websockify", []string{"X-AIO-API-Key", apiKey}, 101},
		"own page":             {"/websockify", []string{"X-AIO-API-Key", apiKey, "Origin", s.URL}, 101},
		"own page over TLS":    {"/websockify", []string{"X-AIO-API-Key", apiKey, "Origin", "https://" + host}, 101},
		"nothing":              {"/websockify", nil, 401},
		"old ticket and key":   {"/websockify?ticket=x", []string{"X-AIO-API-Key", apiKey}, 401},
		"nginx tells no query": {"/websockify?ticket=" + ticket, []string{"X-Original-URI", "/websockify"}, 401},
		"ticket for mcp":       {"/websockify", []string{"X-Original-URI", "/mcp?ticket=" + ticket}, 401},
		"other page":           {"/websockify?ticket=" + ticket, []string{"Origin", "http://evil.test"}, 403},
		"other port":           {"/websockify?ticket=" + ticket, []string{"Origin", "http://127.0.0.1:1"}, 403},
		"page without origin":  {"/websockify?ticket=" + ticket, []string{"Origin", "null"}, 403},
		"odd origin":           {"/websockify?ticket=" + ticket, []string{"Origin", "http://" + host + "@evil.test"}, 403},
		"other spelling":       {"/%77ebsockify?ticket=" + ticket, nil, 404},
		"nginx's spelling":     {"/vnc/websockify?ticket=" + ticket, nil, 404},
	} {
		o := &websocket.DialOptions{HTTPHeader: http.Header{}}
		for i := 0; i < len(c.headers); i += 2 {
			o.HTTPHeader.Add(c.headers[i], c.headers[i+1])
		}
		ws, answer, err := websocket.Dial(soon(t), s.URL+c.path, o)
		var body []byte
		switch {
		case err == nil:
			ws.CloseNow()
		case answer == nil:
			t.Errorf("%s: %v", name, err)
			continue
		default:
			body, _ = io.ReadAll(answer.Body)
		}
		if answer.StatusCode != c.want || len(body) > 0 {
			t.Errorf("%s: %d %q, want %d", name, answer.StatusCode, body, c.want)
		}
	}

	// What is no handshake learns nothing from it.
	for _, headers := range [][]string{
		nil,
		{"Upgrade", "websocket"},
		{"Connection", "Upgrade", "Upgrade", "h2c"},
		{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "8"},
		{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "<b>"},
	} {
		if w := send(t, newAnonymous(t), "GET", "/websockify", headers...); w.Code != 426 && w.Code != 400 {
			t.Errorf("%q: %d", headers, w.Code)
		}
	}
	until(t, "no desktop is left open", func() bool { return g.desktop.places.count() == 0 })
}

func TestCloseCodes(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	last := bytes.Repeat([]byte("last words "), 100_000)
	for name, c := range map[string]struct {
		vnc  string
		do   func(*websocket.Conn)
		want websocket.StatusCode
		data []byte
	}{
		"VNC server is down": {vnc: nobody.Addr().String(), want: 1013},
		"VNC server ends":    {vnc: fakeVNC(t, func(c *net.TCPConn) { c.Write(last) }), want: 1000, data: last},
		"VNC server sends no more but reads on": {vnc: fakeVNC(t, func(c *net.TCPConn) {
			c.Write(last)
			c.CloseWrite()
			io.Copy(io.Discard, c)
		}), want: 1000, data: last},
		"VNC server breaks off": {vnc: fakeVNC(t, func(c *net.TCPConn) {
			io.ReadFull(c, make([]byte, 1))
			c.SetLinger(0)
		}), want: 1011, do: func(c *websocket.Conn) { c.Write(context.Background(), websocket.MessageBinary, []byte(question)) }},
		"text": {vnc: fakeVNC(t, echo), want: 1003, do: func(c *websocket.Conn) {
			c.Write(context.Background(), websocket.MessageText, []byte("RFB 003.008\n"))
		}},
		"too large": {vnc: fakeVNC(t, func(c *net.TCPConn) { io.Copy(io.Discard, c) }), want: 1009, do: func(c *websocket.Conn) {
			c.Write(context.Background(), websocket.MessageBinary, make([]byte, maxMessage+1))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, c.vnc, nil)
			ws := connect(t, url+"/websockify", nil)
			if c.vnc != nobody.Addr().String() {
				shake(t, ws)
			}
			if c.do != nil {
				go c.do(ws)
			}
			data, code := readAll(t, ws)
			if code != c.want || !bytes.Equal(data, c.data) {
				t.Errorf("%d bytes and close code %d, want %d and %d", len(data), code, len(c.data), c.want)
			}
		})
	}
}

func TestServerEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	_, url := serve(t, fakeVNC(t, echo), func(_ *Gate, s *http.Server) {
		s.BaseContext = func(net.Listener) context.Context { return ctx }
	})
	c := dial(t, url+"/websockify")
	if !isOpen(t, c) {
		t.Fatal("the desktop is not open")
	}
	cancel()
	if data, code := readAll(t, c); code != 1001 || len(data) > 0 {
		t.Errorf("%q and close code %d", data, code)
	}
}

// TestLastInputArrives: a client that sends and goes at once, while the VNC server is busy sending, loses nothing: no
// reset of the connection overtakes it.
func TestLastInputArrives(t *testing.T) {
	got := make(chan []byte, 1)
	_, url := serve(t, fakeVNC(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, 100_000)) // nobody reads it
		b, err := io.ReadAll(c)
		if err != nil {
			t.Errorf("the VNC server sees %v for an end", err)
		}
		got <- b
	}), nil)
	c := dial(t, url+"/websockify")
	sent := bytes.Repeat([]byte(question), 25_000)
	write(t, c, sent)
	go func() { _ = c.Close(websocket.StatusNormalClosure, "") }()
	select {
	case b := <-got:
		if !bytes.Equal(b, sent) {
			t.Errorf("%d bytes of %d arrived", len(b), len(sent))
		}
	case <-time.After(patience):
		t.Fatal("the VNC server saw no end")
	}
}

// isOpen reports whether a desktop whose VNC server is echo answers.
func isOpen(t testing.TB, c *websocket.Conn) bool {
	t.Helper()
	if c.Write(soon(t), websocket.MessageBinary, []byte(question)) != nil {
		return false
	}
	_, b, err := c.Read(soon(t))
	return err == nil && string(b) == question
}

// question is a message that looks: an update of one pixel, please.
const question = "\x03\x01\x00\x00\x00\x00\x00\x01\x00\x01"

// mustBeReplaced expects the end that makes room for a newer desktop.
func mustBeReplaced(t testing.TB, what string, c *websocket.Conn) {
	t.Helper()
	if _, code := readAll(t, c); code != 1001 {
		t.Errorf("%s ends with %d", what, code)
	}
}

// TestPlaces: there is always room for one more; who has to go for it is told so.
func TestPlaces(t *testing.T) {
	for name, c := range map[string]struct {
		open []string // who is there, oldest first; a number behind a name says how many
		next string
		goes int // of open
	}{
		"the oldest goes":                         {[]string{"key 32"}, "key", 0},
		"one ticket has 8":                        {[]string{"key 2", "a 8", "b 1"}, "a", 2},
		"a ticket gives way to a key":             {[]string{"key 3", "a 8", "b 8", "c 8", "key 5"}, "key", 3},
		"the oldest ticket gives way":             {[]string{"key 3", "b 1", "a 8", "b 7", "c 8", "key 5"}, "d", 3},
		"a first ticket is let in among all keys": {[]string{"key 32"}, "a", 0},
		"a second one does not cost a key":        {[]string{"key 31", "a 1"}, "b", 31},
		"room for a key":                          {[]string{"key 20", "a 8"}, "key", -1},
		"room for a ticket":                       {[]string{"key 20", "a 7"}, "a", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p places
			var all []context.Context
			take := func(who string) {
				ctx, leave := p.takePlace(t.Context(), strings.TrimPrefix(who, "key"))
				context.AfterFunc(ctx, leave)
				all = append(all, ctx)
			}
			for _, s := range c.open {
				who, n, _ := strings.Cut(s, " ")
				many, err := strconv.Atoi(n)
				if err != nil {
					t.Fatal(err)
				}
				for range many {
					take(who)
				}
			}
			before := len(all)
			take(c.next)
			for i, ctx := range all {
				if gone := ctx.Err() != nil; gone != (i == c.goes) {
					t.Errorf("number %d of %d: gone %v", i, before, gone)
				}
			}
			until(t, "those that went give nothing back twice", func() bool {
				if c.goes < 0 {
					return p.count() == before+1
				}
				return p.count() == before
			})
		})
	}
}

func TestClientsAreBounded(t *testing.T) {
	var vncs, most atomic.Int32
	g, url := serve(t, fakeVNC(t, func(c *net.TCPConn) {
		now := vncs.Add(1)
		defer vncs.Add(-1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		echo(c)
	}), func(g *Gate, _ *http.Server) { g.desktop.leaveTime = patience })
	open := make([]*websocket.Conn, maxClients)
	for i := range open {
		open[i] = dial(t, url+"/websockify")
		if !isOpen(t, open[i]) {
			t.Fatalf("number %d is not open", i)
		}
	}
	for i := range 3 {
		next := dial(t, url+"/websockify")
		mustBeReplaced(t, "the oldest", open[i])
		if !isOpen(t, next) {
			t.Error("one more is not open")
		}
	}
	if code := auth(t, g, "/mcp"); code != 204 {
		t.Errorf("/auth meanwhile: %d", code)
	}
	for i, c := range open[3:] {
		if !isOpen(t, c) {
			t.Errorf("number %d had to go", i+3)
		}
	}
	if n := g.desktop.places.count(); n != maxClients {
		t.Errorf("%d are open", n)
	}
	if n := most.Load(); n != maxClients {
		t.Errorf("%d connections to the VNC server", n)
	}
	if w := send(t, g, "GET", "/websockify"); w.Code != 426 || g.desktop.places.count() != maxClients {
		t.Errorf("what is no handshake: %d", w.Code)
	}
}

// TestTicketKeepsNobodyOut: who opens as many desktops as one ticket can, and lets none of them end, has 8, costs others
// none and doesn't keep out the holder of a key, or itself.
func TestTicketKeepsNobodyOut(t *testing.T) {
	g := newGate(t)
	stuck := make(chan struct{})
	g.desktop.vnc = fakeVNC(t, func(c *net.TCPConn) { echo(c); <-stuck }) // which sees no end either
	release := sync.OnceFunc(func() { close(stuck) })
	t.Cleanup(release)
	g.desktop.leaveTime, g.desktop.endTime = 50*time.Millisecond, time.Hour
	s := httptest.NewServer(g)
	defer s.Close()
	ticket := issue(t, g, false)
	withKey := func() *websocket.Conn {
		t.Helper()
		c := connect(t, s.URL+"/websockify", http.Header{"X-Aio-Api-Key": {apiKey}})
		shake(t, c)
		return c
	}
	owner := withKey()
	for range 5 * maxPerTicket { // in the middle of a frame none of them sees a close
		c := handshakeAt(t, "ws"+strings.TrimPrefix(s.URL, "http"), "/websockify?ticket="+ticket)
		_, _ = c.Write([]byte{0x82, 0xfe, 0xff, 0xff, 1, 2, 3, 4, 5})
	}
	until(t, "the ticket has its share", func() bool { return g.desktop.places.count() == 1+maxPerTicket })
	if !isOpen(t, owner) || !isOpen(t, withKey()) {
		t.Error("a key is kept out")
	}
	last := dial(t, s.URL+"/websockify?ticket="+ticket)
	if !isOpen(t, last) {
		t.Fatal("the ticket itself is kept out")
	}
	release()
	last.CloseNow()
	until(t, "its place is free", func() bool { return g.desktop.places.count() == 2+maxPerTicket-1 })
}

// TestBackpressure: who doesn't read makes the other side wait instead of filling our memory, and gets everything in the end.
func TestBackpressure(t *testing.T) {
	const most = 32 << 20 // more than the system's buffers of the two connections hold
	part := make([]byte, 1<<20)
	rand.Read(part)
	stalled := func(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

	t.Run("client", func(t *testing.T) {
		wrote := make(chan int64, 1)
		_, url := serve(t, fakeVNC(t, func(c *net.TCPConn) {
			var sum int64
			for sum < most {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				n, err := c.Write(part)
				sum += int64(n)
				if stalled(err) {
					break
				}
			}
			wrote <- sum
		}), nil)
		c := dial(t, url+"/websockify")
		sum := <-wrote
		if sum >= most {
			t.Fatal("the VNC server never had to wait")
		}
		if data, code := readAll(t, c); int64(len(data)) != sum || code != 1000 || !bytes.Equal(data[:min(len(data), len(part))], part[:min(len(data), len(part))]) {
			t.Errorf("%d of %d bytes arrived, close code %d", len(data), sum, code)
		}
	})

	t.Run("VNC server", func(t *testing.T) {
		var got atomic.Int64
		read := make(chan struct{})
		_, url := serve(t, fakeVNC(t, func(c *net.TCPConn) {
			<-read
			n, _ := io.Copy(io.Discard, c)
			got.Store(n)
		}), nil)
		c := dial(t, url+"/websockify")
		half := bytes.Repeat(append([]byte{248, 0, 0, 0, 0, 0, 0, 0, 55}, make([]byte, 55)...), maxMessage/2/64) // fences
		var sent atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for sent.Load() < most {
				if c.Write(context.Background(), websocket.MessageBinary, half) != nil {
					return
				}
				sent.Add(int64(len(half)))
			}
			_ = c.Close(websocket.StatusNormalClosure, "")
		}()
		at := int64(-1)
		for at != sent.Load() {
			at = sent.Load()
			time.Sleep(time.Second)
		}
		if at >= most {
			t.Fatal("the client never had to wait")
		}
		close(read)
		select {
		case <-done:
		case <-time.After(2 * patience):
			t.Fatal("the client waits for ever")
		}
		until(t, "all arrived", func() bool { return got.Load() == most })
	})
}

func TestLivingClientStays(t *testing.T) {
	var pings atomic.Int32
	_, url := serve(t, fakeVNC(t, echo), func(g *Gate, _ *http.Server) { g.desktop.pingEvery = 5 * time.Millisecond })
	c, _, err := websocket.Dial(soon(t), url+"/websockify", &websocket.DialOptions{
		OnPingReceived: func(context.Context, []byte) bool { pings.Add(1); return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	shake(t, c)
	answers := make(chan byte)
	go func() {
		for {
			_, b, err := c.Read(context.Background())
			if err != nil {
				close(answers)
				return
			}
			answers <- b[0]
		}
	}()
	until(t, "five pings", func() bool { return pings.Load() >= 5 })
	write(t, c, []byte(question))
	if b := <-answers; b != question[0] {
		t.Errorf("after the pings %q", b)
	}
}

// handshake opens a WebSocket by hand, and shakes hands in RFB, for clients that don't keep to the protocol.
func handshake(t *testing.T, url string) net.Conn {
	t.Helper()
	return handshakeAt(t, url, "/websockify")
}

func handshakeAt(t *testing.T, url, target string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "ws://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b[0]) {
		if _, err := c.Read(b); err != nil {
			t.Fatalf("%q: %v", head, err)
		}
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 101 ")) {
		t.Fatalf("%q", head)
	}
	_, _ = io.WriteString(c, "\x82"+string([]byte{0x80 | byte(len(hello))})+"\x00\x00\x00\x00"+hello)
	return c
}

// TestBadClients: each of them loses its place, and the VNC server sees the end of its connection.
func TestBadClients(t *testing.T) {
	flood := func(c *net.TCPConn) { // until the end of the connection stops it
		for b := make([]byte, chunk); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		vnc func(*net.TCPConn)
		do  func(net.Conn)
	}{
		"answers no ping":      {echo, func(net.Conn) {}},
		"reads nothing":        {flood, func(net.Conn) {}},
		"half a frame head":    {echo, func(c net.Conn) { c.Write([]byte{0x82}) }},
		"half a frame":         {echo, func(c net.Conn) { c.Write([]byte{0x82, 0xfe, 0xff, 0xff, 1, 2, 3, 4, 5}) }},
		"a frame of 2^63":      {echo, func(c net.Conn) { c.Write([]byte{0x82, 0xff, 0x7f, 255, 255, 255, 255, 255, 255, 255, 1, 2, 3, 4}) }},
		"negative length":      {echo, func(c net.Conn) { c.Write([]byte{0x82, 0xff, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 3, 4}) }},
		"endless small frames": {echo, func(c net.Conn) { c.Write(bytes.Repeat([]byte{0x02, 0x80, 1, 2, 3, 4}, 10_000)) }},
		"no mask":              {echo, func(c net.Conn) { c.Write([]byte{0x82, 0x01, 'x'}) }},
		"reserved bits":        {echo, func(c net.Conn) { c.Write([]byte{0xf2, 0x80, 1, 2, 3, 4}) }},
		"unknown opcode":       {echo, func(c net.Conn) { c.Write([]byte{0x83, 0x80, 1, 2, 3, 4}) }},
		"large ping":           {echo, func(c net.Conn) { c.Write([]byte{0x89, 0xfe, 1, 0, 1, 2, 3, 4}) }},
		"pings, reads nothing": {flood, func(c net.Conn) { c.Write(bytes.Repeat([]byte{0x89, 0x80, 1, 2, 3, 4}, 10_000)) }},
		"goes":                 {echo, func(c net.Conn) { c.Close() }},
		"resets":               {flood, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }},
		"goes; VNC is stuck": {func(c *net.TCPConn) { // reads nothing and doesn't end by itself
			time.Sleep(500 * time.Millisecond)
		}, func(c net.Conn) { c.Close() }},
		"half a frame; VNC goes": {func(c *net.TCPConn) { io.ReadFull(c, make([]byte, 1)) }, func(c net.Conn) {
			c.Write([]byte{0x82, 0xfe, 0xff, 0xff, 1, 2, 3, 4, 5})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, ended := make(chan struct{}), make(chan struct{})
			g, url := serve(t, fakeVNC(t, func(vnc *net.TCPConn) {
				close(began)
				c.vnc(vnc)
				close(ended)
			}), func(g *Gate, _ *http.Server) {
				g.desktop.pingEvery, g.desktop.pongTime, g.desktop.endTime = 20*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
			})
			client := handshake(t, url)
			<-began // one that goes before that is not bridged at all
			c.do(client)
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("the VNC server sees no end")
			}
			until(t, "its place is free", func() bool { return g.desktop.places.count() == 0 })
		})
	}
}

func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}
