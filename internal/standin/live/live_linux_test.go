package live

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
)

// cacheRoot is where slimctl keeps its cache, so that a machine makes the root file system once.
func cacheRoot(t *testing.T) string {
	t.Helper()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "slimctl")
}

var browserTools = []string{
	"browser_click", "browser_close", "browser_close_tab", "browser_evaluate", "browser_form_input_fill",
	"browser_get_clickable_elements", "browser_get_download_list", "browser_get_markdown", "browser_get_text", "browser_go_back",
	"browser_go_forward", "browser_hover", "browser_navigate", "browser_new_tab", "browser_press_key", "browser_read_links",
	"browser_screenshot", "browser_scroll", "browser_select", "browser_switch_tab", "browser_tab_list",
}

// What the facts say of each line: programs, sockets and tools.
var lines = map[string]struct{ programs, sockets, tools []string }{
	"A": {
		programs: []string{
			"browser", "code-server", "gem-server", "jupyter", "mcp-hub", "mcp-server-browser", "nginx", "openbox", "python-server",
			"tigervnc", "websocat",
		},
		sockets: []string{
			"0.0.0.0:6080", "0.0.0.0:8079", "0.0.0.0:8080", "0.0.0.0:8088", "0.0.0.0:8091", "0.0.0.0:8100", "0.0.0.0:8200", "0.0.0.0:8888",
			"127.0.0.1:5900", "127.0.0.1:9222", "[::1]:5900", "[::]:8080",
		},
		tools: append([]string{
			"browser_vision_screen_capture", "browser_vision_screen_click", "sandbox_browser_execute_action", "sandbox_browser_screenshot",
			"sandbox_convert_to_markdown", "sandbox_execute_bash", "sandbox_execute_code", "sandbox_file_operations", "sandbox_get_browser_info",
			"sandbox_get_context", "sandbox_get_packages", "sandbox_str_replace_editor",
		}, browserTools...),
	},
	"B": {programs: programsB, sockets: socketsB, tools: toolsB},
	"C": {programs: programsB, sockets: socketsB, tools: toolsB},
}

var (
	programsB = []string{
		"autocutsel-clipboard", "autocutsel-primary", "browser", "code-server", "dbus", "fcitx5", "jupyter", "mcp-server-browser", "nginx",
		"nodejs-repl-server-22", "openbox", "python-server", "tigervnc", "websocat",
	}
	socketsB = []string{
		"0.0.0.0:8080", "127.0.0.1:5900", "127.0.0.1:6080", "127.0.0.1:8091", "127.0.0.1:8092", "127.0.0.1:8100", "127.0.0.1:8200",
		"127.0.0.1:8888", "127.0.0.1:9222", "[::1]:5900", "[::]:8080",
	}
	toolsB = append([]string{
		"browser_get_info", "browser_gui_execute_action", "browser_gui_screenshot", "sandbox_convert_to_markdown", "sandbox_execute_bash",
		"sandbox_execute_code", "sandbox_file_operations", "sandbox_get_context", "sandbox_get_packages", "sandbox_load_skill",
		"sandbox_str_replace_editor",
	}, browserTools...)
)

func TestBoot(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			c := boot(t, line)
			c.ready()
			want := lines[line]
			slices.Sort(want.tools)
			c.until(func() string { return cmp.Diff(want.programs, c.programs("RUNNING")) })
			c.until(func() string { return cmp.Diff(want.sockets, c.listening()) })
			c.until(func() string { return cmp.Diff(want.tools, slices.Sorted(slices.Values(c.tools()))) })
			t.Logf("%d programs, %d sockets, %d tools", len(want.programs), len(want.sockets), len(want.tools))
			c.surfaces()
			c.holes(line)
		})
	}
}

// surfaces checks the three routes that a slim image keeps.
func (c *container) surfaces() {
	if a := c.do("GET", "/vnc/index.html", ""); a.code != 200 || !strings.Contains(a.body, "noVNC") {
		c.t.Errorf("/vnc/index.html: %d", a.code)
	}
	if a := c.do("GET", "/mcp", ""); a.code != 406 {
		c.t.Errorf("GET /mcp: %d, want 406", a.code)
	}
	if ticket := c.ticket("/tickets"); ticket == "" {
		c.t.Error("no ticket")
	}
	if got := c.banner("/websockify"); !strings.HasPrefix(got, "RFB 003.") {
		c.t.Errorf("/websockify begins with %q, want RFB", got)
	}
}

func (c *container) ticket(path string, headers ...string) string {
	c.t.Helper()
	a := c.do("POST", path, "", headers...)
	var got struct {
		Ticket  string
		Expires int `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(a.body), &got); a.code != 200 || err != nil || len(got.Ticket) != 36 || got.Expires != 30 {
		c.t.Errorf("POST %s: %v", path, a)
	}
	return got.Ticket
}

// banner is the first message on a WebSocket: a VNC server speaks first.
func (c *container) banner(path string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://127.0.0.1:8080"+path, &websocket.DialOptions{HTTPClient: c.client, Subprotocols: []string{"binary"}})
	if err != nil {
		c.t.Error(err)
		return ""
	}
	defer func() { _ = ws.CloseNow() }()
	_, data, err := ws.Read(ctx)
	if err != nil {
		c.t.Error(err)
	}
	return string(data)
}

// holes tries what is open in the base: each must be open here too, or a test that it is closed proves nothing.
func (c *container) holes(line string) {
	shell := func(command string) string {
		a := c.do("POST", "/v1/shell/exec", fmt.Sprintf(`{"command":%q}`, command))
		var got struct{ Data struct{ Output string } }
		if err := json.Unmarshal([]byte(a.body), &got); err != nil {
			c.t.Errorf("%s: %v", command, a)
		}
		return strings.TrimSpace(got.Data.Output)
	}
	if got := shell("id -un"); got != "gem" {
		c.t.Errorf("/v1/shell/exec runs as %q, want gem", got)
	}
	if got := shell("sudo -n id -un"); got != "root" {
		c.t.Errorf("sudo gives %q, want root", got)
	}
	if a := c.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_execute_bash","arguments":{"command":"echo $((6*7))"}}}`, mcpHeaders...); !strings.Contains(a.body, "42") {
		c.t.Errorf("sandbox_execute_bash: %v", a)
	}
	const version = `"Browser"`
	for _, r := range []struct{ path, header, value, want string }{
		{"/json/version", "Host", "9222-x", version}, // the port-proxy server
		{"/json/version", "Accept", "*/*", version},
		{"/cdp/json/version", "Accept", "*/*", version},
		{"/proxy/9222/json/version", "Accept", "*/*", version}, // code-server
		{"/absproxy/8091/x", "Accept", "*/*", "stand-in"},
		{"/jupyter/api", "Accept", "*/*", "version"},
		{"/v1/docs", "Accept", "*/*", "API"},
	} {
		if a := c.do("GET", r.path, "", r.header, r.value); !strings.Contains(a.body, r.want) {
			c.t.Errorf("GET %s %s %s: %v, want %s", r.path, r.header, r.value, a, r.want)
		}
	}
	want := 404 // line A's nginx has no such header, and its own page of errors
	if line != "A" {
		want = 200
	}
	if a := c.do("GET", "/nothing", "", "X-Aio-Proxy-Port", "8200"); a.code != want {
		c.t.Errorf("X-Aio-Proxy-Port: %v, want %d", a, want)
	}
	if names, _ := filepath.Glob(filepath.Join(c.root, "tmp/.X11-unix/X99")); len(names) != 1 {
		c.t.Error("no X server")
	}
}

// The variables that open line B, and the rules of its auth, flaws included.
func TestVariables(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	c := boot(t, "B",
		`EXTRA_MCP_SERVERS={"evil":{"type":"stdio","command":"touch","args":["/tmp/evil"]},"browser":null}`,
		"RUN_HOOK_INIT=id -u >/tmp/init", "RUN_HOOK_PRE_SERVICES=id -u >/tmp/services", "RUN_HOOK_POST_READY=id -u >/tmp/ready",
		"SANDBOX_API_KEY=open sesame", "JWT_PUBLIC_KEY="+public)
	c.ready()

	for _, name := range []string{"init", "services", "ready"} {
		c.until(func() string {
			raw, _ := os.ReadFile(filepath.Join(c.root, "tmp", name))
			if string(raw) != "0\n" {
				return fmt.Sprintf("the hook that writes /tmp/%s wrote %q, want root's 0", name, raw)
			}
			return ""
		})
	}
	token := func(claims jwt.MapClaims) string {
		signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + signed
	}
	forged, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{}).SignedString([]byte(public))
	if err != nil {
		t.Fatal(err)
	}
	noExp := token(jwt.MapClaims{"aud": "somebody else"})
	ticket := c.ticket("/tickets", "X-AIO-API-Key", "open sesame")
	for _, r := range []struct {
		path, header, value string
		want                int
	}{
		{"/v1/docs", "Accept", "*/*", 401},
		{"/v1/docs?x=.js", "Accept", "*/*", 200},
		{"/v1/docs", "Host", "8091-x", 200},
		{"/v1/docs", "X-AIO-API-Key", "open sesame", 200},
		{"/v1/docs", "X-AIO-API-Key", "open", 401},
		{"/v1/docs?api_key=open+sesame", "Accept", "*/*", 200},
		{"/v1/docs", "Authorization", "Bearer open sesame", 200},
		{"/v1/docs", "Authorization", noExp, 200},
		{"/v1/docs", "Authorization", token(jwt.MapClaims{"exp": 1}), 401},
		{"/v1/docs", "Authorization", "Bearer " + forged, 401},
		{"/v1/docs?ticket=" + ticket, "Accept", "*/*", 200}, // a ticket of any route, again and again
		{"/v1/docs?ticket=" + ticket, "Accept", "*/*", 200},
		{"/v1/docs?ticket=bad", "Authorization", noExp, 401},
		{"/v1/docs?ticket=bad&ticket=" + ticket, "Accept", "*/*", 200}, // the last one counts
	} {
		if a := c.do("GET", r.path, "", r.header, r.value); a.code != r.want {
			t.Errorf("GET %s %s %s: %d, want %d", r.path, r.header, r.value, a.code, r.want)
		}
	}
	if next := c.ticket("/tickets?ticket=" + ticket); next == ticket {
		t.Error("a ticket gives itself and no new one")
	}
	if got := c.tools("Authorization", noExp); slices.Contains(got, "browser_navigate") || !slices.Contains(got, "sandbox_execute_bash") {
		t.Errorf("tools without the browser server: %v", got)
	}
	if _, err := os.Stat(filepath.Join(c.root, "tmp/evil")); err != nil {
		t.Errorf("EXTRA_MCP_SERVERS ran nothing: %v", err)
	}
}
