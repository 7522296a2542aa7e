package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
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

// TestAsWritten: a result passes with what go-sdk's types can't hold.
func TestAsWritten(t *testing.T) {
	for _, kind := range []string{"new", "old"} {
		h := newTestHub(t, servers(t, kind))
		until(t, "it is up", func() bool { return ready(h) })
		url := h.serve(t)
		for _, era := range eras {
			t.Run(era+" to "+kind, func(t *testing.T) {
				res := raw(t, url, era, "odd")
				var got struct {
					Meta struct {
						Big        json.Number
						ServerInfo struct{ Name string } `json:"io.modelcontextprotocol/serverInfo"`
					} `json:"_meta"`
					Content           []map[string]any
					StructuredContent json.RawMessage
					Later, ResultType string
				}
				if err := json.Unmarshal(res, &got); err != nil {
					t.Fatal(err)
				}
				if string(got.StructuredContent) != `{"n":12345678901234567890.25}` || got.Meta.Big != "12345678901234567890" || got.Later != "field" || got.Content[0]["more"] != "odd" {
					t.Errorf("got %s", res)
				}
				if era == newEra && (got.ResultType != "complete" || got.Meta.ServerInfo.Name == "") {
					t.Errorf("what each result of the newer era has is missing: %s", res)
				}
			})
		}
	}
}

// raw calls a tool by hand, without a session, and gives the result.
func raw(t *testing.T, url, era, tool string) json.RawMessage {
	t.Helper()
	meta := ""
	if era == newEra {
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + era + `","io.modelcontextprotocol/clientCapabilities":{}}`
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":{}`+meta+`}}`))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": era, "Mcp-Method": "tools/call", "Mcp-Name": tool} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, data, _ := strings.Cut(string(body), "data: ")
	var answer struct{ Result json.RawMessage }
	if err := json.Unmarshal([]byte(data), &answer); err != nil || answer.Result == nil {
		t.Fatalf("%d %s: %v", res.StatusCode, body, err)
	}
	return answer.Result
}

// TestMeta: what a request carries besides its arguments reaches the server,
// but nothing that would be of the wrong era there.
func TestMeta(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, kind := range []string{"new", "old"} {
		url := newTestHub(t, with(t, kind, map[string]any{"perSession": false})).serve(t)
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
				if who := audit.CallerOf(m[audit.MetaCaller]); who.ClientName != "tester" || len(who.RequestID) != 32 {
					t.Errorf("the program is not told who calls: %s", meta)
				}
				if kind == "old" && len(m) != 3 {
					t.Errorf("the server gets what is not of its era: %s", meta)
				}
			})
		}
	}
}

func accept(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept"}, nil
}

// TestProgress: each call hears of all its own progress, also when two clients
// chose the same token, in order.
func TestProgress(t *testing.T) {
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			url := newTestHub(t, servers(t, "new")).serve(t)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					var mu sync.Mutex
					var heard, want []string
					s := client(t, url, era, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
						mu.Lock()
						defer mu.Unlock()
						if r.Params.ProgressToken != "same" {
							t.Errorf("token %v", r.Params.ProgressToken)
						}
						heard = append(heard, r.Params.Message)
					}})
					args := fmt.Sprintf(`{"a":%d}`, i)
					for range 5 {
						p := &mcp.CallToolParams{Name: "progress", Arguments: json.RawMessage(args)}
						p.Meta = mcp.Meta{"progressToken": "same"}
						if _, err := s.CallTool(t.Context(), p); err != nil {
							t.Error(err)
						}
						want = append(want, args+" 0", args+" 1", args+" 2")
					}
					// The last may come after the answer here: the client is go-sdk's too.
					until(t, "all is heard", func() bool {
						mu.Lock()
						defer mu.Unlock()
						return len(heard) >= len(want)
					})
					mu.Lock()
					defer mu.Unlock()
					if !slices.Equal(heard, want) {
						t.Errorf("heard %q", heard)
					}
				})
			}
			wg.Wait()
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
		{"one process for all", with(t, "old", map[string]any{"perSession": false}), "2025-11-25", "accept"},
		{"one for each session", with(t, "new", map[string]any{"perSession": true}), "2025-11-25", "accept"},
		{"one for the session, because it can be asked", servers(t, "new"), "2025-11-25", "accept"},
		{"there can be only one", servers(t, "single"), "2025-11-25", "accept"},
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
	url := newTestHub(t, with(t, "old", map[string]any{"perSession": false})).serve(t)
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
	if text, _ := run(t, s, "ask", nil); !strings.Contains(text, "cannot be assigned to one client") {
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
	server := h.listServers()[0]
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

// TestOwnProcess: by default only sessions whose client can be asked have a
// process of their own; those beyond the bound share, and none is ended.
func TestOwnProcess(t *testing.T) {
	url := newTestHub(t, servers(t, "new")).serve(t)
	shared, _ := run(t, client(t, url, "2025-11-25", nil), "pid", nil)
	var pids []string
	var sessions []*mcp.ClientSession
	for i := range maxOwn + 2 {
		s := client(t, url, "2025-11-25", &mcp.ClientOptions{ElicitationHandler: accept})
		pid, _ := run(t, s, "pid", nil)
		if slices.Contains(pids, pid) && pid != shared || (pid == shared) != (i >= maxOwn) {
			t.Errorf("session %d has process %s, others have %v, most have %s", i, pid, pids, shared)
		}
		pids, sessions = append(pids, pid), append(sessions, s)
	}
	for i, s := range sessions {
		if pid, _ := run(t, s, "pid", nil); pid != pids[i] {
			t.Errorf("session %d had process %s, now %s", i, pids[i], pid)
		}
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
					for range 5 {
						if _, err := s.CallTool(t.Context(), p); err != nil {
							t.Fatal(err)
						}
					}
					if level == "debug" {
						until(t, "all messages are heard", func() bool { return len(heard) == 5 })
					} else if len(heard) != 0 {
						t.Errorf("heard %d messages that it does not want", len(heard))
					}
				})
			}
		}
	}
}

// TestArgumentsFitSchema: what does not fit a tool's inputSchema never reaches the server.
func TestArgumentsFitSchema(t *testing.T) {
	h := newTestHub(t, servers(t, "new"))
	c := client(t, h.serve(t), "2026-07-28", nil)
	for _, tt := range []struct {
		args any
		fits bool
	}{
		{map[string]any{"z": "x", "a": 1}, true}, {map[string]any{"other": 1}, true}, {map[string]any{}, true}, {nil, true},
		{map[string]any{"z": 1}, false}, {map[string]any{"a": 1.5}, false}, {map[string]any{"a": "1"}, false},
	} {
		text, res := run(t, c, "echo", tt.args)
		if res.IsError == tt.fits || !tt.fits && !strings.HasPrefix(text, "INVALID_ARGUMENTS arguments.schema: ") {
			t.Errorf("%v: %s", tt.args, text)
		}
	}
}

// TestCompileSchema: a schema that could run for ever, or that lies elsewhere, is left to the server.
func TestCompileSchema(t *testing.T) {
	for text, checked := range map[string]bool{
		`{"type":"object"}`:                          true,
		`{"$ref":"#"}`:                               false,
		`{"anyOf":[{"$dynamicRef":"#"}]}`:            false,
		`{"$ref":"http://127.0.0.1:1/schema"}`:       false,
		`{"$schema":"http://json-schema.org/x"}`:     false,
		`{"type":"object","pattern":"("}`:            false,
		`{"x":"` + strings.Repeat("x", 70000) + `"}`: false,
	} {
		if got := compileSchema(&mcp.Tool{InputSchema: json.RawMessage(text)}); (got != nil) != checked {
			t.Errorf("%.60s: %v", text, got)
		}
	}
}
