package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/policy"
)

// fake is a container whose public port is an HTTP handler of the test: what a hostile image answers, and how one ends, can't be
// had of ours.
type fake struct {
	listener net.Listener
	status   sandbox.Status
	err      error
	ended    chan struct{}
	end      func()
	dir      string

	mu       sync.Mutex
	events   []sandbox.Event
	mirrored []string
	full     error // of Mirror
}

func newFake(t *testing.T, h http.Handler) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{listener: l, ended: make(chan struct{}), dir: "/artifacts/RUN"}
	srv := &http.Server{Handler: h}
	go func() { _ = srv.Serve(l) }()
	f.end = sync.OnceFunc(func() {
		srv.Close()
		close(f.ended)
	})
	t.Cleanup(f.end)
	return f
}

func (f *fake) Dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", f.listener.Addr().String())
}

func (f *fake) Wait(ctx context.Context) (sandbox.Status, error) {
	select {
	case <-f.ended:
		return f.status, f.err
	case <-ctx.Done():
		return sandbox.Status{ExitCode: -1}, ctx.Err()
	}
}

func (f *fake) Stop(ctx context.Context) (sandbox.Status, error) {
	f.end()
	return f.Wait(ctx)
}

func (f *fake) Record(e sandbox.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	return nil
}

func (f *fake) Mirror(_ context.Context, file string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mirrored = append(f.mirrored, file)
	return f.full
}

func (f *fake) Logs() []byte      { return []byte("starting\nno \x1b[31mplace\x1b[0m to go\n") }
func (f *fake) Directory() string { return f.dir }

// tool is a server like browser-shell's, whose calls are answered by do.
func tool(do mcp.ToolHandler) http.Handler {
	s := mcp.NewServer(&mcp.Implementation{Name: "inside"}, nil)
	s.AddTool(server.Tool(policy.Default()), do)
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
}

// done is a result of browser-shell.
func done(stdout string) *mcp.CallToolResult {
	text, _ := json.Marshal(map[string]any{"session_id": "s", "exit_code": 0, "stdout": stdout, "stderr": ""})
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: json.RawMessage(text)}
}

// wire is a client that writes and reads lines.
type wire struct {
	t      *testing.T
	in     *io.PipeWriter
	out    chan map[string]any
	served chan error

	mu   sync.Mutex
	said []string
}

// serve starts a Bridge for a client.
func serve(t *testing.T, conf Config) *wire {
	t.Helper()
	return serveCtx(t.Context(), t, conf)
}

func serveCtx(ctx context.Context, t *testing.T, conf Config) *wire {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	w := &wire{t: t, in: inW, out: make(chan map[string]any, 1000), served: make(chan error, 1)}
	if conf.Describe == nil {
		conf.Describe = func(context.Context) (*mcp.Tool, error) { return server.Tool(policy.Default()), nil }
	}
	conf.Say = func(format string, args ...any) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.said = append(w.said, fmt.Sprintf(format, args...))
	}
	if conf.Served == nil {
		conf.Served = func() {}
	}
	go func() {
		w.served <- New(conf).Serve(ctx, inR, outW)
		outW.Close()
	}()
	go func() {
		defer close(w.out)
		lines := bufio.NewScanner(outR)
		lines.Buffer(nil, 32<<20)
		for lines.Scan() {
			var m map[string]any
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				m = map[string]any{"broken": lines.Text()}
			}
			w.out <- m
		}
	}()
	t.Cleanup(func() { inW.Close() })
	return w
}

func (w *wire) send(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.in, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the next message that ok wants; others are passed over.
func (w *wire) next(ok func(map[string]any) bool) map[string]any {
	w.t.Helper()
	late := time.After(need.Patience)
	for {
		select {
		case m, open := <-w.out:
			if !open {
				w.t.Fatal("the server ended")
			}
			if ok(m) {
				return m
			}
		case <-late:
			w.t.Fatal("no such message")
		}
	}
}

func (w *wire) answer(id float64) map[string]any {
	w.t.Helper()
	return w.next(func(m map[string]any) bool { return m["id"] == id })
}

// end closes the input and waits for Serve.
func (w *wire) end() {
	w.t.Helper()
	w.in.Close()
	select {
	case err := <-w.served:
		if err != nil {
			w.t.Errorf("Serve: %v", err)
		}
	case <-time.After(need.Patience):
		w.t.Fatal("Serve doesn't end")
	}
}

func (w *wire) words() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.said, "\n")
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"agent","version":"1"}}}`

func callLine(id int, argv string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"browser-shell","arguments":{"session_id":"s","argv":%s},"_meta":{"progressToken":"p%d"}}}`, id, argv, id)
}

// meta returns the _meta of a result, which has to be an error.
func meta(t *testing.T, m map[string]any) map[string]any {
	t.Helper()
	res, _ := m["result"].(map[string]any)
	if res["isError"] != true {
		t.Fatalf("no error: %v", m)
	}
	out, _ := res["_meta"].(map[string]any)
	return out
}

func booting(f *fake) func(context.Context, string) (Container, error) {
	return func(context.Context, string) (Container, error) { return f, nil }
}

// TestAnswersBeforeBoot guards that a client sees the tool while nothing runs, and that only a call boots.
func TestAnswersBeforeBoot(t *testing.T) {
	boots := 0
	w := serve(t, Config{Boot: func(context.Context, string) (Container, error) {
		boots++
		return nil, errors.New("no engine")
	}})
	w.send(hello)
	w.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	w.send(`{"jsonrpc":"2.0","id":3,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if list := fmt.Sprint(w.answer(2)); !strings.Contains(list, "name:browser-shell") || !strings.Contains(list, "session_id") {
		t.Errorf("tools/list: %s", list)
	}
	if boots != 0 {
		t.Error("something was booted without a call")
	}
	w.send(callLine(4, `["open","https://example.com"]`))
	m := meta(t, w.answer(4))
	if m["name"] != "SERVER_DOWN" || m["rule"] != "container.start" {
		t.Errorf("a boot that fails: %v", m)
	}
	w.send(hello)
	if m := w.answer(1); m["error"] == nil {
		t.Errorf("a second initialize: %v", m)
	}
	w.end()
	if !strings.Contains(w.words(), "no engine") {
		t.Errorf("on stderr: %s", w.words())
	}
}

// TestOneContainer guards that calls which come together boot one container, that each is on record, and that the end of
// input ends it.
func TestOneContainer(t *testing.T) {
	f := newFake(t, tool(func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return done(`{"path":"/output/run/s/a.png"}`), nil
	}))
	var mu sync.Mutex
	var keys []string
	w := serve(t, Config{Boot: func(_ context.Context, key string) (Container, error) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, key)
		return f, nil
	}})
	w.send(hello)
	const calls = 50
	for i := range calls {
		w.send(callLine(10+i, `["screenshot","a.png"]`))
	}
	answers := map[any]bool{}
	for range calls {
		m := w.next(func(m map[string]any) bool {
			if m["method"] == "notifications/tools/list_changed" {
				t.Error("the list is said to have changed, and has not")
			}
			return m["id"] != nil && m["id"] != 1.0
		})
		text := fmt.Sprint(m)
		if answers[m["id"]] = true; !strings.Contains(text, "The file is at /artifacts/RUN/output/run/s/a.png ") {
			t.Errorf("the answer doesn't say where the file is: %s", text)
		}
		f.mu.Lock()
		if len(f.mirrored) < len(answers) || f.mirrored[0] != "run/s/a.png" {
			t.Errorf("%d answers, mirrored is %q", len(answers), f.mirrored)
		}
		f.mu.Unlock()
	}
	w.end()
	if len(keys) != 1 || len(keys[0]) < 20 || len(answers) != calls || len(f.events) != calls {
		t.Errorf("%d containers, %d answers, %d events", len(keys), len(answers), len(f.events))
	}
	if want := []string{"browser-shell", "s", "screenshot"}; f.events[0].Event != sandbox.EventExec || !slices.Equal(f.events[0].Command, want) {
		t.Errorf("on record: %+v, want %q", f.events[0], want)
	}
	select {
	case <-f.ended:
	default:
		t.Error("the container runs on")
	}
}

// TestMirror guards what is copied before an answer: the file that the tool names, if that is below /output, and always the
// audit log. Without the copies there is no answer.
func TestMirror(t *testing.T) {
	for stdout, want := range map[string]string{
		`{"path":"/output/run/s/a.png"}`: "run/s/a.png", `{"path":"/output/../etc/passwd"}`: "", `{"path":"/output/a/../../../x"}`: "", `{"path":"/outputs/x"}`: "", `{"path":"output/x"}`: "",
		`{"path":"/output/` + strings.Repeat("x", 2000) + `"}`: "", `{"path":["/output/x"]}`: "", "no JSON": "", "": "",
	} {
		f := newFake(t, tool(func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return done(stdout), nil }))
		w := serve(t, Config{Boot: booting(f)})
		w.send(hello)
		w.send(callLine(2, `["screenshot"]`))
		if m := fmt.Sprint(w.answer(2)); !slices.Equal(f.mirrored, []string{want}) || strings.Contains(m, "The file is at") != (want != "") {
			t.Errorf("%.100s: mirrored is %.100q, want %q: %.500s", stdout, f.mirrored, want, m)
		}
		f.full = errors.New("no space left on device")
		w.send(callLine(3, `["screenshot"]`))
		if m := meta(t, w.answer(3)); m["rule"] != "audit.unavailable" || m["retryable"] != false || !strings.Contains(w.words(), "no space left") {
			t.Errorf("a copy that fails: %v; on stderr: %s", m, w.words())
		}
		w.end()
	}
}

// TestPassing guards what goes through: progress, a cancellation, and the order of keys.
func TestPassing(t *testing.T) {
	cancelled := make(chan struct{})
	f := newFake(t, tool(func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if strings.Contains(string(req.Params.Arguments), "wait") {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1, Message: "waiting"})
			<-ctx.Done()
			close(cancelled)
			return nil, ctx.Err()
		}
		return done(""), nil
	}))
	w := serve(t, Config{Boot: booting(f)})
	w.send(hello)
	w.send(callLine(2, `["wait","5000"]`))
	p := w.next(func(m map[string]any) bool {
		return m["method"] == "notifications/progress" && strings.Contains(fmt.Sprint(m), "waiting")
	})
	if params, _ := p["params"].(map[string]any); params["progressToken"] != "p2" {
		t.Errorf("progress: %v", p)
	}
	w.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	select {
	case <-cancelled:
	case <-time.After(need.Patience):
		t.Fatal("the call inside was not cancelled")
	}
	w.send(callLine(3, `["close"]`))
	m := w.next(func(m map[string]any) bool { return m["id"] != nil && m["id"] != 1.0 })
	if m["id"] != 3.0 {
		t.Errorf("the cancelled call was answered: %v", m)
	}
	if strings.Contains(fmt.Sprint(m), "resultType") {
		t.Errorf("a client of the older era gets what is of the newer one: %v", m)
	}
	w.end()
}

// TestHostileAnswers guards that nothing which a container answers ends the server, and that the client gets words.
func TestHostileAnswers(t *testing.T) {
	good := tool(func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return done(""), nil })
	raw := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			var req struct {
				ID     json.RawMessage
				Method string
			}
			_ = json.Unmarshal(text, &req)
			if req.Method != "tools/call" {
				r.Body = io.NopCloser(strings.NewReader(string(text)))
				good.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", string(req.ID)))
		}
	}
	huge := strings.Repeat("x", maxAnswer)
	for name, c := range map[string]struct {
		handler http.Handler
		rule    string
	}{
		"no HTTP body":       {raw("application/json", ""), "container.answer"},
		"no JSON":            {raw("application/json", "<html>"), "container.answer"},
		"huge":               {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"`+huge+`"}]}}`), "answer.size"},
		"a huge event":       {raw("text/event-stream", "data: "+huge+huge+"\n\n"), "answer.size"},
		"many events":        {raw("text/event-stream", strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n", 20_000)), "container.answer"},
		"a comment for ever": {raw("text/event-stream", ": "+huge+"\n\n: "), "answer.size"},
		"deep":               {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":`+strings.Repeat("[", 1<<20)+`}}`), "container.answer"},
		"no content":         {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`), ""},
		"null":               {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":null}`), ""},
		"content of no type": {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[{}]}}`), "container.answer"},
		"null content":       {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[null]}}`), "container.answer"},
		"wants input":        {raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}}`), "container.answer"},
		"another id":         {raw("application/json", `{"jsonrpc":"2.0","id":99999,"result":{"content":[]}}`), "call.timeout"},
		"a redirect":         {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://192.0.2.1/", 307) }), "container.start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := Config{Boot: booting(newFake(t, c.handler))}
			switch c.rule { // who waits for nothing waits a short time
			case "container.start":
				config.health = time.Second
			case "call.timeout":
				config.call = 3 * time.Second
			}
			w := serve(t, config)
			w.send(hello)
			w.send(callLine(2, `["snapshot"]`))
			m := w.answer(2)
			switch {
			case c.rule == "":
				if res, _ := m["result"].(map[string]any); res["content"] == nil {
					t.Errorf("%v", m)
				}
			default:
				if got := meta(t, m)["rule"]; got != c.rule {
					t.Errorf("rule %v, want %s: %.300v", got, c.rule, m)
				}
			}
			w.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
			w.answer(3)
			w.end()
		})
	}
}

// TestEnds guards what a client is told when its container ends under a call, and that the next call boots another.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		status sandbox.Status
		err    error
		rule   string
		code   any
		text   string
	}{
		"killed":  {sandbox.Status{ExitCode: 137, Reason: sandbox.ReasonExited}, nil, "container.ended", nil, "exit status 137"},
		"engine":  {sandbox.Status{ExitCode: -1, Reason: sandbox.ReasonFailed}, errors.New("docker is gone"), "container.ended", nil, "docker is gone"},
		"memory":  {sandbox.Status{ExitCode: 137, Reason: sandbox.ReasonMemory, Code: policy.SandboxViolation}, nil, "limit.memory", -32006.0, "--memory"},
		"timeout": {sandbox.Status{ExitCode: 143, Reason: sandbox.ReasonTimeout, Code: policy.Timeout}, nil, "limit.timeout", -32007.0, "--timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			called := make(chan struct{}, 1)
			first := newFake(t, tool(func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				called <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}))
			first.status, first.err = c.status, c.err
			next := newFake(t, tool(func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return done(""), nil }))
			all := []*fake{first, next}
			w := serve(t, Config{Boot: func(context.Context, string) (Container, error) {
				f := all[0]
				all = all[1:]
				return f, nil
			}})
			w.send(hello)
			w.send(callLine(2, `["wait","5000"]`))
			<-called
			first.end()
			m := w.answer(2)
			if got := meta(t, m); got["rule"] != c.rule || got["code"] != c.code || !strings.Contains(fmt.Sprint(m), c.text) {
				t.Errorf("%v", m)
			}
			w.send(callLine(3, `["close"]`))
			if m := w.answer(3); strings.Contains(fmt.Sprint(m), "isError") {
				t.Errorf("the next call: %v", m)
			}
			w.end()
		})
	}
}

// TestIdle guards that a container without calls ends, and that the next call boots another.
func TestIdle(t *testing.T) {
	good := tool(func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return done(""), nil })
	all := []*fake{newFake(t, good), newFake(t, good)}
	boots := 0
	w := serve(t, Config{Idle: time.Millisecond, Boot: func(context.Context, string) (Container, error) {
		boots++
		return all[boots-1], nil
	}})
	w.send(hello)
	w.send(callLine(2, `["close"]`))
	w.answer(2)
	select {
	case <-all[0].ended:
	case <-time.After(need.Patience):
		t.Fatal("the container runs on")
	}
	w.send(callLine(3, `["close"]`))
	w.answer(3)
	w.end()
	if boots != 2 || !strings.Contains(w.words(), "the next call boots another") {
		t.Errorf("%d boots: %s", boots, w.words())
	}
}

// TestEndDuringBoot guards that the end of input, or of the context, ends a boot.
func TestEndDuringBoot(t *testing.T) {
	for _, how := range []string{"end of input", "signal"} {
		t.Run(how, func(t *testing.T) {
			booting, over := make(chan struct{}), make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := serveCtx(ctx, t, Config{Boot: func(ctx context.Context, _ string) (Container, error) {
				close(booting)
				<-ctx.Done()
				close(over)
				return nil, ctx.Err()
			}})
			w.send(hello)
			w.send(callLine(2, `["close"]`))
			<-booting
			if how == "signal" {
				cancel()
			}
			w.end()
			select {
			case <-over:
			default:
				t.Error("Serve ended before the boot")
			}
		})
	}
}

// TestOtherTools guards that what the image says of its tools wins over what its files say, and that a tool that is none does
// no harm.
func TestOtherTools(t *testing.T) {
	s := mcp.NewServer(&mcp.Implementation{Name: "inside"}, nil)
	other := server.Tool(policy.Default())
	other.Description = "as of another release"
	s.AddTool(other, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return done(""), nil })
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok {
				list.Tools = append(list.Tools, &mcp.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type":"string"}`)}, &mcp.Tool{Name: "", InputSchema: json.RawMessage(`null`)})
			}
			return res, err
		}
	})
	f := newFake(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true}))
	w := serve(t, Config{Boot: booting(f)})
	w.send(hello)
	w.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	w.send(`{"jsonrpc":"2.0","id":4,"method":"tools/list"}`)
	w.answer(4)
	w.send(callLine(2, `["close"]`))
	w.next(func(m map[string]any) bool { return m["method"] == "notifications/tools/list_changed" })
	w.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	if list := fmt.Sprint(w.answer(3)); !strings.Contains(list, "as of another release") || strings.Contains(list, "name:bad") {
		t.Errorf("%s", list)
	}
	w.end()
	if !strings.Contains(w.words(), "not as its files had them") || !strings.Contains(w.words(), `"bad"`) {
		t.Errorf("on stderr: %s", w.words())
	}
}
