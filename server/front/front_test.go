package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/protocol"
)

const (
	listFrame   = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
	listenFrame = `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	initFrame = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
)

// testFront is a front of a server with one tool, echo.
type testFront struct {
	*front
	server *mcp.Server
	mu     sync.Mutex
	ended  []string
}

func newTestFront(t *testing.T) *testFront {
	t.Helper()
	h := &testFront{server: mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)}
	h.server.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{}, nil
	})
	h.server.AddReceivingMiddleware(protocol.Middleware())
	h.front = newFront(h.server, func(name string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ended = append(h.ended, name)
	})
	return h
}

func (h *testFront) ready() error { return nil }

// serve serves on a port until the test ends and returns the URL.
func (h *testFront) serve(t *testing.T) string {
	t.Helper()
	l, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h.handler(h.ready)) }()
	t.Cleanup(func() { cancel(); <-done })
	return "http://" + l.Addr().String() + Path
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	need.Eventually(t, is, func() string { return "not so: " + what })
}

// request sends a frame as a client does.
func request(t *testing.T, method, url, body string, header map[string]string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		if k == "Host" {
			req.Host = v
		}
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

func TestRequests(t *testing.T) {
	url := newTestFront(t).serve(t)
	base := strings.TrimSuffix(url, Path)
	const newList = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	newer := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
	for _, tt := range []struct {
		name, method, url, body string
		header                  map[string]string
		status                  int
		want                    string
	}{
		{"older era, first request", "POST", url, initFrame, nil, 200, `"protocolVersion":"2025-11-25"`},
		{"older era, no session", "POST", url, listFrame, map[string]string{"Mcp-Protocol-Version": "2025-06-18"}, 200, `"echo"`},
		{"older era, a session that is none", "POST", url, listFrame, map[string]string{"Mcp-Session-Id": "x"}, 404, "session not found"},
		{"newer era", "POST", url, newList, newer, 200, `"echo"`},
		{"newer era, with a session", "POST", url, newList, map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list", "Mcp-Session-Id": "x"}, 200, `"echo"`},
		{"newer era, no header", "POST", url, newList, nil, 400, "-32020"},
		{"a newer era than there is", "POST", url, strings.ReplaceAll(newList, "2026-07-28", "2099-01-01"), map[string]string{"Mcp-Protocol-Version": "2099-01-01", "Mcp-Method": "tools/list"}, 400, "-32022"},
		{"newer era has no streams", "GET", url, "", map[string]string{"Mcp-Protocol-Version": "2026-07-28"}, 405, ""},
		{"nor sessions to end", "DELETE", url, "", nil, 405, ""},
		{"a stream of no session", "GET", url, "", map[string]string{"Mcp-Session-Id": "x"}, 404, ""},
		{"no stream is wanted", "GET", url, "", map[string]string{"Accept": "text/html"}, 405, ""},
		{"another method", "PUT", url, "", nil, 405, ""},
		{"a page of another site", "POST", url, listFrame, map[string]string{"Origin": "https://evil.example"}, 403, ""},
		{"a page, by fetch metadata", "POST", url, listFrame, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, ""},
		{"a stream for a page of another site", "GET", url, "", map[string]string{"Origin": "https://evil.example"}, 403, ""},
		{"a rebound name", "POST", url, listFrame, map[string]string{"Host": "evil.example"}, 403, ""},
		{"a rebound name like ours", "POST", url, listFrame, map[string]string{"Host": "127.0.0.1.evil.example"}, 403, ""},
		{"a rebound name with a port", "GET", url, "", map[string]string{"Host": "evil.example:80"}, 403, ""},
		{"localhost", "POST", url, listFrame, map[string]string{"Host": "localhost:1"}, 200, `"echo"`},
		{"an argument", "POST", url + "?sessionId=x", listFrame, nil, 200, `"echo"`},
		{"another path", "POST", base + "/x", listFrame, nil, 404, ""},
		{"root", "GET", base + "/..", "", nil, 404, ""},
		{"not JSON", "POST", url, "x", nil, 400, "-32700"},
		{"a batch", "POST", url, "[" + listFrame + "]", nil, 400, "-32600"},
		{"too large", "POST", url, strings.Repeat(" ", 2<<20), nil, 413, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := request(t, tt.method, tt.url, tt.body, tt.header)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
		})
	}
}

// openStream opens one of the newer era that stays until the test ends.
func openStream(t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(listenFrame))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", headerProtocol: newEra, headerMethod: "subscriptions/listen",
	} {
		req.Header.Set(k, v)
	}
	res, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("%s %v", res.Status, res.Header)
	}
}

// TestStreams: any number of clients that only hold streams keep nobody out.
func TestStreams(t *testing.T) {
	h := newTestFront(t)
	url := h.serve(t)
	for range maxStreams + 100 {
		openStream(t, url)
	}
	if _, body := request(t, "POST", url, listFrame, nil); !strings.Contains(body, `"echo"`) {
		t.Errorf("got %s", body)
	}
	until(t, "the oldest are ended", func() bool {
		h.streams.mu.Lock()
		defer h.streams.mu.Unlock()
		return len(h.streams.list) <= maxStreams
	})
}

// TestSessions: there are only so many; the one that was idle longest goes.
func TestSessions(t *testing.T) {
	h := newTestFront(t)
	url := h.serve(t)
	var ids []string
	for i := range maxSessions + 1 {
		if i == maxSessions { // the first is in use
			if res, _ := request(t, "POST", url, listFrame, map[string]string{"Mcp-Session-Id": ids[0]}); res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
		}
		res, body := request(t, "POST", url, initFrame, nil)
		if res.StatusCode != 200 {
			t.Fatalf("%s %s", res.Status, body)
		}
		ids = append(ids, res.Header.Get("Mcp-Session-Id"))
	}
	for i, want := range map[int]int{0: 200, 1: 404, 2: 200, maxSessions: 200} {
		if res, body := request(t, "POST", url, listFrame, map[string]string{"Mcp-Session-Id": ids[i]}); res.StatusCode != want {
			t.Errorf("session %d: %s %s", i, res.Status, body)
		}
	}
	if res, _ := request(t, "DELETE", url, "", map[string]string{"Mcp-Session-Id": ids[0]}); res.StatusCode != 204 {
		t.Error(res.Status)
	}
	if res, _ := request(t, "POST", url, listFrame, map[string]string{"Mcp-Session-Id": ids[0]}); res.StatusCode != 404 {
		t.Errorf("a session that was ended: %s", res.Status)
	}
	n := 0
	for range h.server.Sessions() {
		n++
	}
	if n > maxSessions {
		t.Errorf("%d sessions are left", n)
	}
}

// serveUnix serves on a unix socket, where alone callers are believed, and returns a client of it.
func serveUnix(t *testing.T, h *testFront) *http.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen("unix:"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h.handler(h.ready)) }()
	t.Cleanup(func() { cancel(); <-done })
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// TestRoom: who makes room for another session, when all places are taken.
func TestRoom(t *testing.T) {
	now := time.Now()
	long := now.Add(-2 * idleEnough)
	for name, tt := range map[string]struct {
		special session // one of all
		others  session
		goes    bool // the special one; otherwise nobody does
	}{
		"all at work":                          {session{used: true, last: now}, session{used: true, last: now}, false},
		"one never used":                       {session{last: now}, session{used: true, last: now}, true},
		"one idle for long":                    {session{used: true, last: long}, session{used: true, last: now}, true},
		"one idle for long, waits":             {session{used: true, last: long, running: 1}, session{used: true, last: now}, false},
		"one never used, others idle for long": {session{last: now}, session{used: true, last: long}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := sessions{by: map[string]*session{"special": &tt.special}}
			for i := range maxSessions - 1 {
				other := tt.others
				s.by[fmt.Sprint(i)] = &other
			}
			oldest := s.findOldest()
			if tt.goes != (oldest == "special") || !tt.goes && oldest != "" {
				t.Errorf("%q goes", oldest)
			}
		})
	}
}

// TestStreamEndsWithItsToken: each kind of stream ends when its caller's token does, and that of a key stays.
func TestStreamEndsWithItsToken(t *testing.T) {
	h := newTestFront(t)
	client := serveUnix(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), need.Patience)
	defer cancel()
	do := func(method, body string, header map[string]string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range header {
			req.Header.Set(k, v)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s", method, body, res.Status)
		}
		return res
	}
	open := func(kind, until string) *http.Response {
		header := map[string]string{headerCaller: "sub:a"}
		if until != "" {
			header[headerUntil] = until
		}
		method, body := http.MethodGet, ""
		switch kind {
		case "session":
			header[headerSession] = do(http.MethodPost, initFrame, map[string]string{headerCaller: "sub:a"}).Header.Get(headerSession)
		case "newer era":
			method, body = http.MethodPost, listenFrame
			header[headerProtocol], header[headerMethod] = newEra, "subscriptions/listen"
		}
		return do(method, body, header)
	}
	streams := func() int {
		h.streams.mu.Lock()
		defer h.streams.mu.Unlock()
		return len(h.streams.list)
	}
	kinds := []string{"session", "newer era"}
	began := time.Now()
	for _, kind := range kinds {
		open(kind, "")
	}
	end := strconv.FormatInt(time.Now().Add(3*time.Second+4*time.Since(began)).Unix(), 10) // once all are open
	var of []*http.Response
	for _, kind := range kinds {
		of = append(of, open(kind, end))
	}
	for i, kind := range kinds {
		if _, err := io.Copy(io.Discard, of[i].Body); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	until(t, "the streams of keys alone are left", func() bool { return streams() == len(kinds) })
}

// TestSessionsOfOthers: however many sessions a client begins, one that was used stays; to who has another key a session does
// not exist.
func TestSessionsOfOthers(t *testing.T) {
	client := serveUnix(t, newTestFront(t))
	do := func(method, body, id, key string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream", headerSession: id, headerCaller: key,
		} {
			if v != "" {
				req.Header.Set(k, v)
			}
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body) // it may be a stream's end
		res.Body.Close()
		return res
	}
	id := do("POST", initFrame, "", "key:a").Header.Get(headerSession)
	if res := do("POST", listFrame, id, "key:a"); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	for range 2 * maxSessions {
		if res := do("POST", initFrame, "", "key:b"); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
	}
	for _, method := range []string{"DELETE", "POST", "GET"} {
		for _, key := range []string{"key:b", ""} {
			if res := do(method, listFrame, id, key); res.StatusCode != 404 {
				t.Errorf("%s with key %q: %s", method, key, res.Status)
			}
		}
	}
	if res := do("POST", listFrame, id, "key:a"); res.StatusCode != 200 {
		t.Errorf("its own client: %s", res.Status)
	}
	if res := do("DELETE", "", id, "key:a"); res.StatusCode != 204 {
		t.Errorf("its own client: %s", res.Status)
	}
}

// TestKeepAlive: comments come between events, never within one.
func TestKeepAlive(t *testing.T) {
	rec := &recorder{header: http.Header{"Content-Type": {"text/event-stream"}}}
	s := &stream{ResponseWriter: rec, control: http.NewResponseController(rec)}
	s.WriteHeader(200)
	s.sendComments()
	_, _ = s.Write([]byte("data: x\n\n"))
	s.sendComments()
	s.close()
	s.sendComments()
	if got := rec.body.String(); got != ": still here\n\ndata: x\n\n: still here\n\n" {
		t.Errorf("wrote %q", got)
	}
}

type recorder struct {
	header http.Header
	body   strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(int)             {}
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
func (r *recorder) FlushError() error           { return nil }

// TestUnknownMethods: what a client asks for wrongly is answered as JSON-RPC, which it hands to who asked, and never in words.
func TestUnknownMethods(t *testing.T) {
	url := newTestFront(t).serve(t)
	first, _ := request(t, "POST", url, initFrame, nil)
	session := map[string]string{"Mcp-Session-Id": first.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version": "2025-11-25"}
	newer := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "foo/bar"}
	for name, tt := range map[string]struct {
		body   string
		header map[string]string
		status int
		want   string // empty: no body
	}{
		"unknown":                   {`{"jsonrpc":"2.0","id":7,"method":"foo/bar"}`, nil, 200, `"id":7,"error":{"code":-32601`},
		"unknown, in a session":     {`{"jsonrpc":"2.0","id":"a","method":"foo/bar","params":{}}`, session, 200, `"id":"a","error":{"code":-32601`},
		"unknown, newer era":        {`{"jsonrpc":"2.0","id":7,"method":"foo/bar","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, newer, 404, `-32601`},
		"of another case":           {`{"jsonrpc":"2.0","id":7,"method":"Tools/List"}`, nil, 200, `-32601`},
		"empty":                     {`{"jsonrpc":"2.0","id":7,"method":""}`, nil, 200, `-32601`},
		"a client's own":            {`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`, nil, 200, `-32601`},
		"no params":                 {`{"jsonrpc":"2.0","id":7,"method":"tools/call"}`, nil, 200, `"id":7,"error":{"code":-32602`},
		"null for params":           {`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":null}`, session, 200, `-32602`},
		"no params, to initialize":  {`{"jsonrpc":"2.0","id":7,"method":"initialize"}`, nil, 200, `-32602`},
		"a notification with an id": {`{"jsonrpc":"2.0","id":7,"method":"notifications/initialized"}`, nil, 200, `"id":7,"error":{"code":-32600`},
		"a request without an id":   {`{"jsonrpc":"2.0","method":"tools/list"}`, nil, 400, ""},
		"an unknown notification":   {`{"jsonrpc":"2.0","method":"notifications/later"}`, session, 202, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res, body := request(t, "POST", url, tt.body, tt.header)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.want) || tt.want == "" && body != "" {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
			if tt.want != "" && res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("it is %s", res.Header.Get("Content-Type"))
			}
		})
	}
	// go-sdk knows no method of ours that needs other params.
	for _, method := range []string{"initialize", "ping", "server/discover", "subscriptions/listen", "tools/list", "tools/call", "x", "prompts/get"} {
		for _, params := range []string{"", `,"params":{}`, `,"params":null`} {
			res, body := request(t, "POST", url, `{"jsonrpc":"2.0","id":7,"method":"`+method+`"`+params+`}`, session)
			if res.StatusCode != 200 || strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
				t.Errorf("%s%s: %d %s", method, params, res.StatusCode, body)
			}
		}
	}
	for _, method := range []string{"notifications/cancelled", "notifications/initialized", "notifications/progress", "notifications/roots/list_changed"} {
		if res, body := request(t, "POST", url, `{"jsonrpc":"2.0","method":"`+method+`","params":{}}`, session); res.StatusCode != 202 {
			t.Errorf("%s: %d %s", method, res.StatusCode, body)
		}
	}
}

// TestEndsOfSessions: each end of an MCP session is reported once.
func TestEndsOfSessions(t *testing.T) {
	h := newTestFront(t)
	url := h.serve(t)
	var want []string
	for range 100 {
		res, _ := request(t, "POST", url, initFrame, nil)
		id := res.Header.Get(headerSession)
		if res, _ := request(t, "DELETE", url, "", map[string]string{headerSession: id}); res.StatusCode != http.StatusNoContent {
			t.Fatal(res.Status)
		}
		want = append(want, hashSession(id))
	}
	until(t, "all have ended", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.ended) == len(want)
	})
	slices.Sort(want)
	slices.Sort(h.ended)
	if !slices.Equal(h.ended, want) {
		t.Error("others have ended")
	}
}

// TestConfig: mcp-hub.json names this program and nothing else.
func TestConfig(t *testing.T) {
	template, err := os.ReadFile("../../assets/mcp-hub.json.template")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(template): "",
		`{"mcpServers":{"browser_shell":{"type":"stdio","command":"/usr/local/bin/browser-shell","args":["mcp"]}}}`: "",
		"":                  "1:1: not JSON",
		`{}`:                "1:1: mcpServers is missing",
		`{"mcpServers":{}}`: "1:15: mcpServers has no server browser_shell",
		"{\"mcpServers\":{\n\"evil\":{\"command\":\"/bin/sh\"}}}":                                                                   `2:1: unknown key "evil"`,
		`{"mcpServers":{"browser_shell":{"type":"stdio","command":"/bin/sh","args":["mcp"]}}}`:                                      "1:58: command of server browser_shell must be",
		`{"mcpServers":{"browser_shell":{"type":"stdio","command":"/usr/local/bin/browser-shell","args":["mcp","--policy","/x"]}}}`: "args of server browser_shell must be",
		`{"mcpServers":{"browser_shell":{"type":"stdio","command":"/usr/local/bin/browser-shell"}}}`:                                "needs type, command and args",
		`{"mcpServers":{"browser_shell":{"command":"/usr/local/bin/browser-shell","args":["mcp"],"env":{"LD_PRELOAD":"/x"}}}}`:      `unknown key "env"`,
		`{"mcpServers":{"browser_shell":{"type":"stdio","command":"/usr/local/bin/browser-shell","args":["mcp"]}},"naming":"flat"}`: `unknown key "naming"`,
	} {
		err := ParseConfig([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
