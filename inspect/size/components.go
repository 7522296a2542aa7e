package size

import (
	"cmp"
	"path"
	"strings"

	"github.com/slimctl/slimctl/inspect/packages"
)

// Names of components that appear in more than one table or rule below.
const (
	agents    = "coding agents"
	browser   = "Chromium"
	compilers = "compilers"
	desktop   = "desktop"
	docs      = "documentation"
	fonts     = "fonts"
	input     = "input method"
	locales   = "locales"
	mcp       = "MCP servers"
	media     = "media tools"
	modules   = "npm packages"
	node      = "Node"
	payload   = "agent-browser"
	python    = "Python"
	sandbox   = "AIO Sandbox"
	system    = "system packages"

	// Other is the component of files without another one.
	Other = "other"
)

// places maps paths of components in the AIO Sandbox of all lines, and in slimctl's images. A pattern matches a path
// and everything below it; "*" stands for any part of one element. The pattern with the most elements wins.
var places = []struct {
	component string
	patterns  []string
}{
	{browser, []string{
		"/opt/browser", "/etc/browser", "/etc/chromium", "/etc/opt/chrome", "/etc/opt/chrome_for_testing", "/opt/google", "/usr/lib/chromium*",
		"/usr/share/chromium*", "/usr/bin/chromium*", "/usr/local/bin/browser", "/usr/local/bin/chromium*", "/root/.cache/ms-playwright",
		"/home/*/.cache/ms-playwright",
	}},
	{"browser-shell", []string{"/usr/local/bin/browser-shell", "/var/lib/browser-shell", "/var/log/browser-shell", "/etc/agent-browser"}},
	{payload, []string{"/opt/agent-browser", "/usr/local/bin/agent-browser*"}},
	{"noVNC", []string{"/opt/novnc", "/usr/share/novnc"}},
	{desktop, []string{
		"/usr/bin/Xvnc", "/usr/bin/Xtigervnc", "/usr/bin/openbox*", "/usr/bin/autocutsel", "/usr/share/X11", "/usr/share/icons",
		"/usr/share/themes", "/etc/X11", "/etc/xdg",
	}},
	{"code-server", []string{
		"/opt/runtime/code-server", "/usr/local/code-server-*", "/usr/lib/code-server", "/usr/bin/code-server", "/usr/local/bin/code-server",
	}},
	{"Jupyter", []string{
		"/opt/jupyter", "/usr/local/share/jupyter", "/opt/python3.*/share/jupyter", "/opt/python3.*/etc/jupyter",
		"/opt/python3.*/lib/python3.*/site-packages/jupyter*", "/opt/python3.*/lib/python3.*/site-packages/notebook*",
		"/opt/python3.*/lib/python3.*/site-packages/ipykernel*", "/opt/uv-python/cpython-3.*/share/jupyter",
		"/opt/uv-python/cpython-3.*/lib/python3.*/site-packages/jupyter*", "/opt/uv-python/cpython-3.*/lib/python3.*/site-packages/notebook*",
		"/opt/uv-python/cpython-3.*/lib/python3.*/site-packages/ipykernel*",
	}},
	{"Python 3.11", []string{"/opt/python3.11", "/opt/uv-python/cpython-3.11*"}},
	{"Python 3.12", []string{"/opt/python3.12", "/opt/uv-python/cpython-3.12*"}},
	{python, []string{"/opt/uv-python", "/opt/python3*", "/usr/lib/python3*", "/usr/local/lib/python3*", "/usr/share/python3"}},
	{"supervisor", []string{
		"/usr/bin/supervisor*", "/usr/local/bin/supervisor*", "/usr/lib/python3/dist-packages/supervisor*",
		"/usr/local/lib/python3.*/dist-packages/supervisor*", "/usr/local/lib/python3.*/site-packages/supervisor*",
	}},
	{"nginx", []string{"/etc/nginx", "/usr/sbin/nginx", "/usr/lib/nginx", "/usr/share/nginx"}},
	{"Node 20", []string{"/opt/fnm/node-versions/v20.*", "/opt/nodejs/20"}},
	{"Node 22", []string{"/opt/fnm/node-versions/v22.*", "/opt/nodejs/22"}},
	{"Node 24", []string{"/opt/fnm/node-versions/v24.*", "/opt/nodejs/24"}},
	{node, []string{
		"/opt/fnm", "/opt/nodejs", "/opt/runtime/nodejs", "/usr/bin/node", "/usr/bin/nodejs", "/usr/local/bin/node*", "/usr/local/bin/npm*",
		"/usr/local/bin/npx*", "/usr/local/bin/bun*", "/usr/include/node", "/usr/lib/node_modules/npm", "/usr/lib/node_modules/corepack",
		"/usr/local/lib/node_modules/npm", "/usr/local/lib/node_modules/corepack", "/usr/share/nodejs/npm",
	}},
	{agents, []string{"/usr/local/bin/opencode", "/usr/local/bin/codex", "/usr/local/bin/claude"}},
	{mcp, []string{"/usr/bin/mcp-hub", "/usr/bin/mcp-server-browser", "/usr/bin/chrome-devtools-mcp"}},
	{sandbox, []string{
		"/opt/gem", "/opt/gem-server", "/opt/application", "/opt/terminal", "/opt/aio", "/opt/browser-ui", "/opt/skills", "/opt/repl-servers",
		"/opt/aio-staged-configs", "/var/www/app", "/etc/aio_version", "/usr/local/bin/python-server", "/usr/local/bin/gem-server",
		"/usr/local/bin/websocat", "/usr/local/bin/gost", "/usr/local/bin/aio", "/usr/local/bin/ve", "/usr/local/bin/linux_*_ve",
	}},
	{fonts, []string{"/usr/share/fonts", "/usr/local/share/fonts", "/usr/share/fontconfig", "/etc/fonts", "/var/cache/fontconfig"}},
	{locales, []string{"/usr/lib/locale", "/usr/share/locale", "/usr/share/i18n"}},
	{docs, []string{"/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/doc-base", "/usr/share/lintian", "/usr/local/share/man"}},
	{compilers, []string{
		"/usr/lib/gcc", "/usr/libexec/gcc", "/usr/include", "/usr/local/go", "/usr/bin/gcc*", "/usr/bin/g++*", "/usr/bin/cpp*", "/usr/bin/cc",
		"/usr/bin/c++",
	}},
	{media, []string{"/usr/bin/ffmpeg", "/usr/bin/ffprobe", "/usr/bin/ffplay"}},
	{system, []string{"/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt", "/var/cache/debconf", "/usr/share/mime"}},
	{input, []string{"/usr/share/fcitx5*", "/usr/lib/*/fcitx5", "/usr/bin/fcitx5*"}},
}

// moduleComponents maps npm packages that are more than a library, in any node_modules. Their nested dependencies
// belong to them.
var moduleComponents = map[string]string{
	"opencode-ai": agents, "@openai/codex": agents, "@anthropic-ai/claude-code": agents, "@google/gemini-cli": agents,
	"@agent-infra/mcp-hub": mcp, "@agent-infra/mcp-server-browser": mcp, "chrome-devtools-mcp": mcp,
	"agent-browser": payload, "bun": node,
}

// debComponents maps prefixes of Debian package names, for files without a place of their own. The first match wins,
// then names that end in "-dev".
var debComponents = []struct {
	component string
	prefixes  []string
}{
	{browser, []string{"chromium", "google-chrome"}},
	{"nginx", []string{"nginx", "libnginx"}},
	{"supervisor", []string{"supervisor"}},
	{"noVNC", []string{"novnc", "websockify", "python3-websockify"}},
	{docs, []string{"man-db", "manpages", "groff"}},
	{fonts, []string{"fonts-", "xfonts-", "fontconfig"}},
	{locales, []string{"locales", "libc-l10n", "language-pack-", "iso-codes"}},
	{compilers, []string{
		"gcc", "g++", "cpp", "binutils", "libbinutils", "libgcc-1", "libstdc++-", "libasan", "libtsan", "liblsan", "libubsan", "libgprofng",
		"make", "cmake", "build-essential", "clang", "llvm-", "libclang", "golang", "rustc", "gdb", "dpkg-dev", "linux-libc-dev",
	}},
	{media, []string{
		"ffmpeg", "imagemagick", "graphicsmagick", "libmagick", "libav", "libswscale", "libswresample", "libpostproc", "libx264", "libx265",
		"libaom", "libsvtav1", "librav1e", "libde265", "libheif", "libgstreamer", "gstreamer", "libcodec2", "libvpx", "libflite",
	}},
	{input, []string{"fcitx5", "libfcitx5", "libime", "ibus"}},
	{desktop, []string{
		"tigervnc", "openbox", "xserver-", "x11-", "xauth", "xclip", "xkb-data", "autocutsel", "libgl1", "libglx", "libgtk-", "libgtk2", "libllvm",
		"mesa-", "adwaita", "hicolor", "gsettings-desktop", "libgdk-pixbuf", "librsvg",
	}},
	{python, []string{"python3", "libpython3"}},
	{node, []string{"nodejs", "libnode", "npm"}},
	{modules, []string{"node-"}},
}

// sorter assigns components.
type sorter struct {
	db   *packages.Database
	debs map[string]string // by package name, cached; may be nil
	// places caches directories by path; may be nil.
	places map[string]placed
	// dir is the last requested directory, with its slash: the next path is often in it, too.
	dir     string
	inside  placed
	modules bool // dir is a node_modules, or below one
}

// component returns the component of a path of the merged tree.
func (s *sorter) component(p string) string {
	dir, name := path.Split(p)
	if dir != s.dir {
		s.dir, s.inside, s.modules = dir, s.findPlace(path.Clean(dir)), strings.Contains(dir, nodeModules)
	}
	c := s.inside.below(name).component
	switch c {
	case "", node, "Node 20", "Node 22", "Node 24", modules:
		if !s.modules {
			break
		}
		if in := moduleOf(p); in != "" && (c == "" || in != modules || !strings.Contains(p, "/node_modules/npm/")) {
			return in
		}
	}
	if c != "" {
		return c
	}
	if pkg := s.db.Owner(p); pkg != nil {
		switch pkg.Kind {
		case packages.Dpkg:
			return s.deb(pkg.Name)
		case packages.Pip:
			return python
		}
	}
	return Other
}

// nodeModules is the path element below which Node looks for packages.
const nodeModules = "/node_modules/"

// moduleOf returns the component of a path in a node_modules: that of the outermost package with one.
func moduleOf(p string) string {
	found := ""
	for rest := p; ; {
		i := strings.Index(rest, nodeModules)
		if i < 0 {
			return found
		}
		rest = rest[i+len(nodeModules)-1:]
		found = modules
		name, below, _ := strings.Cut(rest[1:], "/")
		if strings.HasPrefix(name, "@") {
			second, _, _ := strings.Cut(below, "/")
			name += "/" + second
		}
		if c := moduleComponents[name]; c != "" {
			return c
		}
	}
}

// deb returns the component of a Debian package.
func (s *sorter) deb(name string) string {
	if c, ok := s.debs[name]; ok {
		return c
	}
	c := debComponent(name)
	if s.debs != nil {
		s.debs[name] = c
	}
	return c
}

func debComponent(name string) string {
	if strings.HasPrefix(name, "gcc-") && strings.HasSuffix(name, "-base") {
		return system // a dependency of libgcc-s1
	}
	for _, d := range debComponents {
		for _, prefix := range d.prefixes {
			if strings.HasPrefix(name, prefix) {
				return d.component
			}
		}
	}
	switch {
	case strings.HasSuffix(name, "-dev"):
		return compilers
	case strings.HasSuffix(name, "-doc") || strings.HasSuffix(name, "-docs"):
		return docs
	}
	return system
}

// pattern is a node of the tree of places.
type pattern struct {
	component string
	elements  []string
}

var patterns = func() (out []pattern) {
	for _, place := range places {
		for _, p := range place.patterns {
			out = append(out, pattern{place.component, strings.Split(p[1:], "/")})
		}
	}
	return out
}()

// placed is a path's position among the patterns: the component of the longest pattern that matches, and the patterns
// that may match below it.
type placed struct {
	component string
	deeper    []pattern
}

// maxPlaces limits the cached directories.
const maxPlaces = 1 << 16

// findPlace returns the position of the directory p among the patterns.
func (s *sorter) findPlace(p string) placed {
	if p == "/" {
		return placed{deeper: patterns}
	}
	if at, ok := s.places[p]; ok {
		return at
	}
	above := s.findPlace(path.Dir(p))
	at := above.below(path.Base(p))
	if s.places != nil && len(above.deeper) > 0 { // others are found as fast
		if len(s.places) == maxPlaces {
			clear(s.places)
		}
		s.places[p] = at
	}
	return at
}

// below returns the position of name in the directory at.
func (at placed) below(name string) placed {
	to := placed{}
	for _, p := range at.deeper {
		if first := p.elements[0]; first != name {
			if ok, _ := path.Match(first, name); !ok {
				continue
			}
		}
		if len(p.elements) > 1 {
			to.deeper = append(to.deeper, pattern{p.component, p.elements[1:]})
		} else {
			to.component = cmp.Or(to.component, p.component)
		}
	}
	to.component = cmp.Or(to.component, at.component)
	return to
}
