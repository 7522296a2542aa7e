package inspect_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

// read reads a stand-in of the base.
func read(t *testing.T, line string) *inspect.Image {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
		t.Fatal(err)
	}
	img := ocitest.Layout(t, dir)["linux/amd64"]
	files, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := inspect.Read(t.Context(), "standin:"+line, img, files)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bases is what the facts say of each line: aio-base.md 3.1 and 3.2 (the three REPLs of B are one of its 17 services, and so
// are both of autocutsel), 4.2, 5 and 6.3. C is B and what is known of it besides.
var bases = map[string]struct {
	programs, routes, public, tools, hooks, switches []string
}{
	"A": {
		programs: strings.Fields("browser code-server gem-server jupyter mcp-hub mcp-server-browser nginx openbox python-server tigervnc tinyproxy websocat"),
		routes: []string{
			"/json", "/devtools/", "= /v1/ping", "/cdp/", "~ ^/(tickets|screenshot|actions)$", "/ws", "/websockify", "/vnc/", "/mcp", "= /v1/mcp",
			"/llms.txt", "/v1/shell/ws", "/v1", "/code-server/", `~ ^/(absproxy|proxy)/(\d+)`, "/jupyter", "= /index.html", "= /terminal", "/terminal/",
		},
		public:   strings.Fields("*:6080 *:8079 *:8080 *:8088 *:8091 *:8100 *:8118 *:8200 *:8888 [::]:8080"),
		tools:    []string{"sandbox_execute_bash", "sandbox_execute_code", "sandbox_file_operations"},
		switches: strings.Fields("DISABLE_JUPYTER DISABLE_CODE_SERVER PROXY_SERVER BROWSER_EXTRA_ARGS PUBLIC_PORT JWT_PUBLIC_KEY WAIT_PORTS"),
	},
	"B": {
		programs: strings.Fields("agent-browser autocutsel-clipboard autocutsel-primary browser code-server dbus fcitx5 gost jupyter log_tail mcp-server-browser " +
			"nginx nodejs-repl-server-20 nodejs-repl-server-22 nodejs-repl-server-24 openbox python-server tigervnc websocat"),
		routes: []string{
			"/json", "/devtools/", "= /v1/ping", "/cdp/", "~ ^/(auth|tickets|screenshot|actions)$", "/ws", "/websockify", "/vnc/", "/mcp", "= /v1/mcp",
			"/llms.txt", "= /health", "/v1/shell/ws", "/v1", "/code-server/", `~ ^/(absproxy|proxy)/(\d+)`, "/jupyter", "= /index.html", "/static/sandbox/",
			"= /terminal", "/terminal/", "= /browser-ui", "~ ^/cdp/devtools/", "= /opencode", "= /", "/", "@aio_header_proxy",
		},
		public: strings.Fields("*:8080 [::]:8080"),
		tools:  []string{"browser_gui_execute_action", "sandbox_execute_bash", "sandbox_load_skill", "sandbox_str_replace_editor"},
		hooks:  strings.Fields("PROXY_AUTH_CMD RUN_HOOK_INIT RUN_HOOK_POST_READY RUN_HOOK_PRE_SERVICES"),
		switches: strings.Fields("DISABLE_JUPYTER DISABLE_CODE_SERVER DISABLE_BROWSER DISABLE_MCP_BROWSER DISABLE_VNC DISABLE_NODEJS_REPL ENABLE_CJK_IME " +
			"EXTRA_MCP_SERVERS PROXY_SERVER PROXY_MAP BROWSER_EXTRA_ARGS PUBLIC_PORT JWT_PUBLIC_KEY SANDBOX_API_KEY WAIT_PORTS"),
	},
	"C": {
		programs: strings.Fields("browser code-server jupyter mcp-server-browser nginx openbox python-server tigervnc websocat"),
		routes:   []string{"/mcp", "/v1", "/cdp/", "/jupyter", "/code-server/", "/vnc/"},
		public:   strings.Fields("*:8080 [::]:8080"),
		tools:    []string{"sandbox_execute_bash"},
		hooks:    strings.Fields("RUN_HOOK_INIT"),
		switches: strings.Fields("DISABLE_JUPYTER EXTRA_MCP_SERVERS"),
	},
}

func TestBases(t *testing.T) {
	for line, want := range bases {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			s := read(t, line).Surface
			if s.Line != line {
				t.Errorf("it is taken for line %q", s.Line)
			}
			var programs, routes, public, tools, hooks, switches []string
			for _, p := range s.Programs {
				programs = append(programs, p.Name)
			}
			for _, r := range s.Routes {
				routes = append(routes, r.Path)
			}
			for _, l := range s.Listeners {
				if !l.Loopback {
					public = append(public, l.String())
				}
			}
			for _, c := range append(s.MCP.Configs, mcp.Config{Servers: s.MCP.BuiltIn}) {
				for _, server := range c.Servers {
					tools = append(tools, server.Tools...)
				}
			}
			for _, h := range s.Start.Hooks {
				hooks = append(hooks, h.Variable)
			}
			for _, sw := range s.Start.Switches {
				switches = append(switches, sw.Name)
			}
			slices.Sort(programs)
			slices.Sort(public)
			if line == "C" {
				contains(t, "program", programs, want.programs)
			} else if diff := cmp.Diff(want.programs, programs); diff != "" {
				t.Errorf("programs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.public, slices.Compact(public)); diff != "" {
				t.Errorf("listeners that others reach (-want +got):\n%s", diff)
			}
			contains(t, "route", routes, want.routes)
			contains(t, "tool", tools, want.tools)
			contains(t, "hook", hooks, want.hooks)
			contains(t, "switch", switches, want.switches)
		})
	}
}

func contains(t *testing.T, what string, have, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(have, w) {
			t.Errorf("%s %q is missing; there are %q", what, w, have)
		}
	}
}

// TestPortProxy is what a look at the locations alone would miss: the server that takes its port from the Host (holes b, c).
func TestPortProxy(t *testing.T) {
	for _, line := range []string{"A", "B"} {
		if !slices.ContainsFunc(read(t, line).Surface.Nginx[0].Routes(), func(r nginx.Route) bool {
			return slices.Contains(r.Target.Chosen, "server_name capture $port") && r.Public
		}) {
			t.Errorf("line %s: no route takes its port from the Host", line)
		}
	}
}

func TestWhy(t *testing.T) {
	lower := []image.File{image.Dir("/usr", 0o755), image.Dir("/usr/bin", 0o755), image.Symlink("/bin", "usr/bin"), image.Bytes("/usr/bin/su", 0o4755, []byte("su")), image.Bytes("/opt/d/f", 0o644, []byte("1"))}
	var layers []v1.Layer
	for _, files := range [][]image.File{
		lower,
		{image.Bytes("/opt/d/f", 0o600, []byte("22"))},
		{image.Whiteout("/usr/bin/su"), image.Whiteout("/opt/d")},
		{image.Bytes("/opt/d/f", 0o640, []byte("333"))},
	} {
		l, err := image.NewLayer(files)
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, l)
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	files, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	read, err := inspect.Read(t.Context(), "it", img, files)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		asked, path string
		there       bool
		steps       []string
	}{
		{"/bin/su", "/usr/bin/su", false, []string{"0 adds", "2 removes"}},
		{"/opt/d/f", "/opt/d/f", true, []string{"0 adds", "1 changes", "2 removes /opt/d", "3 adds"}},
		{"/opt/d/../none", "/opt/none", false, []string{}},
	} {
		w := read.Why(c.asked)
		got := []string{}
		for _, s := range w.Steps {
			got = append(got, strings.TrimSpace(strings.Join([]string{string(rune('0' + s.Layer)), s.Does, s.By}, " ")))
		}
		if w.Path != c.path || (w.Entry != nil) != c.there {
			t.Errorf("%s: %s, there: %v", c.asked, w.Path, w.Entry)
		}
		if diff := cmp.Diff(c.steps, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.asked, diff)
		}
	}
}

// On lines B and C the start makes a file that nginx includes, out of variables.
func TestIncludesMadeAtStart(t *testing.T) {
	for _, line := range []string{"B", "C"} {
		s := read(t, line).Surface
		if !slices.ContainsFunc(s.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, "nginx-proxy-map.conf is made at start") }) {
			t.Errorf("%s: notes %v", line, s.Notes)
		}
		if !slices.ContainsFunc(s.Nginx[0].Includes, func(i nginx.Include) bool { return i.Pattern == "/opt/gem/nginx-proxy-map.conf" && !i.Missing }) {
			t.Errorf("%s: includes %+v", line, s.Nginx[0].Includes)
		}
	}
}
