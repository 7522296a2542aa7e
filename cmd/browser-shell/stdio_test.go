package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/cdp/cdptest"
)

// stateless is what each request carries since 2026-07-28.
const stateless = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// wire is a browser-shell that gets any bytes.
type wire struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  io.ReadCloser
	got  chan wireAnswer
	meta string
}

type wireAnswer struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code int `json:"code"`
	} `json:"error"`
}

// wire starts the program; the client of version is past its handshake.
func (l *lab) wire(t *testing.T, version string) *wire {
	t.Helper()
	l.policy["agent_browser"].(map[string]any)["cdp_port"] = cdptest.New(t).Port
	w := &wire{cmd: l.command(t, "mcp"), got: make(chan wireAnswer, 100)}
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if w.out, err = w.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := need.Start(t, w.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // by its own way, or its daemons stay
		_ = w.in.Close()
		_ = w.cmd.Process.Signal(syscall.SIGTERM)
		_ = w.cmd.Wait()
	})
	go func() {
		defer close(w.got)
		lines := bufio.NewScanner(w.out)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			var a wireAnswer
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				t.Errorf("not a frame: %q", lines.Text())
			}
			w.got <- a
		}
	}()
	if version == "2026-07-28" {
		w.meta = stateless
		return w
	}
	w.send(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if a := w.next(t); !strings.Contains(string(a.Result), `"protocolVersion":"`+version+`"`) {
		t.Fatalf("initialize: %s", a.Result)
	}
	w.send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return w
}

func (w *wire) send(t *testing.T, frame string) {
	t.Helper()
	if _, err := io.WriteString(w.in, frame+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) next(t *testing.T) wireAnswer {
	t.Helper()
	select {
	case a, ok := <-w.got:
		if !ok {
			t.Fatal("the output ended")
		}
		return a
	case <-time.After(need.Patience):
		t.Fatal("no answer")
	}
	return wireAnswer{}
}

// call returns a frame; argv is JSON.
func (w *wire) call(id, argv string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"browser-shell","arguments":{"session_id":"s","argv":%s}%s}}`, id, argv, w.meta)
}

// open gives the session a page, which the other commands need.
func (w *wire) open(t *testing.T) {
	t.Helper()
	w.send(t, w.call(`"open"`, `["open","https://example.com"]`))
	if a := w.next(t); string(a.ID) != `"open"` || !strings.Contains(string(a.Result), `"exit_code":0`) {
		t.Fatalf("open: id %s, %s %+v", a.ID, a.Result, a.Error)
	}
}

// hang makes call 5, which runs a program with a child until it is ended. It
// gives the number of processes there were before.
func (w *wire) hang(t *testing.T, l *lab) (before int) {
	t.Helper()
	before = l.processes(t)
	w.send(t, w.call("5", `["click","#hang"]`))
	need.Eventually(t, func() bool { return l.processes(t) >= before+2 }, func() string { return "the program does not start" })
	return before
}

// wantWorks makes a call, whose answer has to be the very next.
func (w *wire) wantWorks(t *testing.T) {
	t.Helper()
	w.send(t, w.call(`"works"`, `["click","#fine"]`))
	if a := w.next(t); string(a.ID) != `"works"` || !strings.Contains(string(a.Result), `"exit_code":0`) {
		t.Fatalf("the next call: id %s, %s %+v", a.ID, a.Result, a.Error)
	}
}

func (w *wire) wantExit(t *testing.T, code int) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- w.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(need.Patience):
		t.Fatal("it does not exit")
	}
	if state := w.cmd.ProcessState; state.ExitCode() != code {
		t.Errorf("%s, want exit code %d", state, code)
	}
}

func eachEra(t *testing.T, test func(t *testing.T, version string), eras ...string) {
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// TestStdioProbes: no line ends the process, each is answered once or never,
// and the next call works.
func TestStdioProbes(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, version string) {
		l := newLab(t)
		w := l.wire(t, version)
		w.open(t)
		for _, tt := range []struct {
			name, frame string
			code        int // 0: no answer
			id          string
		}{
			{"not JSON", "not json", -32700, ""},
			{"not UTF-8", "\"\xff\"", -32700, ""},
			{"nested", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), -32700, ""},
			{"nested in argv", w.call("1", strings.Repeat("[", 100)+strings.Repeat("]", 100)), -32600, "1"},
			{"17 MiB", w.call("1", `["fill","@e1","`+strings.Repeat("a", 17<<20)+`"]`), -32600, ""},
			{"batch", "[" + w.call("1", `["close"]`) + "]", -32600, ""},
			{"no jsonrpc", `{"id":1,"method":"tools/list"}`, -32600, "1"},
			{"id null", w.call("null", `["close"]`), -32600, ""},
			{"id 1.5", w.call("1.5", `["close"]`), -32600, ""},
			{"an answer to nothing", `{"jsonrpc":"2.0","id":1,"result":{}}`, 0, ""},
			{"our own error", `{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}`, 0, ""},
			{"prompts/list", `{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"cursor":""` + w.meta + `}}`, -32601, "1"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				w.send(t, tt.frame)
				if tt.code != 0 {
					if a := w.next(t); a.Error == nil || a.Error.Code != tt.code || string(a.ID) != tt.id {
						t.Errorf("id %q, %s %+v, want id %q and code %d", a.ID, a.Result, a.Error, tt.id, tt.code)
					}
				}
				w.wantWorks(t)
			})
		}
		w.in.Close()
		w.wantExit(t, 0)
		l.wantProcesses(t, 0)
		l.wantClean(t)
	}, "2024-11-05", "2026-07-28")
}

// TestStdioTooEarly: a call before initialize is not a valid request.
func TestStdioTooEarly(t *testing.T) {
	t.Parallel()
	w := newLab(t).wire(t, "2026-07-28")
	w.meta = ""
	w.send(t, w.call("1", `["close"]`))
	if a := w.next(t); a.Error == nil || a.Error.Code != -32600 {
		t.Errorf("got %s %+v", a.Result, a.Error)
	}
}

// TestStdioCancel: a cancelled call's program is gone within 200 ms and the
// call has no answer.
func TestStdioCancel(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, version string) {
		l := newLab(t)
		w := l.wire(t, version)
		w.open(t)
		need.Within(t, 200*time.Millisecond, func() time.Duration {
			before := w.hang(t, l)
			begin := time.Now()
			w.send(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
			need.Eventually(t, func() bool { return l.processes(t) <= before }, func() string { return "its program is still there" })
			took := time.Since(begin)
			w.open(t) // the next answer, and a new page in case the daemon was ended too
			return took
		})
		w.send(t, w.call("5", `["click","#again"]`))
		if a := w.next(t); string(a.ID) != "5" || !strings.Contains(string(a.Result), `"exit_code":0`) {
			t.Errorf("the id again: %s %s %+v", a.ID, a.Result, a.Error)
		}
	}, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
}

// TestStdioEnds: with a call running, neither the end of input nor a client
// that closes its end of stdout leaves anything behind.
func TestStdioEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(*testing.T, *wire)
		code int
	}{
		"end of input": {func(_ *testing.T, w *wire) { w.in.Close() }, 0},
		"stdout closed": {func(t *testing.T, w *wire) {
			w.out.Close()
			w.send(t, "noise")
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			w := l.wire(t, "2025-11-25")
			w.open(t)
			w.hang(t, l)
			tt.end(t, w)
			w.wantExit(t, tt.code)
			l.wantProcesses(t, 0)
			l.wantClean(t)
		})
	}
}
