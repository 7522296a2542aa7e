package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/packages"
	"github.com/slimctl/slimctl/inspect/privilege"
	"github.com/slimctl/slimctl/inspect/size"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
)

func sha(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

func at(path string, line int) tree.Place { return tree.Place{Path: path, Line: line, Layer: sha("a")} }

// sampleSurface is a small image in the manner of line B.
func sampleSurface(platform string) *inspect.Surface {
	program := func(name, user, autostart, command string) supervisord.Program {
		return supervisord.Program{
			Name: name, Kind: "program", User: user, Autostart: autostart, Command: command, Priority: 999,
			Place: at("/opt/gem/supervisord/"+name+".conf", 1),
		}
	}
	route := func(path, value, auth string, public bool) nginx.Route {
		return nginx.Route{
			Server: "8080 _", Path: path, Pattern: strings.TrimLeft(path, "=~^ "), Auth: auth, Public: public, Answers: true,
			Target: nginx.Target{Kind: nginx.Proxy, Value: value, Addresses: []string{strings.TrimPrefix(value, "http://")}}, Place: at("/opt/gem/nginx/main.conf", 12),
		}
	}
	closed := route("= /v1/ping", "", "", true)
	closed.Target, closed.Answers = nginx.Target{Kind: nginx.Return, Status: 403}, false
	port := route("~ ^/proxy/(?<port>\\d+)/", "http://127.0.0.1:$port", "", true)
	port.Target.Addresses, port.Target.Chosen = nil, []string{"server_name capture $port"}
	files := route("/static/", "", "/auth", false)
	files.Target = nginx.Target{Kind: nginx.Static, Value: "/opt/browser-ui"}
	return &inspect.Surface{
		Reference: "ghcr.io/agent-infra/sandbox:1.9.3", Digest: sha("d"), Platform: platform, Line: "B",
		Config: inspect.Config{
			Entrypoint: []string{"/opt/application/run.sh"}, Cmd: []string{"--greet", "hello world"}, User: "root",
			Env: map[string]string{"DISPLAY": ":99.0", "TZ": "Asia/Singapore"}, ExposedPorts: []string{"8080/tcp"},
		},
		Start: start.Report{
			Command:    []string{"/opt/application/run.sh"},
			Scripts:    []start.Script{{Path: "/opt/gem/run.sh", By: "entrypoint", Place: at("/opt/gem/run.sh", 1)}},
			Renderings: []start.Rendering{{Template: "/opt/gem/nginx.vnc.conf", Output: "/opt/gem/nginx/vnc.conf", Place: at("/opt/gem/run.sh", 88)}},
			Hooks:      []start.Hook{{Variable: "RUN_HOOK_INIT", How: "bash -c", Place: at("/opt/gem/run.sh", 9)}},
			Switches: []start.Switch{
				{Name: "DISABLE_JUPYTER", Kind: start.Program, Effect: "jupyter doesn't start when it is true", Programs: []string{"jupyter"}, Places: []tree.Place{at("/opt/gem/run.sh", 20)}},
				{Name: "SANDBOX_API_KEY", Kind: start.Auth, Effect: "empty: nobody is asked for a key", Set: true, Places: []tree.Place{at("/opt/gem/run.sh", 31), at("/opt/gem/run.sh", 40)}},
			},
			Grants: []tree.Note{{Place: at("/opt/gem/run.sh", 55), Text: "gem ALL=(ALL) NOPASSWD:ALL in /etc/sudoers.d/gem"}},
		},
		Programs: []supervisord.Program{
			program("browser", "%(ENV_USER)s", "%(ENV_AUTOSTART_BROWSER)s", "/opt/gem/start-browser.sh"),
			program("jupyter", "gem", "true", "/opt/gem/jupyter-lab.sh --ip 127.0.0.1 --port 8888 --no-browser --ServerApp.token= --ServerApp.base_url=/jupyter --notebook-dir=/home/gem"),
			program("nginx", "", "true", "/opt/gem/nginx-wait.sh"),
		},
		Supervisord: &supervisord.Config{
			Path: "/opt/gem/supervisord.conf", Files: []string{"/opt/gem/supervisord.conf"}, Programs: []supervisord.Program{},
			Sockets: []supervisord.Socket{{Address: "/var/run/supervisor.sock", Mode: "0770", Owner: "root:gem", Place: at("/opt/gem/supervisord.conf", 3)}},
		},
		Dormant: []supervisord.Config{{Path: "/opt/gem/old.conf", Programs: []supervisord.Program{program("tinyproxy", "nobody", "true", "tinyproxy -d")}}},
		Routes:  []nginx.Route{closed, route("/mcp", "http://127.0.0.1:8091", "/auth", true), port, files},
		MCP: mcp.Report{
			Configs: []mcp.Config{{Path: "/opt/gem/mcp-hub.json", Servers: []mcp.Server{
				{Name: "browser", Type: "stdio", Command: "npx", Args: []string{"-y", "@agent-infra/mcp-server-browser", "--port=9222"}, Unknown: true, Place: at("/opt/gem/mcp-hub.json", 4)},
			}}},
			BuiltIn: []mcp.Server{{Name: "sandbox", Type: "streamable-http", URL: "http://127.0.0.1:8091/mcp", Tools: []string{"sandbox_execute_bash", "sandbox_file_operations"}, Place: at("/usr/local/bin/python-server", 0)}},
		},
		Listeners: []inspect.Listener{
			{Address: "*", Port: 8080, By: "nginx", Place: at("/opt/gem/nginx/main.conf", 2)},
			{Address: "127.0.0.1", Port: 8888, Loopback: true, By: "jupyter", Place: at("/opt/gem/supervisord/jupyter.conf", 2)},
		},
		Privilege: privilege.Report{
			Users: []privilege.User{
				{Name: "root", Home: "/root", Shell: "/bin/bash", Password: "locked", Place: at("/etc/passwd", 1)},
				{Name: "www-data", UID: 33, GID: 33, Home: "/var/www", Shell: "/usr/sbin/nologin", Password: "locked", Place: at("/etc/passwd", 2)},
				{Name: "gem", UID: 1000, GID: 1000, Home: "/home/gem", Shell: "/bin/bash", Password: "none", Place: at("/etc/passwd", 3)},
			},
			Groups: []privilege.Group{},
			Sudo:   []tree.Note{{Place: at("/etc/sudoers", 20), Text: "%sudo ALL=(ALL:ALL) ALL"}},
			Files: []privilege.File{{
				Kinds: []string{privilege.Setuid}, Place: at("/usr/bin/sudo", 0),
				Entry: tree.Entry{Entry: image.Entry{Path: "/usr/bin/sudo", Type: image.TypeFile, Mode: 0o4755, Size: 232416}},
			}},
		},
		Packages: []packages.Package{
			{Kind: packages.Dpkg, Name: "sudo", Version: "1.9.9-1", Arch: "amd64", Size: 2_500_000, Files: 120},
			{Kind: packages.Dpkg, Name: "fonts-noto-cjk", Version: "1:20220127", Arch: "all", Size: 91_000_000, Files: 14},
			{Kind: packages.NPM, Name: "@agent-infra/mcp-server-browser", Version: "1.2.29", Dir: "/usr/lib/node_modules/@agent-infra/mcp-server-browser", Size: 48_300_000, Files: 2911},
		},
		Size: size.Sizes{
			Transfer: 3_210_000_000, Unpacked: 8_730_000_000, Visible: 8_610_000_000, Hidden: 120_000_000, Files: 154_321,
			Layers: []size.Layer{
				{Digest: sha("a"), CreatedBy: "/bin/sh -c #(nop) ADD file:5d68d27cc15a80653c93d3a0b262a28112d47a46326ff5fc2dfbf7fa3b9a0ce8 in /", Size: 30_400_000, Unpacked: 77_800_000, Entries: 3512, Visible: 77_000_000},
				{Digest: sha("b"), Size: 3_179_600_000, Unpacked: 8_652_200_000, Entries: 150_809, Visible: 8_533_000_000},
			},
			Components: []size.Component{
				{Name: "code-server", Size: 512_000_000, Files: 18_120},
				{Name: "Chromium", Size: 390_000_000, Files: 210},
				{Name: "node packages", Size: 640_000_000, Files: 61_000},
				{Name: "Python", Size: 2_100_000_000, Files: 48_000},
				{Name: "other", Size: 4_968_000_000, Files: 26_991},
			},
			Directories: []size.Directory{{Path: "/opt", Size: 4_000_000_000, Files: 90_000}, {Path: "/opt/python3.12", Size: 1_500_000_000, Files: 40_000}, {Path: "/usr", Size: 3_700_000_000, Files: 60_000}},
		},
		Notes: []tree.Note{{Place: at("/opt/gem/nginx/old.conf", 7), Text: `unknown directive "lua_block"`}},
	}
}

func file(path string, mode, bytes int64) *tree.Entry {
	return &tree.Entry{Entry: image.Entry{Path: path, Type: image.TypeFile, Mode: mode, Size: bytes}, Layer: 1}
}

func dir(path string) *tree.Entry {
	return &tree.Entry{Entry: image.Entry{Path: path, Type: image.TypeDir, Mode: 0o755}, Layer: 1}
}

func removed(e *tree.Entry) diff.Change { return diff.Change{Path: e.Path, Kind: diff.Removed, Old: e} }

func added(e *tree.Entry) diff.Change { return diff.Change{Path: e.Path, Kind: diff.Added, New: e} }

func changed(kind string, old, now *tree.Entry, fields ...string) diff.Change {
	return diff.Change{Path: old.Path, Kind: kind, Fields: fields, Old: old, New: now}
}

// sampleDiff is a small image and what became of it.
func sampleDiff(platform string) *diff.Diff {
	conf := changed(diff.Modified, file("/opt/gem/nginx.conf", 0o644, 412), file("/opt/gem/nginx.conf", 0o644, 308), "size", "content")
	conf.Text = "--- base/opt/gem/nginx.conf\n+++ slim/opt/gem/nginx.conf\n@@ -1,4 +1,3 @@\n user nobody root;\n-include /opt/gem/nginx/*.conf;\n-include /opt/gem/nginx-proxy-map.conf;\n+include /opt/gem/closed.conf;\n events {}\n"
	link := &tree.Entry{Entry: image.Entry{Path: "/usr/bin/node", Type: image.TypeSymlink, Mode: 0o777, Link: "/opt/nodejs/22/bin/node"}}
	files := []diff.Change{
		changed(diff.Meta, file("/etc/shadow", 0o644, 900), file("/etc/shadow", 0o640, 900), "mode"),
		removed(file("/etc/sudoers", 0o440, 1671)),
		added(file("/opt/gem/closed.conf", 0o644, 2048)),
		conf,
		removed(dir("/opt/jupyter")),
		removed(dir("/opt/jupyter/data")),
	}
	for i := range 12 {
		files = append(files, removed(file(fmt.Sprintf("/opt/jupyter/data/%02d.bin", i), 0o644, 1_000_000)))
	}
	files = append(files,
		added(dir("/opt/slim")), added(file("/opt/slim/browser-shell", 0o755, 9_400_000)),
		changed(diff.Type, file("/usr/bin/node", 0o755, 90_000_000), link, "type", "mode", "size"),
	)
	d := &diff.Diff{
		Platform: platform,
		Base: diff.Side{Reference: "ghcr.io/agent-infra/sandbox:1.9.3", Digest: sha("d"), Size: size.Sizes{
			Transfer: 3_210_000_000, Unpacked: 8_730_000_000, Visible: 8_610_000_000, Hidden: 120_000_000, Files: 154_321,
		}},
		Slim: diff.Side{Reference: "registry.example/slim:l0", Digest: sha("e"), Size: size.Sizes{
			Transfer: 3_211_200_000, Unpacked: 8_739_400_000, Visible: 8_517_000_000, Hidden: 222_400_000, Files: 154_309,
		}},
		Files:  files,
		Counts: diff.Counts{Added: 3, Removed: 15, Modified: 1, Type: 1, Meta: 1, AddedBytes: 9_402_048, RemovedBytes: 12_001_671},
		Config: []diff.Field{
			{Name: "env.JUPYTER_PORT", Old: "8888", InBase: true},
			{Name: "entrypoint", New: "/opt/slim/entry", InSlim: true},
			{Name: "user", Old: "root", New: "gem", InBase: true, InSlim: true},
		},
		Surface: diff.Surface{
			Outside: diff.Count{Base: 3, Slim: 2},
			Programs: diff.Group{Base: 6, Slim: 3, Same: []string{"browser", "vnc"}, Items: []diff.Field{
				{Name: "code-server", Old: "user=gem autostart=true command=/usr/bin/code-server", InBase: true},
				{Name: "gost", Old: "user=root autostart=true command=gost -C /opt/gem/gost.yaml", InBase: true},
				{Name: "jupyter", Old: "user=gem autostart=true command=/opt/gem/jupyter-lab.sh", InBase: true},
				{Name: "mcp", Old: "user=gem autostart=true command=mcp-server-browser", InBase: true},
				{Name: "hub", New: "user=hub autostart=true command=/opt/slim/browser-shell hub", InSlim: true},
				{Name: "nginx", Old: "user= autostart=true command=/opt/gem/nginx-wait.sh", New: "user=root autostart=true command=/usr/sbin/nginx", InBase: true, InSlim: true},
			}},
			Routes: diff.Group{Base: 3, Slim: 2, Same: []string{"8080 /vnc"}, Items: []diff.Field{
				{Name: "8080 /jupyter", Old: "proxy http://127.0.0.1:8888", InBase: true},
				{Name: "8080 /mcp", Old: "proxy http://127.0.0.1:8091", New: "proxy http://unix:/run/hub.sock auth=/auth", InBase: true, InSlim: true},
			}},
			Tools: diff.Group{Base: 33, Slim: 1, Items: toolItems()},
		},
		Size: diff.Size{Transfer: 1_200_000, Beside: 1_200_000, Visible: -93_000_000, Hidden: 102_400_000, Components: []diff.Component{
			{Name: "node packages", Base: 640_000_000, Slim: 550_000_000}, {Name: "slimctl", Slim: 9_402_048}, {Name: "jupyter", Base: 12_000_000},
		}},
		Layers: []diff.Layer{
			{Digest: sha("a"), CreatedBy: "ADD rootfs", Size: 30_400_000, Unpacked: 77_800_000, In: diff.InBoth},
			{Digest: sha("b"), CreatedBy: "RUN everything", Size: 3_179_600_000, Unpacked: 8_652_200_000, In: diff.InBoth},
			{Digest: sha("c"), CreatedBy: "slimctl: server", Size: 1_200_000, Unpacked: 9_402_048, In: diff.InSlim, Files: slices.DeleteFunc(slices.Clone(files), func(c diff.Change) bool { return c.Kind != diff.Added })},
		},
	}
	d.Base.Size.Layers = []size.Layer{{Digest: sha("a"), Size: 30_400_000, Unpacked: 77_800_000, Visible: 77_000_000}, {Digest: sha("b"), Size: 3_179_600_000, Unpacked: 8_652_200_000, Visible: 8_533_000_000}}
	d.Slim.Size.Layers = append(slices.Clone(d.Base.Size.Layers), size.Layer{Digest: sha("c"), Size: 1_200_000, Unpacked: 9_402_048, Visible: 9_402_048})
	d.Slim.Size.Layers[1].Visible = 8_430_600_000
	d.Base.Size.Components = []size.Component{{Name: "Python", Size: 2_100_000_000}, {Name: "node packages", Size: 640_000_000}, {Name: "jupyter", Size: 12_000_000}, {Name: "other", Size: 5_858_000_000}}
	d.Slim.Size.Components = []size.Component{{Name: "Python", Size: 2_100_000_000}, {Name: "node packages", Size: 550_000_000}, {Name: "slimctl", Size: 9_402_048}, {Name: "other", Size: 5_857_598_000}}
	return d
}

func toolItems() []diff.Field {
	var out []diff.Field
	for i := range 33 {
		out = append(out, diff.Field{Name: fmt.Sprintf("sandbox_tool_%02d", i), Old: "of sandbox", InBase: true})
	}
	return append(out, diff.Field{Name: "browser-shell", New: "of browser-shell", InSlim: true})
}
