package verify_test

import (
	"encoding/json"
	"io/fs"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/verify"
)

// asset is a file of the closed image with parts of it replaced, each of which must be there.
func asset(t testing.TB, name, at string, oldNew ...string) image.File {
	t.Helper()
	data, err := fs.ReadFile(assets.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	s := string(data)
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(s, oldNew[i]) {
			t.Fatalf("%s holds no %q", name, oldNew[i])
		}
		s = strings.Replace(s, oldNew[i], oldNew[i+1], 1)
	}
	return text(at, s)
}

// serverWith is nginx-server.conf with more at its end; with is nginx-http.conf likewise.
func serverWith(t testing.TB, more string) image.File {
	return asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "# What is sent has the code", more+"\n# What is sent has the code")
}

func httpWith(t testing.TB, more string) image.File {
	return asset(t, "nginx/nginx-http.conf", "/opt/gem/nginx-http.conf", "proxy_http_version 1.1;", more+"\nproxy_http_version 1.1;")
}

func supervisordWith(t testing.TB, oldNew ...string) image.File {
	return asset(t, "supervisord/supervisord.conf", conf, oldNew...)
}

func starts(command ...string) func(*v1.ConfigFile) {
	return func(c *v1.ConfigFile) { c.Config.Entrypoint = command }
}

func env(set ...string) func(*v1.ConfigFile) {
	return func(c *v1.ConfigFile) { c.Config.Env = append(slices.Clip(c.Config.Env), set...) }
}

// replaced sets one variable, which must be there, to another value.
func replaced(old, line string) func(*v1.ConfigFile) {
	return func(c *v1.ConfigFile) { c.Config.Env[slices.Index(c.Config.Env, old)] = line }
}

const portProxy = `
    server {
        listen 8080;
        server_name ~^(?<port>\d+)-(.+)$;
        location / {
            proxy_pass http://127.0.0.1:$port;
        }
    }
`

// holes are the ways of facts/aio-base.md 4.4 in which the base stays open, each planted back by itself, with the rule that
// is about it.
func holes(t testing.TB) map[string]struct {
	plant
	rule string
} {
	nginxWith := func(more string) image.File {
		return asset(t, "nginx/nginx.conf", nginxConf, "    server {", more+"\n    server {")
	}
	return map[string]struct {
		plant
		rule string
	}{
		"a": {plant{files: []image.File{serverWith(t, "location /v1 { set $asked $uri; auth_request /_auth; proxy_pass http://mcp/v1; }")}}, "routes"},
		"b": {plant{files: []image.File{nginxWith(portProxy)}}, "upstreams"},
		"c": {plant{files: []image.File{nginxWith("server { listen 8080; server_name open; include /opt/gem/nginx-server.conf; }")}}, "file"},
		"d": {plant{files: []image.File{asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "auth_request /_auth;", "")}}, "gate"},
		"e": {plant{files: []image.File{serverWith(t, "location / { return 403; }")}}, "not-understood"},
		"f": {plant{files: []image.File{
			httpWith(t, `map $http_x_aio_proxy_port $aio_proxy_port { ~^\d+$ $http_x_aio_proxy_port; default ""; }`),
			serverWith(t, "location @aio { proxy_pass http://127.0.0.1:$aio_proxy_port; }"),
		}}, "upstreams"},
		"g": {plant{files: []image.File{serverWith(t, "location ~ .* { return 403; }")}}, "file"},
		"h": {plant{files: []image.File{asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "set $args \"\";", "", "proxy_pass http://mcp/mcp;", "proxy_pass http://mcp;")}}, "file"},
		"i": {plant{files: []image.File{
			httpWith(t, `map "$request_method:$request_uri" $way { default @closed; "~*^GET:.+\.(js|css)$" @open; }`),
			asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf",
				"client_max_body_size 0;\n    return 403;", `client_max_body_size 0;
    try_files "" $way;`, "# What is sent has the code", `
location @open { proxy_pass http://mcp; }
location @closed { set $asked $uri; auth_request /_auth; proxy_pass http://mcp; }
# What is sent has the code`),
		}}, "gate"},
		"j": {plant{files: []image.File{text("/opt/gem/nginx/nginx.python_srv.conf", "location /v1 { proxy_pass http://127.0.0.1:${SANDBOX_SRV_PORT}; }")}}, "file"},
		"k": {plant{files: []image.File{
			image.Bytes("/opt/gem/run.sh", 0o755, []byte("#!/bin/bash\nset -e\nenvsubst '${PORT}' </opt/gem/nginx.legacy.conf >/opt/gem/nginx/legacy.conf\nexec /usr/bin/supervisord -n -c /opt/gem/supervisord.conf\n")),
			text("/opt/gem/nginx.legacy.conf", "location /json { proxy_pass http://127.0.0.1:${PORT}; }"),
		}, config: starts("/opt/gem/run.sh")}, "laid"},
		"l": {plant{files: []image.File{
			text("/opt/gem/mcp.disabled", ""), text("/opt/gem/supervisord.mcp.conf", "[program:mcp]\ncommand=/usr/bin/mcp-server-browser\n"),
			text("/opt/gem/nginx.mcp.conf", "location ~ ^/(sse|message|mcp) { proxy_pass http://127.0.0.1:8089; }"),
		}}, "file"},
		"m, a listener": {plant{files: []image.File{asset(t, "nginx/nginx.conf", nginxConf, "listen 8080 default_server;", "listen 8080 default_server;\n        listen 0.0.0.0:8091;")}}, "listeners"},
		"m, a program":  {plant{files: []image.File{supervisordWith(t, "[program:nginx]", "[program:python-server]\ncommand=/usr/local/bin/python-server --host 0.0.0.0 --port 8091\nuser=gem\n[program:nginx]")}}, "listeners"},
		"m, an include": {plant{files: []image.File{
			httpWith(t, "include /opt/gem/nginx-proxy-map.conf;"), owned(text("/opt/gem/nginx-proxy-map.conf", ""), 1000, 1000),
		}}, "writable"},
	}
}

// Each of the holes, planted back one at a time, is found by the rule that is about it, on every line.
func TestHolesAreFound(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		for name, hole := range holes(t) {
			t.Run(line+"/"+name, func(t *testing.T) {
				r := check(t, closeLine(t, line).input(t, hole.plant, "linux/amd64"))
				mustFind(t, r, hole.rule)
				for _, rule := range verify.Rules() {
					if rule.ID == hole.rule && !slices.Contains(rule.Holes, name[:1]) {
						t.Errorf("%s is not said to find hole %s", rule.ID, name[:1])
					}
				}
			})
		}
	}
}

// mustFind wants an error by that rule with evidence.
func mustFind(t *testing.T, r *verify.Report, rule string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Rule == rule && f.Severity == verify.Error {
			if r.Passed {
				t.Error("the report passes")
			}
			return
		}
	}
	t.Errorf("nothing is found by %s; there are %v\n%s", rule, ruleIDs(r), describe(r))
}

// attacks are what somebody does who wants an image published that looks closed.
func attacks(t testing.TB) map[string]struct {
	plant
	rule string
} {
	files := func(f ...image.File) plant { return plant{files: f} }
	hub := func(s string) plant { return files(text(hubConf, s)) }
	setuid := image.Bytes("/usr/bin/helper", 0o4755, program(0x3e))
	capable := image.Bytes("/usr/bin/helper", 0o755, program(0x3e))
	capable.Xattrs = map[string]string{"security.capability": "\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"}
	disk := image.File{Entry: image.Entry{Path: "/srv/disk", Type: image.TypeBlock, Mode: 0o666}}
	const good = `{"mcpServers": {"browser_shell": {"type": "stdio", "command": "/usr/local/bin/browser-shell", "args": ["mcp"]}`
	return map[string]struct {
		plant
		rule string
	}{
		"a second MCP server":           {hub(good + `, "x": {"type": "stdio", "command": "/bin/sh"}}}`), "mcp-servers"},
		"servers twice":                 {hub(good + `}, "mcpServers": {"x": {"type": "stdio", "command": "/bin/sh"}}}`), "not-understood"},
		"a server by URL":               {hub(`{"mcpServers": {"browser_shell": {"type": "sse", "url": "http://evil.example/sse"}}}`), "laid"},
		"a server by a shell":           {hub(`{"mcpServers": {"browser_shell": {"type": "stdio", "command": "/bin/sh", "args": ["-c", "x"]}}}`), "laid"},
		"a server with a library":       {hub(strings.TrimSuffix(good, "}") + `, "env": {"LD_PRELOAD": "/home/gem/x.so"}}}}`), "code"},
		"a server elsewhere":            {hub(strings.TrimSuffix(good, "}") + `, "cwd": "/home/gem"}}}`), "file"},
		"a server of another name":      {hub(`{"mcpServers": {"Browser_shell": {"type": "stdio", "command": "/usr/local/bin/browser-shell", "args": ["mcp"]}}}`), "mcp-servers"},
		"no JSON":                       {hub("{"), "not-understood"},
		"the tool under another name":   {files(text("/etc/agent-browser/browser-shell.policy.json", `{"tool_name": "bash"}`)), "tools"},
		"python-server":                 {files(supervisordWith(t, "[program:nginx]", "[program:python-server]\ncommand=/usr/local/bin/python-server\nuser=gem\n[program:nginx]")), "tools"},
		"another browser-shell":         {files(image.Bytes(shell, 0o755, append(program(0x3e), "evil"...))), "file"},
		"arm64 in amd64":                {files(image.Bytes(shell, 0o755, program(0xb7))), "file"},
		"browser-shell a link":          {files(image.Symlink(shell, "/home/gem/x")), "file"},
		"browser-shell its own user's":  {files(owned(image.Bytes(shell, 0o755, program(0x3e)), 1000, 1000)), "file"},
		"no policy":                     {files(image.Whiteout("/etc/agent-browser/browser-shell.policy.json")), "file"},
		"a module away":                 {files(image.Whiteout("/opt/agent-browser/node_modules/ws/index.js")), "file"},
		"the payload away":              {files(text("/opt/agent-browser/.wh..wh..opq", "")), "file"},
		"a module beside":               {files(text("/opt/agent-browser/node_modules/net/index.js", "evil")), "file"},
		"another Chromium policy":       {files(text("/etc/browser/policies/managed/zz-browser-shell.json", "{}")), "file"},
		"one more Chromium policy":      {files(text("/etc/browser/policies/managed/zzz.json", `{"ProxySettings": {"ProxyMode": "direct"}}`)), "file"},
		"policies elsewhere":            {files(image.Whiteout("/etc/chromium"), text("/etc/chromium/policies/managed/x.json", "{}")), "file"},
		"setuid":                        {files(setuid), "privileged"},
		"a capability":                  {files(capable), "privileged"},
		"a device":                      {files(disk), "privileged"},
		"everybody's directory":         {files(image.Dir("/srv/all", 0o777)), "privileged"},
		"sudo":                          {files(text("/etc/sudoers.d/gem", "gem ALL=(ALL) NOPASSWD:ALL\n")), "privileged"},
		"sudo in the main file":         {files(text("/etc/sudoers", "gem ALL=(ALL) NOPASSWD:ALL\n")), "privileged"},
		"a user with a shell":           {files(asset(t, "accounts/passwd", "/etc/passwd", "gem:x:1000:1000:desktop and browser:/home/gem:/usr/sbin/nologin", "gem:x:1000:1000::/home/gem:/bin/bash")), "accounts"},
		"a user without a password":     {files(withMode(asset(t, "accounts/shadow", "/etc/shadow", "gem:*:", "gem::"), 0o640)), "accounts"},
		"root by another name":          {files(asset(t, "accounts/passwd", "/etc/passwd", "nobody:x:65534:65534", "nobody:x:0:0")), "accounts"},
		"gem in a second group":         {files(asset(t, "accounts/group", "/etc/group", "nogroup:x:65534:", "nogroup:x:65534:gem")), "accounts"},
		"/opt/gem is gem's":             {files(owned(image.Dir("/opt/gem", 0o755), 1000, 1000)), "writable"},
		"/opt/gem is somewhere else":    {files(image.Whiteout("/opt/gem"), image.Symlink("/opt/gem", "/home/gem/opt")), "file"},
		"another nginx":                 {files(image.Bytes("/usr/sbin/nginx", 0o755, program(0x3e))), "layer"},
		"another library":               {files(image.Bytes("/usr/lib/x86_64-linux-gnu/libc.so.6", 0o755, program(0x3e))), "layer"},
		"another page":                  {files(text("/opt/novnc/vnc.html", "<script>")), "layer"},
		"certificates away":             {files(image.Whiteout("/usr/bin/openbox")), "layer"},
		"a program in /home/gem":        {files(image.Bytes("/home/gem/.local/bin/nc", 0o755, nil)), "file"},
		"a start script again":          {files(image.Bytes("/opt/gem/entrypoint.sh", 0o755, []byte("#!/bin/sh\n"))), "file"},
		"ld.so.preload":                 {files(text("/etc/ld.so.preload", "/home/gem/x.so")), "code"},
		"profile.d":                     {files(text("/etc/profile.d/zz.sh", "evil")), "file"},
		"a start file of Python":        {files(text("/usr/lib/python3/dist-packages/evil.pth", "import os; os.system('x')")), "file"},
		"a program":                     {files(supervisordWith(t, "[program:nginx]", "[program:shell]\ncommand=/bin/sh\n[program:nginx]")), "programs"},
		"a program through an include":  {files(supervisordWith(t, "[program:nginx]", "[include]\nfiles=/opt/gem/supervisord/*.conf\n[program:nginx]"), text("/opt/gem/supervisord/x.conf", "[program:x]\ncommand=/bin/sh\n")), "laid"},
		"a program in wait":             {files(text("/opt/gem/supervisord/x.conf", "[program:x]\ncommand=/bin/sh\n")), "file"},
		"an event listener":             {files(supervisordWith(t, "[program:nginx]", "[eventlistener:x]\ncommand=/bin/sh\nevents=TICK_5\n[program:nginx]")), "programs"},
		"code in supervisord":           {files(supervisordWith(t, "supervisor.rpcinterface:make_main_rpcinterface", "evil:make")), "not-understood"},
		"control by network":            {files(supervisordWith(t, "[rpcinterface:supervisor]", "[inet_http_server]\nport=*:9001\n[rpcinterface:supervisor]")), "listeners"},
		"control by the group":          {files(supervisordWith(t, "chmod=0700", "chmod=0770\nchown=root:gem")), "writable"},
		"flags of the environment":      {files(supervisordWith(t, "--no-pings", "--no-pings %(ENV_BROWSER_EXTRA_ARGS)s")), "switches"},
		"debugging for all":             {files(supervisordWith(t, "--no-pings", "--remote-debugging-address=0.0.0.0")), "file"},
		"the desktop for all":           {files(supervisordWith(t, "-localhost ", "")), "listeners"},
		"the hub for all":               {files(supervisordWith(t, "--listen unix:/run/browser-shell-front/mcp.sock", "--listen 0.0.0.0:9999")), "listeners"},
		"past the proxy":                {files(supervisordWith(t, "--proxy-bypass-list=<-loopback>", "--proxy-bypass-list=*")), "file"},
		"a library for a program":       {files(supervisordWith(t, `environment=HOME="/"`, `environment=LD_PRELOAD="/home/gem/x.so",HOME="/"`)), "code"},
		"a library for all programs":    {files(supervisordWith(t, "nodaemon=true", "nodaemon=true\nenvironment=LD_PRELOAD=\"/home/gem/x.so\"")), "code"},
		"the browser as root":           {files(supervisordWith(t, "user=%(ENV_SLIM_DESKTOP_USER)s\npriority=400", "priority=400")), "accounts"},
		"a module in nginx":             {files(asset(t, "nginx/nginx-main.conf", "/opt/gem/nginx-main.conf", "worker_processes 1;", "load_module /home/gem/x.so;\nworker_processes 1;")), "not-understood"},
		"an include of what is to come": {files(httpWith(t, "include /run/nginx/later.conf;")), "laid"},
		"an include by glob":            {files(httpWith(t, "include /opt/gem/nginx/*.conf;")), "laid"},
		"a gate that lets in":           {files(asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "proxy_pass http://gate/auth;", "return 200;")), "gate"},
		"a gate for all":                {files(asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "location = /_auth {\n    internal;", "location = /_auth {")), "gate"},
		"another gate":                  {files(asset(t, "nginx/nginx-http.conf", "/opt/gem/nginx-http.conf", "server unix:/run/browser-shell-front/gate.sock", "server 192.0.2.1:80")), "upstreams"},
		"every file":                    {files(asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "alias /opt/novnc/;", "alias /;")), "upstreams"},
		"an open case":                  {files(asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "client_max_body_size 0;\n    return 403;", "if ($http_x_open) { return 200 ok; }\n    return 403;")), "routes"},
		"anybody who is satisfied":      {files(asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "set $asked $uri;", "satisfy any; allow all; set $asked $uri;")), "not-understood"},
		"TCP":                           {files(asset(t, "nginx/nginx.conf", nginxConf, "http {", "stream { server { listen 9000; proxy_pass 127.0.0.1:9222; } }\nhttp {")), "gate"},
		"mcp as a prefix":               {files(asset(t, "nginx/nginx-server.conf", "/opt/gem/nginx-server.conf", "location = /mcp {", "location /mcp {")), "routes"},

		"a shell first":           {plant{config: starts("/bin/sh", "-c", "x & exec /usr/local/bin/browser-shell init")}, "laid"},
		"arguments":               {plant{config: func(c *v1.ConfigFile) { c.Config.Cmd = []string{"--open"} }}, "config"},
		"another of its commands": {plant{config: starts(shell, "hub", "--listen", "0.0.0.0:8080")}, "config"},
		"LD_PRELOAD":              {plant{config: env("LD_PRELOAD=/home/gem/x.so")}, "code"},
		"open to all":             {plant{config: env("SLIM_ALLOW_ANONYMOUS=true")}, "switches"},
		"my key":                  {plant{config: env("JWT_PUBLIC_KEY=LS0tLS1CRUdJTg==")}, "switches"},
		"a key in it":             {plant{config: env("OPENAI_API_KEY=sk-" + strings.Repeat("a", 40))}, "secrets"},
		"a variable twice":        {plant{config: env("PATH=/home/gem/bin")}, "config"},
		"a health check":          {plant{config: func(c *v1.ConfigFile) { c.Config.Healthcheck = &v1.HealthConfig{Test: []string{"CMD-SHELL", "x"}} }}, "config"},
		"another directory":       {plant{config: func(c *v1.ConfigFile) { c.Config.WorkingDir = "/home/gem" }}, "config"},
		"for who builds on it":    {plant{config: func(c *v1.ConfigFile) { c.Config.OnBuild = []string{"RUN x"} }}, "config"},
		"a port":                  {plant{config: func(c *v1.ConfigFile) { c.Config.ExposedPorts = map[string]struct{}{"8080/tcp": {}, "9222/tcp": {}} }}, "config"},
		"a volume":                {plant{config: func(c *v1.ConfigFile) { c.Config.Volumes = map[string]struct{}{"/etc/agent-browser": {}} }}, "config"},
		"a variable of the base":  {plant{config: replaced("TZ=Asia/Singapore", "TZ=Evil/Place")}, "config"},
		"a variable that went":    {plant{config: env("DISPLAY=evil.example:0")}, "config"},
		"one more variable":       {plant{config: env("MALLOC_CONF=stats_print:true")}, "config"},
		"another user":            {plant{config: func(c *v1.ConfigFile) { c.Config.User = "gem" }}, "config"},
		"another stop signal":     {plant{config: func(c *v1.ConfigFile) { c.Config.StopSignal = "SIGSTOP" }}, "config"},
		"a volume for keys":       {plant{config: func(c *v1.ConfigFile) { c.Config.Volumes = map[string]struct{}{"/run": {}} }}, "config"},
		"another shell":           {plant{config: func(c *v1.ConfigFile) { c.Config.Shell = []string{"/bin/x", "-c"} }}, "config"},
		"a health check of hours": {plant{config: func(c *v1.ConfigFile) { c.Config.Healthcheck.Interval *= 1000 }}, "config"},
		"another kernel":          {plant{config: func(c *v1.ConfigFile) { c.OSVersion = "10.0.1" }}, "config"},
		"a token in the history": {plant{config: func(c *v1.ConfigFile) {
			c.History = append(c.History, v1.History{EmptyLayer: true, CreatedBy: "ENV NPM_TOKEN=npm_" + strings.Repeat("a", 36)})
		}}, "secrets"},
		"a key of ssh":             {files(text("/root/.ssh/id_ed25519", "x")), "file"},
		"a token of npm":           {files(text("/root/.npmrc", "//registry.example/:_authToken=abcdef")), "file"},
		"privileges by a label":    {plant{config: func(c *v1.ConfigFile) { c.Config.Labels["devcontainer.metadata"] = `[{"privileged":true}]` }}, "config"},
		"another runtime":          {plant{manifest: map[string]string{"run.oci.handler": "krun"}}, "manifest"},
		"another base by its name": {plant{manifest: map[string]string{"org.opencontainers.image.base.digest": "sha256:" + strings.Repeat("0", 64)}}, "manifest"},
	}
}

func TestAttacksAreFound(t *testing.T) {
	for name, attack := range attacks(t) {
		t.Run(name, func(t *testing.T) {
			r := check(t, closeLine(t, "B").input(t, attack.plant, "linux/amd64"))
			mustFind(t, r, attack.rule)
		})
	}
}

// What every attack has in common is that it is another image: each is found by comparison alone, and none passes that was
// compared with nothing.
func TestAttacksAreOtherImages(t *testing.T) {
	compared := []string{"index", "manifest", "manifest", "config", "config", "layer", "layer", "file"}
	for name, attack := range attacks(t) {
		t.Run(name, func(t *testing.T) {
			in := closeLine(t, "B").input(t, attack.plant, "linux/amd64")
			r := check(t, in)
			if !slices.ContainsFunc(r.Findings, func(f verify.Finding) bool { return slices.Contains(compared, f.Rule) }) || r.Passed || r.Proven != "" {
				t.Error(describe(r))
			}
			in.Want.SameTree = true
			if r = check(t, in); r.Passed || r.Proven != "" && name != "a token in the history" {
				t.Errorf("the same tree: %s", describe(r))
			}
			in.Want = nil
			if r = check(t, in); r.Passed {
				t.Errorf("compared with nothing: %s", describe(r))
			}
		})
	}
}

// readDirs are directories that programs of the image read by themselves: one more file in any of them is another image.
var readDirs = strings.Fields(`/etc /etc/agent-browser /etc/browser/policies/managed /etc/chromium.d /etc/cron.d /etc/fonts/conf.d
	/etc/ld.so.conf.d /etc/nginx/conf.d /etc/nginx/modules-enabled /etc/pam.d /etc/profile.d /etc/ssl/certs /etc/sudoers.d
	/etc/supervisor/conf.d /etc/X11/xorg.conf.d /etc/xdg/openbox /home/gem /home/gem/.config /home/gem/.local/bin /opt/agent-browser/node_modules/x
	/opt/agent-browser/dist /opt/application /opt/gem /opt/gem/nginx /opt/gem/supervisord /opt/novnc /root /run /usr/bin /usr/lib/chromium/extensions
	/usr/lib/nginx/modules /usr/lib/python3/dist-packages /usr/lib/x86_64-linux-gnu /usr/local/bin /usr/local/lib /usr/local/lib/node_modules/x /usr/sbin
	/usr/share/X11/xkb /usr/share/fonts /usr/share/novnc /var/lib/dpkg/info`)

func TestMoreFilesAreFound(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		c := closeLine(t, line)
		for _, dir := range readDirs {
			p := dir + "/more.conf"
			in := c.input(t, plant{files: []image.File{text(p, "evil")}}, "linux/amd64")
			for _, in.Want.SameTree = range []bool{false, true} {
				r := check(t, in)
				if r.Passed || r.Proven != "" || !slices.ContainsFunc(r.Findings, func(f verify.Finding) bool { return f.Rule == "file" && f.Subject == p }) {
					t.Errorf("%s: %s", p, describe(r))
				}
			}
		}
	}
}

// An attacker who rewrites what lies below: another lowest layer, one more in the middle, and one platform only.
func TestRebuiltImagesAreFound(t *testing.T) {
	c := closeLine(t, "B")
	rebuild := func(change func(layers []v1.Layer) []v1.Layer) verify.Input {
		t.Helper()
		img := c.images["linux/amd64"]
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		again, err := mutate.AppendLayers(empty.Image, change(slices.Clone(layers))...)
		if err != nil {
			t.Fatal(err)
		}
		fresh, err := again.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config = config.DeepCopy()
		config.RootFS = fresh.RootFS
		if again, err = mutate.ConfigFile(again, config); err != nil {
			t.Fatal(err)
		}
		again = mutate.ConfigMediaType(mutate.MediaType(again, manifest.MediaType), manifest.Config.MediaType)
		again = mutate.Annotations(again, manifest.Annotations).(v1.Image)
		return c.inputOf(t, map[string]v1.Image{"linux/amd64": again})
	}
	evil := layerOf(t, []image.File{image.Bytes("/usr/sbin/nginx", 0o755, program(0x3e))})
	n := len(c.want["linux/amd64"].Base)
	// The layer of browser-shell, with more in it.
	lays := stubs(v1.Platform{OS: "linux", Architecture: "amd64"})
	ours := slices.IndexFunc(c.made["linux/amd64"].Files.Layers, func(l tree.Layer) bool { return strings.Contains(l.CreatedBy, "lay browser-shell") })
	with := func(more ...image.File) func([]v1.Layer) []v1.Layer {
		return func(l []v1.Layer) []v1.Layer {
			l[ours] = layerOf(t, append(slices.Clone(lays[1].Files), more...))
			return l
		}
	}
	once, again := layerOf(t, []image.File{image.Bytes(shell, 0o755, program(0xb7))}), layerOf(t, lays[1].Files)
	for name, tt := range map[string]struct {
		change func([]v1.Layer) []v1.Layer
		rule   string
		tree   string // the rule where other layers are accepted; empty where the tree is the same
	}{
		"written by another": {func(l []v1.Layer) []v1.Layer { return l }, "config", ""},
		"the lowest":         {func(l []v1.Layer) []v1.Layer { l[0] = evil; return l }, "layer", "file"},
		"on the base":        {func(l []v1.Layer) []v1.Layer { return slices.Insert(l, n, evil) }, "layer", "file"},
		"in the base":        {func(l []v1.Layer) []v1.Layer { return slices.Insert(l, n-1, evil) }, "layer", "file"},
		"one away":           {func(l []v1.Layer) []v1.Layer { return slices.Delete(l, n-1, n) }, "layer", "file"},
		"all away":           {func([]v1.Layer) []v1.Layer { return nil }, "layer", "file"},
		"two swapped":        {func(l []v1.Layer) []v1.Layer { l[0], l[1] = l[1], l[0]; return l }, "layer", ""},
		"no removals":        {func(l []v1.Layer) []v1.Layer { return slices.Delete(l, n, n+1) }, "file", "file"},
		"no payload":         {func(l []v1.Layer) []v1.Layer { return slices.Delete(l, n+1, n+2) }, "file", "file"},
		"an empty one":       {func(l []v1.Layer) []v1.Layer { return append(l, layerOf(t, nil)) }, "layer", ""},
		"one twice":          {func(l []v1.Layer) []v1.Layer { return append(l, l[ours]) }, "layer", ""},
		"removals twice":     {func(l []v1.Layer) []v1.Layer { return slices.Insert(l, n, l[n]) }, "layer", ""},
		"evil once":          {func(l []v1.Layer) []v1.Layer { return slices.Insert(l, ours, once) }, "layer", ""},
		"evil and hidden": {func(l []v1.Layer) []v1.Layer {
			return slices.Insert(l, n, evil, layerOf(t, []image.File{image.Whiteout("/usr/sbin/nginx")}))
		}, "layer", "file"},
		// Where overlayfs shows more than the layers seem to hold.
		"evil below an opaque root": {func(l []v1.Layer) []v1.Layer {
			return slices.Insert(l, 0, layerOf(t, []image.File{text("/srv/evil", "x")}), layerOf(t, []image.File{text("/.wh..wh..opq", "")}))
		}, "layer", "file"},
		"evil below a directory that is brought again": {func(l []v1.Layer) []v1.Layer {
			return slices.Insert(l, 0, layerOf(t, []image.File{text("/usr/evil", "x")}), layerOf(t, []image.File{image.Whiteout("/usr"), image.Dir("/usr", 0o755)}))
		}, "layer", "file"},
		"removed and laid again": {func(l []v1.Layer) []v1.Layer {
			return append(l, layerOf(t, []image.File{image.Whiteout(shell)}), again)
		}, "layer", ""},
		"the same by other tools":  {with(), "layer", ""},
		"with a program":           {with(image.Bytes("/usr/sbin/nginx", 0o755, program(0x3e))), "file", "file"},
		"with a removal":           {with(image.Whiteout("/opt/gem/run.sh")), "layer", ""},
		"with its own removal":     {with(image.Whiteout(shell)), "layer", ""},
		"with another's file":      {with(lays[0].Files[2]), "layer", ""},
		"one in another's place":   {func(l []v1.Layer) []v1.Layer { l[ours], l[ours-1] = l[ours-1], l[ours]; return l }, "layer", ""},
		"another order":            {func(l []v1.Layer) []v1.Layer { l[n], l[len(l)-1] = l[len(l)-1], l[n]; return l }, "layer", "file"},
		"another index of a layer": {func(l []v1.Layer) []v1.Layer { l[ours] = annotatedLayer{l[ours]}; return l }, "manifest", "manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			in := rebuild(tt.change)
			mustFind(t, check(t, in), tt.rule)
			in.Want.SameTree = true
			r := check(t, in)
			if tt.tree != "" {
				mustFind(t, r, tt.tree)
			} else if !r.Passed || r.Proven != verify.ByTree {
				t.Error(describe(r))
			}
		})
	}
	t.Run("one platform", func(t *testing.T) {
		r := check(t, c.input(t, plant{config: env("X=1")}))
		mustFind(t, r, "config")
	})
}

// An index that says more, or other things, than a build's.
func TestIndexes(t *testing.T) {
	type object = map[string]any
	c := closeLine(t, "B")
	entry := func(o object, i int) object { return o["manifests"].([]any)[i].(object) }
	for name, tt := range map[string]struct {
		do   func(o object)
		rule string // none where it passes
	}{
		"written otherwise":      {func(object) {}, "index"},
		"another order":          {func(o object) { l := o["manifests"].([]any); slices.Reverse(l) }, "index"},
		"a key":                  {func(o object) { o["x"] = object{} }, "index"},
		"an artifact":            {func(o object) { o["artifactType"] = "x/y" }, "index"},
		"a subject":              {func(o object) { o["subject"] = entry(o, 1) }, "index"},
		"another schema":         {func(o object) { o["schemaVersion"] = 1 }, "index"},
		"Docker's":               {func(o object) { o["mediaType"] = "application/vnd.docker.distribution.manifest.list.v2+json" }, "index"},
		"a URL in an entry":      {func(o object) { entry(o, 0)["urls"] = []any{"https://evil.example/x"} }, "index"},
		"data in an entry":       {func(o object) { entry(o, 0)["data"] = "e30=" }, "index"},
		"a note in an entry":     {func(o object) { entry(o, 0)["annotations"] = object{"a": "b"} }, "index"},
		"an artifact's entry":    {func(o object) { entry(o, 0)["artifactType"] = "x/y" }, "index"},
		"an index's entry":       {func(o object) { entry(o, 0)["mediaType"] = "application/vnd.oci.image.index.v1+json" }, "index"},
		"an OS feature":          {func(o object) { entry(o, 0)["platform"].(object)["os.features"] = []any{"x"} }, "index"},
		"a variant":              {func(o object) { entry(o, 1)["platform"].(object)["variant"] = "v8" }, "index"},
		"another base":           {func(o object) { o["annotations"].(object)["org.opencontainers.image.base.digest"] = "sha256:0" }, "index"},
		"no base":                {func(o object) { delete(o, "annotations") }, "index"},
		"a runtime":              {func(o object) { o["annotations"].(object)["org.systemd.property.ExecStartPre"] = "x" }, "index"},
		"annotations of objects": {func(o object) { o["annotations"] = object{"a": object{"b": []any{}}} }, "index"},
		"annotations of a list":  {func(o object) { o["annotations"] = []any{"a"} }, "index"},
		"an attestation": {func(o object) {
			o["manifests"] = append(o["manifests"].([]any), object{
				"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:0", "size": 1, "platform": object{"os": "unknown", "architecture": "unknown"},
			})
		}, ""},
		"an attestation with more": {func(o object) {
			o["manifests"] = append(o["manifests"].([]any), object{
				"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:0", "size": 1, "x": 1, "platform": object{"os": "unknown", "architecture": "unknown"},
			})
		}, "index"},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.input(t, plant{})
			var o object
			if err := json.Unmarshal(c.index, &o); err != nil {
				t.Fatal(err)
			}
			tt.do(o)
			var err error
			if in.Index, err = json.Marshal(o); err != nil {
				t.Fatal(err)
			}
			r := check(t, in)
			if tt.rule != "" {
				mustFind(t, r, tt.rule)
			} else if !r.Passed || r.Proven != verify.ByDigest {
				t.Error(describe(r))
			}
		})
	}
	in := c.input(t, plant{})
	if r := check(t, in); !r.Passed || r.Proven != verify.ByDigest || len(r.Findings) > 0 {
		t.Error(describe(r))
	}
	in.Index = append(slices.Clone(c.index), "{}"...)
	mustFind(t, check(t, in), "index")
}

// annotatedLayer has an annotation in the manifest.
type annotatedLayer struct{ v1.Layer }

func (l annotatedLayer) Descriptor() (*v1.Descriptor, error) {
	d, err := partial.Descriptor(l.Layer)
	if err == nil {
		d.Annotations = map[string]string{"io.github.containers.zstd-chunked.manifest-position": "1:2:3:1"}
	}
	return d, err
}

// The base itself has its holes, and more.
func TestBaseIsOpen(t *testing.T) {
	const everywhere = "programs routes upstreams listeners mcp-servers tools switches privileged gate laid writable accounts layer file config"
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			r := check(t, closeLine(t, line).input(t, plant{base: true}, "linux/amd64"))
			have := ruleIDs(r)
			for _, id := range strings.Fields(everywhere) {
				if !slices.Contains(have, id) {
					t.Errorf("nothing is found by %s", id)
				}
			}
		})
	}
}
