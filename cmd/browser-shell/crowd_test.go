package main_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/internal/need"
)

// startNginx puts the image's nginx before a server and its gate, and gives its address.
func startNginx(t *testing.T, h *running) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // nginx's workers are nobody
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/tmp", 0o755); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))
	move := strings.NewReplacer("/opt/gem/", dir+"/", "/run/nginx/", dir+"/tmp/", "/dev/stdout", dir+"/access.log",
		"unix:/run/browser-shell-front/mcp.sock", strings.TrimSuffix(strings.TrimPrefix(h.url, "http://"), "/mcp"),
		"unix:/run/browser-shell-front/gate.sock", h.on["gate"],
		"user nobody browser-shell;", "user nobody daemon;", "listen 127.0.0.1:8080 ", "listen "+address+" ")
	files, err := filepath.Glob("../../assets/nginx/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(move.Replace(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(need.Program(t, "nginx"), "-c", dir+"/nginx-loopback-ipv4.conf", "-g", "daemon off;")
	var said said
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	need.Eventually(t, func() bool {
		res, err := http.Get("http://" + address + "/")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == 403
	}, said.String)
	return "http://" + address + "/mcp"
}

// memoryOf is a process's VmRSS or VmHWM in KiB (proc_pid_status(5)).
func memoryOf(t *testing.T, pid int, what string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), what+":")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestThousandSessions: behind the image's nginx a thousand clients have a session and a stream each, as SDKs open them, and
// all are answered, at the same time; so is one that comes besides. Nobody's session ends for another's.
func TestThousandSessions(t *testing.T) {
	const (
		clients = 1000
		most    = 320 << 10 // KiB of the process's memory: 0.14 MiB a session were measured

		initialize  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
		initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
		list        = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
		denied      = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"browser-shell","arguments":{"argv":["eval","1"]}}}`
	)
	_, h := startGate(t, gateAnonymous)
	url := startNginx(t, h)
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * clients}}
	defer web.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 10*need.Patience)
	defer cancel()
	send := func(method, session, body string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
			req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		}
		return web.Do(req)
	}
	// post expects an answer of a status, with words in it, and gives its session. Words are one of several: a call may be told that there are too many.
	post := func(session, body string, status int, words ...string) (string, error) {
		res, err := send("POST", session, body)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if res.StatusCode == http.StatusServiceUnavailable && slices.Contains(words, "too many requests") {
			status = res.StatusCode // a busy machine
		}
		if err == nil && (res.StatusCode != status || !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(string(text), w) })) {
			err = fmt.Errorf("%.80s: %d %.300s", body, res.StatusCode, text)
		}
		return res.Header.Get("Mcp-Session-Id"), err
	}
	before := memoryOf(t, h.cmd.Process.Pid, "VmRSS")

	var open, all errgroup.Group
	open.SetLimit(200)
	var sessions [clients]string
	for i := range clients {
		open.Go(func() error {
			var err error
			if sessions[i], err = post("", initialize, 200, `"protocolVersion"`); err != nil {
				return err
			}
			if _, err := post(sessions[i], initialized, 202, ""); err != nil {
				return err
			}
			stream, err := send("GET", sessions[i], "")
			if err == nil && stream.StatusCode != 200 {
				err = fmt.Errorf("a stream: %s", stream.Status)
			}
			if err == nil {
				t.Cleanup(func() { stream.Body.Close() })
			}
			return err
		})
	}
	if err := open.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, id := range sessions {
		all.Go(func() error {
			if _, err := post(id, list, 200, `"browser-shell"`, "too many requests"); err != nil {
				return err
			}
			_, err := post(id, denied, 200, `"id":2,"result"`, "too many requests", "requests are in flight")
			return err
		})
	}
	if _, err := post("", list, 200, `"browser-shell"`, "too many requests"); err != nil {
		t.Errorf("one besides: %v", err)
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := post("", list, 200, `"browser-shell"`); err != nil {
		t.Errorf("one after them: %v", err)
	}
	if n := memoryOf(t, h.cmd.Process.Pid, "VmHWM"); n > most {
		t.Errorf("it had %d KiB", n)
	} else {
		t.Logf("it had %d KiB at most, %d before", n, before)
	}
}
