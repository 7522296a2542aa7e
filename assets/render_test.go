package assets_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/internal/need"
)

const (
	withAuth    = "/opt/gem/nginx-server-with-auth.conf"
	withoutAuth = "/opt/gem/nginx-server-without-auth.conf"
)

// rendered lists, per line, the files that the start scripts read unconditionally and the variables that they replace in
// each (A: run.sh and entrypoint.sh of 1.0.0.152; B: run.sh of 1.9.3; C is taken to be as B).
var rendered = map[profile.Line]map[string]string{
	"A": {
		withAuth:                     "PUBLIC_PORT AUTH_BACKEND_PORT GEM_SERVER_PORT",
		withoutAuth:                  "PUBLIC_PORT",
		"/opt/gem/nginx.legacy.conf": "BROWSER_REMOTE_DEBUGGING_PORT",
		"/opt/gem/nginx.srv.conf":    "GEM_SERVER_PORT",
		"/opt/gem/nginx.vnc.conf":    "WEBSOCKET_PROXY_PORT",
		"/opt/gem/nginx-server-port-proxy.conf.template": "PUBLIC_PORT",
		"/opt/gem/mcp-hub.json.template":                 "SANDBOX_SRV_PORT MCP_SERVER_BROWSER_PORT BROWSER_REMOTE_DEBUGGING_PORT",
	},
	"B": renderedB,
	"C": renderedB,
}

var renderedB = map[string]string{
	withAuth:                     "PUBLIC_PORT AUTH_BACKEND_PORT SANDBOX_SRV_PORT PUBLIC_LISTEN_IPV4 PUBLIC_LISTEN_IPV6 RUNTIME_LISTEN",
	withoutAuth:                  "PUBLIC_PORT PUBLIC_LISTEN_IPV4 PUBLIC_LISTEN_IPV6 RUNTIME_LISTEN",
	"/opt/gem/nginx.legacy.conf": "BROWSER_REMOTE_DEBUGGING_PORT NGINX_PROXY_CONNECT_TIMEOUT NGINX_SESSION_IDLE_TIMEOUT",
	"/opt/gem/nginx.vnc.conf":    "WEBSOCKET_PROXY_PORT",
	"/opt/gem/nginx-server-port-proxy.conf.template": "PUBLIC_PORT PUBLIC_LISTEN_IPV4 PUBLIC_LISTEN_IPV6",
	"/opt/gem/mcp-hub.json.template":                 "SANDBOX_SRV_PORT MCP_SERVER_BROWSER_PORT BROWSER_REMOTE_DEBUGGING_PORT",
}

// A value that opens a second server if it ever gets into an nginx file.
const hostile = "9; } server { listen 6666; location / { proxy_pass http://127.0.0.1:9222; } "

// Whatever the environment says, rendering changes nothing in our files.
func TestRenderingChangesNothing(t *testing.T) {
	p := loadProfile(t, "l0")
	for _, line := range lines {
		files := laid(t, p, line)
		for path, vars := range rendered[line] {
			text, ok := files[path]
			if !ok {
				t.Errorf("line %s: %s is not overridden, and the start script renders the base's own", line, path)
				continue
			}
			if got := envsubst(text, strings.Fields(vars), func(string) string { return hostile }); got != text {
				t.Errorf("line %s: %s changes when rendered:\n%s", line, path, got)
			}
		}
	}
}

// envsubst of these tests is the real one, as far as it is used.
func TestEnvsubst(t *testing.T) {
	program := need.Program(t, "envsubst")
	text := "listen ${PORT} $PORT $PORTX ${OTHER} $uri $PORT; ${PORT:-1} $$PORT {PORT}\n"
	cmd := exec.Command(program, "${PORT}")
	cmd.Env = []string{"PORT=81"}
	cmd.Stdin = strings.NewReader(text)
	want, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := envsubst(text, []string{"PORT"}, func(string) string { return "81" }); got != string(want) {
		t.Errorf("ours: %qtheirs: %q", got, want)
	}
}
