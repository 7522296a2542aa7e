package live

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

var browserTools = []string{
	"browser_click", "browser_close", "browser_close_tab", "browser_evaluate", "browser_form_input_fill",
	"browser_get_clickable_elements", "browser_get_download_list", "browser_get_markdown", "browser_get_text", "browser_go_back",
	"browser_go_forward", "browser_hover", "browser_navigate", "browser_new_tab", "browser_press_key", "browser_read_links",
	"browser_screenshot", "browser_scroll", "browser_select", "browser_switch_tab", "browser_tab_list",
}

// line is what the facts say of one.
type line struct {
	programs, sockets, tools []string
	proxyPort                int // the status of a route with X-Aio-Proxy-Port
}

var (
	lineA = line{
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
		proxyPort: 404, // its nginx has no such header, and its own page of errors
	}
	// lineB is line C's, too.
	lineB = line{
		programs: []string{
			"autocutsel-clipboard", "autocutsel-primary", "browser", "code-server", "dbus", "fcitx5", "jupyter", "mcp-server-browser", "nginx",
			"nodejs-repl-server-22", "openbox", "python-server", "tigervnc", "websocat",
		},
		sockets: []string{
			"0.0.0.0:8080", "127.0.0.1:5900", "127.0.0.1:6080", "127.0.0.1:8091", "127.0.0.1:8092", "127.0.0.1:8100", "127.0.0.1:8200",
			"127.0.0.1:8888", "127.0.0.1:9222", "[::1]:5900", "[::]:8080",
		},
		tools: append([]string{
			"browser_get_info", "browser_gui_execute_action", "browser_gui_screenshot", "sandbox_convert_to_markdown", "sandbox_execute_bash",
			"sandbox_execute_code", "sandbox_file_operations", "sandbox_get_context", "sandbox_get_packages", "sandbox_load_skill",
			"sandbox_str_replace_editor",
		}, browserTools...),
		proxyPort: 200,
	}
)

// Each line boots once: A as it is, B with the variables that run programs, C, whose scripts are B's, with those of access.
func TestBoot(t *testing.T) {
	t.Run("A", func(t *testing.T) {
		t.Parallel()
		boot(t, "A").is(lineA)
	})
	t.Run("B", func(t *testing.T) {
		t.Parallel()
		c := boot(t, "B",
			`EXTRA_MCP_SERVERS={"evil":{"type":"stdio","command":"touch","args":["/tmp/evil"]},"browser":null}`,
			"RUN_HOOK_INIT=id -u >/tmp/init", "RUN_HOOK_PRE_SERVICES=id -u >/tmp/services", "RUN_HOOK_POST_READY=id -u >/tmp/ready")
		want := lineB
		want.tools = slices.DeleteFunc(slices.Clone(want.tools), func(tool string) bool { return slices.Contains(browserTools, tool) })
		c.is(want)
		for _, hook := range []string{"init", "services", "ready"} {
			c.until(func() string {
				if got, _ := c.exec("cat", "/tmp/"+hook); got != "0\n" {
					return fmt.Sprintf("the hook that writes /tmp/%s wrote %q, want root's 0", hook, got)
				}
				return ""
			})
		}
		if _, code := c.exec("test", "-e", "/tmp/evil"); code != 0 {
			t.Error("EXTRA_MCP_SERVERS ran nothing")
		}
	})
	t.Run("C", func(t *testing.T) {
		t.Parallel()
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		public := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		c := boot(t, "C", "SANDBOX_API_KEY=open sesame", "JWT_PUBLIC_KEY="+public)
		c.key = "open sesame"
		want := lineB
		want.sockets = slices.Sorted(slices.Values(append([]string{"127.0.0.1:8081"}, want.sockets...))) // what asks for keys
		c.is(want)
		c.key = ""
		c.access(key, public)
	})
}

// is waits until the container is as the line, and checks what is open.
func (c *container) is(l line) {
	slices.Sort(l.tools)
	c.until(func() string { return cmp.Diff(l.programs, c.programs("RUNNING")) })
	c.until(func() string { return cmp.Diff(l.sockets, c.listening()) })
	c.until(func() string { return cmp.Diff(l.tools, c.tools()) })
	c.booted()
	c.t.Logf("%d programs, %d sockets, %d tools", len(l.programs), len(l.sockets), len(l.tools))
	c.surfaces()
	c.holes(l)
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

// holes tries what is open in the base: each must be open here too, or a test that it is closed proves nothing.
func (c *container) holes(l line) {
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
	if a := c.do("GET", "/nothing", "", "X-Aio-Proxy-Port", "8200"); a.code != l.proxyPort {
		c.t.Errorf("X-Aio-Proxy-Port: %v, want %d", a, l.proxyPort)
	}
	if _, code := c.exec("test", "-S", "/tmp/.X11-unix/X99"); code != 0 {
		c.t.Error("no X server")
	}
}

// access tries the rules of the auth, flaws included, with a token of the key whose public half it has.
func (c *container) access(key *rsa.PrivateKey, public string) {
	c.t.Helper()
	token := func(claims jwt.MapClaims) string {
		signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SignedString(key)
		if err != nil {
			c.t.Fatal(err)
		}
		return "Bearer " + signed
	}
	forged, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{}).SignedString([]byte(public))
	if err != nil {
		c.t.Fatal(err)
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
			c.t.Errorf("GET %s %s %s: %d, want %d", r.path, r.header, r.value, a.code, r.want)
		}
	}
	if next := c.ticket("/tickets?ticket=" + ticket); next == ticket {
		c.t.Error("a ticket gives itself and no new one")
	}
	if got := c.tools("Authorization", noExp); !slices.Contains(got, "sandbox_execute_bash") {
		c.t.Errorf("tools by a token: %v", got)
	}
}
