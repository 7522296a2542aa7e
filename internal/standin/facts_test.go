package standin

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
)

// The lists here were written from the facts on the real image, never from what the stand-in happens to hold.

var everyLine = []string{
	"/etc/passwd", "/etc/aio_version", "/etc/nginx/mime.types", "/etc/browser/policies/managed", "/etc/sudoers.d",
	"/etc/alternatives/browser", "/usr/local/bin/browser", "/usr/local/bin/websocat", "/usr/local/bin/python-server",
	"/usr/bin/supervisord", "/usr/bin/mcp-server-browser:A", "/usr/local/bin/mcp-server-browser:BC", "/usr/bin/Xvnc", "/usr/bin/openbox",
	"/usr/sbin/nginx", "/usr/bin/sudo", "/usr/bin/nc", "/usr/bin/envsubst", "/usr/bin/jq", "/usr/bin/rsync", "/usr/bin/openssl",
	"/usr/bin/curl", "/usr/bin/su", "/usr/sbin/useradd", "/usr/bin/xargs", "/usr/bin/sed", "/usr/bin/code-server",
	"/opt/application/run.sh", "/opt/novnc/vnc.html", "/opt/browser/chrome", "/opt/jupyter/runtime", "/opt/jupyter/data",
	"/opt/python3.11", "/opt/python3.12", "/opt/runtime/nodejs", "/opt/terminal/index.html", "/opt/aio/index.html.template",
	"/usr/local/share/jupyter", "/opt/novnc/index.html", "/usr/local/bin/uv", "/usr/bin/dbus-daemon",
	"/opt/python3.12/lib/python3.12/site-packages/app", "/opt/python3.12/lib/python3.12/site-packages/vendors",
	"/opt/gem/run.sh", "/opt/gem/supervisord.conf", "/opt/gem/nginx.conf", "/opt/gem/nginx-server-with-auth.conf",
	"/opt/gem/nginx-server-without-auth.conf", "/opt/gem/nginx-server-port-proxy.conf.template", "/opt/gem/nginx.legacy.conf",
	"/opt/gem/nginx.vnc.conf", "/opt/gem/mcp-hub.json.template", "/opt/gem/nginx-wait.sh", "/opt/gem/wait-for-python-server.sh",
	"/opt/gem/start-browser.sh", "/opt/gem/openbox.sh", "/opt/gem/openbox.xml", "/opt/gem/policies.json",
	"/opt/gem/preferences.json", "/opt/gem/xdg-settings", "/opt/gem/code-server.sh", "/opt/gem/vscode", "/opt/gem/jupyter-lab.sh",
	"/opt/gem/jupyter", "/opt/gem/matplotlibrc", "/opt/gem/bashrc",
	"/opt/gem/nginx/nginx.python_srv.conf", "/opt/gem/nginx/nginx.mcp_hub.conf", "/opt/gem/nginx/nginx.jupyter_lab.conf",
	"/opt/gem/nginx/nginx.code_server.conf", "/opt/gem/nginx/nginx.aio_index.conf", "/opt/gem/nginx/nginx.ui_terminal.conf",
	"/opt/gem/supervisord/browser.conf", "/opt/gem/supervisord/nginx.conf", "/opt/gem/supervisord/openbox.conf",
	"/opt/gem/supervisord/vnc.conf", "/opt/gem/supervisord/supervisord.code_server.conf",
	"/opt/gem/supervisord/supervisord.jupyter.conf", "/opt/gem/supervisord/supervisord.mcp.conf",
	"/opt/gem/supervisord/supervisord.python_srv.conf",
}

var onlyLineA = []string{
	"/opt/gem/entrypoint.sh", "/opt/gem/nginx.srv.conf", "/opt/gem/nginx.mcp.conf", "/opt/gem/mcp.disabled",
	"/opt/gem/mcp-hub-wait.sh", "/opt/gem/tinyproxy.sh", "/opt/gem/tinyproxy/base.conf", "/opt/gem/mcp-ctl.sh",
	"/opt/gem/supervisord.browser.conf", "/opt/gem/supervisord.mcp.conf", "/opt/gem/supervisord.nginx.conf",
	"/opt/gem/supervisord.openbox.conf", "/opt/gem/supervisord.srv.conf", "/opt/gem/supervisord.vnc.conf",
	"/opt/gem/supervisord/srv.conf", "/opt/gem/supervisord/supervisord.mcp_hub.conf",
	"/opt/gem/supervisord/supervisord.tinyproxy.conf",
	"/opt/gem-server", "/usr/local/bin/gem-server", "/usr/bin/mcp-hub", "/usr/bin/chrome-devtools-mcp",
	"/opt/runtime/code-server", "/usr/lib/node_modules/@agent-infra/mcp-hub", "/usr/lib/node_modules/@agent-infra/mcp-server-browser",
	"/usr/lib/node_modules/chrome-devtools-mcp",
}

var onlyLinesBC = []string{
	"/opt/gem/nginx/nginx.gembrowser_compat.conf", "/opt/gem/nginx/nginx.ui_browser.conf", "/opt/gem/nginx/nginx.opencode.conf",
	"/opt/gem/nginx/header_proxy.conf",
	"/opt/gem/supervisord/agent-browser.conf", "/opt/gem/supervisord/autocutsel.conf", "/opt/gem/supervisord/dbus.conf",
	"/opt/gem/supervisord/fcitx5.conf", "/opt/gem/supervisord/supervisord.gost.conf", "/opt/gem/supervisord/supervisord.log_tail.conf",
	"/opt/gem/supervisord/supervisord.nodejs_repl_20.conf", "/opt/gem/supervisord/supervisord.nodejs_repl_22.conf",
	"/opt/gem/supervisord/supervisord.nodejs_repl_24.conf", "/opt/gem/supervisord/python_srv_wrapper.sh",
	"/opt/gem/agent-browser-init.sh", "/opt/gem/agent-browser-wrapper.sh", "/opt/gem/bin/agent-browser", "/opt/gem/browser-ctl.sh",
	"/opt/gem/browser-locale.sh", "/opt/gem/install-proxy-ca.sh", "/opt/gem/nodejs.sh", "/etc/profile.d/nodejs.sh",
	"/opt/gem/fcitx5", "/opt/gem/opencode/config.json", "/opt/gem/_aio_mpl_fontconfig.py", "/opt/gem/52-pretendard-korean.conf",
	"/opt/gem/99-font-aliases.conf",
	"/opt/repl-servers/nodejs", "/opt/browser-ui", "/opt/skills", "/opt/aio-staged-configs", "/var/www/app/static/sandbox",
	"/usr/local/code-server-4.104.0", "/usr/local/bin/aio", "/usr/local/bin/supervisord",
	"/opt/fnm", "/opt/nodejs/20/bin/node", "/opt/nodejs/22/bin/node", "/opt/nodejs/24/bin/node", "/usr/local/bin/node22",
	"/usr/local/bin/agent-browser", "/usr/local/bin/agent-browser-real", "/usr/local/bin/gost", "/usr/local/bin/ve",
	"/usr/local/bin/bun", "/usr/local/bin/opencode", "/usr/local/bin/chrome-devtools-mcp", "/usr/bin/fcitx5",
	"/usr/bin/autocutsel",
}

var onlyLineC = []string{
	"/opt/gem/gem_init.sh", "/opt/gem/gem.sh", "/opt/gem/render-claude-config.sh", "/opt/gem/render-opencode-config.sh",
	"/opt/gem/browser-supervisor.py", "/var/run/gem", "/opt/fnm/node-versions/v22.23.0/installation/bin/node",
}

// neverThere is made at run time only, or never existed: whoever removes it removes nothing.
var neverThere = []string{
	"/opt/gem/nginx/code_server.conf", "/opt/gem/nginx/python_srv.conf", "/opt/gem/nginx/mcp_hub.conf",
	"/opt/gem/nginx/jupyter_lab.conf", "/opt/gem/nginx/legacy.conf", "/opt/gem/nginx/srv.conf", "/opt/gem/nginx/vnc.conf",
	"/opt/gem/nginx/mcp.conf", "/opt/gem/nginx/gembrowser_compat.conf", "/opt/gem/nginx/ui_browser.conf",
	"/opt/gem/nginx-server-active.conf", "/opt/gem/nginx-server-port-proxy.conf", "/opt/gem/nginx-proxy-map.conf",
	"/opt/gem/mcp-hub.json", "/opt/gem/supervisord/mcp.conf", "/opt/gem/gost.yaml", "/opt/gem/proxy.pac",
	"/var/lib/aio-sandbox", "/var/log/gem", "/etc/tinyproxy.conf", "/etc/sudoers.d/gem",
	"/opt/gem/supervisord/supervisord.mcp_server_browser.conf", "/opt/gem/supervisord/supervisord.chrome_devtools_mcp.conf",
	"/opt/gem/supervisord/supervisord.ui_chromium.conf",
}

func TestPathsOfTheFacts(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		for _, platform := range defaultPlatforms {
			t.Run(line+" "+platform, func(t *testing.T) {
				tree := merged(t, imageOf(t, cached(t, line), platform))
				check := func(paths []string, want bool) {
					for _, p := range paths {
						p, only, _ := strings.Cut(p, ":")
						if only != "" && !strings.Contains(only, line) {
							continue
						}
						if _, ok := lookup(tree, p); ok != want {
							t.Errorf("%s: there %v, want %v", p, ok, want)
						}
					}
				}
				check(everyLine, true)
				check(onlyLineA, line == "A")
				check(onlyLinesBC, line != "A")
				check(onlyLineC, line == "C")
				check(neverThere, false)
				if e, _ := lookup(tree, "/etc/aio_version"); string(e.data) != lines[line].tag+"\n" {
					t.Errorf("/etc/aio_version holds %q", e.data)
				}
			})
		}
	}
}

// The directory that Chromium reads policies from leads to the base's own, by the link that browser-ctl.sh makes for the
// browser it installs.
func TestPolicyLinks(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		for _, platform := range defaultPlatforms {
			tree := merged(t, imageOf(t, cached(t, line), platform))
			want, other := "/etc/chromium", "/etc/opt/chrome"
			if line != "A" && platform == "linux/amd64" {
				want, other = other, want
			}
			if e, ok := tree[want]; !ok || e.Linkname != "/etc/browser" {
				t.Errorf("%s %s: %s is no link to /etc/browser", line, platform, want)
			}
			if _, ok := tree[other]; ok {
				t.Errorf("%s %s: there is %s", line, platform, other)
			}
		}
	}
}

func TestLineCanBeTold(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		tree := merged(t, imageOf(t, cached(t, line), "linux/amd64"))
		has := func(p string) bool { _, ok := tree["/opt/gem/"+p]; return ok }
		got := map[string]bool{
			"A": has("entrypoint.sh") && has("nginx.srv.conf"),
			"B": has("nginx/nginx.gembrowser_compat.conf") && !has("gem.sh"),
			"C": has("gem_init.sh") && has("gem.sh"),
		}
		for other, matches := range got {
			if matches != (other == line) {
				t.Errorf("line %s: the test for line %s says %v", line, other, matches)
			}
		}
	}
}

// program is a row of the tables of supervisord programs: conf, user, and what the command must and must not hold.
type program struct{ conf, priority, command, autostart string }

func TestPrograms(t *testing.T) {
	a := map[string]program{
		"tigervnc":           {"vnc.conf", "900", "/usr/bin/Xvnc", ""},
		"websocat":           {"vnc.conf", "890", `ws-l:"0.0.0.0:`, ""},
		"openbox":            {"openbox.conf", "900", "/opt/gem/openbox.sh", ""},
		"browser":            {"browser.conf", "800", "/opt/gem/start-browser.sh", ""},
		"nginx":              {"nginx.conf", "850", "/opt/gem/nginx-wait.sh", ""},
		"gem-server":         {"srv.conf", "700", "--host 0.0.0.0", ""},
		"python-server":      {"supervisord.python_srv.conf", "100", "--host 0.0.0.0", ""},
		"mcp-hub":            {"supervisord.mcp_hub.conf", "900", "/opt/gem/wait-for-python-server.sh /opt/gem/mcp-hub-wait.sh", ""},
		"mcp-server-browser": {"supervisord.mcp.conf", "899", "--host 0.0.0.0", ""},
		"code-server":        {"supervisord.code_server.conf", "898", "/opt/gem/code-server.sh", "AUTOSTART_CODE_SERVER"},
		"jupyter":            {"supervisord.jupyter.conf", "900", "/opt/gem/jupyter-lab.sh", "AUTOSTART_JUPYTER"},
		"tinyproxy":          {"supervisord.tinyproxy.conf", "899", "/opt/gem/tinyproxy.sh", ""},
	}
	b := map[string]program{
		"python-server":         {"supervisord.python_srv.conf", "100", "python_srv_wrapper.sh --host 127.0.0.1", ""},
		"browser":               {"browser.conf", "100", "/opt/gem/start-browser.sh", "AUTOSTART_BROWSER"},
		"tigervnc":              {"vnc.conf", "900", "/usr/bin/Xvnc", "AUTOSTART_VNC"},
		"websocat":              {"vnc.conf", "890", `ws-l:"127.0.0.1:`, "AUTOSTART_VNC"},
		"openbox":               {"openbox.conf", "900", "/opt/gem/openbox.sh", "AUTOSTART_VNC"},
		"autocutsel-clipboard":  {"autocutsel.conf", "910", "autocutsel", "AUTOSTART_VNC"},
		"autocutsel-primary":    {"autocutsel.conf", "910", "autocutsel", "AUTOSTART_VNC"},
		"nginx":                 {"nginx.conf", "850", "/opt/gem/nginx-wait.sh", ""},
		"dbus":                  {"dbus.conf", "800", "dbus-daemon", "AUTOSTART_CJK_IME"},
		"fcitx5":                {"fcitx5.conf", "905", "fcitx5", "AUTOSTART_CJK_IME"},
		"agent-browser":         {"agent-browser.conf", "200", "/opt/gem/agent-browser-init.sh", "AUTOSTART_BROWSER"},
		"nodejs-repl-server-20": {"supervisord.nodejs_repl_20.conf", "90", "/opt/repl-servers/nodejs", "AUTOSTART_NODEJS_REPL_20"},
		"nodejs-repl-server-22": {"supervisord.nodejs_repl_22.conf", "90", "/opt/repl-servers/nodejs", "AUTOSTART_NODEJS_REPL_22"},
		"nodejs-repl-server-24": {"supervisord.nodejs_repl_24.conf", "90", "/opt/repl-servers/nodejs", "AUTOSTART_NODEJS_REPL_24"},
		"code-server":           {"supervisord.code_server.conf", "100", "/opt/gem/code-server.sh", "AUTOSTART_CODE_SERVER"},
		"jupyter":               {"supervisord.jupyter.conf", "900", "/opt/gem/jupyter-lab.sh", "AUTOSTART_JUPYTER"},
		"mcp-server-browser":    {"supervisord.mcp.conf", "899", `--viewport-size "0,0"`, "AUTOSTART_MCP_BROWSER"},
		"gost":                  {"supervisord.gost.conf", "899", "gost", ""},
		"log_tail":              {"supervisord.log_tail.conf", "999", "tail", "LOG_STDOUT_SERVER"},
	}
	for line, want := range map[string]map[string]program{"A": a, "B": b, "C": b} {
		t.Run(line, func(t *testing.T) {
			got := map[string]string{}
			tree := merged(t, imageOf(t, cached(t, line), "linux/amd64"))
			for p, e := range tree {
				if ok, _ := path.Match("/opt/gem/supervisord/*.conf", p); !ok {
					continue
				}
				for name, section := range sections(t, p, e.data) {
					if got[name] != "" {
						t.Errorf("program %s is there twice", name)
					}
					got[name] = path.Base(p)
					w := want[name]
					user := "%(ENV_USER)s"
					switch name {
					case "nginx":
						user = "root"
					case "log_tail":
						user = ""
					}
					if section["priority"] != w.priority || !strings.Contains(section["command"], w.command) || section["user"] != user {
						t.Errorf("%s: %v, want %+v as %s", name, section, w, user)
					}
					autostart := section["autostart"]
					if w.autostart != "" && autostart != "%(ENV_"+w.autostart+")s" || w.autostart == "" && autostart != "" {
						t.Errorf("%s: autostart=%q, want the switch %q", name, autostart, w.autostart)
					}
				}
			}
			confs := map[string]string{}
			for name, p := range want {
				confs[name] = p.conf
			}
			if diff := cmp.Diff(confs, got); diff != "" {
				t.Errorf("programs (-facts +stand-in):\n%s", diff)
			}
		})
	}
}

// sections reads the [program:x] sections of a supervisord conf; an indented line goes on with the value above it.
func sections(t *testing.T, name string, data []byte) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	var section map[string]string
	var key string
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		text := s.Text()
		switch program, ok := strings.CutPrefix(text, "[program:"); {
		case ok:
			section = map[string]string{}
			out[strings.TrimSuffix(program, "]")] = section
		case text == "" || strings.HasPrefix(text, ";") || strings.HasPrefix(text, "#"):
		case strings.HasPrefix(text, " "):
			section[key] += " " + strings.TrimSpace(text)
		default:
			k, v, ok := strings.Cut(text, "=")
			if !ok || section == nil {
				t.Fatalf("%s: line %q", name, text)
			}
			key = k
			section[key] = v
		}
	}
	return out
}

func TestSecondLives(t *testing.T) {
	tree := merged(t, imageOf(t, cached(t, "A"), "linux/amd64"))
	for _, name := range []string{"browser", "nginx", "openbox", "srv", "vnc"} {
		dead, live := tree["/opt/gem/supervisord."+name+".conf"], tree["/opt/gem/supervisord/"+name+".conf"]
		if !bytes.Equal(dead.data, live.data) {
			t.Errorf("the leftover of %s.conf differs from the live one", name)
		}
	}
	if got := sections(t, "mcp", tree["/opt/gem/supervisord.mcp.conf"].data); got["mcp-server"] == nil ||
		!strings.Contains(got["mcp-server"]["command"], "%(ENV_MCP_SERVER_PORT)s") {
		t.Errorf("the conf that mcp.disabled holds back has %v, want mcp-server on port 8089", got)
	}
}

func TestConfig(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			img := imageOf(t, cached(t, line), "linux/arm64")
			c, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			env := map[string]string{}
			for _, e := range c.Config.Env {
				k, v, ok := strings.Cut(e, "=")
				if _, twice := env[k]; !ok || twice {
					t.Errorf("variable %q", e)
				}
				env[k] = v
			}
			want := map[string]string{
				"USER": "gem", "USER_UID": "1000", "USER_GID": "1000", "DISPLAY": ":99.0", "LOG_DIR": "/var/log/gem",
				"PUBLIC_PORT": "8080", "AUTH_BACKEND_PORT": "8081", "SANDBOX_SRV_PORT": "8091", "BROWSER_REMOTE_DEBUGGING_PORT": "9222",
				"VNC_SERVER_PORT": "5900", "WEBSOCKET_PROXY_PORT": "6080", "MCP_SERVER_BROWSER_PORT": "8100",
				"CODE_SERVER_PORT": "8200", "JUPYTER_LAB_PORT": "8888", "TINYPROXY_PORT": "8118",
				"WAIT_TIMEOUT": "300", "WAIT_INTERVAL": "0.25", "JWT_PUBLIC_KEY": "", "DISABLE_JUPYTER": "false",
				"TZ": "Asia/Singapore", "LANG": "en_US.UTF-8",
			}
			if line == "A" {
				maps.Copy(want, map[string]string{
					"WAIT_PORTS": "8091,8079", "MCP_HUB_PORT": "8079", "GEM_SERVER_PORT": "8088", "MCP_SERVER_PORT": "8089",
					"BROWSER_NO_SANDBOX": "", "MAX_SHELL_SESSIONS": "50",
				})
			} else {
				maps.Copy(want, map[string]string{
					"WAIT_PORTS": "8091", "WAIT_FILES": "", "EXTRA_MCP_SERVERS": "", "RUN_HOOK_INIT": "", "RUN_HOOK_PRE_SERVICES": "",
					"RUN_HOOK_POST_READY": "", "RUN_HOOKS_STRICT": "false", "SANDBOX_SHUTDOWN_HOOKS": "", "ENABLE_CJK_IME": "true",
					"DISABLE_BROWSER": "false", "DISABLE_VNC": "false", "DISABLE_MCP_BROWSER": "false", "DISABLE_NODEJS_REPL": "false",
					"BROWSER_NO_SANDBOX": "--no-sandbox", "NPM_CONFIG_PREFIX": "/root/.npm-global",
				})
				for _, gone := range []string{"MCP_HUB_PORT", "GEM_SERVER_PORT", "MCP_SERVER_PORT"} {
					if _, ok := env[gone]; ok {
						t.Errorf("%s is set; it is line A's", gone)
					}
				}
			}
			for k, v := range want {
				if got, ok := env[k]; !ok || got != v {
					t.Errorf("%s=%q (set: %v), want %q", k, got, ok, v)
				}
			}
			if _, ok := c.Config.ExposedPorts["8080/tcp"]; !ok || len(c.Config.ExposedPorts) != 1 {
				t.Errorf("exposed ports %v, want 8080/tcp", c.Config.ExposedPorts)
			}
			h := c.Config.Healthcheck
			if line == "A" {
				if !slices.Equal(c.Config.Entrypoint, []string{"/opt/gem/run.sh"}) || c.Config.Cmd != nil {
					t.Errorf("entrypoint %v, cmd %v", c.Config.Entrypoint, c.Config.Cmd)
				}
				if h == nil || h.Interval != 10*time.Second || h.Timeout != 5*time.Second || h.Retries != 8 ||
					!strings.Contains(strings.Join(h.Test, " "), "nc -z localhost") {
					t.Errorf("healthcheck %+v", h)
				}
			} else if c.Config.Entrypoint != nil || !slices.Equal(c.Config.Cmd, []string{"/opt/application/run.sh"}) || h != nil {
				t.Errorf("entrypoint %v, cmd %v, healthcheck %+v", c.Config.Entrypoint, c.Config.Cmd, h)
			}
			if c.Created.IsZero() || c.Architecture != "arm64" || c.OS != "linux" {
				t.Errorf("created %v for %s/%s", c.Created, c.OS, c.Architecture)
			}
			full, empty := 0, 0
			for _, h := range c.History {
				if h.EmptyLayer {
					empty++
				} else {
					full++
				}
			}
			if full != len(c.RootFS.DiffIDs) || empty == 0 {
				t.Errorf("history has %d layers and %d empty entries, the image has %d layers", full, empty, len(c.RootFS.DiffIDs))
			}
			if len(c.RootFS.DiffIDs) < 8 {
				t.Errorf("%d layers, want several", len(c.RootFS.DiffIDs))
			}
		})
	}
}

func TestMergedTree(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		for _, platform := range defaultPlatforms {
			t.Run(line+" "+platform, func(t *testing.T) {
				img := imageOf(t, cached(t, line), platform)
				tree := merged(t, img)
				for p, want := range map[string]struct {
					mode     int64
					uid, gid int
				}{
					"/tmp": {0o1777, 0, 0}, "/root": {0o700, 0, 0}, "/srv/app": {0o750, 1000, 1000}, "/srv/app/a": {0o640, 1000, 1000},
					"/usr/bin/sudo": {0o4755, 0, 0}, "/usr/bin/chage": {0o2755, 0, 42}, "/etc/shadow": {0o640, 0, 42},
					"/etc/sudoers": {0o440, 0, 0}, "/opt/jupyter": {0o755, 1000, 1000}, "/opt/gem/run.sh": {0o755, 0, 0},
					"/opt/gem/nginx.conf": {0o644, 0, 0}, "/opt/gem": {0o755, 0, 0}, "/etc/sudoers.d": {0o750, 0, 0},
				} {
					e, ok := tree[p]
					if !ok || e.Mode != want.mode || e.Uid != want.uid || e.Gid != want.gid {
						t.Errorf("%s: there %v, mode %o, owner %d:%d; want %+v", p, ok, e.Mode, e.Uid, e.Gid, want)
					}
				}
				for p, target := range map[string]string{
					"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/var/run": "/run",
					"/opt/application/run.sh": "/opt/gem/run.sh", "/etc/alternatives/browser": "/opt/browser/chrome",
				} {
					if e := tree[p]; e.Typeflag != tar.TypeSymlink || e.Linkname != target {
						t.Errorf("%s is %q to %q, want a symbolic link to %s", p, e.Typeflag, e.Linkname, target)
					}
				}
				if got := tree["/usr/bin/ping"].PAXRecords["SCHILY.xattr.security.capability"]; len(got) != 20 || got[5] != 0x20 {
					t.Errorf("ping's security.capability is %q, want cap_net_raw=ep", got)
				}
				for p, there := range map[string]bool{
					"/usr/share/standin/removed.txt": false, "/usr/share/standin/gone": false, "/usr/share/standin/gone/deep/file": false,
					"/var/lib/apt/lists/archive_Release": false, "/var/lib/apt/lists/old/nested": false, "/var/lib/apt/lists/lock": true,
					"/usr/share/standin/kind/is-a-directory": true,
				} {
					if _, ok := tree[p]; ok != there {
						t.Errorf("%s: there %v, want %v", p, ok, there)
					}
				}
				if got := string(tree["/etc/motd"].data); got != "AIO sandbox stand-in\n" {
					t.Errorf("/etc/motd holds %q, want the upper layer's", got)
				}
			})
		}
	}
}

// What the merged tree hides must be there below, or the tests of it prove nothing.
func TestLayersHoldTraps(t *testing.T) {
	layers, err := imageOf(t, cached(t, "B"), "linux/amd64").Layers()
	if err != nil {
		t.Fatal(err)
	}
	type place struct {
		layer int
		kind  byte
	}
	seen := map[string][]place{}
	dirs := map[string]string{}
	for i, l := range layers {
		before := map[string]byte{}
		for _, e := range layerEntries(t, l, i) {
			p := path.Clean("/" + e.Name)
			seen[p] = append(seen[p], place{i, e.Typeflag})
			if e.Typeflag == tar.TypeDir {
				meta := fmt.Sprintf("%o %d:%d %q", e.Mode, e.Uid, e.Gid, e.PAXRecords["SCHILY.xattr.user.standin"])
				if old, ok := dirs[p]; ok && old != meta {
					t.Errorf("directory %s is %s, then %s", p, old, meta)
				}
				dirs[p] = meta
			}
			if e.Typeflag == tar.TypeLink && before["/"+e.Linkname] != tar.TypeReg {
				t.Errorf("%s is a hard link to %s, which does not come before it in its layer", p, e.Linkname)
			}
			before[p] = e.Typeflag
		}
	}
	top := len(layers) - 1
	for _, p := range []string{"/usr/share/standin/removed.txt", "/usr/share/standin/gone/deep/file", "/etc/motd", "/var/lib/apt/lists/archive_Release"} {
		if len(seen[p]) == 0 || seen[p][0].layer >= top {
			t.Errorf("%s is not in a layer below the top one: %v", p, seen[p])
		}
	}
	for _, p := range []string{"/usr/share/standin/.wh.removed.txt", "/usr/share/standin/.wh.gone", "/var/lib/apt/lists/.wh..wh..opq"} {
		if len(seen[p]) != 1 || seen[p][0].layer != top {
			t.Errorf("%s: %v, want it in the top layer", p, seen[p])
		}
	}
	if got := seen["/usr/share/standin/kind"]; len(got) != 2 || got[0].kind != tar.TypeReg || got[1].kind != tar.TypeDir {
		t.Errorf("/usr/share/standin/kind: %v, want a file and then a directory", got)
	}
	if got := seen["/opt/runtime/nodejs/bin/node"]; len(got) != 1 || got[0].kind != tar.TypeLink {
		t.Errorf("/opt/runtime/nodejs/bin/node: %v, want a hard link", got)
	}
	if !strings.Contains(dirs["/srv/app"], "app") {
		t.Errorf("/srv/app is %s, want the attribute user.standin", dirs["/srv/app"])
	}
}

func TestScriptsParse(t *testing.T) {
	shebang := regexp.MustCompile(`^#!\s*(?:/usr/bin/env )?(?:/bin/)?(bash|sh)\n`)
	for _, line := range []string{"A", "B", "C"} {
		count := 0
		for p, e := range merged(t, imageOf(t, cached(t, line), "linux/amd64")) {
			if e.Typeflag != tar.TypeReg {
				continue
			}
			m := shebang.FindSubmatch(e.data)
			shell := "bash"
			if m != nil {
				shell = string(m[1])
				if e.Mode != 0o755 {
					t.Errorf("%s: a script of mode %o", p, e.Mode)
				}
			} else if !strings.HasSuffix(p, ".sh") {
				continue
			}
			count++
			cmd := exec.Command(need.Program(t, shell), "-n")
			cmd.Stdin = bytes.NewReader(e.data)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("line %s: %s: %v\n%s", line, p, err, out)
			}
		}
		if count < 10 {
			t.Errorf("line %s: %d scripts found", line, count)
		}
	}
}
