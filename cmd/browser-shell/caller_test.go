package main_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/audit"
)

// fronted sends requests as nginx does: with an id and a caller of its own.
type fronted struct {
	http.RoundTripper
	id, caller string
}

func (f fronted) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", f.id)
	r.Header.Set("X-Browser-Shell-Caller", f.caller)
	return f.RoundTripper.RoundTrip(r)
}

// auditLine is what these tests read of a line.
type auditLine struct {
	Event    string
	Rule     string
	Request  string `json:"request_id"`
	Subject  string
	Tool     string
	Decision string
	Client   struct{ Name, Version string }
}

// calls reads the lines of calls.
func (l *lab) calls(t *testing.T) (all []auditLine) {
	t.Helper()
	for line := range strings.Lines(l.log(t, "audit.jsonl")) {
		var a auditLine
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		if a.Tool != "" {
			all = append(all, a)
		}
	}
	return all
}

// TestLineSaysWhoCalls: the one line about a call has the id and the caller that the gate knows and the client's own name,
// over each transport; a client's own word for any of them counts for nothing.
func TestLineSaysWhoCalls(t *testing.T) {
	t.Parallel()
	const id, caller = "0123456789abcdef0123456789abcdef", "key:1a2b3c4d" // not taken for a secret
	for _, tt := range []struct {
		name, revision string
		tcp            bool
		id, caller     string // "": one of the server's own
	}{
		{"newer era", "2026-07-28", false, id, caller},
		{"older era", "2025-11-25", false, id, caller},
		{"on a port", "2026-07-28", true, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			args, network, address := []string{}, "tcp", ""
			if !tt.tcp {
				network, address = "unix", filepath.Join(l.dir, "front.sock")
				args = []string{"--listen", "unix:" + address}
			}
			h := startServe(t, l, args...)
			url := h.url
			if !tt.tcp {
				url = "http://127.0.0.1/mcp"
			}
			dial := &http.Transport{DialContext: func(ctx context.Context, _, asked string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, cmp.Or(address, asked))
			}}
			t.Cleanup(dial.CloseIdleConnections)
			client := mcp.NewClient(&mcp.Implementation{Name: "real\n" + strings.Repeat("x", 1000), Version: "7"}, nil)
			s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: url, HTTPClient: &http.Client{Transport: fronted{dial, id, caller}},
			}, &mcp.ClientSessionOptions{ProtocolVersion: tt.revision})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			call := func(tool string) *mcp.CallToolResult {
				res, err := s.CallTool(t.Context(), &mcp.CallToolParams{
					Meta: mcp.Meta{"io.github.slimctl/caller": map[string]any{"request_id": "forged", "subject": "forged"}},
					Name: tool, Arguments: map[string]any{"session_id": "s", "argv": []string{"eval", "1"}},
				})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			call("browser-shell")
			// The tool that isn't there is refused by name, as on stdio.
			if res := call("run_shell"); !res.IsError || res.Meta["code"] != float64(-32004) || res.Meta["name"] != "POLICY_BLOCKED" || res.Meta["rule"] != "tool.executor" {
				t.Errorf("run_shell: %+v", res)
			}
			lines := l.calls(t)
			if len(lines) != 2 || lines[0].Rule != "command.not-allowed" || lines[1].Rule != "tool.executor" {
				t.Fatalf("%+v", lines)
			}
			for _, a := range lines {
				if a.Event != audit.PolicyBlocked || a.Decision != "deny" || a.Subject != tt.caller || !strings.HasPrefix(a.Client.Name, "real\ufffdxxx") || len(a.Client.Name) > 200 || a.Client.Version != "7" {
					t.Errorf("%+v", a)
				}
				if tt.id != "" && a.Request != tt.id || tt.id == "" && (len(a.Request) != 32 || a.Request == id) {
					t.Errorf("request id %q", a.Request)
				}
			}
			if tt.id == "" && lines[0].Request == lines[1].Request {
				t.Errorf("two requests have the id %q", lines[0].Request)
			}
		})
	}
}

// TestEgressNamesTheCall: a line of the egress proxy names the call that runs, several, or none.
func TestEgressNamesTheCall(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["egress"] = map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", need.FreePort(t)), "allow_ports": []int{80}}
	h := startServe(t, l, "--egress")
	s := h.connect(t)
	type line struct {
		Host     string
		Request  string   `json:"request_id"`
		Requests []string `json:"request_ids"`
	}
	asked := 1000
	// next has the browser ask for another port, and gives the last line about one.
	next := func() (a line) {
		asked++
		through(t, h.on["egress proxy"], fmt.Sprintf("http://site.test:%d/", asked))
		for text := range strings.Lines(l.log(t, "egress.jsonl")) {
			if strings.Contains(text, `"egress.port"`) {
				a = line{}
				_ = json.Unmarshal([]byte(text), &a) // it is JSON, as other tests show
			}
		}
		return a
	}
	if a := next(); a.Host != "site.test" || a.Request != "" || len(a.Requests) > 0 {
		t.Errorf("with no call: %+v", a)
	}
	hang := func(session string) (end func()) {
		t.Helper()
		if _, err := call(t.Context(), s, map[string]any{"session_id": session, "argv": []string{"open", "https://example.com"}}); err != nil {
			t.Fatal(err) // without a page nothing would hang
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = call(ctx, s, map[string]any{"session_id": session, "argv": []string{"click", "#hang"}, "timeout_sec": 120}) // it is cancelled
		}()
		return func() { cancel(); <-ended }
	}
	first := hang("one")
	var one, two line
	need.Eventually(t, func() bool { one = next(); return one.Request != "" }, func() string { return fmt.Sprint(one) })
	second := hang("two")
	need.Eventually(t, func() bool { two = next(); return len(two.Requests) == 2 }, func() string { return fmt.Sprint(two) })
	if !slices.Contains(two.Requests, one.Request) || two.Request != "" {
		t.Errorf("%+v, then %+v", one, two)
	}
	first()
	second()
	need.Eventually(t, func() bool { return len(l.calls(t)) == 4 }, func() string { return l.log(t, "audit.jsonl") })
	lines := l.calls(t)
	var named int
	for _, a := range lines {
		if slices.Contains(two.Requests, a.Request) {
			named++
		}
	}
	if named != 2 || slices.Contains(two.Requests, lines[0].Request) { // the first open
		t.Errorf("%d of the calls %+v are named by %q", named, lines, two.Requests)
	}
}

// TestRefusalsNameTheirTarget: each refused address has a line with its host, whatever was refused before, in this session
// or in another one.
func TestRefusalsNameTheirTarget(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.opened(t)
	do := func(session string, argv ...string) {
		t.Helper()
		if a := s.raw(t, map[string]any{"session_id": session, "argv": argv}); a.ExitCode == 0 {
			t.Fatalf("%q: %+v", argv, a)
		}
	}
	do("noise", "open", "http://10.1.1.1/")
	for i := range 40 {
		do("noise", "eval", fmt.Sprint("x", i))
	}
	real := map[string]string{
		"http://169.254.169.254/latest/meta-data/": "169.254.169.254", "http://192.168.1.77/admin": "192.168.1.77",
		"http://127.0.0.1:9222/json": "127.0.0.1", "http://u:pass@evil.example/": "evil.example", "ftp://files.example/": "files.example",
	}
	for address := range real {
		do("real", "open", address)
	}
	do("real", "screenshot", "/etc/passwd")
	do("real", "state", "save", "/tmp/x")
	l.browser.Navigate(l.tab(t).ID, "http://10.7.7.7/x") // the page of session s
	s.settle(t)
	do("s", "snapshot")
	session := func(id string) string { return fmt.Sprintf("%.8x", sha256.Sum256([]byte(id))) }
	got := map[string][]string{}
	for line := range strings.Lines(l.log(t, "audit.jsonl")) {
		var a struct {
			Decision, Session, Subcommand string
			Argv                          []string
			Host                          string `json:"url_host"`
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		if a.Decision == "deny" {
			got[a.Session] = append(got[a.Session], strings.Join(append(a.Argv, a.Host), " "))
		}
		if strings.Contains(line, "pass@") {
			t.Errorf("%s", line)
		}
	}
	for _, host := range real {
		if !slices.Contains(got[session("real")], "open [address] "+host) {
			t.Errorf("no line names %s: %q", host, got[session("real")])
		}
	}
	for _, want := range []string{"screenshot /etc/passwd ", "state save /tmp/x "} {
		if !slices.Contains(got[session("real")], want) {
			t.Errorf("no line has %s: %q", want, got[session("real")])
		}
	}
	if !slices.Contains(got[session("s")], "snapshot 10.7.7.7") {
		t.Errorf("no line names the host of the page that was left: %q", got[session("s")])
	}
}
