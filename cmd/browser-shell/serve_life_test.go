package main_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
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
func (h *running) reload(t *testing.T) {
	t.Helper()
	h.hangUp(t, "policy reloaded")
}

func (h *running) hangUp(t *testing.T, want string) {
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

// TestServeReload: SIGHUP brings a new policy, and clients are told; a broken one is not taken.
func TestServeReload(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	roomy(l)
	h := startServe(t, l)
	changed := make(chan struct{}, 10)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: h.url}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rule := func(want any) {
		t.Helper()
		a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"hover", "#x"}})
		if err != nil || a.rule() != want {
			t.Errorf("hover: %+v %v, want rule %v", a, err, want)
		}
	}
	if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}}); err != nil || a.ExitCode != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	rule(nil)
	l.policy["commands"] = []string{"open", "close"}
	l.serveCommand(t) // writes it
	h.reload(t)
	select {
	case <-changed:
	case <-time.After(need.Patience):
		t.Error("the client isn't told")
	}
	rule("command.off")
	l.write(t, "policy.json", `{"version":`, 0o600)
	h.hangUp(t, "the old one stays")
	rule("command.off")
	delete(l.policy, "commands")
	l.serveCommand(t)
	h.reload(t)
	rule(nil)
	l.wantProcesses(t, 1) // the same session, all the time
	h.stop(t)
}

// TestServeKilled: after a kill, the next server takes over with the same log and state directory.
func TestServeKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := startServe(t, l)
	s := h.connect(t)
	if a, err := call(t.Context(), s, map[string]any{"session_id": "s", "argv": []string{"open", "https://example.com"}}); err != nil || a.ExitCode != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
	next := startServe(t, l)
	wantOneTool(t, next.connect(t))
	next.stop(t)
	l.wantProcesses(t, 0)
	l.wantClean(t)
}

// TestServeEndsInTime: clients that wait for news, or that have not said anything
// yet, neither hold up the end nor make it a failure.
func TestServeEndsInTime(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	gate := l.write(t, "gate.json", gateAnonymous, 0o600)
	l.policy["egress"] = map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))}
	h := startServe(t, l, "--gate", gate, "--gate-listen", "127.0.0.1:0", "--egress")
	for _, address := range []string{strings.TrimSuffix(strings.TrimPrefix(h.url, "http://"), "/mcp"), h.on["gate"], h.on["egress proxy"]} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	for _, revision := range []string{"2025-11-25", "2026-07-28"} { // go-sdk opens a stream for the older one
		s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: h.url}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		wantOneTool(t, s)
	}
	begin := time.Now()
	h.stop(t)
	t.Logf("it took %s", time.Since(begin))
}

// TestServeMemory logs what the process holds with gate and proxy when nothing happens, and bounds it generously; bench/mcp
// holds it to its bar.
func TestServeMemory(t *testing.T) {
	l := newLab(t)
	l.policy["egress"] = map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))}
	cmd := l.serveCommand(t, "--gate", l.write(t, "gate.json", gateAnonymous, 0o600), "--gate-listen", "127.0.0.1:0", "--egress")
	cmd.Path, cmd.Args[0] = binary, binary
	h := startServeCommand(t, cmd)
	start := resident(t, h.cmd.Process.Pid)
	t.Logf("after the start: %.1f MiB", float64(start)/1024)
	for range 10 {
		s := h.connect(t)
		wantOneTool(t, s)
		s.Close()
	}
	t.Logf("after ten clients: %.1f MiB", float64(resident(t, h.cmd.Process.Pid))/1024)
	if start > 40<<10 {
		t.Errorf("%d KiB", start)
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
