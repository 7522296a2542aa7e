package standin

import (
	"fmt"

	"github.com/slimctl/slimctl/image"
)

type special struct {
	mode     int64
	uid, gid int
	xattrs   map[string]string
}

// specialDirs lists the directories that have another owner than root or another mode than 0755.
var specialDirs = map[string]special{
	"/tmp":                       {mode: 0o1777},
	"/var/tmp":                   {mode: 0o1777},
	"/run/lock":                  {mode: 0o1777},
	"/root":                      {mode: 0o700},
	"/proc":                      {mode: 0o555},
	"/sys":                       {mode: 0o555},
	"/etc/sudoers.d":             {mode: 0o750},
	"/var/local":                 {mode: 0o2775, gid: 50},
	"/var/mail":                  {mode: 0o2775, gid: 8},
	"/var/lib/apt/lists/partial": {mode: 0o700, uid: 100},
	"/opt/jupyter":               {mode: 0o755, uid: 1000, gid: 1000},
	"/opt/jupyter/runtime":       {mode: 0o700, uid: 1000, gid: 1000},
	"/opt/jupyter/data":          {mode: 0o755, uid: 1000, gid: 1000},
	"/home/gem":                  {mode: 0o755, uid: 1000, gid: 1000},
	"/home/gem/.npm-global":      {mode: 0o755, uid: 1000, gid: 1000},
	"/home/gem/.npm-global/bin":  {mode: 0o755, uid: 1000, gid: 1000},
	// A removal below this directory must keep its mode, owner and attribute.
	"/srv/app":      {mode: 0o750, uid: 1000, gid: 1000, xattrs: map[string]string{"user.standin": "app"}},
	"/srv/app/data": {mode: 0o2770, uid: 1000, gid: 1000},
}

// specialFiles lists the embedded files with an unusual mode or owner.
var specialFiles = map[string]special{
	"/etc/shadow":  {mode: 0o640, gid: 42},
	"/etc/sudoers": {mode: 0o440},
}

// capNetRaw is the value of security.capability for cap_net_raw=ep (linux/capability.h, revision 2).
const capNetRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// skeleton returns the files of a root file system without packages.
func skeleton(a arch) []image.File {
	out := []image.File{
		image.Symlink("/bin", "usr/bin"), image.Symlink("/sbin", "usr/sbin"), image.Symlink("/lib", "usr/lib"),
		image.Symlink("/var/run", "/run"), image.Symlink("/var/lock", "/run/lock"),
		image.Symlink("/etc/os-release", "../usr/lib/os-release"), image.Symlink("/etc/mtab", "/proc/mounts"),
		image.Symlink("/etc/localtime", "/usr/share/zoneinfo/Asia/Singapore"),
		image.Bytes("/usr/lib/"+a.triplet+"/libc.so.6", 0o755, a.elf("libc.so.6")),
		image.Bytes("/usr/share/zoneinfo/Asia/Singapore", 0o644, []byte("TZif2 stand-in\n")),
		// For finish: a file to replace, one to remove, one that becomes a directory, a directory to remove.
		image.Bytes("/etc/motd", 0o644, []byte("replaced by the topmost layer\n")),
		image.Bytes("/usr/share/standin/removed.txt", 0o644, []byte("removed by the topmost layer\n")),
		image.Bytes("/usr/share/standin/kind", 0o644, []byte("a directory in the topmost layer\n")),
		image.Bytes("/usr/share/standin/gone/deep/file", 0o644, []byte("removed with its directory\n")),
		image.Bytes("/var/lib/apt/lists/archive_Release", 0o644, []byte("hidden by an opaque directory\n")),
		image.Bytes("/var/lib/apt/lists/old/nested", 0o644, []byte("hidden by an opaque directory\n")),
	}
	if a.name == "amd64" {
		out = append(out, image.Symlink("/lib64", "usr/lib64"),
			image.Symlink("/usr/lib64/ld-linux-x86-64.so.2", "../lib/"+a.triplet+"/ld-linux-x86-64.so.2"),
			image.Bytes("/usr/lib/"+a.triplet+"/ld-linux-x86-64.so.2", 0o755, a.elf("ld.so")))
	} else {
		out = append(out, image.Bytes("/usr/lib/"+a.triplet+"/ld-linux-aarch64.so.1", 0o755, a.elf("ld.so")),
			image.Symlink("/usr/lib/ld-linux-aarch64.so.1", a.triplet+"/ld-linux-aarch64.so.1"))
	}
	for _, p := range []string{
		"/boot", "/dev", "/home", "/media", "/mnt", "/opt", "/proc", "/root", "/run/lock", "/srv", "/sys", "/tmp", "/var/tmp",
		"/var/local", "/var/mail", "/var/log", "/var/lib/nginx", "/var/lib/apt/lists/partial", "/etc/profile.d",
		"/opt/jupyter", "/opt/jupyter/runtime", "/opt/jupyter/data",
	} {
		out = append(out, dirAt(p))
	}
	return out
}

// programs returns the packages' files, mostly programs that only exit.
func programs(l line, a arch) []image.File {
	out := []image.File{
		elfAt(a, "/usr/bin/sudo", 0o4755), elfAt(a, "/usr/bin/su", 0o4755), elfAt(a, "/usr/bin/passwd", 0o4755),
		owned(elfAt(a, "/usr/bin/chage", 0o2755), 0, 42),
		image.Symlink("/usr/bin/sh", "dash"), image.Symlink("/usr/bin/python3", "python3.10"),
		image.Symlink("/usr/bin/nc", "/etc/alternatives/nc"), image.Symlink("/etc/alternatives/nc", "/bin/nc.openbsd"),
		image.Symlink("/usr/bin/Xvnc", "/etc/alternatives/Xvnc"), image.Symlink("/etc/alternatives/Xvnc", "/usr/bin/Xtigervnc"),
		image.Symlink("/usr/local/bin/python", "/usr/bin/python3"),
		// One file has two names, as in Ubuntu.
		elfAt(a, "/usr/bin/perl", 0o755), hardLink("/usr/bin/perl5.34.0", "/usr/bin/perl"),
		elfAt(a, "/usr/sbin/nginx", 0o755), elfAt(a, "/usr/sbin/useradd", 0o755), elfAt(a, "/usr/sbin/groupadd", 0o755),
		elfAt(a, "/usr/local/bin/websocat", 0o755), elfAt(a, "/usr/local/bin/uv", 0o755),
		elfAt(a, "/opt/python3.11/bin/python3.11", 0o755), image.Symlink("/opt/python3.11/bin/python", "python3.11"),
		elfAt(a, "/opt/python3.12/bin/python3.12", 0o755), image.Symlink("/opt/python3.12/bin/python", "python3.12"),
		image.Symlink("/etc/alternatives/browser", "/opt/browser/chrome"),
		image.Symlink("/usr/local/bin/browser", "/etc/alternatives/browser"),
		image.Symlink("/usr/local/bin/xdg-settings", "/opt/gem/xdg-settings"),
		// It is a copy on line B; line A also answers /vnc/index.html.
		image.Bytes("/opt/novnc/index.html", 0o644, mustRead("files/common/opt/novnc/vnc.html")),
		shared("/opt/python3.12/lib/python3.12/site-packages/app/stub.py", "stub.py"),
		shared("/opt/python3.12/bin/jupyter", "jupyter"),
	}
	ping := elfAt(a, "/usr/bin/ping", 0o755)
	ping.Xattrs = map[string]string{"security.capability": capNetRaw}
	out = append(out, ping)
	for _, name := range []string{
		"Xtigervnc", "bash", "cat", "cp", "curl", "dash", "date", "dbus-daemon", "env", "envsubst", "ffmpeg", "gcc", "git",
		"jq", "make", "mkdir", "nc.openbsd", "openbox", "openssl", "python3.10", "rm", "rsync", "sed", "sleep", "tail",
		"tmux", "xargs", "xauth", "xclip",
	} {
		out = append(out, elfAt(a, "/usr/bin/"+name, 0o755))
	}
	return out
}

// onlyA returns the files of line A only.
func onlyA(a arch) []image.File {
	return append(nodeServers("/usr/lib/node_modules"),
		shared("/usr/lib/node_modules/@agent-infra/mcp-hub/dist/mcp.cjs", "mcp.cjs"),
		shared("/opt/gem-server/src/gem/stub.py", "stub.py"),
		shared("/opt/runtime/code-server/bin/code-server", "code-server"),
		elfAt(a, "/usr/bin/node", 0o755), elfAt(a, "/usr/bin/tinyproxy", 0o755),
		image.Symlink("/usr/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js"),
		image.Bytes("/usr/lib/node_modules/npm/bin/npm-cli.js", 0o755, []byte("#!/usr/bin/env node\n// stand-in\n")),
		image.Symlink("/usr/bin/mcp-hub", "../lib/node_modules/@agent-infra/mcp-hub/dist/cli.js"),
		image.Symlink("/usr/bin/mcp-server-browser", "../lib/node_modules/@agent-infra/mcp-server-browser/dist/index.cjs"),
		image.Symlink("/usr/bin/chrome-devtools-mcp", "../lib/node_modules/chrome-devtools-mcp/build/src/index.js"),
		image.Symlink("/usr/bin/code-server", "/opt/runtime/code-server/bin/code-server"),
		// The kept name of this pair is a link to the one that a purge of code-server removes.
		elfAt(a, "/opt/runtime/code-server/lib/node", 0o755),
		hardLink("/opt/runtime/nodejs/bin/node", "/opt/runtime/code-server/lib/node"),
		elfAt(a, "/opt/browser/current/chrome", 0o755), elfAt(a, "/opt/browser/current/chrome-sandbox", 0o4755),
		image.Symlink("/opt/browser/chrome", "/opt/browser/current/chrome"),
		image.Symlink("/etc/chromium", "/etc/browser"),
	)
}

// nodeServers returns what npm installs in a directory of packages on every line.
func nodeServers(modules string) []image.File {
	return []image.File{
		shared(modules+"/@agent-infra/mcp-server-browser/dist/index.cjs", "mcp-server-browser.cjs"),
		shared(modules+"/@agent-infra/mcp-server-browser/dist/mcp.cjs", "mcp.cjs"),
		shared(modules+"/chrome-devtools-mcp/build/src/index.js", "chrome-devtools-mcp.js"),
		shared(modules+"/chrome-devtools-mcp/build/src/mcp.cjs", "mcp.cjs"),
	}
}

// onlyB returns the files of lines B and C only.
func onlyB(l line, a arch) []image.File {
	out := []image.File{
		image.Symlink("/usr/bin/supervisord", "/usr/local/bin/supervisord"),
		image.Symlink("/etc/supervisord.conf", "/opt/gem/supervisord.conf"),
		image.Symlink("/etc/profile.d/nodejs.sh", "/opt/gem/nodejs.sh"),
		image.Symlink("/usr/local/bin/agent-browser", "/opt/gem/agent-browser-wrapper.sh"),
		image.Symlink("/usr/local/bin/python-server", "/opt/python3.12/bin/python-server"),
		image.Symlink("/usr/bin/code-server", "/usr/local/code-server-4.104.0/bin/code-server"),
		shared("/usr/local/code-server-4.104.0/bin/code-server", "code-server"),
		elfAt(a, "/usr/local/bin/gost", 0o755), elfAt(a, "/usr/bin/fcitx5", 0o755), elfAt(a, "/usr/bin/autocutsel", 0o755), elfAt(a, "/opt/fnm/fnm", 0o755),
		elfAt(a, "/usr/local/bin/linux_"+a.name+"_ve", 0o755),
		elfAt(a, "/opt/browser/chrome", 0o755),
		image.Bytes("/opt/browser/locales/en-US.pak", 0o644, []byte("stand-in\n")),
		image.Symlink("/opt/fnm/aliases/default", "/opt/fnm/node-versions/"+l.node["22"]+"/installation"),
		dirAt("/home/gem"), dirAt("/home/gem/.npm-global/bin"), dirAt("/home/gem/.npm-global"),
	}
	for _, name := range []string{"chromium", "chromium-browser", "chromium-browser-stable"} {
		out = append(out, image.Symlink("/usr/local/bin/"+name, "/usr/local/bin/browser"))
	}
	if a.name == "amd64" { // Google Chrome on amd64, Playwright's Chromium on arm64
		out = append(out, elfAt(a, "/opt/browser/chrome-sandbox", 0o4755),
			image.Bytes("/opt/browser/product", 0o644, []byte("Google Chrome 139.0.7258.127\n")),
			image.Symlink("/etc/opt/chrome", "/etc/browser"))
	} else {
		out = append(out, image.Bytes("/opt/browser/product", 0o644, []byte("Chromium, Playwright build 1194\n")),
			image.Symlink("/etc/chromium", "/etc/browser"))
	}
	for _, v := range []string{"20", "22", "24"} {
		out = append(out, elfAt(a, l.nodeDir(v)+"/bin/node", 0o755), image.Symlink("/opt/nodejs/"+v, l.nodeDir(v)))
		for _, b := range []string{"npm", "npx"} {
			out = append(out,
				image.Symlink(l.nodeDir(v)+"/bin/"+b, "../lib/node_modules/npm/bin/"+b+"-cli.js"),
				image.Bytes(l.nodeDir(v)+"/lib/node_modules/npm/bin/"+b+"-cli.js", 0o755, []byte("#!/usr/bin/env node\n// stand-in\n")))
		}
		for _, b := range []string{"node", "npm", "npx"} {
			out = append(out, image.Symlink("/usr/local/bin/"+b+v, "/opt/nodejs/"+v+"/bin/"+b))
		}
	}
	for _, b := range []string{"node", "npm", "npx", "bun", "mcp-server-browser", "chrome-devtools-mcp", "agent-browser-real"} {
		out = append(out, image.Symlink("/usr/local/bin/"+b, "/opt/nodejs/22/bin/"+b))
	}
	// The kept name of this pair is a link to the one that a purge of Node 20 removes.
	out = append(out, hardLink("/opt/runtime/nodejs/bin/node", l.nodeDir("20")+"/bin/node"))
	if l.name == "C" {
		out = append(out, dirAt("/run/gem"), elfAt(a, "/usr/local/go/bin/go", 0o755))
	}
	return out
}

func (l line) nodeDir(version string) string {
	return "/opt/fnm/node-versions/" + l.node[version] + "/installation"
}

// node22 returns what npm installs beside the default Node of lines B and C.
func (l line) node22(a arch) []image.File {
	if l.isOld() {
		return nil
	}
	bin, modules := l.nodeDir("22")+"/bin/", l.nodeDir("22")+"/lib/node_modules"
	out := append(nodeServers(modules),
		elfAt(a, bin+"bun", 0o755),
		image.Symlink(bin+"mcp-server-browser", "../lib/node_modules/@agent-infra/mcp-server-browser/dist/index.cjs"),
		image.Symlink(bin+"chrome-devtools-mcp", "../lib/node_modules/chrome-devtools-mcp/build/src/index.js"),
		image.Symlink(bin+"agent-browser-real", "../lib/node_modules/agent-browser/bin/agent-browser-linux-"+a.npm),
	)
	for _, other := range arches { // the package brings every platform's program, but only its own is executable
		mode := int64(0o644)
		if other.npm == a.npm {
			mode = 0o755
		}
		name := "agent-browser-linux-" + other.npm
		out = append(out, image.Bytes(modules+"/agent-browser/bin/"+name, mode, other.elf(name)))
	}
	if l.name == "C" {
		out = append(out,
			elfAt(a, modules+"/@openai/codex/bin/codex", 0o755), image.Symlink(bin+"codex", "../lib/node_modules/@openai/codex/bin/codex"),
			elfAt(a, modules+"/@anthropic-ai/claude-code/claude", 0o755),
			image.Symlink(bin+"claude", "../lib/node_modules/@anthropic-ai/claude-code/claude"))
	}
	return out
}

// finish returns the topmost layer, which changes those below like an image's own last layers.
func finish() []image.File {
	return []image.File{
		image.Bytes("/etc/motd", 0o644, []byte("AIO sandbox stand-in\n")),
		image.Whiteout("/usr/share/standin/removed.txt"),
		image.Whiteout("/usr/share/standin/gone"),
		dirAt("/usr/share/standin/kind"),
		image.Bytes("/usr/share/standin/kind/is-a-directory", 0o644, []byte("yes\n")),
		image.Bytes("/var/lib/apt/lists/.wh..wh..opq", 0, nil),
		image.Bytes("/var/lib/apt/lists/lock", 0o640, nil),
		image.Bytes("/tmp/x", 0o644, []byte("left over from the build\n")),
		owned(image.Bytes("/srv/app/a", 0o640, []byte("a\n")), 1000, 1000),
		owned(image.Bytes("/srv/app/b", 0o640, []byte("b\n")), 1000, 1000),
		owned(image.Bytes("/srv/app/data/c", 0o600, []byte("c\n")), 1000, 1000),
	}
}

// components lists what L1 may purge, with the directories.
var components = []string{
	"/opt/python3.11", "/opt/python3.12", "/opt/runtime/code-server", "/opt/runtime/nodejs", "/usr/local/code-server-4.104.0",
	"/usr/lib/node_modules", "/opt/fnm", "/usr/share/fonts", "/usr/local/share/jupyter", "/opt/browser", "/opt/gem-server",
	"/opt/repl-servers", "/opt/skills", "/opt/browser-ui",
}

// heavySize is the size of a file of heavy, and heavySample the part that fingerprint hashes, since making the files
// takes most of its time.
const heavySize, heavySample = 128 << 10, 256

// heavy returns dummy files in the places of the real weight. They are compressible, so that the layout stays small.
func (l line) heavy(size int) []image.File {
	dirs := []string{
		"/opt/python3.11/lib/python3.11/site-packages/heavy", "/opt/python3.12/lib/python3.12/site-packages/heavy",
		"/usr/share/fonts/truetype/noto", "/opt/runtime/nodejs/lib/node_modules/heavy", "/usr/local/share/jupyter/kernels/heavy",
	}
	if l.isOld() {
		dirs = append(dirs, "/opt/runtime/code-server/lib/vscode", "/usr/lib/node_modules/heavy", "/opt/browser/current/locales")
	} else {
		dirs = append(dirs, "/usr/local/code-server-4.104.0/lib/vscode", l.nodeDir("20")+"/lib/node_modules/heavy",
			l.nodeDir("24")+"/lib/node_modules/heavy", l.nodeDir("22")+"/lib/node_modules/heavy")
	}
	var out []image.File
	for _, dir := range dirs {
		for i := range 8 {
			p := fmt.Sprintf("%s/%02d.dat", dir, i)
			out = append(out, image.Bytes(p, 0o644, prose(p, size)))
		}
	}
	return out
}

func elfAt(a arch, p string, mode int64) image.File { return image.Bytes(p, mode, a.elf(p)) }

func owned(f image.File, uid, gid int) image.File {
	f.UID, f.GID = uid, gid
	return f
}

// hardLink returns p as another name of target, which must sort before it and be in the same layer.
func hardLink(p, target string) image.File {
	return image.File{Entry: image.Entry{Path: p, Type: image.TypeLink, Mode: 0o755, Link: target}}
}

// shared returns p as a copy of a file in files/shared. Scripts are executable.
func shared(p, name string) image.File {
	data := mustRead("files/shared/" + name)
	return image.Bytes(p, modeOf(name, data), data)
}

func mustRead(name string) []byte {
	data, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded under a constant name
	}
	return data
}
