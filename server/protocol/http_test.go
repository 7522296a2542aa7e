package protocol

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func TestFrames(t *testing.T) {
	const supported = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	unknown := strings.Replace(supported, "2026-07-28", "1900-01-01", 1)
	for name, c := range map[string]struct {
		body, version string
		status        int
		code          int64 // 0: handed on
	}{
		"good":             {supported, "2026-07-28", 200, 0},
		"notification":     {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "", 200, 0},
		"not JSON":         {`nope`, "", 400, -32700},
		"batch":            {`[` + supported + `]`, "", 400, -32600},
		"null id":          {`{"jsonrpc":"2.0","id":null,"method":"ping"}`, "", 400, -32600},
		"fraction":         {`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, "", 400, -32600},
		"name twice":       {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}`, "", 200, 0},
		"deep":             {`{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}}`, "", 400, -32600},
		"too long":         {strings.Repeat(" ", MaxFrame) + supported, "", 413, -32600},
		"unknown version":  {unknown, "1900-01-01", 400, -32022},
		"header mismatch":  {unknown, "2026-07-28", 200, 0}, // for go-sdk to refuse
		"bad notification": {`{"jsonrpc":"2.0","method":"x","params":[]}`, "", 400, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []byte
			h := Frames(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen, _ = io.ReadAll(r.Body) }))
			r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(c.body))
			r.Header.Set("Mcp-Protocol-Version", c.version)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("status %d, want %d", w.Code, c.status)
			}
			switch {
			case c.code == 0:
				if string(seen) != c.body {
					t.Errorf("%d bytes were handed on, want all %d", len(seen), len(c.body))
				}
			case seen != nil:
				t.Error("it was handed on")
			case c.code == 1: // JSON-RPC has no answer to a notification
				if w.Body.Len() != 0 {
					t.Errorf("answered %s", w.Body)
				}
			default:
				var res struct{ Error struct{ Code int64 } }
				if err := json.Unmarshal(w.Body.Bytes(), &res); err != nil || res.Error.Code != c.code {
					t.Errorf("answered %s, want code %d", w.Body, c.code)
				}
			}
		})
	}
}

// TestTooBusy: those with large bodies wait for one another, but a call with a
// small one never waits for them, nor for bodies that come slowly.
func TestTooBusy(t *testing.T) {
	frame := func(n int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"` + strings.Repeat("a", n) + `"}}`
	}
	begun, end := make(chan bool, places), make(chan bool)
	h := Frames(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); len(b) > smallFrame {
			begun <- true
			<-end
		}
		w.WriteHeader(http.StatusOK)
	})).(*handler)
	patient := h.patience // only what has to be refused is short of it
	post := func(body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mcp", body))
		return w
	}
	var all sync.WaitGroup
	for range places {
		all.Go(func() { post(strings.NewReader(frame(2 * smallFrame))) })
		<-begun
	}
	slow, stop := io.Pipe()
	for range 100 {
		all.Go(func() { post(slow) })
	}
	h.patience = 50 * time.Millisecond
	if w := post(strings.NewReader(frame(2 * smallFrame))); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "-32603") {
		t.Errorf("one too many: %d %v %s", w.Code, w.Header(), w.Body)
	}
	h.patience = patient
	if w := post(strings.NewReader(frame(10))); w.Code != http.StatusOK {
		t.Errorf("a small one: %d %s", w.Code, w.Body)
	}
	h.patience = 50 * time.Millisecond
	for range places {
		h.parsing.TryAcquire(1)
	}
	if w := post(strings.NewReader(frame(10))); w.Code != http.StatusServiceUnavailable {
		t.Errorf("when no place to parse is free: %d", w.Code)
	}
	for range places {
		h.parsing.Release(1)
	}
	h.patience = patient
	close(end)
	stop.Close()
	all.Wait()
	if w := post(strings.NewReader(frame(2 * smallFrame))); w.Code != http.StatusOK || !h.large.TryAcquire(places) || !h.parsing.TryAcquire(places) {
		t.Errorf("afterwards: %d, or places are taken", w.Code)
	}
}

func TestCheckVersion(t *testing.T) {
	for version, code := range map[string]int64{
		`"2026-07-28"`: 0,
		`"2025-11-25"`: 0,
		`"1900-01-01"`: -32022, // sorts below 2026-07-28
		`"2099-01-01"`: -32022,
		`""`:           -32022,
		`5`:            -32602,
		`null`:         -32602,
	} {
		msg, r := parseFrame([]byte(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":` + version + `}}}`))
		if r == nil {
			r = checkVersion(msg)
		}
		if code == 0 {
			if r != nil {
				t.Errorf("%s: %s", version, r.Error)
			}
			continue
		}
		var got *jsonrpc.Error
		if r == nil || !errors.As(r.Error, &got) || got.Code != code {
			t.Errorf("%s: %+v, want code %d", version, r, code)
		}
	}
}

// TestAsItIs: what the server says passes, errors too.
func TestAsItIs(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"own words","data":[1]}}`
	h := Frames(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(answer))
	}))
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)))
	if got := rec.Body.String(); rec.Code != http.StatusNotFound || got != answer {
		t.Errorf("%d %s", rec.Code, got)
	}
}
