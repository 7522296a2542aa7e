package hub

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hurry shortens the pauses between attempts, and the wait for servers that were never up.
func hurry(t *testing.T) {
	pauses, first := backoff, firstTime
	backoff, firstTime = []time.Duration{time.Millisecond, 2 * time.Millisecond, 50 * time.Millisecond}, time.Second
	t.Cleanup(func() { backoff, firstTime = pauses, first })
}

func TestRetryDelay(t *testing.T) {
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 1000: 30 * time.Second} {
		for range 100 {
			if d := retryDelay(n); d < want*8/10 || d > want*12/10 {
				t.Errorf("attempt %d: %s, want about %s", n, d, want)
			}
		}
	}
}

// TestStates: stopped, starting, running and error, by order and by accident.
func TestStates(t *testing.T) {
	hurry(t)
	h := startHub(t, fields{
		"good": childEntry(t, "new", nil), "off": childEntry(t, "new", fields{"disabled": true}), "silent": childEntry(t, "silent", nil),
		"exits": childEntry(t, "exits", nil), "once": childEntry(t, "exits", fields{"restart": false}), "gone": fields{"command": "no-such-program"},
	}, nil)
	good := h.awaitState(t, "good", Running)
	if good.PID == 0 || good.Protocol != newEra || good.Server != "new 1" || good.Tools == 0 || good.Transport != "stdio" {
		t.Errorf("%+v", good)
	}
	if st := h.find(t, "off").Status(); st.State != Stopped {
		t.Errorf("a disabled server: %+v", st)
	}
	if st := h.find(t, "silent").Status(); st.State != Starting {
		t.Errorf("a server that doesn't answer: %+v", st)
	}
	if st := h.awaitState(t, "once", Failed); st.NextRetry != nil || st.LastError != "it ended: exit status 3: no such display" {
		t.Errorf("a server that isn't restarted: %+v", st)
	}
	if st := h.awaitState(t, "gone", Failed); !strings.Contains(st.LastError, "no-such-program") {
		t.Errorf("a program that isn't there: %+v", st)
	}
	until(t, "it is tried again", func() bool { return h.find(t, "exits").Status().Restarts > 3 })

	s := client(t, h.url, newEra, nil)
	for _, tt := range []struct {
		order        string
		want         State
		rule, action string
	}{
		{"stop", Stopped, "tool.unknown", ""}, {"stop", Stopped, "tool.unknown", ""}, {"start", Running, "", ""}, {"start", Running, "", ""}, {"restart", Running, "", ""},
	} {
		if status, answer := h.ask(t, "POST", "/v1/mcp/servers/good/"+tt.order, nil); status != 200 {
			t.Fatalf("%s: %d %v", tt.order, status, answer)
		}
		h.awaitState(t, "good", tt.want)
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "good.echo"})
		if (err == nil && !res.IsError) != (tt.rule == "") {
			t.Errorf("after %s: %+v %v", tt.order, res, err)
		}
	}
}

// TestKilled: a server that ends is started again, calls until then say so, and the log has a line of each.
func TestKilled(t *testing.T) {
	hurry(t)
	h := one(t, "new", nil)
	first := h.awaitState(t, "new", Running)
	s := client(t, h.url, newEra, nil)
	if text, res := run(t, s, "crash", nil); !res.IsError || res.Meta["rule"] != "server.ended" {
		t.Errorf("%s %v", text, res.Meta)
	}
	until(t, "it runs again", func() bool { st := h.find(t, "new").Status(); return st.State == Running && st.PID != first.PID })
	if err := syscall.Kill(h.find(t, "new").Status().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "it runs for the third time", func() bool { st := h.find(t, "new").Status(); return st.State == Running && st.Restarts == 2 })
	if text, res := run(t, s, "echo", nil); res.IsError {
		t.Error(text)
	}
	var events []string
	for _, line := range h.lines(t) {
		events = append(events, fmt.Sprint(line["event"]))
	}
	want := "START SERVER_RUNNING TOOL_FINISHED SERVER_ERROR SERVER_RUNNING SERVER_ERROR SERVER_RUNNING TOOL_FINISHED"
	got := strings.Join(events, " ")
	if got != want && got != strings.Replace(want, "TOOL_FINISHED SERVER_ERROR", "SERVER_ERROR TOOL_FINISHED", 1) {
		t.Errorf("events %s", got)
	}
}

// TestEndsAll: what a program has started ends with it, also what holds its output open and ignores signals.
func TestEndsAll(t *testing.T) {
	h := startHub(t, fields{"forking": childEntry(t, "forking", nil), "stubborn": childEntry(t, "stubborn", nil)}, nil)
	h.awaitState(t, "forking", Running)
	stubborn := h.awaitState(t, "stubborn", Running).PID
	_, words, _ := strings.Cut(string(h.find(t, "forking").log.Bytes()), "child ")
	child, err := strconv.Atoi(strings.TrimSpace(words))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"forking", "stubborn"} {
		h.ask(t, "POST", "/v1/mcp/servers/"+name+"/stop", nil)
	}
	for _, pid := range []int{child, stubborn} {
		until(t, fmt.Sprintf("process %d ends", pid), func() bool { return !runs(pid) })
	}
}

// runs reports whether a process runs; a zombie does not.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// TestFlood: a line without an end ends that server, and no other.
func TestFlood(t *testing.T) {
	hurry(t)
	h := startHub(t, fields{"flood": childEntry(t, "flood", fields{"restart": false}), "good": childEntry(t, "new", nil)}, nil)
	h.awaitState(t, "good", Running)
	h.awaitState(t, "flood", Failed)
	if text, res := run(t, client(t, h.url, newEra, nil), "good.echo", nil); res.IsError {
		t.Error(text)
	}
}

// TestReconnect: an address that goes away and comes back, over both transports.
func TestReconnect(t *testing.T) {
	hurry(t)
	for transport, handler := range map[string]func() http.Handler{
		"sse": func() http.Handler {
			return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return childServer("old") }, nil)
		},
		"http": func() http.Handler {
			return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return childServer("new") }, nil)
		},
		"new": func() http.Handler {
			return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return childServer("new") }, &mcp.StreamableHTTPOptions{Stateless: true})
		},
	} {
		t.Run(transport, func(t *testing.T) {
			var header atomic.Value
			var down atomic.Bool
			next := handler()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if down.Load() {
					panic(http.ErrAbortHandler) // as if nobody listened
				}
				header.Store(r.Header.Get("Authorization"))
				next.ServeHTTP(w, r)
			}))
			t.Cleanup(srv.Close)
			t.Cleanup(srv.CloseClientConnections)
			t.Setenv("HUB_TEST_TOKEN", "s3cret")
			kind := transport
			if kind == "new" {
				kind = "http"
			}
			h := startHub(t, fields{"far": fields{"type": kind, "url": srv.URL, "headers": fields{"Authorization": "Bearer ${HUB_TEST_TOKEN}"}}}, nil)
			h.awaitState(t, "far", Running)
			s := client(t, h.url, newEra, nil)
			if text, res := run(t, s, "far.echo", nil); res.IsError || header.Load() != "Bearer s3cret" {
				t.Errorf("%s, header %q", text, header.Load())
			}
			down.Store(true)
			srv.CloseClientConnections()
			until(t, "it is down", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "far.echo"})
				return err == nil && res.IsError && h.find(t, "far").Status().State != Running
			})
			down.Store(false)
			h.awaitState(t, "far", Running)
			if text, res := run(t, s, "far.echo", nil); res.IsError {
				t.Error(text)
			}
		})
	}
}

// TestPanic: a message over which the hub panics ends its server, and no other.
func TestPanic(t *testing.T) {
	hurry(t)
	h := startHub(t, fields{"bad": childEntry(t, "new", fields{"restart": false}), "good": childEntry(t, "new", nil)}, nil)
	h.awaitState(t, "good", Running)
	h.awaitState(t, "bad", Running)
	s := h.find(t, "bad")
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	broken := l.receive(func(context.Context, string, mcp.Request) (mcp.Result, error) { panic("secret") })
	if _, err := broken(t.Context(), "notifications/message", &mcp.LoggingMessageRequest{Params: &mcp.LoggingMessageParams{}}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("answered %v", err)
	}
	if st := h.awaitState(t, "bad", Failed); st.LastError != "a message notifications/message made the hub panic" {
		t.Errorf("%+v", st)
	}
	if text, res := run(t, client(t, h.url, newEra, nil), "good.echo", nil); res.IsError {
		t.Error(text)
	}
}
