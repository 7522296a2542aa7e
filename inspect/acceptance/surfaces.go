package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const keyHeader = "X-AIO-API-Key"

// connect opens an MCP client with the key, over streamable HTTP.
func (b *box) connect(ctx context.Context) (*mcp.ClientSession, error) {
	h := http.Header{}
	h.Set(keyHeader, b.key)
	c := mcp.NewClient(&mcp.Implementation{Name: "slimctl verify", Version: "1"}, nil)
	return c.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: "http://" + b.address + "/mcp", HTTPClient: b.client(h), MaxRetries: -1, DisableStandaloneSSE: true, MaxEventSize: 8 * maxBody, // with a picture

	}, nil)
}

// maxTools limits the listed tools.
const maxTools = 1000

// listed returns the names of the tools that /mcp lists.
func listed(ctx context.Context, session *mcp.ClientSession) ([]string, error) {
	var names []string
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if names = append(names, t.Name); len(names) > maxTools {
			return nil, fmt.Errorf("/mcp lists more than %d tools", maxTools)
		}
	}
	slices.Sort(names)
	return names, nil
}

// tools checks the list of tools.
func (b *box) tools(ctx context.Context, when string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	session, err := b.connect(ctx)
	if err != nil {
		b.addFinding("run-tools", "/mcp", "%san MCP client can't connect to /mcp: %s", when, quote(err.Error()))
		return
	}
	defer session.Close()
	b.listed(ctx, session, when)
}

func (b *box) listed(ctx context.Context, session *mcp.ClientSession, when string) {
	names, err := listed(ctx, session)
	if err != nil {
		b.addFinding("run-tools", "/mcp", "%stools/list: %s", when, quote(err.Error()))
		return
	}
	want := slices.Sorted(slices.Values(b.Expect.Tools))
	if !slices.Equal(names, want) {
		b.addFinding("run-tools", "/mcp", "%s/mcp lists the tools %.500q, want %q", when, names, want)
	}
}

// calls maps argument vectors of browser-shell to the accepted exit codes (docs/mcp.md).
var calls = []struct {
	argv []string
	want []int
	why  string
}{
	// 1 is "the session has no page": agent-browser and Chromium answer. With 69, 70 and 127 they don't.
	{[]string{"snapshot", "-i"}, []int{0, 1}, "it is harmless"},
	{[]string{"close"}, []int{0}, "it is harmless"},
	{[]string{"eval", "1"}, []int{64, 126}, "it would run a script"},
	{[]string{"cookies"}, []int{64, 126}, "it would read cookies"},
	{[]string{"upload", "#x", "/etc/passwd"}, []int{64, 126}, "it would read files"},
	{[]string{"pdf", "/tmp/x.pdf"}, []int{64, 126}, "it would write files"},
	{[]string{"open", "file:///etc/passwd"}, []int{64, 126}, "it would read files"},
	{[]string{"open", "javascript:1"}, []int{64, 126}, "it would run a script"},
	{[]string{"open", "http://127.0.0.1:9222/json"}, []int{126}, "it would reach the debugging port"},
	{[]string{"open", "http://[::1]:8080/mcp"}, []int{126}, "it would reach the image itself"},
	{[]string{"open", "http://169.254.169.254/latest/meta-data/"}, []int{126}, "it would reach the cloud's metadata"},
	{[]string{"open", "http://10.0.0.1/"}, []int{126}, "it would reach a private network"},
	{[]string{"snapshot", "--cdp", "9222"}, []int{64, 126}, "it would choose the browser"},
	{[]string{"open; id"}, []int{64, 126}, "it would reach a shell"},
}

// tool connects like an agent, and makes calls.
func (b *box) tool(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*b.Patience)
	defer cancel()
	session, err := b.connect(ctx)
	if err != nil {
		b.addFinding("run-tools", "/mcp", "an MCP client can't connect to /mcp: %s", quote(err.Error()))
		return
	}
	defer session.Close()
	b.listed(ctx, session, "")
	for _, name := range b.Expect.Tools {
		if b.site != nil {
			b.browse(ctx, session, name)
		}
	}
	for _, c := range calls {
		for _, name := range b.Expect.Tools {
			a, err := call(ctx, session, name, c.argv)
			if err != nil {
				b.addFinding("run-tool", name, "%s %q: %s", name, c.argv, quote(err.Error()))
			} else if !slices.Contains(c.want, a.code) {
				b.addFinding("run-tool", name, "%s %q has exit code %d, want one of %v: %s (%s)", name, c.argv, a.code, c.want, c.why, quote(a.stderr))
			}
		}
	}
	for _, name := range []string{"sandbox_execute_bash", "run_shell", "bash", "execute_python", "evaluate"} {
		if slices.Contains(b.Expect.Tools, name) {
			continue
		}
		if r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{"cmd": "id"}}); err == nil && !r.IsError {
			b.addFinding("run-tools", name, "the tool %s, which isn't listed, can be called", name)
		}
	}
}

// arguments returns a tool's arguments for argv: sandbox_execute_bash takes one line of words (docs/mcp.md).
func arguments(tool string, argv []string) map[string]any {
	const session = "slimctl-verify"
	if tool != "sandbox_execute_bash" {
		return map[string]any{"session_id": session, "argv": argv}
	}
	quoted := make([]string, len(argv))
	for i, word := range argv {
		quoted[i] = "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
	}
	return map[string]any{"session_id": session, "cmd": strings.Join(quoted, " ")}
}

// toolAnswer is the tool's answer to a call.
type toolAnswer struct {
	done           bool // with exit code 0
	code           int
	stdout, stderr string
	image          []byte
}

// call calls the tool.
func call(ctx context.Context, session *mcp.ClientSession, tool string, argv []string) (a toolAnswer, err error) {
	r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments(tool, argv)})
	if err != nil {
		return a, err
	}
	raw, err := json.Marshal(r.StructuredContent)
	if err != nil {
		return a, err
	}
	var got struct {
		ExitCode       *int `json:"exit_code"`
		Stdout, Stderr string
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		return a, err
	}
	if got.ExitCode == nil {
		return a, fmt.Errorf("the result has no exit_code: %s", quote(string(raw)))
	}
	for _, c := range r.Content {
		if i, ok := c.(*mcp.ImageContent); ok {
			a.image = i.Data
		}
	}
	a.done, a.code, a.stdout, a.stderr = *got.ExitCode == 0, *got.ExitCode, got.Stdout, got.Stderr
	return a, nil
}

// desktop tests tickets and the desktop, like a person.
func (b *box) desktop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	get := func(target string, headers ...string) answer {
		a, err := b.sendRaw(ctx, "GET", request("GET", target, "sandbox", headers...))
		if err != nil {
			b.addFinding("run-vnc", target, "GET %s: %s", target, quote(err.Error()))
		}
		return a
	}
	key := keyHeader + ": " + b.key
	if a := get("/vnc/index.html", key); a.status != http.StatusOK {
		b.addFinding("run-vnc", "/vnc/index.html", "with the key /vnc/index.html is answered with %d", a.status)
	}
	ticket, err := b.ticket(ctx)
	if err != nil {
		b.addFinding("run-tickets", "/tickets", "with the key /tickets gives no ticket: %s", quote(err.Error()))
		return
	}
	if a := get("/vnc/index.html?ticket=" + ticket); a.status != http.StatusOK {
		b.addFinding("run-tickets", "/vnc/index.html", "with a ticket /vnc/index.html is answered with %d", a.status)
	}
	for _, at := range []string{"/websockify", "/vnc/websockify"} {
		if err := b.screen(ctx, at, ticket); err != nil {
			b.addFinding("run-vnc", at, "the desktop can't be watched at %s with a ticket: %s", at, quote(err.Error()))
		}
	}
	for _, target := range []string{"/mcp?ticket=", "/mcp/../vnc/index.html?ticket=", "/vnc/..%2fmcp?ticket=", "/vnc/../mcp?ticket="} {
		if a := get(target + ticket); a.status != http.StatusUnauthorized && !slices.Contains(refused, a.status) {
			b.addFinding("run-tickets", target, "with a ticket %sTICKET is answered with %d", target, a.status)
		}
	}
	a, err := b.sendRaw(ctx, "POST", request("POST", "/tickets?ticket="+ticket, "sandbox", "Content-Length: 0"))
	if err != nil || a.status != http.StatusUnauthorized && a.status != http.StatusForbidden {
		b.addFinding("run-tickets", "/tickets", "a ticket alone gets a new ticket: %d %v", a.status, err)
	}
}

// ticket requests a ticket with the key.
func (b *box) ticket(ctx context.Context) (string, error) {
	a, err := b.sendRaw(ctx, "POST", request("POST", "/tickets", "sandbox", keyHeader+": "+b.key, "Content-Length: 0"))
	if err != nil {
		return "", err
	}
	var got struct {
		Ticket string `json:"ticket"`
	}
	if a.status != http.StatusOK {
		return "", fmt.Errorf("%d %s", a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		return "", err
	}
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == '_'
	}
	if got.Ticket == "" || len(got.Ticket) > 256 || strings.ContainsFunc(got.Ticket, func(r rune) bool { return !plain(r) }) {
		return "", errors.New("the answer's ticket is not 1 to 256 letters, digits, - and _")
	}
	return got.Ticket, nil
}

// screen connects to the desktop like noVNC, and waits for the greeting of a VNC server (RFC 6143, section 7.1.1).
func (b *box) screen(ctx context.Context, at, ticket string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+b.address+at+"?ticket="+ticket, &websocket.DialOptions{ //nolint:bodyclose // the library closes it
		HTTPClient: b.client(nil), Subprotocols: []string{"binary"},
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(maxBody)
	_, message, err := conn.Read(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !strings.HasPrefix(string(message), "RFB ") {
		return fmt.Errorf("the first message is not a VNC server's greeting: %s", quote(string(message)))
	}
	return nil
}
