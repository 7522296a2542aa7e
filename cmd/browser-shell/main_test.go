package main_test

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	main "github.com/slimctl/slimctl/cmd/browser-shell"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/cdp/cdptest"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
)

// binary is browser-shell, built once as the image has it.
var binary string

func TestMain(m *testing.M) {
	if site := os.Getenv(siteVariable); site != "" {
		os.Exit(main.MainWith(siteNetwork(site), os.Getenv(vncVariable)))
	}
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set { // those that may run beside others wait: for deadlines, for programs that end
		_ = flag.Set("test.parallel", "6")
	}
	os.Exit(testMain(m))
}

// siteVariable makes the test binary a browser-shell for which every name has
// the address that it holds, and the addresses of siteRange are public. The
// name flip.test has it the first time, and the loopback address from then on.
const siteVariable = "BROWSER_SHELL_TEST_SITE"

// vncVariable is where that browser-shell finds the desktop, if not at the
// usual address.
const vncVariable = "BROWSER_SHELL_TEST_VNC"

var siteRange = netip.MustParsePrefix("127.77.0.0/16")

func siteNetwork(address string) policy.Network {
	return policy.Network{
		Resolver: &siteResolver{address: netip.MustParseAddr(address)},
		Public:   func(a netip.Addr) bool { return siteRange.Contains(a) || policy.Public(a) },
	}
}

type siteResolver struct {
	address netip.Addr
	flipped atomic.Bool
}

func (s *siteResolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if strings.HasPrefix(host, "flip.test") && s.flipped.Swap(true) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return []netip.Addr{s.address}, nil
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "bs-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "browser-shell")
	build := exec.Command("go", "build", "-tags", "nethttpomithttp2", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %s\n%s", err, out)
		return 1
	}
	return m.Run()
}

// touchSources opens what the binary is built from, so that go test's cache
// knows of it: this package's tests do not call that code. (What TestMain
// opens before m.Run is not recorded.)
var touchSources = sync.OnceValue(func() error {
	return filepath.WalkDir(filepath.Join("..", "..", "server"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return f.Close()
	})
})

// lab is a private place with a fake agent-browser, a fake browser and a
// policy file.
type lab struct {
	dir     string // fake, its notes, policy.json
	state   string
	site    string // the address of every name
	browser *cdptest.Server
	policy  map[string]any
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if err := touchSources(); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: its path is too long for sockets.
	dir, err := os.MkdirTemp("", "bsl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &lab{dir: dir, state: filepath.Join(dir, "state"), site: "127.77.0.1", browser: cdptest.New(t)}
	script, err := os.ReadFile(filepath.Join("testdata", "fake-agent-browser.sh"))
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, "agent-browser", string(script), 0o755)
	l.write(t, "version", "agent-browser 0.41.2\n", 0o644)
	l.policy = map[string]any{
		"state_dir":     l.state,
		"audit":         map[string]any{"file": ""},
		"artifacts_dir": "",
		"agent_browser": map[string]any{"path": filepath.Join(dir, "agent-browser"), "cdp_port": l.browser.Port},
	}
	return l
}

func (l *lab) write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func (l *lab) note(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}

// writePolicy writes the policy to its file.
func (l *lab) writePolicy(t *testing.T) (file string) {
	t.Helper()
	text, err := json.Marshal(l.policy)
	if err != nil {
		t.Fatal(err)
	}
	return l.write(t, "policy.json", string(text), 0o600)
}

func (l *lab) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	file := l.writePolicy(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append(args, "--policy", file)...)
	cmd.Env = append(os.Environ(), siteVariable+"="+l.site, "AGENT_BROWSER_SESSION=evil", "NODE_OPTIONS=--require=/evil", "SECRET_TOKEN=s3cret-of-the-environment")
	cmd.Stderr = os.Stderr
	return cmd
}

// client is a session with a server.
type client struct {
	*mcp.ClientSession
	id     string         // of the session that do uses; "s" if empty
	cmd    *exec.Cmd      // nil: it is in this process
	server *server.Server // nil: it is in a process of its own
}

// Close ends the session and its server.
func (c *client) Close() error {
	err := c.ClientSession.Close()
	if c.server != nil {
		c.server.Close()
	}
	return err
}

// connect starts a server in this process.
func (l *lab) connect(t *testing.T) *client {
	t.Helper()
	p, err := policy.Load(l.writePolicy(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Policy: p, Network: siteNetwork(l.site)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.MCP().AddReceivingMiddleware(protocol.Middleware())
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.MCP().Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return &client{ClientSession: session, server: s}
}

// start starts a server in a process of its own, over stdio.
func (l *lab) start(t *testing.T, stderr io.Writer) *client {
	t.Helper()
	cmd := l.command(t, "mcp")
	cmd.Stderr = stderr
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: need.Patience}, nil) // 5 s by itself, and then it is killed
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return &client{ClientSession: session, cmd: cmd}
}

// opened is connect with a page open in session "s".
func (l *lab) opened(t *testing.T) *client {
	t.Helper()
	c := l.connect(t)
	if a := c.do(t, "open", "https://example.com"); a.ExitCode != 0 {
		t.Fatalf("open: %+v", a)
	}
	return c
}

func (l *lab) cdpPort() string {
	return fmt.Sprint(l.policy["agent_browser"].(map[string]any)["cdp_port"])
}

// answer is a result as a program sees it.
type answer struct {
	SessionID string `json:"session_id"`
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`

	raw *mcp.CallToolResult
}

func (a answer) rule() any { return a.raw.Meta["rule"] }

func call(ctx context.Context, s *mcp.ClientSession, args any) (answer, error) {
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "browser-shell", Arguments: args})
	if err != nil {
		return answer{}, err
	}
	return read(res)
}

// read checks a result's form.
func read(res *mcp.CallToolResult) (answer, error) {
	a := answer{raw: res}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		return a, fmt.Errorf("content[0] is %T", res.Content[0])
	}
	dec := json.NewDecoder(strings.NewReader(text.Text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		return a, fmt.Errorf("%w in %s", err, text.Text)
	}
	structured, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return a, err
	}
	var b answer
	if err := json.Unmarshal(structured, &b); err != nil {
		return a, err
	}
	if b.raw = res; a != b {
		return a, fmt.Errorf("structuredContent differs: %s", structured)
	}
	if res.IsError != (a.ExitCode != 0) || (a.ExitCode == 0) != (a.Stdout != "") {
		return a, fmt.Errorf("isError %v does not fit %+v", res.IsError, a)
	}
	return a, nil
}

// in returns a client that uses another session.
func (c *client) in(id string) *client {
	other := *c
	other.id = id
	return &other
}

// do runs argv in the client's session.
func (c *client) do(t *testing.T, argv ...string) answer {
	t.Helper()
	return c.within(t, nil, argv...)
}

// within is do with a time limit in seconds.
func (c *client) within(t *testing.T, timeout any, argv ...string) answer {
	t.Helper()
	args := map[string]any{"session_id": cmp.Or(c.id, "s"), "argv": argv}
	if timeout != nil {
		args["timeout_sec"] = timeout
	}
	return c.raw(t, args)
}

func (c *client) raw(t *testing.T, args any) answer {
	t.Helper()
	a, err := call(t.Context(), c.ClientSession, args)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// settle waits until browser-shell has taken in what its browser said before:
// another session asks the browser something, and all answers come in order.
func (c *client) settle(t *testing.T) {
	t.Helper()
	for _, argv := range [][]string{{"open", "https://example.com"}, {"close"}} {
		c.raw(t, map[string]any{"session_id": "settle", "argv": argv}) // fails when the browser is gone: then it knows that
	}
}

// processes counts the living processes that a browser-shell with this state
// directory started.
func (l *lab) processes(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "BROWSER_SHELL_RUN="+l.state+"/") {
			n++
		}
	}
	return n
}

func (l *lab) wantProcesses(t *testing.T, want int) {
	t.Helper()
	n := 0
	need.Eventually(t, func() bool {
		n = l.processes(t)
		return n == want
	}, func() string { return fmt.Sprintf("%d processes are left, want %d", n, want) })
}

// wantClean checks that no run directory is left.
func (l *lab) wantClean(t *testing.T) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(l.state, "run-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
