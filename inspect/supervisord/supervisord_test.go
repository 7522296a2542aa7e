package supervisord_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/supervisord"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

// files makes an image: path, content, path, content.
func files(t testing.TB, pairs ...string) *tree.Image {
	t.Helper()
	var all []image.File
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, image.Bytes(pairs[i], 0o644, []byte(pairs[i+1])))
	}
	return imageOf(t, all...)
}

func imageOf(t testing.TB, all ...image.File) *tree.Image {
	t.Helper()
	img, err := tree.FromFiles(t.Context(), nil, all...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func read(t testing.TB, img *tree.Image, path string, env map[string]string) *supervisord.Config {
	t.Helper()
	c, err := supervisord.Read(t.Context(), img, path, env)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var layouts string // a directory for the stand-ins, which tests share

func TestMain(m *testing.M) {
	var err error
	if layouts, err = os.MkdirTemp("", "supervisord"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := os.RemoveAll(layouts); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// base is the stand-in of a line.
func base(t testing.TB, line string) *tree.Image {
	t.Helper()
	dir := filepath.Join(layouts, line)
	if _, err := os.Stat(dir); err != nil {
		if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
			t.Fatal(err)
		}
	}
	img, err := tree.Cache{}.Open(t.Context(), ocitest.Layout(t, dir)["linux/amd64"], tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// closed is what supervisord reads of a closed image.
func closed(t testing.TB) *tree.Image {
	t.Helper()
	data, err := fs.ReadFile(assets.FS, "supervisord/supervisord.conf")
	if err != nil {
		t.Fatal(err)
	}
	policy, err := fs.ReadFile(assets.FS, "policy/browser-shell.policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return files(t, main, string(data), "/etc/agent-browser/browser-shell.policy.json", string(policy))
}

const main = "/opt/gem/supervisord.conf"

// ofLines has, for each line, its programs with conf file, priority, user and what decides whether they start
// (facts/aio-base.md 3.1 and 3.2).
var ofLines = map[string][]string{
	"A": {
		"browser browser.conf 800 gem true", "code-server supervisord.code_server.conf 898 gem AUTOSTART_CODE_SERVER",
		"gem-server srv.conf 700 gem true", "jupyter supervisord.jupyter.conf 900 gem AUTOSTART_JUPYTER",
		"mcp-hub supervisord.mcp_hub.conf 900 gem true", "mcp-server-browser supervisord.mcp.conf 899 gem true",
		"nginx nginx.conf 850 root true", "openbox openbox.conf 900 gem true", "python-server supervisord.python_srv.conf 100 gem true",
		"tigervnc vnc.conf 900 gem true", "tinyproxy supervisord.tinyproxy.conf 899 gem true", "websocat vnc.conf 890 gem true",
	},
	"B": {
		"agent-browser agent-browser.conf 200 gem AUTOSTART_BROWSER", "autocutsel-clipboard autocutsel.conf 910 gem AUTOSTART_VNC",
		"autocutsel-primary autocutsel.conf 910 gem AUTOSTART_VNC", "browser browser.conf 100 gem AUTOSTART_BROWSER",
		"code-server supervisord.code_server.conf 100 gem AUTOSTART_CODE_SERVER", "dbus dbus.conf 800 gem AUTOSTART_CJK_IME",
		"fcitx5 fcitx5.conf 905 gem AUTOSTART_CJK_IME", "gost supervisord.gost.conf 899 gem true",
		"jupyter supervisord.jupyter.conf 900 gem AUTOSTART_JUPYTER", "log_tail supervisord.log_tail.conf 999  LOG_STDOUT_SERVER",
		"mcp-server-browser supervisord.mcp.conf 899 gem AUTOSTART_MCP_BROWSER", "nginx nginx.conf 850 root true",
		"nodejs-repl-server-20 supervisord.nodejs_repl_20.conf 90 gem AUTOSTART_NODEJS_REPL_20",
		"nodejs-repl-server-22 supervisord.nodejs_repl_22.conf 90 gem AUTOSTART_NODEJS_REPL_22",
		"nodejs-repl-server-24 supervisord.nodejs_repl_24.conf 90 gem AUTOSTART_NODEJS_REPL_24",
		"openbox openbox.conf 900 gem AUTOSTART_VNC", "python-server supervisord.python_srv.conf 100 gem true",
		"tigervnc vnc.conf 900 gem AUTOSTART_VNC", "websocat vnc.conf 890 gem AUTOSTART_VNC",
	},
}

func TestLines(t *testing.T) {
	ofLines := map[string][]string{"A": ofLines["A"], "B": ofLines["B"], "C": ofLines["B"]}
	for line, want := range ofLines {
		t.Run(line, func(t *testing.T) {
			img := base(t, line)
			c := read(t, img, main, nil)
			var got []string
			for _, p := range c.Programs {
				start := p.Autostart
				if v := supervisord.Variables(start); len(v) == 1 && start == "%(ENV_"+v[0]+")s" {
					start = v[0]
				}
				got = append(got, fmt.Sprintf("%s %s %d %s %s", p.Name, path.Base(p.Place.Path), p.Priority, strings.ReplaceAll(p.User, "%(ENV_USER)s", "gem"), start))
				if path.Dir(p.Place.Path) != "/opt/gem/supervisord" || p.Place.Line == 0 || p.Place.Layer == "" || p.Kind != "program" {
					t.Errorf("%s: %+v", p.Name, p)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("programs (-facts +read):\n%s", diff)
			}
			if len(c.Notes) > 0 || c.User != "root" || !slices.Equal(c.Includes, []string{"/opt/gem/supervisord/*.conf"}) {
				t.Errorf("notes %v, user %q, includes %v", c.Notes, c.User, c.Includes)
			}
			if len(c.Sockets) != 1 || c.Sockets[0].Address != "/var/run/supervisor.sock" || c.Sockets[0].Mode != "0770" || c.Sockets[0].Owner != "root:%(ENV_USER)s" {
				t.Errorf("sockets %+v", c.Sockets)
			}
			dormant, err := supervisord.Dormant(t.Context(), img, c)
			if err != nil {
				t.Fatal(err)
			}
			var asleep []string
			for _, d := range dormant {
				asleep = append(asleep, d.Path)
				if len(d.Notes) > 0 {
					t.Errorf("%s: %v", d.Path, d.Notes)
				}
			}
			var leftovers []string
			if line == "A" {
				for _, name := range []string{"browser", "mcp", "nginx", "openbox", "srv", "vnc"} {
					leftovers = append(leftovers, "/opt/gem/supervisord."+name+".conf")
				}
			}
			if diff := cmp.Diff(leftovers, asleep); diff != "" {
				t.Errorf("dormant (-facts +read):\n%s", diff)
			}
		})
	}
}

func TestClosed(t *testing.T) {
	img := closed(t)
	c := read(t, img, main, nil)
	var got []string
	for _, p := range c.Programs {
		got = append(got, fmt.Sprintf("%s %d %s %v", p.Name, p.Priority, p.User, p.Variables))
	}
	want := []string{
		"browser-shell 100 %(ENV_SLIM_SERVICE_USER)s [SLIM_SERVICE_USER]", "tigervnc 200 %(ENV_SLIM_DESKTOP_USER)s [SLIM_DESKTOP_USER SLIM_SCREEN]",
		"openbox 300 %(ENV_SLIM_DESKTOP_USER)s [SLIM_DESKTOP_USER]", "browser 400 %(ENV_SLIM_DESKTOP_USER)s [SLIM_DESKTOP_USER SLIM_LANG SLIM_WINDOW]",
		"nginx 500  [SLIM_NGINX_CONF]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	if len(c.Includes) > 0 || !slices.Equal(c.Files, []string{main}) || len(c.Notes) > 0 || c.User != "%(ENV_SLIM_SUPERVISOR_USER)s" {
		t.Errorf("includes %v, files %v, notes %v, user %q", c.Includes, c.Files, c.Notes, c.User)
	}
	if len(c.Sockets) != 1 || c.Sockets[0].Address != "/run/supervisor/sock" || c.Sockets[0].Mode != "0700" || c.Sockets[0].Owner != "" {
		t.Errorf("sockets %+v", c.Sockets)
	}
	for _, p := range c.Programs {
		if p.Name == "browser" && !strings.Contains(p.Command, ` --host-resolver-rules="MAP * ~NOTFOUND , EXCLUDE 127.0.0.1" `) {
			t.Errorf("command %s", p.Command)
		}
	}
	if dormant, err := supervisord.Dormant(t.Context(), img, c); err != nil || len(dormant) > 0 {
		t.Errorf("dormant %v, %v", dormant, err)
	}
}

// TestReadAs covers what is only seen with a whole image: links, places, files that can't be read.
func TestReadAs(t *testing.T) {
	img := imageOf(t,
		image.Bytes("/etc/real.conf", 0o644, []byte("[supervisord]\nuser=root\nenvironment=A=\"1\"\n[include]\nfiles = sub/*.conf %(ENV_WHERE)s/x.conf none*.conf %(ENV_NOT_SET)s/*.conf\n")),
		image.Symlink("/opt/main.conf", "../etc/real.conf"),
		// Relative patterns are taken from where the file is called, not from where its link leads.
		image.Bytes("/etc/sub/wrong.conf", 0o644, []byte("[program:wrong]\ncommand=/bin/wrong\n")),
		image.Symlink("/opt/sub", "/srv/elsewhere"),
		image.Bytes("/srv/elsewhere/a.conf", 0o644, []byte("\n; first\n[program:a]\ncommand=/bin/a %(here)s\npriority=7\n")),
		image.Symlink("/srv/elsewhere/b.conf", "../b"),
		image.Bytes("/srv/b", 0o644, []byte("[program:a]\nuser=nobody\n[group:both]\nprograms=a\n")),
		image.Symlink("/srv/elsewhere/broken.conf", "nowhere"),
		image.Dir("/srv/elsewhere/dir.conf", 0o755),
		image.Bytes("/srv/elsewhere/large.conf", 0o644, []byte(strings.Repeat("#", 1<<20+1))),
		image.Bytes("/srv/elsewhere/.hidden.conf", 0o644, []byte("[program:hidden]\ncommand=x\n")),
		image.Bytes("/var/where/x.conf", 0o644, []byte("[program:x]\ncommand=/bin/x\n[rpcinterface:mine]\nsupervisor.rpcinterface_factory=mine:make\n[programs:y]\n")),
	)
	c := read(t, img, "/opt/main.conf", map[string]string{"WHERE": "/var/where"})
	if diff := cmp.Diff([]string{"/opt/main.conf", "/opt/sub/a.conf", "/opt/sub/b.conf", "/var/where/x.conf"}, c.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/opt/sub/*.conf", "/var/where/x.conf", "/opt/none*.conf", "/opt/%(ENV_NOT_SET)s/*.conf"}, c.Includes); diff != "" {
		t.Errorf("includes (-want +got):\n%s", diff)
	}
	if len(c.Programs) != 2 {
		t.Fatalf("programs %+v", c.Programs)
	}
	if p := c.Programs[0]; p.Name != "a" || p.Command != "/bin/a /opt/sub" || p.User != "nobody" || p.Priority != 7 || p.Group != "both" || p.Place.String() != "/opt/sub/a.conf:3" {
		t.Errorf("a is %+v", p)
	}
	if diff := cmp.Diff(map[string]string{"A": "1"}, c.Environment); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"/opt/sub/broken.conf: the link leads nowhere", "/opt/sub/dir.conf: a dir, not a file", "/opt/sub/large.conf: the file has 1048577 bytes",
		"/opt/main.conf:5: what \"/opt/%(ENV_NOT_SET)s/*.conf\" includes depends on the environment",
		"/opt/sub/b.conf:1: [program:a] is also at /opt/sub/a.conf:3", "/var/where/x.conf:3: [rpcinterface:mine] loads Python code by \"mine:make\"",
		"/var/where/x.conf:5: [programs:y] means nothing",
	} {
		if !slices.ContainsFunc(c.Notes, func(n tree.Note) bool { return strings.HasPrefix(n.String(), want) }) {
			t.Errorf("no note says %q; they are %v", want, c.Notes)
		}
	}
	if _, err := supervisord.Read(t.Context(), img, "/etc/none.conf", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a main file that isn't there: %v", err)
	}
	if c := read(t, img, "/srv/elsewhere/dir.conf", nil); len(c.Notes) == 0 {
		t.Error("a directory in the place of the main file is passed over")
	}
}

func TestGlob(t *testing.T) {
	img := imageOf(t,
		image.Bytes("/c/a.conf", 0o644, nil), image.Bytes("/c/b.conf", 0o644, nil), image.Bytes("/c/.h.conf", 0o644, nil), image.Bytes("/c/[x].conf", 0o644, nil),
		image.Bytes("/c/sub/a.conf", 0o644, nil), image.Symlink("/l", "c"), image.Bytes("/c/é.conf", 0o644, nil), image.Symlink("/c/loop", "loop"),
	)
	for pattern, want := range map[string][]string{
		"/c/*.conf":          {"/c/[x].conf", "/c/a.conf", "/c/b.conf", "/c/é.conf"},
		"/c/[ab].conf":       {"/c/a.conf", "/c/b.conf"},
		"/c/[!a].conf":       {"/c/b.conf", "/c/é.conf"},
		"/c/[a-b].conf":      {"/c/a.conf", "/c/b.conf"},
		"/c/[[]x].conf":      {"/c/[x].conf"},
		"/c/[.conf":          nil,
		"/c/?.conf":          {"/c/a.conf", "/c/b.conf", "/c/é.conf"},
		"/c/.*":              {"/c/.h.conf"},
		"/*/a.conf":          {"/c/a.conf", "/l/a.conf"},
		"/c/**/a.conf":       {"/c/sub/a.conf"},
		"/l/a.conf":          {"/l/a.conf"},
		"/c/sub/../b.conf":   {"/c/b.conf"},
		"/c/loop/*":          nil,
		"/c/*.conf/x":        nil,
		"/c/******a*.*conf*": {"/c/a.conf"},
	} {
		c := read(t, imageOf(t, append(entries(img), image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[include]\nfiles="+pattern+"\n")))...), "/s.conf", nil)
		if diff := cmp.Diff(want, c.Files[1:], cmp.Transformer("", func(s []string) string { return strings.Join(s, " ") })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pattern, diff)
		}
	}
}

func entries(img *tree.Image) []image.File {
	var out []image.File
	for e := range img.Walk("/") {
		if e.Type == image.TypeFile || e.Type == image.TypeSymlink {
			out = append(out, image.File{Entry: e.Entry})
			if e.Type == image.TypeFile {
				out[len(out)-1] = image.Bytes(e.Path, 0o644, nil)
			}
		}
	}
	return out
}

// TestListeners goes from what facts/aio-base.md says of ports, line by line.
func TestListeners(t *testing.T) {
	env := map[string]string{
		"DISPLAY": ":99.0", "VNC_SERVER_PORT": "5900", "WEBSOCKET_PROXY_PORT": "6080", "GEM_SERVER_PORT": "8088", "SANDBOX_SRV_PORT": "8091",
		"MCP_SERVER_BROWSER_PORT": "8100", "NODEJS_REPL_PORT_20": "8192", "NODEJS_REPL_PORT_22": "8092", "NODEJS_REPL_PORT_24": "8392",
		"AIO_DBUS_SESSION_SOCKET": "/run/user/1000/bus", "TINYPROXY_PORT": "8118",
	}
	// What scripts come to; start.Report.Follow tells it.
	scripts := map[string][][]string{
		"browser": {{"seq", "300"}, {"/usr/local/bin/browser", "--user-data-dir=/x", "--remote-debugging-port=9222"}},
		"jupyter": {{"/opt/python3.12/bin/jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"}},
		"mcp-hub": {{"nc", "-z", "localhost", "8091"}, {"/usr/bin/mcp-hub", "--port", "8079", "--stateless", "--config", "/opt/gem/mcp-hub.json"}},
		// --port has the last word on the port of --bind-addr.
		"code-server": {{"/usr/bin/code-server", "--port", "8200", "--bind-addr=0.0.0.0:8080", "--auth=none"}},
		"nginx":       {{"/usr/sbin/nginx", "-c", "/opt/gem/nginx.conf"}}, "openbox": {{"/usr/bin/openbox"}},
		"tinyproxy": {{"tinyproxy", "-d", "-c", "/etc/tinyproxy.conf"}},
	}
	scriptsB := map[string][][]string{
		"python-server": {{"/usr/local/bin/python-server", "--host", "127.0.0.1", "--port", "8091"}}, "agent-browser": {{"/opt/x/agent-browser", "get", "url"}},
		"jupyter":     {{"/opt/python3.12/bin/jupyter", "lab", "--ip=127.0.0.1", "--port=8888"}},
		"code-server": {{"/usr/bin/code-server", "--bind-addr=127.0.0.1:8200"}},
		"log_tail":    {{"tail", "-F", "/x"}}, "browser": scripts["browser"], "nginx": scripts["nginx"], "openbox": scripts["openbox"],
	}
	for _, tt := range []struct {
		name    string
		img     *tree.Image
		scripts map[string][][]string
		want    []string
		notes   int
	}{
		{"A", base(t, "A"), scripts, []string{
			"supervisord unix:/var/run/supervisor.sock", "browser 127.0.0.1:9222", "gem-server *:8088", "code-server *:8200", "jupyter *:8888",
			"mcp-server-browser *:8100", "mcp-hub *:8079", "python-server *:8091", "tinyproxy *:8118", "tigervnc unix:/tmp/.X11-unix/X99",
			"tigervnc 127.0.0.1:5900", "tigervnc [::1]:5900", "websocat *:6080",
		}, 0},
		{"B", base(t, "B"), scriptsB, []string{
			"supervisord unix:/var/run/supervisor.sock", "browser 127.0.0.1:9222", "dbus unix:/run/user/1000/bus", "code-server 127.0.0.1:8200",
			"gost 127.0.0.1:8118", "gost 127.0.0.1:18080", "jupyter 127.0.0.1:8888", "mcp-server-browser 127.0.0.1:8100",
			"nodejs-repl-server-20 127.0.0.1:8192", "nodejs-repl-server-22 127.0.0.1:8092", "nodejs-repl-server-24 127.0.0.1:8392",
			"python-server 127.0.0.1:8091", "tigervnc unix:/tmp/.X11-unix/X99", "tigervnc 127.0.0.1:5900", "tigervnc [::1]:5900", "websocat 127.0.0.1:6080",
		}, 1}, // agent-browser
		{"closed", closed(t), map[string][][]string{
			"browser": scripts["browser"], "nginx": scripts["nginx"], "openbox": scripts["openbox"],
			"tigervnc": {{"/usr/bin/Xvnc", ":99", "-localhost", "-nolisten", "tcp", "-rfbport", "5900"}},
		}, []string{
			"supervisord unix:/run/supervisor/sock", "browser-shell unix:/run/browser-shell-front/mcp.sock", "browser-shell unix:/run/browser-shell-front/gate.sock",
			"browser-shell 127.0.0.1:8118", "tigervnc unix:/tmp/.X11-unix/X99", "tigervnc 127.0.0.1:5900",
			"tigervnc [::1]:5900", "browser 127.0.0.1:9222",
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, notes := listeners(t, tt.img, read(t, tt.img, main, env), tt.scripts, env)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(notes) != tt.notes {
				t.Errorf("notes %v", notes)
			}
		})
	}
}

func listeners(t *testing.T, img *tree.Image, c *supervisord.Config, commands map[string][][]string, env map[string]string) (out []string, notes []tree.Note) {
	t.Helper()
	found, notes, err := supervisord.Listeners(t.Context(), img, c, commands, env)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range found {
		at := l.Address
		if l.Port > 0 {
			at = fmt.Sprintf("%s:%d", l.Address, l.Port)
		}
		if local := strings.HasPrefix(at, "127.") || strings.HasPrefix(at, "[::1]") || strings.HasPrefix(at, "unix:"); l.Loopback != local || l.Place.Path == "" {
			t.Errorf("%+v", l)
		}
		out = append(out, l.By+" "+at)
	}
	return out, notes
}

// TestListenersOfCommands: what can't be told is said, and no address is made up.
func TestListenersOfCommands(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/bin/Xvnc :1": "unix:/tmp/.X11-unix/X1 *:5901",
		"/usr/bin/Xvnc :1 -localhost=0 -rfbport=5999":                         "unix:/tmp/.X11-unix/X1 *:5999",
		"/usr/bin/Xvnc :2 -localhost -interface 10.0.0.1":                     "unix:/tmp/.X11-unix/X2 127.0.0.1:5902 [::1]:5902",
		"/usr/bin/Xvnc :2 -interface 10.0.0.1 -listen tcp":                    "unix:/tmp/.X11-unix/X2 10.0.0.1:5902 *:6002",
		"/usr/bin/Xvnc :2 -rfbport -1 -rfbunixpath /run/v":                    "unix:/tmp/.X11-unix/X2 unix:/run/v",
		"/opt/browser/chrome --headless":                                      "",
		"chromium --remote-debugging-port=0":                                  "127.0.0.1 + a note",
		"chrome --remote-debugging-port=1 --remote-debugging-address=0.0.0.0": "*:1",
		"chrome --remote-debugging-port=%(ENV_P)s":                            "127.0.0.1 + a note",
		"websocat -s 0.0.0.0:9 x":                                             "*:9",
		"websocat -s 9":                                                       "127.0.0.1:9",
		"websocat ws-l:[::]:9 tcp:x:1":                                        "*:9",
		"websocat ws-l:10.1.2.3:9 tcp:x:1":                                    "10.1.2.3:9",
		"websockify --web /opt/novnc 6080 localhost:5900":                     "*:6080",
		"gost -L http://user:pw@127.0.0.1:99 -C /x.yaml":                      "127.0.0.1:99 + a note",
		"gost -L :99":                         "*:99",
		"python-server":                       "*:8091",
		"mcp-server-browser --browser chrome": "",
		"jupyter lab --ServerApp.ip=* --ServerApp.port=1": "*:1",
		"browser-shell serve":                             "127.0.0.1:8079",
		"browser-shell serve --listen 0.0.0.0:1 --gate f": "*:1 127.0.0.1:8088",
		"browser-shell egress --listen [::1]:7":           "[::1]:7",
		"browser-shell mcp":                               "",
		"browser-shell health":                            "+ a note",
		"/usr/bin/sshd -D":                                "+ a note",
		"python3 -m http.server":                          "+ a note",
		"nc -l 9":                                         "+ a note",
		"nc -lk -p 9 -e /bin/sh":                          "+ a note",
		"sleep infinity":                                  "+ a note",
		"/bin/sh -c 'socat TCP-LISTEN:1 EXEC:sh'":         "+ a note",
	} {
		img := files(t, "/s.conf", "[supervisord]\n[program:p]\ncommand="+command+"\n")
		got, notes := listeners(t, img, read(t, img, "/s.conf", nil), nil, nil)
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "p ")
		}
		if len(notes) > 0 {
			got = append(got, "+ a note")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s; notes %v", command, got, want, notes)
		}
	}
	img := files(t, "/s.conf", "[supervisord]\n[inet_http_server]\nport=9001\n[inet_http_server:b]\nport=127.0.0.1:9002\n"+
		"[fcgi-program:f]\nsocket=tcp://localhost:9003\ncommand=nginx\n[fcgi-program:g]\nsocket=unix:///run/g\ncommand=nginx\n")
	got, _ := listeners(t, img, read(t, img, "/s.conf", nil), nil, nil)
	if diff := cmp.Diff([]string{"supervisord *:9001", "supervisord 127.0.0.1:9002", "f 127.0.0.1:9003", "g unix:/run/g"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHostile: much of everything, in bounded time, and nothing passed over in silence.
func TestHostile(t *testing.T) {
	many := func(n int, make func(i int) image.File) (out []image.File) {
		for i := range n {
			out = append(out, make(i))
		}
		return out
	}
	var took time.Duration
	for name, all := range map[string][]image.File{
		"options":       {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[program:a]\ncommand=x\n"+strings.Repeat("a=b\n c\n", 140_000)))},
		"continuations": {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[program:a]\ncommand=x\n"+strings.Repeat(" y\n", 300_000)))},
		"comments":      {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[program:a]\ncommand=x"+strings.Repeat(";#", 450_000)))},
		"sections":      {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n"+strings.Repeat("[program:a]\ncommand=x\n", 40_000)))},
		"placeholders":  {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[program:a]\ncommand=x "+strings.Repeat("%(here)s", 100_000)))},
		"environment":   {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[program:a]\ncommand=%(ENV_A)s\nenvironment="+strings.Repeat("A=\"%(ENV_A)s\",", 60_000)))},
		"globs":         {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[include]\nfiles="+strings.Repeat("/*/*/*a*a*a*a*a*a*b ", 10_000))), image.Bytes("/d/d/"+strings.Repeat("a", 200), 0o644, nil)},
		"files": append(many(3000, func(i int) image.File {
			return image.Bytes(fmt.Sprintf("/d/%d.conf", i), 0o644, []byte("[program:p]\ncommand=x\n"))
		}),
			image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[include]\nfiles=/d/*.conf /d/*.conf\n"))),
		"itself": {image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n[include]\nfiles=/s.conf /s.conf\n"))},
	} {
		img := imageOf(t, all...)
		var c *supervisord.Config
		took += need.CPU(t, func() { c = read(t, img, "/s.conf", map[string]string{"A": "%(ENV_A)s"}) })
		if len(c.Programs) > 1 || len(c.Notes) > 500 {
			t.Errorf("%s: %d programs, %d notes", name, len(c.Programs), len(c.Notes))
		}
		if name == "files" && !slices.ContainsFunc(c.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, "not every file that") }) {
			t.Errorf("that files are left out isn't said: %v", c.Notes)
		}
	}
	if took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

func FuzzConfig(f *testing.F) {
	for _, line := range []string{"supervisord/supervisord.conf"} {
		data, err := fs.ReadFile(assets.FS, line)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data), "[program:b]\ncommand=x ; y\n  z\n")
	}
	f.Add("[supervisord]\n[include]\nfiles=/c/*.conf\n[program:a]\ncommand=%(ENV_X)s \"a b\" %(here)s\nenvironment=A=\"1\",B=2\nautostart=%(ENV_Y)s", "[group:g]\nprograms=a")
	f.Add("[DEFAULT]\nuser=x\n[unix_http_server]\nfile=/x\nchmod=0777\n[inet_http_server]\nport=*:1", "[fcgi-program:f]\nsocket=unix:///x\ncommand=gost -L :1")
	f.Add("[program:a]\ncommand=x\nautostart=", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a)+len(b) > 1<<16 {
			return
		}
		img := files(t, "/s.conf", a, "/c/b.conf", b, "/opt/gem/d.conf", b)
		env := map[string]string{"X": "x y", "Y": "true"}
		c := read(t, img, "/s.conf", env)
		for _, p := range c.Programs {
			if p.Place.Path != "/s.conf" && p.Place.Path != "/c/b.conf" || p.Place.Line < 1 || p.Autostart == "" {
				t.Errorf("%+v", p)
			}
			if _, err := p.Args(env); err == nil && p.Command == "" && len(c.Notes) == 0 {
				t.Errorf("a program without a command and no note")
			}
		}
		if _, _, err := supervisord.Listeners(t.Context(), img, c, nil, env); err != nil {
			t.Error(err)
		}
		if _, err := supervisord.Dormant(t.Context(), img, c); err != nil {
			t.Error(err)
		}
	})
}

// What every section or every file costs again is bounded, and what is beyond the bounds is told.
func TestWhatIsBeyondBounds(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, strings.ReplaceAll(format, "#", "%[1]d"), i)
		}
		return b.String()
	}
	conf := func(s string) []image.File {
		return []image.File{image.Bytes("/s.conf", 0o644, []byte("[supervisord]\n"+s))}
	}
	include := func(n int, content func(i int) string) []image.File {
		out := conf("[include]\nfiles=/d/*.conf\n" + many(400, "[program:p#]\ncommand=x\n"))
		for i := range n {
			out = append(out, image.Bytes(fmt.Sprintf("/d/%d.conf", i), 0o644, []byte(content(i))))
		}
		return out
	}
	for name, tt := range map[string]struct {
		files []image.File
		note  string
	}{
		"sections":            {conf(many(20_000, "[program:p#]\ncommand=x\n")), "more than 500 sections"},
		"sections of files":   {include(1000, func(i int) string { return many(40, fmt.Sprintf("[program:q%dx#]\ncommand=x\n", i)) }), "more than 500 sections"},
		"bytes":               {include(2000, func(i int) string { return strings.Repeat("; a comment\n", 1000) }), "bytes of configuration"},
		"a command":           {conf("[program:p]\ncommand=x " + strings.Repeat("y ", 20_000)), "command has"},
		"variables":           {conf("[program:p]\ncommand=x\nenvironment=" + many(1000, "A#=1,") + "B=2\n"), "variables"},
		"variables of no one": {conf("environment=" + many(1000, "A#=1,") + "B=2\n"), "variables"},
	} {
		t.Run(name, func(t *testing.T) {
			img := imageOf(t, tt.files...)
			var c *supervisord.Config
			if took := need.CPU(t, func() { c = read(t, img, "/s.conf", nil) }); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			if !slices.ContainsFunc(c.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, tt.note) }) {
				t.Errorf("no note has %q: %v", tt.note, c.Notes)
			}
			if len(c.Programs) > 500 {
				t.Errorf("%d programs", len(c.Programs))
			}
		})
	}
	t.Run("dormant", func(t *testing.T) {
		var all []image.File
		for i := range 300 {
			all = append(all, image.Bytes(fmt.Sprintf("/opt/gem/%d.conf", i), 0o644, []byte(many(300, "[program:p#]\ncommand=x\n"))))
		}
		found, err := supervisord.Dormant(t.Context(), imageOf(t, all...))
		if err != nil {
			t.Fatal(err)
		}
		notes := found[len(found)-1].Notes
		if len(found) > 4 || !slices.ContainsFunc(notes, func(n tree.Note) bool { return strings.Contains(n.Text, "more than 500 sections") }) {
			t.Errorf("%d files, notes %v", len(found), notes)
		}
	})
}

func TestManyListeners(t *testing.T) {
	conf := "[supervisord]"
	for i := range 1500 {
		if i%500 == 0 {
			conf += fmt.Sprintf("\n[program:w%d]\ncommand=websocat", i)
		}
		conf += fmt.Sprintf(" unix-l:/%d", i)
	}
	img := files(t, "/s.conf", conf+"\n")
	found, notes := listeners(t, img, read(t, img, "/s.conf", nil), nil, nil)
	if len(found) != 1000 || !slices.ContainsFunc(notes, func(n tree.Note) bool { return strings.Contains(n.Text, "more than 1000 addresses") }) {
		t.Errorf("%d listeners, notes %v", len(found), notes)
	}
}
