package hub

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var eras = []string{"2026-07-28", "2025-11-25"}

// TestPairs: every pair of eras on both sides gets the same.
func TestPairs(t *testing.T) {
	for _, kind := range []string{"new", "old"} {
		url := newTestHub(t, servers(t, kind)).serve(t)
		for _, era := range eras {
			t.Run(era+" to "+kind, func(t *testing.T) {
				s := client(t, url, era, nil)
				if got := names(t, s); !slices.Contains(got, "echo") || slices.Contains(got, kind+"__echo") {
					t.Errorf("tools %v", got)
				}
				if got := s.InitializeResult().Instructions; got != "instructions of "+kind {
					t.Errorf("instructions %q", got)
				}
				_, res := run(t, s, "structured", nil)
				got, _ := json.Marshal(res.StructuredContent)
				if string(got) != `{"list":[null,true],"n":1.5}` || res.Meta["own"] != "meta" {
					t.Errorf("structured %s %v", got, res.Meta)
				}
				if text, res := run(t, s, "bad", nil); text != "it went wrong" || !res.IsError {
					t.Errorf("isError: %q %v", text, res.IsError)
				}
				_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "error"})
				var e *jsonrpc.Error
				if !errors.As(err, &e) || e.Code != 4242 || e.Message != "own words" || string(e.Data) != `{"why":["a",1]}` {
					t.Errorf("error %v", err)
				}
				r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://" + kind + "/5"})
				if err != nil || r.Contents[0].Text != "of "+kind {
					t.Errorf("resource %v %v", r, err)
				}
				_, err = s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://none"})
				if !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams {
					t.Errorf("a resource that is none: %v", err)
				}
				if p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "greet"}); err != nil || p.Description != kind {
					t.Errorf("prompt %v %v", p, err)
				}
				c, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"}, Argument: mcp.CompleteParamsArgument{Name: "a", Value: "v"}})
				if err != nil || !slices.Equal(c.Completion.Values, []string{"greetv"}) {
					t.Errorf("completion %v %v", c, err)
				}
			})
		}
	}
}

// TestMeta: what a request carries besides its arguments reaches the server,
// but nothing that would be of the wrong era there.
func TestMeta(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, kind := range []string{"new", "old"} {
		url := newTestHub(t, servers(t, kind)).serve(t)
		for _, era := range eras {
			t.Run(era+" to "+kind, func(t *testing.T) {
				s := client(t, url, era, &mcp.ClientOptions{ElicitationHandler: accept})
				res, err := s.CallTool(t.Context(), &mcp.CallToolParams{
					Name: "echo", Arguments: json.RawMessage(`{"z":"1","a":12345678901234567890}`), Meta: mcp.Meta{"traceparent": trace, "x": "y"},
				})
				if err != nil {
					t.Fatal(err)
				}
				args, meta, _ := strings.Cut(textOf(res), " ")
				if args != `{"z":"1","a":12345678901234567890}` {
					t.Errorf("arguments %s", args)
				}
				var m map[string]any
				if err := json.Unmarshal([]byte(meta), &m); err != nil {
					t.Fatal(err)
				}
				if m["traceparent"] != trace || m["x"] != "y" {
					t.Errorf("_meta %s", meta)
				}
				info, _ := m[mcp.MetaKeyClientInfo].(map[string]any)
				caps, _ := m[mcp.MetaKeyClientCapabilities].(map[string]any)
				if kind == "new" && (info["name"] != "tester" || caps["elicitation"] == nil || m[mcp.MetaKeyProtocolVersion] != "2026-07-28") {
					t.Errorf("the server does not know the client: %s", meta)
				}
				if kind == "old" && len(m) != 2 {
					t.Errorf("the server gets what is not of its era: %s", meta)
				}
			})
		}
	}
}

func accept(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept"}, nil
}

// TestProgress: each call hears of its own progress, also when two clients
// chose the same token, and before its answer.
func TestProgress(t *testing.T) {
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			url := newTestHub(t, servers(t, "new")).serve(t)
			var wg sync.WaitGroup
			var total atomic.Int64
			for i := range 8 {
				wg.Go(func() {
					var mu sync.Mutex
					var heard []string
					s := client(t, url, era, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
						mu.Lock()
						defer mu.Unlock()
						if r.Params.ProgressToken != "same" {
							t.Errorf("token %v", r.Params.ProgressToken)
						}
						heard = append(heard, r.Params.Message)
					}})
					for range 5 {
						p := &mcp.CallToolParams{Name: "progress", Arguments: json.RawMessage(`{"a":` + string(rune('0'+i)) + `}`)}
						p.Meta = mcp.Meta{"progressToken": "same"}
						if _, err := s.CallTool(t.Context(), p); err != nil {
							t.Error(err)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					last := -1
					for _, m := range heard {
						args, n, _ := strings.Cut(m, " ")
						now := int(n[0] - '0')
						if args != `{"a":`+string(rune('0'+i))+`}` || now <= last && now != 0 && last != 2 {
							t.Errorf("heard %q after %d", m, last)
						}
						last = now
					}
					total.Add(int64(len(heard)))
				})
			}
			wg.Wait()
			if total.Load() == 0 {
				t.Error("nobody heard of any progress")
			}
		})
	}
}

// TestCancel: a cancelled call is cancelled at the server.
func TestCancel(t *testing.T) {
	url := newTestHub(t, servers(t, "new")).serve(t)
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			s := client(t, url, era, nil)
			dir := t.TempDir()
			began, ended := filepath.Join(dir, "began"), filepath.Join(dir, "ended")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{"began": began, "ended": ended}})
				done <- err
			}()
			until(t, "the call runs", func() bool { return exists(began) })
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			until(t, "it is cancelled", func() bool { return exists(ended) })
			if text, _ := run(t, s, "echo", nil); text == "" {
				t.Error("the next call fails")
			}
		})
	}
}

// TestInput: a client is asked in the way of its own era, and the state of the
// newer one comes back as it was.
func TestInput(t *testing.T) {
	url := newTestHub(t, servers(t, "new")).serve(t)
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			s := client(t, url, era, &mcp.ClientOptions{ElicitationHandler: accept})
			if text, res := run(t, s, "input", nil); text != "accept opaque" || res.IsError {
				t.Errorf("answered %q", text)
			}
		})
	}
}

// TestAsk: a server of the older era asks the client that it works for.
func TestAsk(t *testing.T) {
	for _, tt := range []struct{ name, config, era, want string }{
		{"one process for all", servers(t, "old"), "2025-11-25", "accept"},
		{"one for the session", with(t, "new", map[string]any{"perSession": true}), "2025-11-25", "accept"},
		{"the client's era has no such request", servers(t, "old"), "2026-07-28", "no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := client(t, newTestHub(t, tt.config).serve(t), tt.era, &mcp.ClientOptions{ElicitationHandler: accept})
			if text, _ := run(t, s, "ask", nil); !strings.HasPrefix(text, tt.want) {
				t.Errorf("answered %q", text)
			}
		})
	}
}

// TestAskOthers: while calls of two clients run in one process, neither is
// asked what may be meant for the other.
func TestAskOthers(t *testing.T) {
	url := newTestHub(t, servers(t, "old")).serve(t)
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	waiting := client(t, url, "2025-11-25", &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		t.Error("asked another's question")
		return nil, errors.New("not mine")
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := waiting.CallTool(ctx, &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{"began": began, "ended": filepath.Join(dir, "ended")}})
		done <- err
	}()
	until(t, "the call runs", func() bool { return exists(began) })
	s := client(t, url, "2025-11-25", &mcp.ClientOptions{ElicitationHandler: accept})
	if text, _ := run(t, s, "ask", nil); !strings.Contains(text, "not clear which client") {
		t.Errorf("answered %q", text)
	}
	cancel()
	<-done
}

// TestPerSession: sessions with processes of their own don't share them, they
// end with the session, and there are only so many.
func TestPerSession(t *testing.T) {
	h := newTestHub(t, with(t, "new", map[string]any{"perSession": true}))
	url := h.serve(t)
	pids := map[string]bool{}
	var first *mcp.ClientSession
	for i := range maxOwn + 2 {
		s := client(t, url, "2025-11-25", nil)
		if i == 0 {
			first = s
		}
		a, _ := run(t, s, "pid", nil)
		if b, _ := run(t, s, "pid", nil); a != b {
			t.Errorf("one session, two processes: %s %s", a, b)
		}
		if pids[a] {
			t.Errorf("two sessions, one process: %s", a)
		}
		pids[a] = true
	}
	server := h.all()[0]
	server.mu.Lock()
	if len(server.own) != maxOwn {
		t.Errorf("%d processes", len(server.own))
	}
	server.mu.Unlock()
	// The first was idle longest: its session is over, and it is told so.
	if _, err := first.CallTool(t.Context(), &mcp.CallToolParams{Name: "pid"}); err == nil {
		t.Error("a session lost its process and does not know")
	}
	for ss := range h.mcp.Sessions() {
		ss.Close()
	}
	until(t, "the processes have gone", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.own) == 0
	})
	a, _ := run(t, client(t, url, "2026-07-28", nil), "pid", nil)
	if b, _ := run(t, client(t, url, "2026-07-28", nil), "pid", nil); a != b {
		t.Errorf("the newer era has no sessions, but processes %s and %s", a, b)
	}
}

// TestLog: a client hears what is logged for it if it wants to.
func TestLog(t *testing.T) {
	for _, kind := range []string{"new", "old"} {
		url := newTestHub(t, servers(t, kind)).serve(t)
		for _, era := range eras {
			for _, level := range []mcp.LoggingLevel{"", "debug", "error"} {
				t.Run(era+" to "+kind+" at "+string(level), func(t *testing.T) {
					heard := make(chan string, 1000)
					s := client(t, url, era, &mcp.ClientOptions{LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
						heard <- r.Params.Data.(string)
					}})
					p := &mcp.CallToolParams{Name: "log"}
					if level != "" && era == "2026-07-28" {
						p.Meta = mcp.Meta{mcp.MetaKeyLogLevel: level}
					} else if level != "" {
						if err := s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: level}); err != nil {
							t.Fatal(err)
						}
					}
					if level == "debug" { // a message right before the answer may come too late
						until(t, "the message is heard", func() bool {
							if _, err := s.CallTool(t.Context(), p); err != nil {
								t.Fatal(err)
							}
							return len(heard) > 0
						})
						return
					}
					for range 5 {
						if _, err := s.CallTool(t.Context(), p); err != nil {
							t.Fatal(err)
						}
					}
					if len(heard) != 0 {
						t.Errorf("heard %d messages that it does not want", len(heard))
					}
				})
			}
		}
	}
}
