package main_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	main "github.com/slimctl/slimctl/cmd/browser-shell"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// startEgress starts the proxy on a port of its choice and gives its address
// and what it says.
func startEgress(t *testing.T, l *lab) (string, *exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := l.command(t, "egress", "--listen", "127.0.0.1:0")
	cmd.Stderr = nil
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	if !lines.Scan() {
		t.Fatal("it said nothing")
	}
	addr, ok := strings.CutPrefix(lines.Text(), "browser-shell: egress proxy on ")
	if !ok {
		t.Fatalf("it said %q", lines.Text())
	}
	return addr, cmd, lines
}

func through(t *testing.T, proxy, target string) (int, string) {
	t.Helper()
	c := &http.Client{Timeout: need.Patience, Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy}), DisableKeepAlives: true,
	}}
	res, err := c.Get(target)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if r := egress.Why(t.Context(), proxy, res.Header.Get(policy.RefusalHeader)); r != nil {
		b = append(b, r.Header()...)
	}
	return res.StatusCode, string(b)
}

func TestEgress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	addr, cmd, lines := startEgress(t, l)
	if code, body := through(t, addr, "http://127.0.0.1:9/"); code != 403 || !strings.Contains(body, "url.loopback") {
		t.Errorf("got %d %q", code, body)
	}

	// SIGHUP: a new policy counts, a broken one leaves the old.
	next := func(want string) {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("it said %q, not %q", lines.Text(), want)
		}
	}
	l.policy["open"] = map[string]any{"allow_hosts": []string{"site.example"}}
	l.command(t, "egress")
	next("policy reloaded")
	l.write(t, "policy.json", `{"open":{"allow_hosts":`, 0o600)
	next("the old one stays")
	if code, body := through(t, addr, "http://other.example/"); code != 403 || !strings.Contains(body, "url.host-not-allowed") {
		t.Errorf("got %d %q", code, body)
	}

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	b, err := os.ReadFile(filepath.Join(l.state, "egress.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(b)) {
		var rec struct{ Event, Host, Decision, Rule string }
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(strings.Join([]string{rec.Event, rec.Decision, rec.Rule, rec.Host}, " ")))
	}
	want := "START, MCP_NETWORK_BLOCKED deny url.loopback 127.0.0.1, RELOAD, MCP_NETWORK_BLOCKED deny url.host-not-allowed other.example, STOP"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("recorded %s", text)
	}
}

func TestEgressStartRefused(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", "localhost:0", "x"} {
		var exit *exec.ExitError
		if out, err := newLab(t).command(t, "egress", "--listen", listen).Output(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: %v %s", listen, err, out)
		}
	}
	l := newLab(t)
	if err := os.Mkdir(l.state, 0o755); err != nil { // anyone may look in
		t.Fatal(err)
	}
	if err := l.command(t, "egress", "--listen", "127.0.0.1:0").Run(); err == nil {
		t.Error("an open state directory is taken")
	}
}

func TestChromiumPolicy(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["egress"] = map[string]any{"proxy": "127.0.0.1:4711"}
	l.policy["open"] = map[string]any{"allow_schemes": []string{"https"}, "allow_hosts": []string{"a.example", "*.b.example"}}
	run := func(args ...string) string {
		t.Helper()
		out, err := l.command(t, append([]string{"chromium-policy"}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	text := run()
	if text != run("--format", "managed") {
		t.Error("two runs differ")
	}
	var m struct {
		ProxySettings              map[string]string
		URLBlocklist, URLAllowlist []string
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	if m.ProxySettings["ProxyServer"] != "http://127.0.0.1:4711" || m.ProxySettings["ProxyBypassList"] != "<-loopback>" ||
		m.URLBlocklist[0] != "*" || strings.Join(m.URLAllowlist, " ") != "about:* blob:* data:* chrome://top-chrome https://.a.example https://b.example" {
		t.Errorf("got %+v", m)
	}
	flags := strings.Split(strings.TrimSuffix(run("--format", "flags"), "\n"), "\n")
	if flags[0] != "--proxy-server=http://127.0.0.1:4711" || flags[1] != "--proxy-bypass-list=<-loopback>" {
		t.Errorf("got %q", flags)
	}
	for _, f := range flags {
		if !strings.HasPrefix(f, "--") {
			t.Errorf("%q is no flag", f)
		}
	}
	if err := l.command(t, "chromium-policy", "--format", "x").Run(); err == nil {
		t.Error("an unknown format is taken")
	}
}

// TestPrivateHostIsAudited: each use of a private address that the policy admits says so in its lines.
func TestPrivateHostIsAudited(t *testing.T) {
	t.Parallel()
	d := egress.Decision{Method: "CONNECT", Host: "wiki.corp.example", Port: 443, Allowed: true, Private: true, Address: netip.MustParseAddr("10.1.2.3")}
	if rec := main.NetworkRecord(d); rec.Rule != "egress.private_hosts" || rec.Event != audit.NetworkAllowed || rec.Address != "10.1.2.3" {
		t.Errorf("recorded %+v", rec)
	}
	d.Private = false
	if rec := main.NetworkRecord(d); rec.Rule != "" {
		t.Errorf("a public host: recorded %+v", rec)
	}
}
