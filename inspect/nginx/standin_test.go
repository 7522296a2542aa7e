package nginx

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

// base opens a stand-in of the base.
func base(t *testing.T, line string) *tree.Image {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
		t.Fatal(err)
	}
	return open(t, ocitest.Layout(t, dir)["linux/amd64"])
}

func open(t *testing.T, img v1.Image) *tree.Image {
	t.Helper()
	im, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// optionsOf tells what the start scripts of a line render, and from what.
func optionsOf(t *testing.T, im *tree.Image, line string) Options {
	t.Helper()
	o := Options{Env: map[string]string{}, Rendered: map[string][]Template{}}
	for _, e := range im.Config.Config.Env {
		k, v, _ := strings.Cut(e, "=")
		o.Env[k] = v
	}
	script := map[string]string{"A": "entrypoint.sh", "B": "run.sh", "C": "gem_init.sh"}[line]
	data, err := im.ReadFile(t.Context(), "/opt/gem/"+script)
	if err != nil {
		t.Fatal(err)
	}
	add := func(output, template string, once bool, variables ...string) {
		o.Rendered[output] = append(o.Rendered[output], Template{Path: template, Variables: variables, Once: once})
	}
	// The scripts have all names that are ever replaced; a list for each template would only repeat them.
	var all []string
	for _, m := range regexp.MustCompile(`\$\{([A-Z0-9_]+)\}`).FindAllStringSubmatch(string(data), -1) {
		all = append(all, m[1])
	}
	all = append(all, "MCP_HUB_PORT", "SANDBOX_SRV_PORT", "JUPYTER_LAB_PORT", "CODE_SERVER_PORT", "OPENCODE_PORT", "NGINX_API_IDLE_TIMEOUT")
	const gem = "/opt/gem/"
	add(gem+"nginx-server-active.conf", gem+"nginx-server-without-auth.conf", false, all...)
	add(gem+"nginx-server-active.conf", gem+"nginx-server-with-auth.conf", false, all...)
	add(gem+"nginx-server-port-proxy.conf", gem+"nginx-server-port-proxy.conf.template", false, all...)
	for _, name := range []string{"legacy", "srv", "vnc"} {
		add(gem+"nginx/"+name+".conf", gem+"nginx."+name+".conf", false, all...)
	}
	for _, name := range []string{"python_srv", "mcp_hub", "jupyter_lab", "code_server", "gembrowser_compat", "ui_browser", "opencode"} {
		add(gem+"nginx/"+name+".conf", gem+"nginx/nginx."+name+".conf", true, all...)
	}
	if line == "A" {
		return o
	}
	maps.Copy(o.Env, map[string]string{
		"RUNTIME_LISTEN": "", "PUBLIC_LISTEN_IPV4": "0.0.0.0", "PUBLIC_LISTEN_IPV6": "[::]",
		"NGINX_PROXY_CONNECT_TIMEOUT": "5s", "NGINX_API_IDLE_TIMEOUT": "86400s", "NGINX_SESSION_IDLE_TIMEOUT": "86400s",
	})
	return o
}

// routesOf has the routes of the facts on the base, snippet by snippet: what each leads to, and whether the raw path goes on.
func routesOf(line string) map[string]string {
	// On every line.
	out := map[string]string{
		"/json": "127.0.0.1:9222 raw", "/devtools/": "127.0.0.1:9222 raw",
		"/ws": "127.0.0.1:6080", "/websockify": "127.0.0.1:6080", "/vnc/": "static /opt/novnc/",
		"/code-server/": "127.0.0.1:8200", `~ ^/(absproxy|proxy)/(\d+)`: "127.0.0.1:8200 raw", "/jupyter": "127.0.0.1:8888 raw",
		"= /index.html": "static /opt/aio/index.html", "= /terminal": "static /opt/terminal/index.html", "/terminal/": "static /opt/terminal/",
		"/llms.txt": "127.0.0.1:8091 raw", "/v1/shell/ws": "127.0.0.1:8091 raw", "/v1": "127.0.0.1:8091 raw",
	}
	if line == "A" {
		maps.Copy(out, map[string]string{
			"= /v1/ping": "127.0.0.1:8088 raw", "/cdp/": "127.0.0.1:8088", "~ ^/(tickets|screenshot|actions)$": "127.0.0.1:8088 raw",
			"/mcp": "127.0.0.1:8079 raw", "= /v1/mcp": "127.0.0.1:8079", "(no location)": "static html",
		})
		return out
	}
	maps.Copy(out, map[string]string{
		"= /v1/ping": "127.0.0.1:8091 raw", "/cdp/": "127.0.0.1:8091 raw", "~ ^/(auth|tickets|screenshot|actions)$": "127.0.0.1:8091 raw",
		"/mcp": "127.0.0.1:8091 raw", "= /v1/mcp": "127.0.0.1:8091", "= /health": "127.0.0.1:8091 raw",
		"/static/sandbox/": "static /var/www/app/static/sandbox/", "= /browser-ui": "static /opt/browser-ui/index.html",
		"~ ^/cdp/devtools/": "127.0.0.1:9222 raw", "= /opencode": "redirect /terminal", "/opencode/": "redirect /terminal",
		"= /": "rewrite /index.html", "/": "return ", "@aio_header_proxy": "127.0.0.1:$aio_proxy_port raw $http_x_aio_proxy_port",
	})
	if line == "C" {
		for _, name := range []string{"codex", "claudecode"} {
			out["= /"+name], out["/"+name+"/"] = "redirect /terminal", "redirect /terminal"
		}
	}
	return out
}

// short is a target in the words of routesOf.
func short(t Target) string {
	out := t.Kind + " " + t.Value
	if t.Kind == Proxy {
		out = strings.Join(t.Addresses, " ")
	}
	if t.RawURI {
		out += " raw"
	}
	return strings.TrimRight(strings.Join(append([]string{out}, t.Chosen...), " "), "")
}

func TestRoutesOfTheFacts(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			im := base(t, line)
			configs, err := Read(t.Context(), im, "/opt/gem/nginx.conf", optionsOf(t, im, line))
			if err != nil {
				t.Fatal(err)
			}
			if len(configs) != 2 {
				t.Fatalf("%d variants, want one without and one with auth", len(configs))
			}
			for i, c := range configs {
				auth := i == 1
				if want := []string{"without", "with"}[i] + "-auth.conf"; !strings.HasSuffix(c.Variant, want) {
					t.Errorf("variant %d is %q, want %s", i, c.Variant, want)
				}
				for _, n := range c.Notes {
					// It is touched by a command, which no template tells of.
					if line == "A" || !strings.Contains(n.Text, "/opt/gem/nginx-proxy-map.conf is not there") {
						t.Errorf("note: %s", n)
					}
				}
				snippets := "*:8080 [::]:8080"
				if auth {
					snippets = "127.0.0.1:8081"
				}
				got := map[string]string{}
				for _, r := range c.Routes() {
					if r.Server == snippets {
						got[r.Path] = short(r.Target)
					}
					if r.Server == snippets && r.Public == auth {
						t.Errorf("%s: public %v", r.Path, r.Public)
					}
					if !strings.HasPrefix(r.Path, "@") && !r.Answers && r.Path != "= /_auth_handler" {
						t.Errorf("%s doesn't answer", r.Path)
					}
					if r.Place.Line == 0 || r.Place.Layer == "" || !strings.HasPrefix(r.Place.Path, "/opt/gem/nginx") {
						t.Errorf("%s is at %+v", r.Path, r.Place)
					}
				}
				if diff := cmp.Diff(routesOf(line), got); diff != "" {
					t.Errorf("routes (-facts +model):\n%s", diff)
				}
				portProxy(t, &c)
				gate(t, &c, auth)
			}
		})
	}
}

// portProxy is the server that a Host of <port>-<anything> picks, on the public socket.
func portProxy(t *testing.T, c *Config) {
	t.Helper()
	sockets := c.Sockets()
	if len(sockets) < 2 || sockets[0].Address != "*" || len(sockets[0].Servers) != 2 {
		t.Fatalf("sockets %+v", sockets)
	}
	s := c.Server("10.0.0.5", 8080, "8091-x")
	if s == nil || s != sockets[0].Servers[1] || s == c.Server("10.0.0.5", 8080, "8091-") || s != c.Server("::1", 8080, "8091-X:8080") {
		t.Fatalf("8091-x leads to %+v", s)
	}
	for _, o := range s.Outcomes(s.Match("/v1/shell")) {
		if o.Auth != "" || !o.Answers || !o.Target.Free || short(o.Target) != "127.0.0.1:$port raw server_name capture $port" {
			t.Errorf("8091-x ends in %+v", o)
		}
	}
}

// gate is the public server of the variant with auth.
func gate(t *testing.T, c *Config, auth bool) {
	t.Helper()
	if !auth {
		return
	}
	s := c.Server("*", 8080, "")
	l := s.Match("/anything")
	var got []string
	for _, o := range s.Outcomes(l) {
		got = append(got, fmt.Sprint(o.Via, " ", short(o.Target), " auth ", o.Auth))
	}
	want := []string{
		"[@proxy_with_auth] 127.0.0.1:8081 raw auth /_auth_handler",
		"[@proxy_without_auth] 127.0.0.1:8081 raw auth ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the gate (-want +got):\n%s", diff)
	}
	if !slices.Equal(l.Target.Chosen, []string{"$request_method", "$request_uri"}) {
		t.Errorf("the gate is chosen by %q", l.Target.Chosen)
	}
	if d := s.Match("/_auth_handler"); !d.Internal || !strings.HasSuffix(d.Target.Value, "/auth") {
		t.Errorf("/_auth_handler is %+v", d)
	}
	for _, m := range c.Maps {
		if m.Variable != "$target_workflow" {
			continue
		}
		if !slices.Contains(m.Parts, "$request_uri") || !slices.Contains(m.Decides, "location") || len(m.Keys) != 3 {
			t.Errorf("map %+v", m)
		}
	}
}
