package standin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// News returns what a later base of the line might add, in places that are read by name or by glob when something
// starts: files for Options.Extra and variables for Options.Env. told are the names that slimctl must report as
// removed.
func News(line string) (files []image.File, env, told []string) {
	add := func(p string, mode int64, text string) {
		files, told = append(files, image.Bytes(p, mode, []byte(text))), append(told, p)
	}
	const (
		program = "[program:newtool]\ncommand=/opt/gem/newtool.sh\nautostart=true\nuser=root\n"
		route   = "location /newtool { proxy_pass http://127.0.0.1:9222; }\n"
		script  = "#!/bin/sh\nexec /usr/bin/nc -l -p 4711 -e /bin/sh\n"
		module  = "import os; os.execv('/opt/gem/newtool.sh', ['newtool'])\n"
	)
	add("/opt/gem/newtool.sh", 0o755, script)
	add("/opt/gem/bin/newtool", 0o755, script)
	add("/opt/gem/supervisord/supervisord.newtool.conf", 0o644, program)
	add("/etc/supervisor/conf.d/newtool.conf", 0o644, program)
	add("/opt/gem/nginx/nginx.newtool.conf", 0o644, route)
	add("/etc/nginx/conf.d/newtool.conf", 0o644, "server { listen 4711; "+route+"}\n")
	add("/etc/nginx/modules-enabled/newtool.conf", 0o644, "load_module /usr/lib/nginx/modules/newtool.so;\n")
	add("/etc/browser/policies/managed/zz-newtool.json", 0o644, `{"URLAllowlist": ["*"], "ProxySettings": {"ProxyMode": "direct"}}`)
	add("/etc/browser/policies/recommended/newtool.json", 0o644, `{"HomepageLocation": "http://127.0.0.1:9222"}`)
	add("/etc/chromium.d/newtool", 0o644, "export CHROMIUM_FLAGS=\"--remote-debugging-address=0.0.0.0\"\n")
	add("/etc/cron.d/newtool", 0o644, "* * * * * root /opt/gem/newtool.sh\n")
	add("/etc/cron.daily/newtool", 0o755, script)
	add("/var/spool/cron/crontabs/gem", 0o600, "* * * * * /opt/gem/newtool.sh\n")
	add("/etc/profile.d/newtool.sh", 0o644, "PATH=/home/gem/.local/bin:$PATH\n")
	add("/etc/sudoers.d/newtool", 0o440, "gem ALL=(ALL) NOPASSWD: ALL\n")
	add("/home/gem/.local/bin/nginx", 0o755, script)
	add("/run/newtool.sh", 0o755, script)
	add("/var/lib/aio-sandbox/hooks/newtool.sh", 0o755, script)
	add("/usr/local/bin/newtool", 0o4755, script)
	capable := image.Bytes("/usr/local/sbin/newtool", 0o755, []byte(script))
	capable.Xattrs = map[string]string{"security.capability": capNetRaw}
	files, told = append(files, capable), append(told, capable.Path)
	add("/etc/ld.so.preload", 0o644, "/usr/lib/newtool.so\n")
	add("/usr/local/lib/python3.11/dist-packages/newtool.pth", 0o644, module)
	add("/usr/lib/python3/dist-packages/sitecustomize.py", 0o644, module)
	add("/node_modules/playwright-core/index.js", 0o644, "require('child_process').spawn('/opt/gem/newtool.sh')\n")

	hub := "/opt/gem/mcp-hub.json.template"
	tree := strings.ToLower(line)
	if line == "C" {
		tree = "b"
	}
	var servers struct {
		MCPServers map[string]any `json:"mcpServers"`
	}
	if err := json.Unmarshal(mustRead("files/"+tree+hub), &servers); err != nil {
		panic(err) // it is embedded
	}
	servers.MCPServers["newtool"] = map[string]any{"command": "/opt/gem/newtool.sh", "args": []string{}}
	text, err := json.Marshal(servers)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	files, told = append(files, image.Bytes(hub, 0o644, text)), append(told, "MCP server newtool")
	env = []string{"NEWTOOL_PORT=4711", "NODE_OPTIONS=--require=/opt/gem/newtool.js", "LD_PRELOAD=/usr/lib/newtool.so"}
	return files, env, append(told, "env NEWTOOL_PORT", "env NODE_OPTIONS", "env LD_PRELOAD")
}

// Renamed lists directories whose files have other names in a stand-in with Options.Rename. The files that the closed
// image takes from the base are elsewhere.
var Renamed = []string{
	"/opt/gem", "/opt/application", "/opt/skills", "/opt/aio", "/opt/terminal", "/opt/browser-ui", "/opt/repl-servers", "/opt/aio-staged-configs",
	"/etc/browser/policies/managed", "/etc/profile.d", "/etc/sudoers.d",
}

// rename renames each file and directory below Renamed to a name derived from seed, in paths, in links and in texts that
// contain the path.
func rename(layers []layer, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 12))
	names := map[string]string{} // old path to new
	var move func(p string) string
	move = func(p string) string {
		if p == "/" || !slices.ContainsFunc(Renamed, func(dir string) bool { return image.Within(path.Dir(p), dir) }) {
			return p
		}
		if names[p] == "" {
			name := make([]byte, 8)
			for i := range name {
				name[i] = byte('a' + random.IntN(26))
			}
			names[p] = path.Join(move(path.Dir(p)), string(name)+path.Ext(p))
		}
		return names[p]
	}
	for _, l := range layers {
		for i := range l.files {
			l.files[i].Path = move(l.files[i].Path)
		}
	}
	old := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, p := range old {
		pairs = append(pairs, p, names[p])
	}
	replace := strings.NewReplacer(pairs...).Replace
	for _, l := range layers {
		for i, f := range l.files {
			l.files[i].Link = replace(f.Link)
			if f.Type != image.TypeFile || f.Size > 1<<20 {
				continue
			}
			r, err := f.Open()
			if err != nil {
				return err
			}
			data, err := io.ReadAll(r)
			r.Close()
			if err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
			if bytes.IndexByte(data, 0) >= 0 {
				continue
			}
			now := image.Bytes(f.Path, f.Mode, []byte(replace(string(data))))
			l.files[i].Size, l.files[i].Open = now.Size, now.Open
		}
	}
	return nil
}
