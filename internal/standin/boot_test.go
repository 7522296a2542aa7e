package standin

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// booted is a stand-in's tree in a directory, with its start script run there up to supervisord.
type booted struct {
	root string
	out  string
	err  error
}

func (b booted) path(p string) string { return filepath.Join(b.root, p) }

func (b booted) has(p string) bool {
	_, err := os.Stat(b.path(p))
	return err == nil
}

// absolute finds the paths that a script or conf means in the image.
var absolute = regexp.MustCompile(`(^|[\s"'=<>:(])/(opt|etc|var|tmp|run|home|usr/bin/supervisord)\b`)

// stubs stand for what needs root. su runs the command, as the caller; chown only wants its last argument to exist.
var stubs = map[string]string{
	"getent": "exit 0", "id": "echo 0", "groupadd": "exit 0", "useradd": "exit 0", "rsync": "exit 0",
	"chown": `for last; do :; done; [ -e "$last" ]`,
	"su":    `while [ "$1" != -c ]; do shift; done; HOME=$STAND_IN_HOME exec bash -c "$2"`,
}

// boot lays a line's files below a directory, points every absolute path there, and runs the image's entry.
func boot(t *testing.T, line string, change func(booted), env ...string) booted {
	t.Helper()
	for _, name := range []string{"bash", "envsubst", "jq"} {
		need.Program(t, name)
	}
	b := booted{root: t.TempDir()}
	img := imageOf(t, cached(t, line), "linux/amd64")
	lay(t, b, merged(t, img))
	write := func(p, data string) {
		if err := os.MkdirAll(filepath.Dir(b.path(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.path(p), []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, body := range stubs {
		write("/stubs/"+name, "#!/bin/bash\n"+body+"\n")
	}
	write("/usr/bin/supervisord", "#!/bin/bash\nenv >"+b.path("/started")+"\n")
	write("/home/gem/.keep", "")
	if change != nil {
		change(b)
	}
	return again(t, b, line, env...)
}

// again starts b once more.
func again(t *testing.T, b booted, line string, env ...string) booted {
	t.Helper()
	img := imageOf(t, cached(t, line), "linux/amd64")
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", b.path("/opt/gem/run.sh"))
	for _, e := range append(slices.Clone(config.Config.Env), env...) {
		if !strings.HasPrefix(e, "PATH=") {
			cmd.Env = append(cmd.Env, b.rewrite(e))
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+b.path("/stubs")+":"+os.Getenv("PATH"), "STAND_IN_HOME="+b.path("/home/gem"))
	os.Remove(b.path("/started"))
	out, err := cmd.CombinedOutput()
	b.out, b.err = string(out), err
	if err == nil && !b.has("/started") {
		b.err = fmt.Errorf("supervisord was not started")
	}
	return b
}

func (b booted) rewrite(text string) string {
	return absolute.ReplaceAllString(text, "${1}"+b.root+"/$2")
}

func lay(t *testing.T, b booted, tree map[string]entry) {
	t.Helper()
	for _, p := range slices.Sorted(maps.Keys(tree)) {
		if !slices.ContainsFunc([]string{"/opt/gem", "/opt/aio", "/opt/jupyter", "/opt/application", "/etc", "/var", "/tmp", "/run"}, func(dir string) bool {
			return p == dir || strings.HasPrefix(p, dir+"/")
		}) {
			continue
		}
		e := tree[p]
		var err error
		switch e.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(b.path(p), 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(b.rewrite(e.Linkname), b.path(p))
		case tar.TypeReg:
			text := b.rewrite(string(e.data))
			// Debian's nginx wants its own temporary directories, which only root can use.
			if p == "/opt/gem/nginx.conf" && !strings.Contains(text, "client_body_temp_path") {
				for _, kind := range []string{"client_body", "proxy", "fastcgi", "scgi", "uwsgi"} {
					text = strings.Replace(text, "http {", "http {\n"+kind+"_temp_path "+b.path("/tmp/"+kind)+";", 1)
				}
			}
			err = os.WriteFile(b.path(p), []byte(text), os.FileMode(e.Mode&0o777))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func remove(paths ...string) func(booted) {
	return func(b booted) {
		for _, p := range paths {
			if !b.has(p) {
				panic(p + " is not there to be removed")
			}
			if err := os.RemoveAll(b.path(p)); err != nil {
				panic(err)
			}
		}
	}
}

func servers(t *testing.T, b booted) []string {
	t.Helper()
	data, err := os.ReadFile(b.path("/opt/gem/mcp-hub.json"))
	if err != nil {
		t.Fatal(err)
	}
	var hub struct{ MCPServers map[string]any }
	if err := json.Unmarshal(data, &hub); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(hub.MCPServers))
}

func TestBoot(t *testing.T) {
	for line, want := range map[string][]string{"A": {"browser", "chrome_devtools", "sandbox"}, "B": {"browser"}, "C": {"browser"}} {
		t.Run(line, func(t *testing.T) {
			b := boot(t, line, nil)
			if b.err != nil {
				t.Fatalf("%v\n%s", b.err, b.out)
			}
			if got := servers(t, b); !slices.Equal(got, want) {
				t.Errorf("mcp-hub.json names %v, want %v", got, want)
			}
			for _, name := range []string{"python_srv", "mcp_hub", "jupyter_lab", "code_server"} {
				if b.has("/opt/gem/nginx/nginx."+name+".conf") || !b.has("/opt/gem/nginx/"+name+".conf") {
					t.Errorf("template %s: kept, or not rendered", name)
				}
			}
			if b.has("/opt/gem/mcp-hub.json.template") || b.has("/opt/gem/supervisord/mcp.conf") {
				t.Error("a rendered template, or the conf that mcp.disabled holds back, is there")
			}
			if line != "A" && !b.has("/opt/gem/nginx-proxy-map.conf") {
				t.Error("no nginx-proxy-map.conf, which nginx.conf includes")
			}
			second := again(t, b, line)
			if second.err != nil {
				t.Errorf("second start: %v\n%s", second.err, second.out)
			}
		})
	}
}

// Deleting one of these stops the boot of the real image, so it must stop the stand-in's.
func TestBootCritical(t *testing.T) {
	if testing.Short() {
		t.Skip("boots two dozen times")
	}
	both := []string{
		"/opt/gem/nginx.legacy.conf", "/opt/gem/nginx.vnc.conf", "/opt/gem/nginx-server-without-auth.conf",
		"/opt/gem/nginx-server-port-proxy.conf.template", "/opt/jupyter",
	}
	for line, more := range map[string][]string{
		"A": {"/opt/gem/nginx.srv.conf", "/opt/gem/matplotlibrc", "/opt/gem/preferences.json"},
		"B": {"/etc/profile.d/nodejs.sh"},
	} {
		for _, p := range append(slices.Clone(both), more...) {
			if b := boot(t, line, remove(p)); b.err == nil {
				t.Errorf("line %s boots without %s", line, p)
			}
		}
		if b := boot(t, line, remove("/opt/gem/nginx-server-with-auth.conf"), "JWT_PUBLIC_KEY=x"); b.err == nil {
			t.Errorf("line %s boots with a key and without the server for it", line)
		}
		fine := []string{"/opt/gem/nginx/nginx.python_srv.conf", "/opt/gem/nginx/nginx.code_server.conf", "/opt/gem/nginx/nginx.mcp_hub.conf"}
		if b := boot(t, line, remove(fine...)); b.err != nil {
			t.Errorf("line %s without %v: %v\n%s", line, fine, b.err, b.out)
		}
		// "envsubst <missing >json && rm" fails in a list, which set -e lets pass: the hub is left without a config.
		if b := boot(t, line, remove("/opt/gem/mcp-hub.json.template")); b.err != nil || b.has("/opt/gem/mcp-hub.json") {
			t.Errorf("line %s without the hub's template: %v, config there %v", line, b.err, b.has("/opt/gem/mcp-hub.json"))
		}
	}
	if b := boot(t, "A", remove("/opt/gem/tinyproxy/base.conf"), "PROXY_SERVER=true"); b.err == nil {
		t.Error("line A boots with a proxy and without tinyproxy/base.conf")
	}
}

// The environment can open the stand-ins as it can open the real image.
func TestOpenHoles(t *testing.T) {
	if b := boot(t, "A", remove("/opt/gem/mcp.disabled")); b.err != nil || !b.has("/opt/gem/supervisord/mcp.conf") || !b.has("/opt/gem/nginx/mcp.conf") {
		t.Errorf("without mcp.disabled the old server stays off: %v\n%s", b.err, b.out)
	}
	for _, line := range []string{"B", "C"} {
		b := boot(t, line, nil, `EXTRA_MCP_SERVERS={"evil": {"type": "stdio", "command": "touch"}, "browser": null}`)
		if b.err != nil {
			t.Fatalf("line %s: %v\n%s", line, b.err, b.out)
		}
		if got := servers(t, b); !slices.Equal(got, []string{"evil"}) {
			t.Errorf("line %s: EXTRA_MCP_SERVERS gives %v, want evil alone", line, got)
		}
		if b := boot(t, line, nil, "EXTRA_MCP_SERVERS={"); b.err == nil {
			t.Errorf("line %s boots with broken EXTRA_MCP_SERVERS", line)
		}
		for _, hook := range []string{"RUN_HOOK_INIT", "RUN_HOOK_PRE_SERVICES"} {
			if b := boot(t, line, nil, hook+"=: >$STAND_IN_HOME/ran"); b.err != nil {
				t.Errorf("line %s: %s: %v\n%s", line, hook, b.err, b.out)
			} else if !b.has("/home/gem/ran") {
				t.Errorf("line %s: %s did not run", line, hook)
			}
		}
	}
	for switched, want := range map[string]string{"DISABLE_JUPYTER=false": "AUTOSTART_JUPYTER=true", "DISABLE_JUPYTER=true": "AUTOSTART_JUPYTER=false"} {
		b := boot(t, "B", nil, switched)
		if env, err := os.ReadFile(b.path("/started")); err != nil || !strings.Contains(string(env), want+"\n") {
			t.Errorf("%s: supervisord's environment lacks %s (%v)", switched, want, err)
		}
	}
}

// nginxTest runs nginx -t on what a boot rendered.
func nginxTest(t *testing.T, b booted) (string, error) {
	t.Helper()
	if b.err != nil {
		t.Fatalf("%v\n%s", b.err, b.out)
	}
	out, err := exec.Command(need.Program(t, "nginx"), "-t", "-e", "stderr", "-p", b.root, "-c", b.path("/opt/gem/nginx.conf")).CombinedOutput()
	return string(out), err
}

func freePort(t *testing.T) string { return fmt.Sprint(need.FreePort(t)) }

func TestNginxAccepts(t *testing.T) {
	need.Program(t, "nginx")
	for _, line := range []string{"A", "B", "C"} {
		for _, key := range []string{"", "a-key"} {
			b := boot(t, line, nil, "JWT_PUBLIC_KEY="+key, "PUBLIC_PORT="+freePort(t), "AUTH_BACKEND_PORT="+freePort(t))
			if out, err := nginxTest(t, b); err != nil {
				t.Errorf("line %s, key %q: %v\n%s", line, key, err, out)
			}
		}
	}
}

// What the usual "deny all" file meets in the real image (duplicate location, unrendered template) must be met here.
func TestNginxTraps(t *testing.T) {
	need.Program(t, "nginx")
	port := "PUBLIC_PORT=" + freePort(t)
	deny := func(b booted) {
		if err := os.WriteFile(b.path("/opt/gem/nginx/zz_deny_all.conf"), []byte("location / { return 403; }\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := nginxTest(t, boot(t, "A", deny, port)); err != nil {
		t.Errorf("line A refuses a deny-all file: %v\n%s", err, out)
	}
	if out, err := nginxTest(t, boot(t, "B", deny, port)); err == nil || !strings.Contains(out, `duplicate location "/"`) {
		t.Errorf("line B takes a deny-all file beside header_proxy.conf: %v\n%s", err, out)
	}
	for line, want := range map[string]string{"A": "mcp_hub_port", "B": "sandbox_srv_port"} {
		b := boot(t, line, nil, port)
		template := `location /later { proxy_pass http://127.0.0.1:${` + strings.ToUpper(want) + "}; }\n"
		if err := os.WriteFile(b.path("/opt/gem/nginx/nginx.later.conf"), []byte(template), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := nginxTest(t, b); err == nil || !strings.Contains(out, "unknown \""+want+"\" variable") {
			t.Errorf("line %s takes an unrendered template: %v\n%s", line, err, out)
		}
	}
}

// The holes of the real nginx files, asked of a running nginx.
func TestNginxHoles(t *testing.T) {
	nginx := need.Program(t, "nginx")
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/auth" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, "upstream")
	}))
	defer upstream.Close()
	_, up, _ := net.SplitHostPort(upstream.Listener.Addr().String())
	type request struct {
		path, header, value string
		want                int
	}
	for name, c := range map[string]struct {
		line, key string
		requests  []request
	}{
		"A": {"A", "", []request{
			{"/v1/docs", "", "", 200},
			{"/jsonx", "", "", 200},
			{"/cdp/json/version", "", "", 200},
			{"/actions", "", "", 200},
			{"/proxy/1234/x", "", "", 200},
			{"/mcpfoo", "", "", 200},
			{"/nothing", "Host", up + "-x", 200},
		}},
		"A with auth": {"A", "key", []request{
			{"/mcp", "", "", 401}, {"/mcp?x=.js", "", "", 200}, {"/v1/docs?x=.ico", "", "", 200}, {"/mcp", "Host", up + "-x", 200},
		}},
		"B": {"B", "", []request{
			{"/nothing", "", "", 404},
			{"/nothing", "X-Aio-Proxy-Port", up, 200},
			{"/v1/mcp", "", "", 200},
			{"/health", "", "", 200},
			{"/nothing", "Host", up + "-x", 200},
		}},
		"C": {"C", "", []request{{"/codex", "", "", 302}, {"/claudecode", "", "", 302}, {"/opencode", "", "", 302}}},
	} {
		t.Run(name, func(t *testing.T) {
			public := freePort(t)
			env := []string{"PUBLIC_PORT=" + public, "AUTH_BACKEND_PORT=" + freePort(t), "JWT_PUBLIC_KEY=" + c.key, "PUBLIC_LISTEN_IPV4=127.0.0.1"}
			for _, port := range []string{
				"GEM_SERVER_PORT", "SANDBOX_SRV_PORT", "MCP_HUB_PORT", "BROWSER_REMOTE_DEBUGGING_PORT", "CODE_SERVER_PORT", "JUPYTER_LAB_PORT",
			} {
				env = append(env, port+"="+up)
			}
			b := boot(t, c.line, nil, env...)
			if b.err != nil {
				t.Fatalf("%v\n%s", b.err, b.out)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cmd := exec.CommandContext(ctx, nginx, "-e", "stderr", "-p", b.root, "-c", b.path("/opt/gem/nginx.conf"), "-g", "daemon off;")
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = io.Discard, &out
			if err := need.Start(t, cmd); err != nil {
				t.Fatal(err)
			}
			defer func() { cancel(); _ = cmd.Wait() }()
			for until := time.Now().Add(need.Patience); ; time.Sleep(20 * time.Millisecond) {
				if conn, err := net.Dial("tcp", "127.0.0.1:"+public); err == nil {
					conn.Close()
					break
				}
				if time.Now().After(until) {
					t.Fatalf("nginx does not listen:\n%s", out.String())
				}
			}
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			for _, r := range c.requests {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+public+r.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if r.header == "Host" {
					req.Host = r.value
				} else if r.header != "" {
					req.Header.Set(r.header, r.value)
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != r.want {
					t.Errorf("GET %s %s %s: %d, want %d", r.path, r.header, r.value, resp.StatusCode, r.want)
				}
			}
		})
	}
}
