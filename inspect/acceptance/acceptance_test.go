package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
)

const testKey = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// boxAt is a box whose port is served by h, in the place of an image.
func boxAt(t *testing.T, h http.Handler) *box {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return &box{address: strings.TrimPrefix(s.URL, "http://"), key: testKey, trial: &trial{
		key: testKey, report: &verify.Report{}, Options: Options{Patience: time.Minute, Expect: &expect.Expect{
			Profile: "l0", Platform: "linux/amd64", Programs: []string{"browser", "nginx"}, Tools: []string{"browser-shell"},
			Routes:    []string{"/mcp", "/tickets", "/vnc", "/vnc/", "/vnc/websockify", "/websockify"},
			Listeners: []string{"*:8080", "[::]:8080", "127.0.0.1:5900", "[::1]:5900", "unix:/run/x.sock"},
		}},
	}}
}

// found are the rules that have findings.
func (t *trial) found() []string {
	var out []string
	for _, f := range t.findings {
		out = append(out, f.Rule)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// closed refuses as the closed image does.
func closed(w http.ResponseWriter, r *http.Request) {
	good := r.Header.Get(keyHeader) == testKey && r.Header.Get("Origin") == ""
	surface := slices.Contains([]string{"/mcp", "/tickets", "/vnc/index.html", "/vnc/", "/vnc/websockify", "/websockify"}, r.URL.Path) && !r.URL.IsAbs()
	switch {
	case surface && good:
		w.WriteHeader(http.StatusOK)
	case surface:
		w.WriteHeader(http.StatusUnauthorized)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
}

// TestEveryHole: each hole of a base, opened in what is otherwise closed, is found.
func TestEveryHole(t *testing.T) {
	opens := func(when func(*http.Request) bool) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if when(r) {
				_, _ = io.WriteString(w, "open")
				return
			}
			closed(w, r)
		})
	}
	for name, c := range map[string]struct {
		when func(*http.Request) bool
		want []string
	}{
		"closed":                   {func(*http.Request) bool { return false }, nil},
		"a: a longer location":     {func(r *http.Request) bool { return r.URL.Path == "/v1/docs" }, []string{"run-routes"}},
		"b: a port in the Host":    {func(r *http.Request) bool { return strings.HasPrefix(r.Host, "9222-") }, []string{"run-routes"}},
		"d: tickets past the key":  {func(r *http.Request) bool { return r.Host == "8088-x" && r.URL.Path == "/tickets" }, []string{"run-auth"}},
		"f: a port in a header":    {func(r *http.Request) bool { return r.Header.Get("x-aio-proxy-port") != "" }, []string{"run-routes"}},
		"h: a prefix":              {func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/mcpfoo") }, []string{"run-routes"}},
		"i: a query like a file":   {func(r *http.Request) bool { return r.URL.Path == "/mcp" && strings.Contains(r.URL.RawQuery, ".js") }, []string{"run-auth"}},
		"k: a WebSocket":           {func(r *http.Request) bool { return r.URL.Path == "/ws" && r.Header.Get("Upgrade") != "" }, []string{"run-routes"}},
		"l: the old MCP transport": {func(r *http.Request) bool { return r.URL.Path == "/sse" }, []string{"run-routes"}},
		"m: the mapping of ports":  {func(r *http.Request) bool { return r.URL.Path == "/v1/proxy/map" && r.Method == "POST" }, []string{"run-routes"}},
		"the key by its end":       {func(r *http.Request) bool { return r.URL.Path == "/mcp" && r.Header.Get(keyHeader) == testKey[1:] }, []string{"run-auth"}},
		"another site's page": {func(r *http.Request) bool {
			return r.URL.Path == "/mcp" && r.Header.Get("Origin") != "" && r.Header.Get(keyHeader) == testKey
		}, []string{"run-auth"}},
		"a route for who has the key":     {func(r *http.Request) bool { return r.URL.Path == "/metrics" && r.Header.Get(keyHeader) == testKey }, []string{"run-routes"}},
		"everything, and it is not quiet": {func(*http.Request) bool { return true }, []string{"run-auth", "run-routes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := boxAt(t, opens(c.when))
			b.strangers(t.Context())
			b.routes(t.Context(), "")
			if name == "closed" || strings.Contains(name, "who has the key") {
				b.routes(t.Context(), testKey)
			}
			if diff := cmp.Diff(c.want, b.found()); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, b.findings)
			}
			for _, f := range b.findings {
				if strings.Contains(f.Message, testKey) {
					t.Errorf("the key is in a finding: %s", f.Message)
				}
				if f.Severity == "" || f.Fix == "" || f.Platform == "" {
					t.Errorf("incomplete: %+v", f)
				}
			}
			if len(b.findings) > 2*(maxFindings+1) {
				t.Errorf("%d findings", len(b.findings))
			}
		})
	}
	t.Run("c: a port in an absolute form", func(t *testing.T) {
		b := boxAt(t, opens(func(r *http.Request) bool { return strings.Contains(r.RequestURI, "//9222-evil") }))
		b.routes(t.Context(), "")
		if diff := cmp.Diff([]string{"run-routes"}, b.found()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestRefusalsSayNothing(t *testing.T) {
	b := boxAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "nginx/1.22.1")
		closed(w, r)
		if r.URL.Path == "/json" {
			_, _ = io.WriteString(w, "\x1b[31mnginx\x1b[0m")
		}
	}))
	b.routes(t.Context(), "")
	if diff := cmp.Diff([]string{"run-answers"}, b.found()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, f := range b.findings {
		if strings.Contains(f.Message, "\x1b") {
			t.Errorf("a control character of the image is in %q", f.Message)
		}
	}
}

// TestHostileServers: none of them takes memory or time without end, and none passes.
func TestHostileServers(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"silent":         func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"gone":           func(net.Conn) {},
		"endless header": func(c net.Conn) { endless(c, "HTTP/1.1 403 Forbidden\r\n", "X: y\r\n") },
		"endless body":   func(c net.Conn) { endless(c, "HTTP/1.1 403 Forbidden\r\n\r\n", strings.Repeat("x", 4096)) },
		"garbage":        func(c net.Conn) { _, _ = io.WriteString(c, "\x00\xff\x1b]0;x\a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						serve(c)
					}()
				}
			}()
			b := boxAt(t, http.NotFoundHandler())
			b.address, b.Patience = l.Addr().String(), time.Second
			b.routes(t.Context(), "")
			if len(b.findings) == 0 {
				t.Error("nothing is found")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			before := len(b.findings)
			b.tools(ctx, "")
			if len(b.findings) == before {
				t.Error("no MCP client can connect, and nothing is found")
			}
		})
	}
}

func endless(c net.Conn, head, more string) {
	_, err := io.WriteString(c, head)
	for err == nil {
		_, err = io.WriteString(c, more)
	}
}

// toolServer has tools of these names, whose exit code depends on the words.
func toolServer(exit func(argv []string) int, names ...string) http.Handler {
	s := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	for _, name := range names {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var in struct {
				Argv []string
				Cmd  string
			}
			if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
				return nil, err
			}
			if (name == "sandbox_execute_bash") != (in.Cmd != "") {
				return nil, errors.New("the arguments are another tool's")
			}
			if in.Cmd != "" {
				in.Argv = strings.Split(strings.Trim(in.Cmd, "'"), "' '")
			}
			return &mcp.CallToolResult{StructuredContent: map[string]any{"exit_code": exit(in.Argv), "stderr": "said"}}, nil
		})
	}
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
}

func good(argv []string) int {
	if len(argv) == 0 || argv[0] == "close" || argv[0] == "snapshot" && len(argv) == 2 {
		return 0
	}
	return 126
}

func TestTool(t *testing.T) {
	for name, c := range map[string]struct {
		exit  func([]string) int
		names []string
		want  []string
	}{
		"as it should":     {good, []string{"browser-shell"}, nil},
		"one more tool":    {good, []string{"browser-shell", "sandbox_execute_bash"}, []string{"run-tools"}},
		"another tool":     {good, []string{"browser"}, []string{"run-tool", "run-tools"}},
		"it runs scripts":  {func(a []string) int { return map[bool]int{true: 0, false: good(a)}[slices.Contains(a, "eval")] }, []string{"browser-shell"}, []string{"run-tool"}},
		"no agent-browser": {func([]string) int { return 127 }, []string{"browser-shell"}, []string{"run-tool"}},
		"it opens private ones": {func(a []string) int {
			return map[bool]int{true: 0, false: good(a)}[slices.Contains(a, "http://10.0.0.1/")]
		}, []string{"browser-shell"}, []string{"run-tool"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := boxAt(t, toolServer(c.exit, c.names...))
			b.tool(t.Context())
			if diff := cmp.Diff(c.want, b.found()); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, b.findings)
			}
		})
	}
}

// TestCompatibilityTool: a profile may name the one tool as the base's clients
// know it; its arguments are one line of words.
func TestCompatibilityTool(t *testing.T) {
	b := boxAt(t, toolServer(good, "sandbox_execute_bash"))
	b.Expect.Tools = []string{"sandbox_execute_bash"}
	b.tool(t.Context())
	if found := b.found(); found != nil {
		t.Errorf("%v\n%v", found, b.findings)
	}
}

func TestProcesses(t *testing.T) {
	programs := map[string]supervised{"browser": {"RUNNING", 10}, "nginx": {"RUNNING", 20}}
	usual := []sandbox.Process{
		{PID: 1001, Inside: 1, Parent: 900, Name: "supervisord"},
		{PID: 1010, Inside: 10, Parent: 1001, UID: 1000, Name: "chromium"},
		{PID: 1011, Inside: 11, Parent: 1010, UID: 1000, Name: "chromium"},
		{PID: 1012, Inside: 12, Parent: 1001, UID: 1000, Name: "chrome_crashpad", Args: []string{"/usr/lib/chromium/chrome_crashpad_handler"}},
		{PID: 1020, Inside: 20, Parent: 1001, Name: "nginx"},
		{PID: 1021, Inside: 21, Parent: 1020, UID: 65534, Name: "nginx"},
		{PID: 1022, Inside: 22, Parent: 1001, State: "Z", Name: "anything"},
	}
	for name, c := range map[string]struct {
		more sandbox.Process
		want []string
	}{
		"nothing more":               {sandbox.Process{PID: 1030, Inside: 30, Parent: 1011, UID: 1000, Name: "child"}, nil},
		"a hook's":                   {sandbox.Process{PID: 1030, Inside: 30, Parent: 1001, UID: 1000, Name: "nc"}, []string{"run-processes nc"}},
		"a hook's, as root":          {sandbox.Process{PID: 1030, Inside: 30, Parent: 1001, Name: "nc"}, []string{"run-processes nc", "run-root nc"}},
		"started from outside":       {sandbox.Process{PID: 1030, Inside: 30, Parent: 0, UID: 1000, Name: "sh"}, []string{"run-processes sh"}},
		"a program's child, as root": {sandbox.Process{PID: 1030, Inside: 30, Parent: 1010, Name: "suid"}, []string{"run-root suid"}},
		"named as the crash reporter, as root": {
			sandbox.Process{PID: 1030, Inside: 30, Parent: 1001, Name: "x", Args: []string{"chrome_crashpad_handler"}}, []string{"run-processes x", "run-root x"},
		},
		"its own parent": {sandbox.Process{PID: 1030, Inside: 30, Parent: 1030, UID: 1000, Name: "loop"}, []string{"run-processes loop"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := boxAt(t, http.NotFoundHandler())
			var s state
			b.lookAtProcesses(&s, programs, append(slices.Clone(usual), c.more))
			if diff := cmp.Diff(c.want, s.subjects()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func (s state) subjects() []string {
	var out []string
	for _, w := range s.wrong {
		out = append(out, w.rule+" "+w.subject)
	}
	slices.Sort(out)
	return out
}

func TestSockets(t *testing.T) {
	b := boxAt(t, http.NotFoundHandler())
	var sockets []sandbox.Socket
	for _, a := range []string{
		"tcp 0.0.0.0:8080", "tcp6 [::]:8080", "tcp 127.0.0.1:5900", "tcp6 [::1]:5900", // named
		"tcp 0.0.0.0:5900", "tcp6 [::]:9222", "tcp 127.0.0.1:8080", "udp 0.0.0.0:8080", "tcp6 [::ffff:127.0.0.1]:5900",
	} {
		network, at, _ := strings.Cut(a, " ")
		sockets = append(sockets, sandbox.Socket{Network: network, Address: netip.MustParseAddrPort(at), PID: 7})
	}
	var s state
	b.lookAtSockets(&s, sockets, []sandbox.Process{{PID: 7, Args: []string{"/usr/bin/x", "\x1b[2J"}}})
	want := []string{"run-listeners *:5900", "run-listeners 127.0.0.1:8080", "run-listeners [::]:9222", "run-listeners udp *:8080"}
	if diff := cmp.Diff(want, s.subjects()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, w := range s.wrong {
		if !strings.Contains(w.message, "/usr/bin/x") || strings.Contains(w.message, "\x1b") {
			t.Errorf("%q", w.message)
		}
	}
}

// TestRulesAreNamed: every rule is one that verify documents as dynamic, and each of those is tried by a check.
func TestRulesAreNamed(t *testing.T) {
	if len(rules) < 15 {
		t.Fatalf("%d dynamic rules", len(rules))
	}
	tr := boxAt(t, http.NotFoundHandler()).trial
	for _, r := range rules {
		tr.addFinding(r.ID, "x", "%s", fmt.Sprint(r.ID))
	}
	if len(tr.findings) != len(rules) {
		t.Errorf("%d findings of %d rules", len(tr.findings), len(rules))
	}
}
