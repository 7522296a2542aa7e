package start_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

var layouts string // a directory for the stand-ins, which tests share

func TestMain(m *testing.M) {
	var err error
	if layouts, err = os.MkdirTemp("", "start"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := os.RemoveAll(layouts); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// base is the stand-in of a line, with files laid on it.
func base(t testing.TB, line string, files ...image.File) *tree.Image {
	t.Helper()
	dir := filepath.Join(layouts, line)
	if _, err := os.Stat(dir); err != nil {
		if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
			t.Fatal(err)
		}
	}
	from := ocitest.Layout(t, dir)["linux/amd64"]
	if len(files) > 0 {
		layer, err := image.NewLayer(files)
		if err != nil {
			t.Fatal(err)
		}
		if from, err = mutate.AppendLayers(from, layer); err != nil {
			t.Fatal(err)
		}
	}
	img, err := tree.Cache{}.Open(t.Context(), from, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// whole reads the start and follows the programs that it leads to.
func whole(t testing.TB, img *tree.Image, config *v1.Config) (*start.Report, map[string][][]string) {
	t.Helper()
	r, err := start.Read(t.Context(), img, config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := supervisord.Read(t.Context(), img, r.Supervisord, r.Values(nil))
	if err != nil {
		t.Fatal(err)
	}
	var jobs []start.Job
	for _, p := range c.Programs {
		words, err := p.Args(nil)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, start.Job{
			Name: p.Name, Command: words, Autostart: p.Autostart, Uses: []string{p.User, p.Directory, p.Processes},
			Environment: p.Environment, Place: p.Place,
		})
	}
	commands, err := r.Follow(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	return r, commands
}

func TestLine(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		if got := start.Line(base(t, line)); got != line {
			t.Errorf("line %s is taken for %q", line, got)
		}
	}
	if got := start.Line(imageOf(t)); got != "" {
		t.Errorf("an empty image is taken for %q", got)
	}
}

// snippets are nginx's templates that are rendered once on every line; B has more of them, C yet more.
var snippets = []string{"python_srv", "mcp_hub", "jupyter_lab", "code_server"}

// ofLine is what facts/aio-base.md says of a line's start, in sections 2, 5 and 6.
type ofLine struct {
	scripts, hooks []string
	// once are the snippets, always what is rendered at every start, from template to output below /opt/gem.
	once, always []string
	// copies are no renderings, dormant both kinds behind mcp.disabled.
	copies, dormant []string
	// switches have their kind, and after a colon the programs that they start and stop.
	switches []string
}

var everyLine = []string{
	"DISABLE_JUPYTER program:jupyter", "DISABLE_CODE_SERVER program:code-server", "BROWSER_EXTRA_ARGS browser", "BROWSER_COMMANDLINE_ARGS browser",
	"BROWSER_NO_SANDBOX browser", "PUBLIC_PORT listener", "JWT_PUBLIC_KEY auth", "TICKET_TTL_SECONDS auth", "WAIT_PORTS wait", "WAIT_TIMEOUT wait",
	"WAIT_INTERVAL wait", "SANDBOX_SRV_PORT listener", "BROWSER_REMOTE_DEBUGGING_PORT listener", "JUPYTER_LAB_PORT listener", "CODE_SERVER_PORT listener",
	"WEBSOCKET_PROXY_PORT listener", "VNC_SERVER_PORT listener", "AUTH_BACKEND_PORT listener", "TINYPROXY_PORT listener", "MCP_SERVER_BROWSER_PORT listener",
	"USER account", "USER_UID account", "USER_GID account", "DNS_OVER_HTTPS_TEMPLATES browser", "MAX_SHELL_SESSIONS other", "TZ other", "DISPLAY other",
	"PATH code", "BASH_ENV code", "BROWSER_EXECUTABLE_PATH code",
}

var linesBC = []string{
	"DISABLE_BROWSER program:agent-browser,browser,dbus,fcitx5,mcp-server-browser", "DISABLE_MCP_BROWSER program:mcp-server-browser",
	"DISABLE_VNC program:autocutsel-clipboard,autocutsel-primary,dbus,fcitx5,openbox,tigervnc,websocat",
	"DISABLE_NODEJS_REPL program:nodejs-repl-server-20,nodejs-repl-server-22,nodejs-repl-server-24", "ENABLE_CJK_IME program:dbus,fcitx5",
	"NODE_VERSION program:nodejs-repl-server-20,nodejs-repl-server-22,nodejs-repl-server-24",
	"NODE_CODE_EXEC_VERSION program:nodejs-repl-server-20,nodejs-repl-server-22,nodejs-repl-server-24",
	"LOG_STDOUT_SERVER program:log_tail", "EXTRA_MCP_SERVERS mcp", "RUN_HOOK_INIT command", "RUN_HOOK_PRE_SERVICES command", "RUN_HOOK_POST_READY command",
	"RUN_HOOKS_STRICT command", "SANDBOX_SHUTDOWN_HOOKS command", "PROXY_SERVER proxy:gost", "PROXY_AUTH_CMD command", "PROXY_AUTH_WATCH proxy",
	"PROXY_MAP proxy", "PROXY_EXCLUDE proxy", "PROXY_INCLUDE proxy", "PROXY_BYPASS_LIST proxy", "PUBLIC_LISTEN_IPV4 listener", "PUBLIC_LISTEN_IPV6 listener",
	"_BYTEFAAS_RUNTIME_PORT listener", "FAAS_SANDBOX_RUNTIME_INJECTION_ENABLE_SANDBOXD listener", "SANDBOX_API_KEY auth", "WAIT_FILES wait",
	"AIO_USER account", "WORKSPACE account", "SRV_PYTHONPATH code", "OPENCODE_PORT listener", "AIO_SKILLS_PATH code", "BROWSER_URL_BLOCKLIST browser",
	"BROWSER_URL_ALLOWLIST browser", "MAX_BASH_SESSIONS other", "BASH_SESSION_TIMEOUT other",
}

var hooksBC = []string{
	"RUN_HOOK_INIT bash -c", "RUN_HOOK_PRE_SERVICES bash -c", "RUN_HOOK_POST_READY bash -c", "PROXY_AUTH_CMD bash -c", "SANDBOX_SHUTDOWN_HOOKS python-server, at stop",
	// These are not in the facts. Each was tried with bash: it goes unquoted into a command that a shell reads.
	"BROWSER_LANG su -c", "AIO_CLI_SKILL_ENABLED su -c", "LOG_DIR bash -c", "BROWSER_EXECUTABLE_PATH exec",
}

var lines = map[string]ofLine{
	"A": {
		scripts: []string{
			"run.sh by entrypoint", "entrypoint.sh by /opt/gem/run.sh", "start-browser.sh by browser", "nginx-wait.sh by nginx", "openbox.sh by openbox",
			"code-server.sh by code-server", "jupyter-lab.sh by jupyter", "wait-for-python-server.sh by mcp-hub",
			"mcp-hub-wait.sh by /opt/gem/wait-for-python-server.sh", "tinyproxy.sh by tinyproxy",
		},
		// The second one is no fact: (( … )) takes a variable's value for an expression, and one with a[$(…)] runs that.
		hooks: []string{"BROWSER_EXECUTABLE_PATH exec", "FASTAPI_WAIT_TIMEOUT bash arithmetic"},
		once:  snippets,
		always: []string{
			"nginx-server-with-auth.conf nginx-server-active.conf", "nginx-server-without-auth.conf nginx-server-active.conf",
			"nginx-server-port-proxy.conf.template nginx-server-port-proxy.conf", "nginx.legacy.conf nginx/legacy.conf",
			"nginx.srv.conf nginx/srv.conf", "nginx.vnc.conf nginx/vnc.conf", "tinyproxy/base.conf /etc/tinyproxy.conf",
		},
		copies:  []string{"preferences.json /home/gem/.config/browser/Default/Preferences"},
		dormant: []string{"supervisord.mcp.conf supervisord/mcp.conf", "nginx.mcp.conf nginx/mcp.conf"},
		switches: append([]string{
			"PROXY_SERVER proxy:tinyproxy", "MCP_HUB_PORT listener", "GEM_SERVER_PORT listener", "MCP_SERVER_PORT listener", "MCP_HUB_WAIT_PORTS wait",
			"FASTAPI_WAIT_SKIP wait", "FASTAPI_WAIT_HOST wait", "FASTAPI_WAIT_PATH wait", "FASTAPI_WAIT_TIMEOUT wait", "FASTAPI_WAIT_INTERVAL wait",
		}, everyLine...),
	},
	"B": {
		scripts: append([]string{"run.sh by entrypoint", "nodejs.sh by /opt/gem/run.sh"}, scriptsB...),
		hooks:   hooksBC,
		once:    append([]string{"opencode", "gembrowser_compat", "ui_browser"}, snippets...),
		always: []string{
			"nginx-server-with-auth.conf nginx-server-active.conf", "nginx-server-without-auth.conf nginx-server-active.conf",
			"nginx-server-port-proxy.conf.template nginx-server-port-proxy.conf", "nginx.legacy.conf nginx/legacy.conf", "nginx.vnc.conf nginx/vnc.conf",
		},
		switches: append(linesBC, everyLine...),
	},
}

var scriptsB = []string{
	"agent-browser-init.sh by agent-browser", "agent-browser-wrapper.sh by /opt/gem/agent-browser-init.sh", "start-browser.sh by browser",
	"nginx-wait.sh by nginx", "openbox.sh by openbox", "code-server.sh by code-server", "jupyter-lab.sh by jupyter", "supervisord/python_srv_wrapper.sh by python-server",
}

func init() {
	c := lines["B"]
	c.scripts = append([]string{
		"run.sh by entrypoint", "gem_init.sh by /opt/gem/run.sh", "render-claude-config.sh by /opt/gem/gem_init.sh",
		"render-opencode-config.sh by /opt/gem/gem_init.sh", "gem.sh by /opt/gem/gem_init.sh", "nodejs.sh by /opt/gem/gem.sh",
	}, scriptsB...)
	c.once = append([]string{"codex", "claudecode"}, c.once...)
	c.copies = []string{"opencode/config.json /tmp/tmp.XXXXXXXXXX"}
	lines["C"] = c
}

func TestLines(t *testing.T) {
	for line, want := range lines {
		t.Run(line, func(t *testing.T) {
			img := base(t, line)
			r, _ := whole(t, img, &img.Config.Config)
			if r.Supervisord != "/opt/gem/supervisord.conf" || r.Clean || len(r.Choices) > 0 {
				t.Errorf("supervisord %q, clean %v, choices %v", r.Supervisord, r.Clean, r.Choices)
			}
			short := func(p string) string { return strings.TrimPrefix(p, "/opt/gem/") }
			var scripts, once, always, copies, dormant, hooks []string
			for _, s := range r.Scripts {
				scripts = append(scripts, short(s.Path)+" by "+s.By)
				if s.Place.Layer == "" {
					t.Errorf("%+v", s)
				}
			}
			for _, x := range r.Renderings {
				both := short(x.Template) + " " + short(x.Output)
				name := strings.TrimSuffix(strings.TrimPrefix(x.Template, "/opt/gem/nginx/nginx."), ".conf")
				switch {
				case x.Dormant:
					dormant = append(dormant, both)
				case x.Variables != nil && len(x.Variables) == 0:
					copies = append(copies, both)
				case x.Once && x.Output == "/opt/gem/nginx/"+name+".conf":
					once = append(once, name)
				case x.Template == "/opt/aio/index.html.template" && x.Once, x.Template == "/opt/gem/mcp-hub.json.template" && x.Once && x.Output == "/opt/gem/mcp-hub.json":
				default:
					always = append(always, both)
					if x.Once {
						t.Errorf("%s is said to be deleted", x.Template)
					}
				}
				checkRendering(t, img, x)
			}
			for _, h := range r.Hooks {
				hooks = append(hooks, h.Variable+" "+h.How)
				if h.Place.Path == "" || h.Place.Line == 0 || h.Dormant {
					t.Errorf("%+v", h)
				}
			}
			for what, pair := range map[string][2][]string{
				"scripts": {want.scripts, scripts}, "rendered once": {want.once, once}, "rendered at every start": {want.always, always},
				"copies": {want.copies, copies}, "dormant": {want.dormant, dormant}, "hooks": {want.hooks, hooks},
			} {
				w, g := slices.Sorted(slices.Values(pair[0])), slices.Sorted(slices.Values(pair[1]))
				if diff := cmp.Diff(w, g); diff != "" {
					t.Errorf("%s (-facts +read):\n%s", what, diff)
				}
			}
			got := map[string]string{}
			for _, s := range r.Switches {
				got[s.Name] = s.Kind
				if len(s.Programs) > 0 {
					got[s.Name] += ":" + strings.Join(slices.Sorted(slices.Values(s.Programs)), ",")
				}
				value, set := lookup(img.Config.Config.Env, s.Name)
				if s.Effect == "" || len(s.Places) == 0 || s.Value != value || s.Set != set {
					t.Errorf("%+v", s)
				}
			}
			for _, w := range want.switches {
				name, kind, _ := strings.Cut(w, " ")
				if got[name] != kind {
					t.Errorf("switch %s is %q, want %q", name, got[name], kind)
				}
			}
			if len(r.Grants) != 1 || !strings.Contains(r.Grants[0].Text, "gem ALL=(ALL) NOPASSWD:ALL to /etc/sudoers.d/gem") {
				t.Errorf("grants %v", r.Grants)
			}
			for _, n := range r.Notes { // which program it is is found out at run time
				if !strings.HasSuffix(n.Place.Path, "agent-browser-wrapper.sh") {
					t.Errorf("note %s", n)
				}
			}
		})
	}
}

// checkRendering holds a rendering against the files themselves.
func checkRendering(t *testing.T, img *tree.Image, x start.Rendering) {
	t.Helper()
	if _, ok := img.Stat(x.Template); !ok {
		t.Errorf("%s isn't there", x.Template)
	}
	for _, v := range x.Variables {
		if _, known := x.Values[v]; !known {
			t.Errorf("%s: what %s is isn't known", x.Template, v)
		}
	}
	script, err := img.ReadFile(t.Context(), x.Place.Path)
	if err != nil {
		t.Error(err)
		return
	}
	if line := strings.Split(string(script), "\n")[x.Place.Line-1]; !strings.Contains(line, ">") && !strings.Contains(line, "cp ") {
		t.Errorf("%s is said to be made by %q", x.Output, line)
	}
}

func lookup(env []string, name string) (string, bool) {
	for _, e := range env {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// TestWhatStarts: which programs start by default, and by which variable a program's file goes away (facts/aio-base.md 3.2).
func TestWhatStarts(t *testing.T) {
	img := base(t, "B")
	r, commands := whole(t, img, &img.Config.Config)
	values := r.Values(map[string]string{"USER": "root", "OWN": "x"})
	for name, want := range map[string]string{
		"AUTOSTART_JUPYTER": "true", "AUTOSTART_CODE_SERVER": "true", "AUTOSTART_BROWSER": "true", "AUTOSTART_VNC": "true", "AUTOSTART_MCP_BROWSER": "true",
		"AUTOSTART_CJK_IME": "true", "AUTOSTART_NODEJS_REPL_20": "false", "AUTOSTART_NODEJS_REPL_22": "true", "AUTOSTART_NODEJS_REPL_24": "false",
		"LOG_STDOUT_SERVER": "false", "USER": "gem", "OWN": "x", "WORKSPACE": "/home/gem",
		"PATH": "/opt/gem/bin:/home/gem/.fnm_shell/bin:/home/gem/.npm-global/bin:/home/gem/.local/bin:" + mustLookup(t, img.Config.Config.Env, "PATH"),
	} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s=%q (known: %v), want %q", name, got, ok, want)
		}
	}
	changes := map[string][]string{}
	for _, c := range r.Changes {
		changes[c.How+" "+c.Path] = append([]string{}, c.Variables...)
	}
	for change, want := range map[string][]string{
		"rm /opt/gem/supervisord/supervisord.gost.conf": {"PROXY_SERVER"},
		"touch /opt/gem/nginx-proxy-map.conf":           {"PROXY_SERVER"},
		">> /opt/gem/nginx-proxy-map.conf":              {"PROXY_MAP", "PROXY_SERVER"},
		"mv /opt/gem/mcp-hub.json.template":             {"EXTRA_MCP_SERVERS"},
		"> /opt/gem/gost.yaml":                          {"PROXY_AUTH_CMD", "PROXY_SERVER", "TINYPROXY_PORT"},
		">> /etc/sudoers.d/gem":                         {"USER"},
		"rm /opt/gem/nginx/nginx.python_srv.conf":       {},
	} {
		if got, ok := changes[change]; !ok || !slices.Equal(got, want) {
			t.Errorf("%s: there %v, depends on %v, want %v", change, ok, got, want)
		}
	}
	for program, want := range map[string]string{
		"nginx":         "/usr/sbin/nginx -c /opt/gem/nginx.conf -g daemon off;",
		"python-server": "/usr/local/bin/python-server --host 127.0.0.1 --port 8091 --ws-ping-interval 30 --mcp-config /opt/gem/mcp-hub.json --filter-mcp-servers sandbox --workspace /home/gem",
		"websocat":      "/usr/local/bin/websocat -v --binary --exit-on-eof --ping-interval 30 ws-l:127.0.0.1:6080 tcp:localhost:5900",
		"log_tail":      "tail -F /var/log/gem/python-server.log",
		"code-server": "/usr/bin/code-server --bind-addr=127.0.0.1:8200 --auth=none --trusted-origins * --disable-update-check --disable-telemetry " +
			"--disable-workspace-trust --user-data-dir=/home/gem/.config/code-server/vscode /home/gem",
	} {
		last := commands[program][len(commands[program])-1]
		if got := strings.Join(last, " "); got != want {
			t.Errorf("%s comes to %q, want %q", program, got, want)
		}
	}
	browser := commands["browser"][len(commands["browser"])-1]
	for _, want := range []string{"/usr/local/bin/browser", "--remote-debugging-port=9222", "--no-sandbox", "--lang=en-US"} {
		if !slices.Contains(browser, want) {
			t.Errorf("the browser is started without %s: %q", want, browser)
		}
	}
}

func mustLookup(t *testing.T, env []string, name string) string {
	t.Helper()
	v, ok := lookup(env, name)
	if !ok {
		t.Fatalf("the image has no %s", name)
	}
	return v
}

// TestHoleL: without mcp.disabled the old MCP server comes back.
func TestHoleL(t *testing.T) {
	img := base(t, "A", image.Whiteout("/opt/gem/mcp.disabled"))
	r, _ := whole(t, img, &img.Config.Config)
	live := 0
	for _, x := range r.Renderings {
		if x.Output == "/opt/gem/nginx/mcp.conf" || x.Output == "/opt/gem/supervisord/mcp.conf" {
			live++
			if x.Dormant {
				t.Errorf("%+v", x)
			}
		}
	}
	if live != 2 {
		t.Errorf("%d renderings of mcp.conf", live)
	}
}

func TestClosed(t *testing.T) {
	conf, err := assets.FS.ReadFile("supervisord/supervisord.conf")
	if err != nil {
		t.Fatal(err)
	}
	const shell = "/usr/local/bin/browser-shell"
	files := []image.File{image.Bytes("/opt/gem/supervisord.conf", 0o644, conf)}
	for _, p := range []string{shell, "/usr/local/bin/browser", "/usr/bin/Xvnc", "/usr/bin/openbox", "/usr/sbin/nginx"} {
		files = append(files, image.Bytes(p, 0o755, []byte("\x7fELF")))
	}
	img := imageOf(t, files...)
	env := []string{"JWT_PUBLIC_KEY=", "DISABLE_JUPYTER=false", "RUN_HOOK_INIT=x"}
	r, commands := whole(t, img, &v1.Config{Entrypoint: []string{shell, "init"}, Env: env})
	var names []string
	for _, s := range r.Switches {
		names = append(names, s.Name+" "+s.Kind)
		if s.Places[0].Path != shell || s.Set != (s.Name == "JWT_PUBLIC_KEY") {
			t.Errorf("%+v", s)
		}
	}
	want := []string{"JWT_AUDIENCE auth", "JWT_ISSUER auth", "JWT_PUBLIC_KEY auth", "SANDBOX_API_KEY auth", "SLIM_ALLOW_ANONYMOUS auth", "SLIM_LANG other", "SLIM_LISTEN listener", "SLIM_SCREEN other", "TICKET_TTL_SECONDS auth", "TZ other"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("switches (-want +got):\n%s", diff)
	}
	if !r.Clean || r.Supervisord != "/opt/gem/supervisord.conf" || len(r.Hooks)+len(r.Renderings)+len(r.Scripts)+len(r.Grants)+len(r.Changes)+len(r.Notes) > 0 {
		t.Errorf("%+v", r)
	}
	if got := commands["nginx"]; len(got) != 1 || got[0][2] != "%(ENV_SLIM_NGINX_CONF)s" {
		t.Errorf("nginx comes to %q", got)
	}
	i := slices.IndexFunc(r.Choices, func(c start.Choice) bool { return c.Variable == "SLIM_NGINX_CONF" })
	if i < 0 || len(r.Choices[i].Values) != 4 {
		t.Errorf("choices %v", r.Choices)
	}
	if got := r.Values(map[string]string{"DISABLE_JUPYTER": "false"}); got["DISABLE_JUPYTER"] != "" || got["LANG"] != "C.UTF-8" {
		t.Errorf("the programs get %v", got)
	}
	for name, config := range map[string]*v1.Config{
		"arguments":  {Entrypoint: []string{shell, "init", "--x"}},
		"no program": {Entrypoint: []string{"/bin/browser-shell", "init"}},
		"no entry":   {},
		"another":    {Entrypoint: []string{shell, "hub"}},
	} {
		r, err := start.Read(t.Context(), img, config)
		if err != nil || len(r.Notes) == 0 {
			t.Errorf("%s: notes %v, %v", name, r.Notes, err)
		}
	}
}

func imageOf(t testing.TB, files ...image.File) *tree.Image {
	t.Helper()
	img, err := tree.FromFiles(t.Context(), nil, files...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestMadeConfiguration: a configuration that is there at run time only is read as its template.
func TestMadeConfiguration(t *testing.T) {
	img := imageOf(t, image.Bytes("/run.sh", 0o755, []byte("#!/bin/sh\nenvsubst '$A' </t >/run/s.conf\nsupervisord -c /run/s.conf\n")), image.Bytes("/t", 0o755, nil))
	r, err := start.Read(t.Context(), img, &v1.Config{Entrypoint: []string{"/run.sh"}})
	if err != nil {
		t.Fatal(err)
	}
	const want = "/run.sh:2: supervisord is started with /run/s.conf, which is made from /t: that is read in its place"
	if r.Supervisord != "/t" || len(r.Notes) != 1 || r.Notes[0].String() != want || len(r.Renderings) != 1 {
		t.Errorf("supervisord %q, notes %v, renderings %v", r.Supervisord, r.Notes, r.Renderings)
	}
}

func TestMade(t *testing.T) {
	const script = "#!/bin/sh\ntouch /a\n[ -n \"$X\" ] && : >/b\n[ -f /nowhere ] && touch /c\ntouch /d\nrm /d\nsed -i s/a/b/ /e\necho x | tee /f\nrm /g\n"
	r, err := start.Read(t.Context(), imageOf(t, image.Bytes("/run.sh", 0o755, []byte(script))), &v1.Config{Entrypoint: []string{"/run.sh"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"/a": true, "/b": true, "/f": true}, r.Made()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHostile: what a script does with very many variables is told in bounded time.
func TestHostile(t *testing.T) {
	var b strings.Builder
	b.WriteString("#!/bin/bash\n")
	for i := range 4_000 {
		fmt.Fprintf(&b, "eval \"$e%d\"\n", i)
	}
	img := imageOf(t, image.Bytes("/run.sh", 0o755, []byte(b.String())))
	took := need.CPU(t, func() {
		r, err := start.Read(t.Context(), img, &v1.Config{Entrypoint: []string{"/run.sh"}})
		if err != nil || len(r.Switches) < 4_000 {
			t.Errorf("%d switches, %v", len(r.Switches), err)
		}
	})
	if took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestEntrypoints covers how an image can come to its script.
func TestEntrypoints(t *testing.T) {
	files := []image.File{
		image.Bytes("/opt/run.sh", 0o755, []byte("#!/bin/sh -e\ntouch \"/made/$1\"\n")), image.Symlink("/entry", "opt/run.sh"),
		image.Bytes("/opt/sourced", 0o644, []byte("touch /made/plain\n")), image.Bytes("/usr/bin/tini", 0o755, []byte("\x7fELF")),
	}
	for name, tt := range map[string]struct {
		config v1.Config
		want   string
		notes  int
	}{
		"entrypoint and command": {v1.Config{Entrypoint: []string{"/opt/run.sh"}, Cmd: []string{"x"}}, "/made/x", 0},
		"a link":                 {v1.Config{Cmd: []string{"/entry", "x"}}, "/made/x", 0},
		"by PATH":                {v1.Config{Cmd: []string{"run.sh", "x"}, Env: []string{"PATH=/nowhere:/opt"}}, "/made/x", 0},
		"tini":                   {v1.Config{Entrypoint: []string{"/usr/bin/tini", "-g", "--"}, Cmd: []string{"/opt/run.sh", "x"}}, "/made/x", 0},
		"a shell":                {v1.Config{Entrypoint: []string{"/bin/bash", "-eu", "-o", "pipefail", "/opt/run.sh", "x"}}, "/made/x", 0},
		"no shebang":             {v1.Config{Entrypoint: []string{"sh", "/opt/sourced"}}, "/made/plain", 0},
		"shell form":             {v1.Config{Cmd: []string{"/bin/sh", "-c", "exec /opt/run.sh \"$X\""}, Env: []string{"X=x"}}, "/made/x", 0},
		"a binary":               {v1.Config{Cmd: []string{"/usr/bin/tini"}}, "", 1},
		"nothing":                {v1.Config{}, "", 1},
		"not there":              {v1.Config{Cmd: []string{"/none"}}, "", 1},
	} {
		r, err := start.Read(t.Context(), imageOf(t, files...), &tt.config)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range r.Changes {
			got = c.Path
		}
		if got != tt.want || len(r.Notes) != tt.notes {
			t.Errorf("%s: made %q, want %q; notes %v", name, got, tt.want, r.Notes)
		}
	}
}
