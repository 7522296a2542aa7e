package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// log returns the whole lines of a log; one may be being written.
func (l *lab) log(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.state, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:bytes.LastIndexByte(b, '\n')+1])
}

// reload sends SIGHUP and waits for what comes of it.
func (h *runningHub) reload(t *testing.T) {
	t.Helper()
	h.hangUp(t, "policy reloaded")
}

func (h *runningHub) hangUp(t *testing.T, want string) {
	t.Helper()
	before := len(h.said.String())
	if err := h.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	need.Eventually(t, func() bool { return strings.Contains(h.said.String()[before:], want) }, h.said.String)
}

// roomy is for tests that call more often than an agent may.
func roomy(l *lab) {
	l.policy["limits"] = map[string]any{"rate_per_sec": 1000, "rate_burst": 10000, "session_calls": 1000000, "max_sessions": 16}
}

// TestHubKill: while ten clients call, their server is killed again and again.
// Calls fail at once and say why, the server comes back, and the clients of
// the server beside it notice nothing.
func TestHubKill(t *testing.T) {
	l := newLab(t)
	roomy(l)
	l.hubConfig(t, "browser_shell", "second")
	h := startHub(t, l)
	before := h.server(t, "browser_shell")
	other := h.server(t, "second")

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var worked, failed, beside atomic.Int64
	var lastFailure, slowest atomic.Int64 // nanoseconds; since the kill, of a call that failed
	var killed atomic.Pointer[time.Time]
	callAll := func(i int, tool string, check func(*mcp.CallToolResult, time.Duration)) {
		s := h.connect(t)
		clients.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				res, err := s.CallTool(context.WithoutCancel(ctx), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"session_id": fmt.Sprintf("s%d", i), "argv": []string{"open", "https://example.com"}}})
				if err != nil {
					t.Errorf("%s: %v", tool, err)
					return
				}
				check(res, time.Since(begin))
				if res.IsError {
					time.Sleep(10 * time.Millisecond) // or 10 clients would do nothing but fail
				}
			}
		})
	}
	for i := range 10 {
		callAll(i, "browser_shell__browser-shell", func(res *mcp.CallToolResult, took time.Duration) {
			if !res.IsError {
				worked.Add(1)
				return
			}
			text, _ := res.Content[0].(*mcp.TextContent)
			if name := res.Meta["name"]; name != "SERVER_DOWN" || text == nil || !strings.Contains(text.Text, "server browser_shell") {
				t.Errorf("a failure that is not clear: %+v %+v", res.Meta, text)
			}
			failed.Add(1)
			slowest.Store(max(slowest.Load(), int64(took)))
			if k := killed.Load(); k != nil {
				lastFailure.Store(int64(time.Since(*k)))
			}
		})
	}
	callAll(10, "second__browser-shell", func(res *mcp.CallToolResult, _ time.Duration) {
		if res.IsError {
			t.Errorf("the second server: %+v", res.Content[0])
		}
		beside.Add(1)
	})
	more := func(n *atomic.Int64) {
		t.Helper()
		was := n.Load()
		need.Eventually(t, func() bool { return n.Load() > was+10 || t.Failed() }, func() string { return fmt.Sprintf("%d calls, and no more", was) })
	}
	more(&worked)
	pid := before.PID
	for range 2 {
		now := time.Now()
		killed.Store(&now)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		need.Eventually(t, func() bool {
			s, err := h.ctl.Server(t.Context(), "browser_shell")
			return err == nil && s.PID != pid
		}, func() string { return "the hub does not see that it is dead" })
		seen := time.Since(now)
		pid = h.server(t, "browser_shell").PID
		back := time.Since(now)
		more(&worked)
		more(&beside)
		t.Logf("seen to be dead after %s, back after %s; the last call failed %s after the kill; the slowest of %d failed calls took %s",
			seen, back, time.Duration(lastFailure.Load()), failed.Load(), time.Duration(slowest.Load()))
	}
	stop()
	clients.Wait()
	if failed.Load() == 0 {
		t.Error("no call failed: nothing was tested")
	}
	if d := time.Duration(slowest.Load()); d > need.Patience/4 { // a call's own timeout is 30 s, the tool's 130
		t.Errorf("a call took %s to fail", d)
	}
	if now := h.server(t, "second"); now.PID != other.PID || now.Restarts != 0 {
		t.Errorf("the second server is another: %+v", now)
	}
	h.stop(t)
	l.wantProcesses(t, 0)
	l.wantClean(t)
}

// TestHubCycles: starting and stopping the tool by the management API leaves
// nothing behind, with a daemon in each of its lives.
func TestHubCycles(t *testing.T) {
	t.Parallel()
	const cycles = 20
	l := newLab(t)
	roomy(l)
	h := startHub(t, l)
	h.server(t, "browser_shell")
	s := h.connect(t)
	pid := h.cmd.Process.Pid
	var files int
	for i := range cycles {
		switch i % 2 {
		case 0:
			if _, err := h.ctl.Restart(t.Context(), "browser_shell"); err != nil {
				t.Fatal(err)
			}
		default:
			if _, err := h.ctl.Stop(t.Context(), "browser_shell"); err != nil {
				t.Fatal(err)
			}
			if left := childrenOf(t, pid); len(left) > 0 {
				t.Fatalf("cycle %d: children are left: %q", i, left)
			}
			if _, err := h.ctl.Start(t.Context(), "browser_shell"); err != nil {
				t.Fatal(err)
			}
		}
		h.server(t, "browser_shell")
		if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}}); err != nil || a.ExitCode != 0 {
			t.Fatalf("cycle %d: %+v %v", i, a, err)
		}
		if i == 1 { // what is opened once is open
			files = openFiles(t, pid)
		}
	}
	l.wantProcesses(t, 1) // the last daemon
	need.Eventually(t, func() bool { return len(childrenOf(t, pid)) == 1 }, func() string { return fmt.Sprintf("%q", childrenOf(t, pid)) })
	need.Eventually(t, func() bool { return openFiles(t, pid) <= files+2 }, // connections come and go
		func() string { return fmt.Sprintf("%d open files, %d after the first cycle", openFiles(t, pid), files) })
	h.stop(t)
	l.wantProcesses(t, 0)
	l.wantClean(t)
}

// TestHubReload: SIGHUP and `hub ctl reload` bring a new policy to the hub, its
// guard and its tool, and new servers; of broken files none is taken.
func TestHubReload(t *testing.T) {
	l := newLab(t)
	roomy(l)
	guard := l.write(t, "hub.policy.json", `{"version":1}`, 0o600)
	h := startHub(t, l, "--hub-policy", guard)
	s := h.connect(t)
	was := h.server(t, "browser_shell")
	hover := func() any {
		t.Helper()
		a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"hover", "#x"}})
		if err != nil {
			t.Fatal(err)
		}
		return a.rule()
	}
	rule := func(want any) { // the tool takes its SIGHUP when it can
		t.Helper()
		var got any
		need.Eventually(t, func() bool { got = hover(); return got == want }, func() string { return fmt.Sprintf("hover: rule %v, want %v", got, want) })
	}
	if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}}); err != nil || a.ExitCode != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	rule(nil)
	l.policy["commands"] = []string{"open", "close"}
	l.hubCommand(t) // writes it
	h.reload(t)
	rule("command.off")
	delete(l.policy, "commands")
	l.hubCommand(t)
	if _, err := h.ctl.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	rule(nil)
	l.wantProcesses(t, 1) // the same session, all the time
	if now := h.server(t, "browser_shell"); now.PID != was.PID {
		t.Errorf("the tool is another: %+v, was %+v", now, was)
	}

	for _, file := range []string{"policy.json", "mcp-hub.json", "hub.policy.json"} {
		good, err := os.ReadFile(filepath.Join(l.dir, file))
		if err != nil {
			t.Fatal(err)
		}
		l.write(t, "hub.policy.json", `{"version":1,"default":{"block":["*"]}}`, 0o600)
		l.write(t, file, `{"version":`, 0o600)
		h.hangUp(t, "the old one stays")
		if _, err := h.ctl.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
		rule(nil)
		l.write(t, "hub.policy.json", `{"version":1}`, 0o600)
		l.write(t, file, string(good), 0o600)
	}

	l.hubConfig(t, "browser_shell", "second")
	h.reload(t)
	h.server(t, "second")
	if now := h.server(t, "browser_shell"); now.PID != was.PID {
		t.Errorf("the tool is another: %+v, was %+v", now, was)
	}
	var names []string
	need.Eventually(t, func() bool {
		res, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		names = nil
		for _, tool := range res.Tools {
			names = append(names, tool.Name)
		}
		return strings.Join(names, " ") == "browser_shell__browser-shell second__browser-shell"
	}, func() string { return fmt.Sprint(names) })
	h.stop(t)
}

// TestHubReloadOwnProcess: the policy reaches a process that a session has for
// itself.
func TestHubReloadOwnProcess(t *testing.T) {
	l := newLab(t)
	roomy(l)
	l.perSession = true
	h := startHub(t, l)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: h.url}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}}); err != nil || a.ExitCode != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	if n := len(childrenOf(t, h.cmd.Process.Pid)); n < 2 {
		t.Fatalf("%d tools run: the session has none for itself", n)
	}
	l.policy["commands"] = []string{"open", "close"}
	l.hubCommand(t) // writes it
	h.reload(t)
	var a answer
	need.Eventually(t, func() bool {
		a, err = call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"hover", "#x"}})
		return err == nil && a.rule() == "command.off"
	}, func() string { return fmt.Sprintf("%+v %v", a, err) })
	h.stop(t)
}

// TestHubKilled: who kills the hub leaves no tool behind, and the next hub
// takes over with the same lock, socket and state directory.
func TestHubKilled(t *testing.T) {
	l := newLab(t)
	h := startHub(t, l)
	s := h.connect(t)
	if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}}); err != nil || a.ExitCode != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	tool := h.server(t, "browser_shell").PID
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
	need.Eventually(t, func() bool { return ended(tool) }, func() string { return "the tool still runs" })
	next := startHub(t, l)
	wantOneTool(t, next.connect(t))
	next.stop(t)
	l.wantProcesses(t, 0)
	l.wantClean(t)
}

// ended reports whether a process that is no child of ours has ended.
func ended(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err != nil || strings.Contains(string(status), "\nState:\tZ")
}

// TestHubEndsInTime: clients that wait for news, or that have not said anything
// yet, neither hold up the end nor make it a failure.
func TestHubEndsInTime(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	gate := l.write(t, "gate.json", gateAnonymous, 0o600)
	l.policy["egress"] = map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))}
	h := startHub(t, l, "--gate", gate, "--gate-listen", "127.0.0.1:0", "--egress")
	for _, address := range []string{strings.TrimSuffix(strings.TrimPrefix(h.url, "http://"), "/mcp"), h.on["gate"], h.on["egress proxy"]} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	wantOneTool(t, h.connect(t))                                           // go-sdk opens a stream
	req, err := http.NewRequestWithContext(t.Context(), "GET", h.url, nil) // and so does a client of the older transport
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
	defer res.Body.Close()
	begin := time.Now()
	h.stop(t)
	t.Logf("it took %s", time.Since(begin))
}

// TestHubMemory logs what hub and tool hold when nothing happens, the hub with
// gate and proxy, and bounds it generously; bench/mcp holds it to its bar.
func TestHubMemory(t *testing.T) {
	l := newLab(t)
	l.policy["egress"] = map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))}
	l.hubCommand(t) // writes the policy
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"browser_shell": map[string]any{
		"command": binary, "args": []string{"mcp", "--policy", filepath.Join(l.dir, "policy.json")},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, "mcp-hub.json", string(config), 0o600)
	socket := filepath.Join(l.dir, "hub.sock")
	cmd := l.hubCommand(t, "--gate", l.write(t, "gate.json", gateAnonymous, 0o600), "--gate-listen", "127.0.0.1:0", "--egress", "--socket", socket)
	cmd.Path, cmd.Args[0] = binary, binary
	h := startHubCommand(t, cmd, socket)
	hub := func() int { return resident(t, h.cmd.Process.Pid) }
	tool := func() int { return resident(t, h.server(t, "browser_shell").PID) }
	start := hub() + tool()
	t.Logf("after the start: hub %d KiB, tool %d KiB, together %.1f MiB", hub(), tool(), float64(start)/1024)
	for range 10 {
		s := h.connect(t)
		wantOneTool(t, s)
		s.Close()
	}
	t.Logf("after ten clients: hub %d KiB, tool %d KiB, together %.1f MiB", hub(), tool(), float64(hub()+tool())/1024)
	if start > 60<<10 {
		t.Errorf("together %d KiB", start)
	}
}

// resident is VmRSS in KiB (proc(5)).
func resident(t *testing.T, pid int) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\nVmRSS:")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
