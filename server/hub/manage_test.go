package hub

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

// TestGuard: what the policy denies reaches no server and is on record, but
// none of the arguments is.
func TestGuard(t *testing.T) {
	h := newTestHub(t, servers(t, "new"), func(o *Options) {
		o.policy = func() (checker, error) {
			return fakePolicy{deny: map[string]bool{"echo": true}, hide: map[string]bool{"pid": true}}, nil
		}
	})
	url := h.serve(t)
	for _, era := range eras {
		s := client(t, url, era, nil)
		list := names(t, s)
		if slices.Contains(list, "pid") || !slices.Contains(list, "echo") {
			t.Errorf("lists %v", list)
		}
		for _, tool := range []string{"echo", "pid"} {
			text, res := run(t, s, tool, map[string]any{"z": "hunter2"})
			if !res.IsError || text != "POLICY_BLOCKED (-32004) tool.blocked: the tool is blocked" || res.Meta["rule"] != "tool.blocked" || res.Meta["code"] != -32004.0 {
				t.Errorf("%s: %q %v", tool, text, res.Meta)
			}
		}
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "nothing", Arguments: map[string]any{"z": "hunter2"}})
		if e := (*jsonrpc.Error)(nil); !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams || !strings.Contains(e.Message, "unknown tool; tools/list shows ") || strings.Contains(e.Message, "pid") {
			t.Errorf("an unknown tool: %v", err)
		}
		if text, _ := run(t, s, "structured", map[string]any{"z": "hunter2"}); text != "both" {
			t.Errorf("answered %q", text)
		}
	}
	tools := h.Tools()
	if i := slices.IndexFunc(tools, func(t admin.Tool) bool { return t.Name == "pid" }); i < 0 || !tools[i].Blocked {
		t.Errorf("the API shows %+v", tools)
	}
	log, err := os.ReadFile(h.dir + "/audit.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "hunter2") {
		t.Error("an argument is on record")
	}
	var got []string
	for text := range strings.Lines(string(log)) {
		var l map[string]any
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		if l["tool"] == nil {
			continue
		}
		rule, _ := l["rule"].(string)
		got = append(got, strings.TrimSpace(l["tool"].(string)+" "+l["decision"].(string)+" "+rule))
		if c := l["client"].(map[string]any); c["name"] != "tester" {
			t.Errorf("client %v", c)
		}
	}
	want := []string{"echo deny tool.blocked", "pid deny tool.blocked", "nothing deny tool.unknown", "structured allow"}
	if !slices.Equal(got, append(want, want...)) { // each era is another MCP session, and its refusals have their own lines
		t.Errorf("on record is %q", got)
	}
	if n := len(h.meter.denied); n != 4 || h.meter.denied[0] != "new echo tool.blocked" {
		t.Errorf("counted %v", h.meter.denied)
	}
	if !slices.Contains(h.meter.ops, "server tools/call structured ") || !slices.Contains(h.meter.ops, "client tools/call structured ") {
		t.Errorf("counted %v", h.meter.ops)
	}
}

// TestUnrecorded: what can't be put on record isn't done.
func TestUnrecorded(t *testing.T) {
	h := newTestHub(t, servers(t, "new"))
	s := client(t, h.serve(t), eras[0], nil)
	if text, _ := run(t, s, "structured", nil); text != "both" {
		t.Fatal(text)
	}
	if err := os.Remove(h.dir + "/audit.jsonl"); err != nil {
		t.Fatal(err)
	}
	text, res := run(t, s, "structured", nil)
	if !res.IsError || !strings.Contains(text, "audit.unavailable") {
		t.Errorf("answered %q", text)
	}
	h.record.log, _ = audit.Open(h.dir+"/other.jsonl", audit.Limits{MaxBytes: 1 << 20, Keep: 1}) // for the end
}

// TestDown: a call of a server that is down is answered at once, and says so.
func TestDown(t *testing.T) {
	h := newTestHub(t, servers(t, "new", "old"))
	url := h.serve(t)
	s := client(t, url, eras[0], nil)
	if err := h.Stop(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	until(t, "its tools are gone", func() bool { return !slices.Contains(names(t, s), "new__echo") })
	if text, _ := run(t, s, "old__structured", nil); text != "both" {
		t.Errorf("the other one says %q", text)
	}
	if err := h.Ready(); err == nil || !strings.Contains(err.Error(), "server new is stopped") {
		t.Errorf("ready: %v", err)
	}
	if err := h.Start("new"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is back", func() bool { return slices.Contains(names(t, s), "new__echo") })

	text, res := run(t, s, "new__crash", nil)
	if !res.IsError || !strings.HasPrefix(text, "SERVER_DOWN server.ended: server new ended during the call") {
		t.Errorf("answered %q", text)
	}
	// It keeps its tools meanwhile, and a call is answered without it.
	until(t, "a call says when it is tried again, or it runs", func() bool {
		text, res = run(t, s, "new__structured", nil)
		return text == "both" || res.IsError && res.Meta["rule"] == "server.down"
	})
	if !slices.Contains(names(t, s), "new__echo") {
		t.Error("its tools are gone while it is started again")
	}
	until(t, "it runs again", func() bool { text, _ := run(t, s, "new__structured", nil); return text == "both" })
	if st, _ := h.Server("new"); st.State != upstream.Running || st.Restarts == 0 {
		t.Errorf("%+v", st)
	}
	for _, err := range []error{h.Start("x"), h.Stop(t.Context(), "x"), h.Restart(t.Context(), "x")} {
		if err == nil || !strings.Contains(err.Error(), `no server "x"`) {
			t.Errorf("got %v", err)
		}
	}
}

// TestTimeout: a call ends when its server's time is over.
func TestTimeout(t *testing.T) {
	h := newTestHub(t, with(t, "new", map[string]any{"timeout": 0.3}))
	s := client(t, h.serve(t), eras[0], nil)
	text, res := run(t, s, "wait", map[string]any{"began": h.dir + "/began", "ended": h.dir + "/ended"})
	if !res.IsError || !strings.HasPrefix(text, "TIMEOUT (-32007) call.timeout: server new did not answer within 300ms") {
		t.Errorf("answered %q", text)
	}
	until(t, "the server was told", func() bool { return exists(h.dir + "/ended") })
}

// TestLate: a client that comes before the servers are up sees what they have.
func TestLate(t *testing.T) {
	url := newTestHub(t, servers(t, "late")).serve(t)
	if got := names(t, client(t, url, eras[0], nil)); !slices.Contains(got, "echo") {
		t.Errorf("lists %v", got)
	}
}

// TestCollision: the first one of the file keeps a name, whatever comes later.
func TestCollision(t *testing.T) {
	config := strings.Replace(servers(t, "a", "b"), "{", `{"naming": "flat", `, 1)
	h := newTestHub(t, config)
	s := client(t, h.serve(t), eras[0], nil)
	until(t, "both are up", func() bool { return ready(h) })
	p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "greet"})
	if err != nil || p.Description != "a" {
		t.Errorf("prompt of %v %v", p, err)
	}
	err = h.Ready()
	if err == nil || !strings.Contains(err.Error(), `servers a and b both offer the tool "echo"; only that of a is served: set "naming": "server__tool"`) {
		t.Errorf("ready: %v", err)
	}
	// Resources have no prefix and don't collide here.
	r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://b/1"})
	if err != nil || r.Contents[0].Text != "of b" {
		t.Errorf("resource %v %v", r, err)
	}
}

func ready(h *testHub) bool {
	for _, s := range h.Servers() {
		if s.State != upstream.Running || s.Tools == 0 {
			return false
		}
	}
	return true
}

func TestPrefix(t *testing.T) {
	h := newTestHub(t, strings.Replace(servers(t, "long"), "{", `{"naming": "server__tool", `, 1))
	s := client(t, h.serve(t), eras[0], nil)
	for _, name := range names(t, s) {
		if !strings.HasPrefix(name, "long__") || len(name) > maxName {
			t.Errorf("lists %q", name)
		}
	}
	if err := h.Ready(); err == nil || !strings.Contains(err.Error(), "longer than 64") {
		t.Errorf("ready: %v", err)
	}
	if text, _ := run(t, s, "long__structured", nil); text != "both" {
		t.Errorf("answered %q", text)
	}
}

// TestBare: what no server has is not found, rather than empty.
func TestBare(t *testing.T) {
	s := client(t, newTestHub(t, servers(t, "bare")).serve(t), eras[0], nil)
	c := s.InitializeResult().Capabilities
	if c.Tools == nil || c.Prompts != nil || c.Resources != nil || c.Logging != nil || c.Completions != nil {
		t.Errorf("capabilities %+v", c)
	}
	_, err := s.ListPrompts(t.Context(), nil)
	if e := (*jsonrpc.Error)(nil); !errors.As(err, &e) || e.Code != jsonrpc.CodeMethodNotFound {
		t.Errorf("got %v", err)
	}
}

// TestTexts: what reaches a server otherwise than by a call of a tool is
// checked too.
func TestTexts(t *testing.T) {
	const secret = "test://new/.ssh"
	h := newTestHub(t, servers(t, "new"), func(o *Options) {
		o.policy = func() (checker, error) { return fakePolicy{deny: map[string]bool{secret: true}}, nil }
	})
	url := h.serve(t)
	for _, era := range eras {
		s := client(t, url, era, nil)
		for what, do := range map[string]func() error{
			"read": func() error {
				_, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: secret})
				return err
			},
			"prompt": func() error {
				_, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "greet", Arguments: map[string]string{"a": "fine", "b": secret}})
				return err
			},
			"complete": func() error {
				_, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"}, Argument: mcp.CompleteParamsArgument{Name: "a", Value: secret}})
				return err
			},
			"context of complete": func() error {
				_, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"}, Argument: mcp.CompleteParamsArgument{Name: "a", Value: "v"}, Context: &mcp.CompleteContext{Arguments: map[string]string{"b": secret}}})
				return err
			},
			"subscribe": func() error {
				if era == newEra { // it is subscriptions/listen there, which reaches no server
					return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Data: json.RawMessage(`"arguments.path"`)}
				}
				return s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: secret})
			},
		} {
			var e *jsonrpc.Error
			if err := do(); !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams || !strings.Contains(string(e.Data), "arguments.path") {
				t.Errorf("%s, %s: %v", era, what, err)
			}
		}
		if r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://new"}); err != nil || r.Contents[0].Text != "of new" {
			t.Errorf("what is fine: %v %v", r, err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(h.dir + "/audit.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), `"arguments.path"`); n != 4 || !strings.Contains(string(log), `"and 4 more"`) || !strings.Contains(string(log), `"and 3 more"`) || strings.Contains(string(log), secret) {
		t.Errorf("denials on record: %s", log)
	}
	if n := len(h.meter.denied); n != 9 {
		t.Errorf("%d denials counted", n)
	}
}

// TestMisspelt: rules for a server that there is none of show.
func TestMisspelt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hub.policy.json")
	if err := os.WriteFile(file, []byte(`{"servers": {"new": {}, "nwe": {"block": ["*"]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newTestHub(t, servers(t, "new"), func(o *Options) { o.Policy, o.policy = file, nil })
	until(t, "it is up", func() bool { return ready(h) })
	if w := h.Warnings(); len(w) != 1 || !strings.Contains(w[0].Error(), `rules for server "nwe"`) {
		t.Errorf("warnings: %v", w)
	}
	if err := h.Ready(); err != nil {
		t.Errorf("it is not down: %v", err)
	}
}

// TestStubborn: a server that nothing but SIGKILL ends, with a call of a session
// that never ends either, doesn't hold up the hub's end.
func TestStubborn(t *testing.T) {
	h := newTestHub(t, with(t, "stubborn", map[string]any{"timeout": 600}))
	l, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, l) }()
	s := client(t, "http://"+l.Addr().String()+Path, "2025-11-25", nil)
	began := filepath.Join(t.TempDir(), "began")
	go func() {
		_, _ = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "hang", Arguments: map[string]any{"began": began}})
	}()
	until(t, "the call runs", func() bool { return exists(began) })
	ending := time.Now()
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(<-served, h.Close()) }()
	select {
	case err := <-ended:
		t.Logf("it took %s: %v", time.Since(ending), err)
	case <-time.After(need.Patience):
		t.Fatal("it does not end")
	}
	log, err := os.ReadFile(h.dir + "/audit.jsonl")
	if err != nil || !strings.Contains(string(log), `"hang"`) {
		t.Errorf("the call is not on record: %s %v", log, err)
	}
}

// TestChanged: clients of both eras hear when a server changes what it offers,
// and when one comes or goes.
func TestChanged(t *testing.T) {
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			h := newTestHub(t, servers(t, "new"))
			heard := make(chan struct{}, 100)
			s := client(t, h.serve(t), era, &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { heard <- struct{}{} }})
			wait := func(what string, ok func() bool) {
				t.Helper()
				select {
				case <-heard:
				case <-time.After(need.Patience):
					t.Fatalf("not told: %s", what)
				}
				until(t, what, ok)
			}
			has := func(name string) func() bool { return func() bool { return slices.Contains(names(t, s), name) } }
			run(t, s, "grow", nil)
			wait("it has grown", has("grown"))
			pid, _ := run(t, s, "pid", nil)

			h.write(t, strings.Replace(servers(t, "new", "old"), "{", `{"naming": "server__tool", `, 1))
			if err := h.Reload(); err != nil {
				t.Fatal(err)
			}
			wait("the other one is there", has("old__echo"))
			if again, _ := run(t, s, "new__pid", nil); again != pid {
				t.Errorf("an unchanged server was started again: %s, then %s", pid, again)
			}
			h.write(t, with(t, "new", map[string]any{"args": []string{"x"}}))
			if err := h.Reload(); err != nil {
				t.Fatal(err)
			}
			wait("only the changed one is there", func() bool { return slices.Contains(names(t, s), "echo") && !slices.Contains(names(t, s), "old__echo") })
			until(t, "it runs", func() bool { return ready(h) })
			if again, _ := run(t, s, "pid", nil); again == pid {
				t.Error("a changed server was not started again")
			}
			h.write(t, "{")
			if err := h.Reload(); err == nil {
				t.Error("a broken file is taken")
			}
			if text, _ := run(t, s, "structured", nil); text != "both" {
				t.Errorf("after a broken file: %q", text)
			}
		})
	}
}

// TestFollow: a client that follows a resource hears of it, also after the
// server was started again.
func TestFollow(t *testing.T) {
	h := newTestHub(t, servers(t, "new"))
	url := h.serve(t)
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			heard := make(chan string, 100)
			s := client(t, url, era, &mcp.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { heard <- r.Params.URI }})
			if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "test://new"}); err != nil {
				t.Fatal(err)
			}
			touched := func() bool {
				run(t, s, "touch", nil)
				select {
				case uri := <-heard:
					return uri == "test://new"
				case <-time.After(50 * time.Millisecond):
					return false
				}
			}
			until(t, "told of a change", touched)
			if err := h.Restart(t.Context(), "new"); err != nil {
				t.Fatal(err)
			}
			until(t, "told of a change by the new process", touched)
			if err := s.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "test://new"}); err != nil {
				t.Fatal(err)
			}
			server := h.listServers()[0]
			until(t, "nobody follows", func() bool {
				server.mu.Lock()
				defer server.mu.Unlock()
				return len(server.subscribed) == 0
			})
		})
	}
}

// TestLock: one hub at a time.
func TestLock(t *testing.T) {
	h := newTestHub(t, servers(t, "new"))
	o := h.opts
	o.Audit = h.dir + "/second.jsonl"
	if second, err := New(o); err == nil {
		second.Close()
		t.Fatal("two hubs on one configuration")
	} else if !strings.Contains(err.Error(), "another hub") {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
