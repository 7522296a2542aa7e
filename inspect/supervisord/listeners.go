package supervisord

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

// Listener is an address on which a program will listen, according to its command line.
type Listener struct {
	// Address is "*", an IP address (IPv6 in brackets), a host name, or "unix:/path". Port is 0 for a socket file, and
	// if it is unknown.
	Address string `json:"address"`
	Port    int    `json:"port,omitempty"`
	// Loopback is true for 127.0.0.0/8, ::1, localhost and unix sockets.
	Loopback bool `json:"loopback"`
	// By is the program's name; "supervisord" for a control socket.
	By    string     `json:"by"`
	Place tree.Place `json:"place"`
}

// Listeners returns the addresses on which the programs of c and supervisord itself will listen. commands maps programs
// to the commands that finally run (start.Report.Follow); other programs use their own command line, with the variables
// in env. It knows the programs of the base and of the closed image; any other program gets a Note. It omits nginx,
// which has a configuration of its own.
func Listeners(
	ctx context.Context, img *tree.Image, c *Config, commands map[string][][]string, env map[string]string,
) ([]Listener, []tree.Note, error) {
	r := reader{img: img, config: &Config{}}
	content, err := r.contents(ctx, r.settings(c)...)
	if err != nil {
		return nil, nil, err
	}
	l := listening{reader: &r, content: content, outer: env}
	for _, s := range c.Sockets {
		l.by, l.place = "supervisord", s.Place
		if strings.HasPrefix(s.Address, "/") {
			l.unix(s.Address)
		} else {
			l.hostPort(s.Address, "*")
		}
	}
	for _, p := range c.Programs {
		l.by, l.place = p.Name, p.Place
		l.env = map[string]string{}
		for k, v := range p.Environment {
			l.env[k], _ = expand(v, func(name string) (string, bool) { return fromEnv(name, env) })
		}
		if p.Socket != "" {
			l.hostPort(p.Socket, "*")
		}
		argvs, ok := commands[p.Name]
		if !ok {
			argv, _ := p.Args(env)
			argvs = [][]string{argv}
		}
		l.program(argvs)
	}
	return l.found, r.config.Notes, nil
}

// Files that configure a program's listeners.
const (
	shellPolicy   = "/etc/agent-browser/browser-shell.policy.json"
	gostConfig    = "/opt/gem/gost.yaml"
	tinyproxyConf = "/etc/tinyproxy.conf"
	tinyproxyBase = "/opt/gem/tinyproxy/base.conf" // the template of the other one
)

// settings lists those of these files that exist and may be read.
func (r *reader) settings(c *Config) []string {
	var out []string
	for _, p := range []string{shellPolicy, gostConfig, tinyproxyConf, tinyproxyBase} {
		if _, ok := r.img.Stat(p); ok && len(c.Programs) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// listening collects the listeners of programs.
type listening struct {
	*reader
	content map[string][]byte
	found   []Listener
	full    bool // the limit is reached

	by    string // the program
	place tree.Place
	env   map[string]string // its additional environment
	outer map[string]string // the environment in which programs start
}

func (l *listening) unknown(format string, args ...any) {
	l.noteAt(l.place, "%s: %s", l.by, fmt.Sprintf(format, args...))
}

func (l *listening) unix(p string) { l.addListener(Listener{Address: "unix:" + p, Loopback: true}) }

func (l *listening) addListener(at Listener) {
	at.By, at.Place = l.by, l.place
	same := func(o Listener) bool { return o.Address == at.Address && o.Port == at.Port && o.By == at.By }
	switch {
	case l.full || slices.ContainsFunc(l.found, same):
	case len(l.found) == maxListeners:
		l.full = true
		l.noteAt(l.place, "programs listen on more than %d addresses: only these are told", maxListeners)
	default:
		l.found = append(l.found, at)
	}
}

// tcp adds a listener with any form of host that a program accepts.
func (l *listening) tcp(host, port string) {
	host = strings.Trim(host, "[]")
	at := Listener{Address: host}
	switch host {
	case "", "*", "0.0.0.0", "::":
		at.Address = "*"
	case "localhost":
		at.Address, at.Loopback = "127.0.0.1", true
	}
	if ip, err := netip.ParseAddr(host); err == nil && at.Address == host {
		ip = ip.Unmap()
		at.Address, at.Loopback = ip.String(), ip.IsLoopback()
		if ip.Is6() {
			at.Address = "[" + at.Address + "]"
		}
	}
	n, err := strconv.Atoi(port)
	switch {
	case err != nil || n < 0 || n > 65535:
		l.unknown("it listens on port %q of %s, which can't be told", port, at.Address)
	case n == 0:
		l.unknown("it listens on a port of %s that is chosen when it starts", at.Address)
	default:
		at.Port = n
	}
	l.addListener(at)
}

// hostPort adds HOST:PORT, PORT of the host given, unix:PATH, or a URL with either.
func (l *listening) hostPort(s, host string) {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = strings.TrimSuffix(rest, "/")
		if strings.HasPrefix(s, "/") {
			l.unix(s)
			return
		}
		s = s[strings.LastIndexByte(s, '@')+1:]
	}
	if p, ok := strings.CutPrefix(s, "unix:"); ok {
		l.unix(p)
		return
	}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		host, s = s[:i], s[i+1:]
	}
	l.tcp(host, s)
}

// quiet lists programs without listeners, and commands that scripts use while they wait.
var quiet = regexp.MustCompile(`^(nginx|openbox|fcitx5|autocutsel|tail|` +
	`sleep|date|seq|xargs|sed|awk|grep|cut|tr|cat|curl|wget|readlink|dirname|basename|mkdir|rm|cp|mv|ln|touch|chmod|chown|` +
	`id|getent|whoami|hostname|uname|env|jq|head|sort|uniq|wc|test|true|false|ps|pgrep|kill|mktemp|` +
	`xdpyinfo|xset|xsetroot|xrandr|fc-cache|envsubst|openssl|supervisorctl)$`)

var (
	browsers   = regexp.MustCompile(`^(browser|chrome|chromium|chromium-browser.*|google-chrome.*|headless_shell|chrome-headless-shell)$`)
	endsInPort = regexp.MustCompile(`^(.*:)?[0-9]+$`)
	nodes      = regexp.MustCompile(`^node(js)?[0-9]*$`)
)

// program adds the listeners of one program's commands.
func (l *listening) program(argvs [][]string) {
	daemons := false
	for _, argv := range argvs {
		if len(argv) == 0 {
			continue
		}
		base := path.Base(argv[0])
		o := options(argv[1:])
		switch {
		case base == "nc" || base == "ncat" || base == "netcat":
			if o.has("z") && !o.has("l") {
				continue
			}
			l.unknown("what %s listens on can't be told", strings.Join(argv, " "))
		case quiet.MatchString(base):
			daemons = daemons || base == "nginx" || base == "openbox" || base == "fcitx5" || base == "autocutsel" || base == "tail"
			continue
		case base == "Xvnc" || base == "Xtigervnc":
			l.xvnc(o)
		case browsers.MatchString(base):
			l.browser(argv[1:], o)
		case base == "websocat":
			l.websocat(o)
		case base == "websockify":
			if i := slices.IndexFunc(o.words, endsInPort.MatchString); i >= 0 {
				l.hostPort(o.words[i], "*")
			}
		case base == "python-server":
			l.tcp(o.get("0.0.0.0", "host"), o.get("8091", "port"))
		case base == "gem-server":
			l.tcp(o.get("0.0.0.0", "host"), o.get("8088", "port"))
		case base == "mcp-hub":
			l.tcp(o.get("0.0.0.0", "host"), o.get("8079", "port"))
		case base == "mcp-server-browser":
			if o.has("port") { // otherwise it uses stdio
				l.tcp(o.get("127.0.0.1", "host"), o.get("", "port"))
			}
		case base == "code-server":
			l.codeServer(o)
		case base == "jupyter" || base == "jupyter-lab":
			if s := o.get("", "ServerApp.sock", "sock"); s != "" {
				l.unix(s)
			} else {
				l.tcp(o.get("localhost", "ServerApp.ip", "ip"), o.get("8888", "ServerApp.port", "port"))
			}
		case base == "gost":
			l.gost(o)
		case base == "tinyproxy":
			l.tinyproxy()
		case base == "dbus-daemon":
			address := o.get("", "address")
			if p, ok := strings.CutPrefix(address, "unix:path="); ok {
				l.unix(p)
			} else {
				l.unknown("what dbus-daemon listens on can't be told")
			}
		case nodes.MatchString(base) && len(o.words) > 0 && path.Dir(o.words[0]) == "/opt/repl-servers/nodejs":
			l.tcp("127.0.0.1", cmp.Or(l.env["NODEJS_REPL_PORT"], "8092"))
		case base == "browser-shell" && len(o.words) > 0:
			l.browserShell(o)
		default:
			l.unknown("what %s listens on is not known", argv[0])
		}
		daemons = true
	}
	if !daemons {
		l.unknown("what it runs, and so what it listens on, can't be told")
	}
}

// flags is a parsed command line, without knowledge of the options: each option that is followed by a word has it as
// value.
type flags struct {
	values map[string]string // keys without the dashes
	words  []string          // those without a leading dash, including values of options
}

func options(args []string) flags {
	f := flags{values: map[string]string{}}
	for i, a := range args {
		name := strings.TrimLeft(a, "-")
		if name == a || name == "" {
			f.words = append(f.words, a)
			continue
		}
		name, v, ok := strings.Cut(name, "=")
		if !ok && i+1 < len(args) && (!strings.HasPrefix(args[i+1], "-") || args[i+1] == "-1") {
			v = args[i+1]
		}
		f.values[name] = v
	}
	return f
}

func (f flags) has(name string) bool { _, ok := f.values[name]; return ok }

// get returns the value of the first of names that is present.
func (f flags) get(otherwise string, names ...string) string {
	for _, name := range names {
		if v, ok := f.values[name]; ok {
			return v
		}
	}
	return otherwise
}

// xvnc adds the listeners of TigerVNC's server (Xvnc(1)): on both loopback addresses with -localhost, otherwise on all.
func (l *listening) xvnc(o flags) {
	display := "0"
	for _, w := range o.words {
		if strings.HasPrefix(w, ":") {
			display, _, _ = strings.Cut(w[1:], ".")
			break
		}
	}
	n, err := strconv.Atoi(display)
	if err != nil {
		l.unknown("which display %q is can't be told", display)
	} else {
		l.unix("/tmp/.X11-unix/X" + display)
	}
	port := o.get(strconv.Itoa(5900+n), "rfbport")
	switch local := o.get("0", "localhost"); {
	case port == "-1" || o.has("inetd"):
	case o.has("localhost") && local != "0" && local != "no" && local != "false":
		l.tcp("127.0.0.1", port)
		l.tcp("::1", port)
	default:
		l.tcp(o.get("*", "interface"), port)
	}
	if p := o.get("", "rfbunixpath"); p != "" {
		l.unix(p)
	}
	if o.get("", "listen") == "tcp" {
		l.tcp("*", strconv.Itoa(6000+n))
	}
}

func (l *listening) browser(args []string, o flags) {
	if o.has("remote-debugging-port") {
		l.tcp(o.get("127.0.0.1", "remote-debugging-address"), o.get("", "remote-debugging-port"))
	}
	for _, a := range args {
		if a == "?" || strings.HasPrefix(a, "${") {
			l.unknown("some of the browser's arguments aren't known: they may open its debugging port")
			break
		}
	}
}

// websocat adds a listener for an address with a listening scheme, or for -s.
func (l *listening) websocat(o flags) {
	for _, w := range o.words {
		kind, address, ok := strings.Cut(w, ":")
		switch kind {
		case "ws-l", "ws-listen", "l-ws", "listen-ws", "tcp-l", "tcp-listen", "l-tcp", "listen-tcp":
			if ok {
				l.hostPort(address, "127.0.0.1")
			}
		case "unix-l", "unix-listen", "l-unix", "listen-unix", "ws-u", "unix-dgram":
			l.unix(address)
		case "ws-upgrade", "broadcast", "mirror", "udp-l", "udp-listen", "l-udp", "listen-udp", "socks5-bind", "exec", "cmd", "sh-c":
			l.unknown("what %q listens on or runs can't be told", w)
		}
	}
	for _, name := range []string{"s", "server-mode"} {
		if o.has(name) {
			l.hostPort(o.get("", name), "127.0.0.1")
		}
	}
}

func (l *listening) codeServer(o flags) {
	if s := o.get("", "socket"); s != "" {
		l.unix(s)
		return
	}
	host, port := "127.0.0.1", "8080"
	if b := o.get("", "bind-addr"); b != "" {
		i := strings.LastIndexByte(b, ':')
		host, port = b[:max(i, 0)], b[i+1:]
	}
	l.tcp(o.get(host, "host"), o.get(port, "port"))
}

// addr matches a line with an address in gost's configuration.
var addr = regexp.MustCompile(`(?m)^[\s-]*addr:\s*["']?([^\s"'#]+)`)

func (l *listening) gost(o flags) {
	if v := o.get("", "L"); v != "" {
		l.hostPort(v, "*")
	}
	if v := o.get("", "api"); v != "" {
		l.hostPort(v, "*")
	}
	switch file := o.get("", "C"); {
	case file == "":
	case file != gostConfig:
		l.unknown("its configuration %s is not read", file)
	case l.content[gostConfig] == nil: // run.sh writes it (facts/aio-base.md 3.2)
		l.tcp("127.0.0.1", cmp.Or(l.outer["TINYPROXY_PORT"], "8118"))
		l.tcp("127.0.0.1", "18080")
	default:
		for _, m := range addr.FindAllSubmatch(l.content[gostConfig], -1) {
			l.hostPort(string(m[1]), "*")
		}
	}
}

var tinyproxyLine = regexp.MustCompile(`(?mi)^[ \t]*(Port|Listen)[ \t]+(\S+)`)

func (l *listening) tinyproxy() {
	conf := l.content[tinyproxyConf]
	if conf == nil {
		conf = l.content[tinyproxyBase]
	}
	host, port := "*", "8888"
	for _, m := range tinyproxyLine.FindAllSubmatch(conf, -1) {
		if strings.EqualFold(string(m[1]), "Port") {
			port = strings.ReplaceAll(string(m[2]), "${TINYPROXY_PORT}", l.outer["TINYPROXY_PORT"])
		} else {
			host = string(m[2])
		}
	}
	l.tcp(host, port)
}

// browserShell adds the listeners of the closed image's own program (cmd/browser-shell).
func (l *listening) browserShell(o flags) {
	switch o.words[0] {
	case "serve":
		l.hostPort(o.get("127.0.0.1:8079", "listen"), "")
		if o.has("gate") {
			l.hostPort(o.get("127.0.0.1:8088", "gate-listen"), "")
		}
		if o.has("egress") && o.get("", "egress") != "false" {
			l.hostPort(l.egress(o), "")
		}
	case "egress":
		l.hostPort(cmp.Or(o.get("", "listen"), l.egress(o)), "")
	case "mcp":
	default:
		l.unknown("browser-shell %s is no program that stays", o.words[0])
	}
}

// egress returns the proxy's address in the policy; server/policy has the same default.
func (l *listening) egress(o flags) string {
	const standard = "127.0.0.1:8118"
	if o.has("policy") {
		l.unknown("the policy %s, which has the egress proxy's address, is not read", o.get("", "policy"))
		return standard
	}
	var policy struct {
		Egress struct {
			Proxy string `json:"proxy"`
		} `json:"egress"`
	}
	if data := l.content[shellPolicy]; data != nil {
		if err := json.Unmarshal(data, &policy); err != nil {
			l.addNote(shellPolicy, 0, "not a policy: %v", err)
		}
	}
	return cmp.Or(policy.Egress.Proxy, standard)
}
