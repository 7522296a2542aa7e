package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// hostile sets every variable that opens a base at run time (facts/aio-base.md 6.3), each to what would be seen.
var hostile = map[string]string{
	"DISABLE_JUPYTER": "false", "DISABLE_CODE_SERVER": "false", "DISABLE_BROWSER": "true", "DISABLE_MCP_BROWSER": "false", "DISABLE_VNC": "true",
	"DISABLE_NODEJS_REPL": "false", "ENABLE_CJK_IME": "true",
	"AUTOSTART_JUPYTER": "true", "AUTOSTART_CODE_SERVER": "true", "AUTOSTART_BROWSER": "false", "AUTOSTART_VNC": "false", "AUTOSTART_NODEJS_REPL_22": "true",
	"EXTRA_MCP_SERVERS": `{"evil":{"type":"stdio","command":"touch","args":["/tmp/EXTRA_MCP_SERVERS"]}}`,
	"MCP_HUB_CONFIG":    "/tmp/evil.json",
	"RUN_HOOK_INIT":     "touch /tmp/RUN_HOOK_INIT", "RUN_HOOK_PRE_SERVICES": "touch /tmp/RUN_HOOK_PRE_SERVICES",
	"RUN_HOOK_POST_READY": "touch /tmp/RUN_HOOK_POST_READY", "RUN_HOOKS_STRICT": "1",
	"SANDBOX_SHUTDOWN_HOOKS": `["touch /tmp/SANDBOX_SHUTDOWN_HOOKS"]`,
	"PROXY_SERVER":           "http://192.0.2.1:3128", "PROXY_AUTH_CMD": "touch /tmp/PROXY_AUTH_CMD", "PROXY_AUTH_WATCH": "1",
	"PROXY_MAP": "example.com=127.0.0.1:9222", "PROXY_EXCLUDE": "*", "PROXY_INCLUDE": "*", "PROXY_BYPASS_LIST": "*",
	"BROWSER_EXTRA_ARGS":       "--remote-debugging-address=0.0.0.0 --remote-debugging-port=9333 --proxy-server=direct://",
	"BROWSER_COMMANDLINE_ARGS": "--remote-debugging-port=9444", "BROWSER_NO_SANDBOX": "", "CHROMIUM_FLAGS": "--remote-debugging-port=9555",
	"PUBLIC_PORT": "9090", "PUBLIC_LISTEN_IPV4": "0.0.0.0:9091", "PUBLIC_LISTEN_IPV6": "[::]:9092", "RUNTIME_LISTEN": "listen 9093;",
	"_BYTEFAAS_RUNTIME_PORT": "9094", "FAAS_SANDBOX_RUNTIME_INJECTION_ENABLE_SANDBOXD": "true",
	"WAIT_PORTS": "1", "WAIT_FILES": "/nowhere", "WAIT_TIMEOUT": "100000", "MCP_HUB_WAIT_PORTS": "1", "FASTAPI_WAIT_SKIP": "0",
	"MCP_HUB_PORT": "9095", "GEM_SERVER_PORT": "9096", "SANDBOX_SRV_PORT": "9097", "BROWSER_REMOTE_DEBUGGING_PORT": "9098",
	"WEBSOCKET_PROXY_PORT": "9099", "AUTH_BACKEND_PORT": "9100", "TINYPROXY_PORT": "9101", "VNC_SERVER_PORT": "9102",
	"USER": "root", "AIO_USER": "root", "USER_UID": "0", "USER_GID": "0", "WORKSPACE": "/etc", "HOME": "/tmp",
	"SRV_PYTHONPATH": "/tmp", "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/tmp/x.py", "AIO_SKILLS_PATH": "/tmp", "OPENCODE_CONFIG": "/tmp/x", "CODEX_HOME": "/tmp",
	"DNS_OVER_HTTPS_TEMPLATES": "https://192.0.2.1/dns", "BROWSER_URL_BLOCKLIST": "", "BROWSER_URL_ALLOWLIST": "*",
	"MAX_SHELL_SESSIONS": "1000", "LOG_STDOUT_SERVER": "true", "DISPLAY_WIDTH": "1 -localhost=0", "DISPLAY": ":1", "LOG_DIR": "/tmp",
	"PATH": "/tmp:/usr/bin", "LD_PRELOAD": "/tmp/evil.so", "LD_LIBRARY_PATH": "/tmp", "BASH_ENV": "/tmp/evil.sh", "NODE_OPTIONS": "--require /tmp/evil.js",
	"GODEBUG": "x=1", "HTTP_PROXY": "http://192.0.2.1:3128", "http_proxy": "http://192.0.2.1:3128", "NO_PROXY": "*", "XDG_CONFIG_HOME": "/tmp",
	"AGENT_BROWSER_EXECUTABLE_PATH": "/tmp/evil", "AGENT_BROWSER_CONFIG": "/tmp/evil.json", "BROWSER_SHELL_TEST_SITE": "127.0.0.1:1",
	"SLIM_DESKTOP_USER": "root", "SLIM_SERVICE_USER": "root", "SLIM_NGINX_CONF": "/tmp/evil.conf", "NGINX_CONF": "/tmp/evil.conf",
	"SUPERVISOR_SERVER_URL": "http://0.0.0.0:9001", "ENV_X": "%(ENV_PATH)s", "A=B": "%",
}

// setHostile sets every one of them that a container can have.
func setHostile(s *sandbox.Settings) {
	for name, value := range hostile {
		if !strings.Contains(name, "=") {
			s.Env[name] = value
		}
	}
}

// obeysNothing checks that no variable of the operator's reaches a program, nor does the key, and that none was obeyed.
func (b *box) obeysNothing(t *testing.T) {
	t.Helper()
	for _, p := range b.processes(t) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err != nil || p.State == "Z" {
			continue
		}
		for v := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			if strings.Contains(value, key) {
				t.Errorf("%s has the key in %s", p.Name, name)
			}
			if set, ok := hostile[name]; ok && set == value && value != "" && name != "HOME" {
				t.Errorf("%s has %s=%s", p.Name, name, value)
			}
		}
	}
	for name := range hostile {
		if _, err := os.Lstat(b.root(t) + "/tmp/" + name); err == nil {
			t.Errorf("%s was obeyed", name)
		}
	}
}

// TestNoKey: without a key the image does not start, unless it is told to let everybody in or to stay on loopback.
func TestNoKey(t *testing.T) {
	t.Parallel()
	ref := buildL0(t, "standin-live:B")
	for name, env := range map[string]map[string]string{
		"none": {}, "blank": {"SANDBOX_API_KEY": ""}, "said otherwise": {"SLIM_ALLOW_ANONYMOUS": "yes"}, "widened": {"SLIM_LISTEN": "0.0.0.0:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			b := boot(t, newWorld(t), ref, func(s *sandbox.Settings) { s.Env = env })
			status, err := b.Wait(t.Context())
			if err != nil || status.ExitCode != 78 {
				t.Errorf("%+v %v, want exit status 78", status, err)
			}
			if !strings.Contains(string(b.Logs()), "SANDBOX_API_KEY") && !strings.Contains(string(b.Logs()), "SLIM_") {
				t.Errorf("it does not say what to set: %s", b.Logs())
			}
		})
	}
	t.Run("anonymous", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		b := boot(t, w, ref, func(s *sandbox.Settings) { s.Env = map[string]string{"SLIM_ALLOW_ANONYMOUS": "true"} })
		b.healthy(t)
		if c := startSDK(t, w, "", "2", "modern"); !slices.Equal(c.Hello.Tools, []string{"browser-shell"}) {
			t.Errorf("tools: %v", c.Hello.Tools)
		}
		// A web page whose name was made to mean this machine (DNS rebinding) is let in nowhere.
		for _, q := range []string{
			"POST /mcp HTTP/1.1\r\nHost: evil.example:8080\r\nOrigin: http://evil.example:8080\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
			"POST /tickets HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
			"GET /websockify HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
		} {
			if a := w.raw(t, "POST", q); a.Status != 401 && a.Status != 403 {
				t.Errorf("%q: %d", q, a.Status)
			}
		}
	})
	t.Run("loopback", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		b := boot(t, w, ref, func(s *sandbox.Settings) { s.Env = map[string]string{"SLIM_LISTEN": "loopback"} })
		b.healthy(t)
		if open := openPorts(t, w); len(open) > 0 {
			t.Errorf("open from outside: %v", open)
		}
	})
}

// TestRootless: started as an ordinary user it needs no capability at all.
func TestRootless(t *testing.T) {
	t.Parallel()
	ref := buildL0(t, "standin-live:A")
	w := newWorld(t)
	b := boot(t, w, ref, func(s *sandbox.Settings) {
		s.User, s.CapAdd = "1000:1000", nil
		s.Env["SLIM_SCREEN"], s.Env["SLIM_LANG"] = "800x600", "de-CH,de" // the two that reach command lines
	})
	b.healthy(t)
	procs, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, p := range procs {
		if p.UID != 1000 {
			t.Errorf("%s runs as %d", p.Name, p.UID)
		}
		for _, a := range p.Args {
			words[a] = true
		}
	}
	if !words["800x600"] || !words["--window-size=800,600"] || !words["--accept-lang=de-CH,de"] {
		t.Error("SLIM_SCREEN and SLIM_LANG reach no program")
	}
	if c := startSDK(t, w, key, "2", "modern"); !slices.Equal(c.Hello.Tools, []string{"browser-shell"}) {
		t.Errorf("tools: %v", c.Hello.Tools)
	}
}
