package verify

import (
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/supervisord"
	"github.com/slimctl/slimctl/internal/lazyregexp"
)

var programRules = []rule{
	{Rule: Rule{
		ID: "program", Title: "The programs are those of the profile", Severity: Error,
		Why: "The base's programs are shells, editors, notebooks and proxies without a password; each listens, and a local port is all that the browser or another program needs to use it.",
		Fix: "Remove the program's section. Name it in expect.programs only if your profile adds it on purpose.",
	}, each: programs},
	{Rule: Rule{
		ID: "program-dormant", Title: "No program lies in wait", Severity: Error, Holes: []string{"l"},
		Why: "A file with a program that nothing reads today is one copy, one include or one restart away from running, as supervisord.mcp.conf is on line A.",
		Fix: "Remove the file.",
	}, each: programsDormant},
	{Rule: Rule{
		ID: "program-include", Title: "supervisord includes nothing", Severity: Error,
		Why: "With an include, whoever can write one file there starts a program as root; with a glob any later layer or script does by a file of any name.",
		Fix: "Write the programs into supervisord.conf and drop [include].",
	}, each: programIncludes},
	{Rule: Rule{
		ID: "program-socket", Title: "Only root reaches supervisord's control socket", Severity: Error,
		Why: "Who reaches it stops and starts programs, root's too. The base gives it to the desktop user's group.",
		Fix: "chmod=0700 in [unix_http_server], no chown to another account, no [inet_http_server].",
	}, each: programSockets},
	{Rule: Rule{
		ID: "program-environment", Title: "No program takes its command from the environment", Severity: Error,
		Why: "What a container is started with could then add flags, choose another program or bring one back that was switched off.",
		Fix: "Write the value into supervisord.conf; init sets SLIM_* itself, no other variable may be used.",
	}, each: programVariables},
	{Rule: Rule{
		ID: "program-account", Title: "Only nginx runs as supervisord's own account", Severity: Error,
		Why: "A program without user= runs as root when the container does: a page that breaks out of the browser is root at once.",
		Fix: "Give the program user=, the desktop's or the service's account.",
	}, each: programAccounts},
	{Rule: Rule{
		ID: "program-path", Title: "Programs are named by paths that only root may change", Severity: Error,
		Why: "A program that is looked up in PATH, is run by a shell, or lies where another account may write is replaced by whoever gets there first, and runs with the rights of the one that starts it.",
		Fix: "Name the program by its absolute path, without a shell; PATH in environment= has root's directories only.",
	}, each: programPaths},
	{Rule: Rule{
		ID: "program-loader", Title: "No program is started with variables that load code", Severity: Error,
		Why: "LD_PRELOAD, PYTHONPATH, NODE_OPTIONS and their like make a program run somebody else's code under its own name.",
		Fix: "Drop the variable from environment= of the program.",
	}, each: programLoaders},
	{Rule: Rule{
		ID: "browser-flag", Title: "The browser has no flag that opens it", Severity: Error,
		Why: "Some flags open the debugging port to the network or to pages, switch off what keeps sites apart, load code, or go past the egress proxy.",
		Fix: "Drop the flag from the command of the program browser.",
	}, each: browserFlags},
	{Rule: Rule{
		ID: "supervisord", Title: "supervisord starts with the file that the profile lays", Severity: Error,
		Why: "With another main file every rule about programs would be about a file that nothing reads.",
		Fix: "Let the entrypoint start supervisord with the laid supervisord.conf.",
	}, each: supervisordMain},
}

func programs(h *held) {
	var have []string
	for _, p := range h.Surface.Programs {
		have = append(have, p.Name)
		if !slices.Contains(h.want.Programs, p.Name) {
			h.reportFinding(p.Name, []tree.Place{p.Place}, "the program %q runs %s; the profile does not name it", p.Name, firstWord(p.Command))
		}
		if p.Kind != "program" {
			h.reportFinding(p.Name, []tree.Place{p.Place}, "%q is a %s: the profile names plain programs", p.Name, p.Kind)
		}
	}
	for _, name := range difference(h.want.Programs, have) {
		h.reportFinding(name, nil, "the program %q is not there", name)
	}
	for i, name := range have {
		if slices.Contains(have[:i], name) {
			h.reportFinding(name, []tree.Place{h.Surface.Programs[i].Place}, "there are two programs %q", name)
		}
	}
}

func programsDormant(h *held) {
	for _, c := range h.Surface.Dormant {
		for _, p := range c.Programs {
			h.reportFinding(c.Path, []tree.Place{p.Place}, "%s holds the program %q and nothing reads it", c.Path, p.Name)
		}
		if len(c.Programs) == 0 {
			h.reportFinding(c.Path, h.at(c.Path), "%s looks like a part of supervisord's configuration and nothing reads it", c.Path)
		}
	}
}

func programIncludes(h *held) {
	c := h.Surface.Supervisord
	if c == nil {
		return
	}
	for _, pattern := range c.Includes {
		h.reportFinding(pattern, h.at(c.Path), "%s includes %s", c.Path, pattern)
	}
	for _, f := range c.Files {
		if f != c.Path {
			h.reportFinding(f, h.at(f), "supervisord reads %s besides %s", f, c.Path)
		}
	}
}

func programSockets(h *held) {
	if h.Surface.Supervisord == nil {
		return
	}
	for _, s := range h.Surface.Supervisord.Sockets {
		at := []tree.Place{s.Place}
		mode := strings.TrimLeft(s.Mode, "0o")
		owner, _, _ := strings.Cut(s.Owner, ":")
		switch {
		case !path.IsAbs(s.Address):
			h.reportFinding(s.Address, at, "supervisord is controlled over the network at %s", s.Address)
		case s.Mode != "" && (len(mode) != 3 || !strings.HasSuffix(mode, "00")):
			h.reportFinding(s.Address, at, "the socket %s has mode %s: others than its owner reach it", s.Address, s.Mode)
		case owner != "" && owner != "root" && owner != "0":
			h.reportFinding(s.Address, at, "the socket %s belongs to %s", s.Address, s.Owner)
		}
	}
}

// setByInit lists the variables that `browser-shell init` checks and sets for supervisord.
var setByInit = []string{"SLIM_SUPERVISOR_USER", "SLIM_DESKTOP_USER", "SLIM_SERVICE_USER", "SLIM_NGINX_CONF", "SLIM_SCREEN", "SLIM_WINDOW", "SLIM_LANG"}

func programVariables(h *held) {
	for _, p := range h.Surface.Programs {
		if bad := difference(p.Variables, setByInit); len(bad) > 0 {
			h.reportFinding(p.Name, []tree.Place{p.Place}, "the program %q depends on %s", p.Name, joinNames(bad))
		}
	}
}

// runsAsSupervisord reports whether a program runs as supervisord's account, which may be root.
func runsAsSupervisord(p supervisord.Program) bool {
	account, _, _ := strings.Cut(p.User, ":")
	return slices.Contains([]string{"", "root", "0", "%(ENV_SLIM_SUPERVISOR_USER)s"}, account)
}

func programAccounts(h *held) {
	for _, p := range h.Surface.Programs {
		if p.Name != "nginx" && runsAsSupervisord(p) {
			h.reportFinding(p.Name, []tree.Place{p.Place}, "the program %q runs as root where supervisord does", p.Name)
		}
	}
}

// interpreters lists programs that execute their arguments, or another program found through PATH.
var interpreters = lazyregexp.New(`^(ba|da|z|k|c|tc|fi|a)?sh$|^(busybox|env|xargs|eval|exec|python[0-9.]*|perl|ruby|node|nodejs|socat|nc|ncat|script|setsid|nohup|stdbuf|timeout|sudo|su|chroot|unshare)$`)

func programPaths(h *held) {
	if c := h.Surface.Supervisord; c != nil {
		if who := h.findWriter(supervisordProgram); who != "" {
			h.reportFinding("supervisord", h.at(c.Path), "init runs %s: %s", supervisordProgram, who)
		}
	}
	for _, p := range h.Surface.Programs {
		at := []tree.Place{p.Place}
		if started := startedProgram(p.Command); interpreters.MatchString(path.Base(started)) {
			h.reportFinding(p.Name, at, "the program %q runs %s, which starts what its arguments name", p.Name, started)
		} else if who := h.findWriter(started); who != "" && runsAsSupervisord(p) {
			h.reportFinding(p.Name, at, "the program %q runs %s: %s", p.Name, started, who)
		}
		program := firstWord(p.Command)
		switch {
		case program == "":
			h.reportFinding(p.Name, at, "the program %q has no command", p.Name)
		case !path.IsAbs(program):
			h.reportFinding(p.Name, at, "the program %q runs %q, which is looked up in PATH", p.Name, program)
		case interpreters.MatchString(path.Base(program)):
			h.reportFinding(p.Name, at, "the program %q runs %s, which starts what its arguments name", p.Name, program)
		default:
			if who := h.findWriter(program); who != "" {
				h.reportFinding(p.Name, at, "the program %q runs %s: %s", p.Name, program, who)
			}
		}
		for dir := range strings.SplitSeq(p.Environment["PATH"], ":") {
			if dir == "" && p.Environment["PATH"] == "" {
				continue
			}
			if !path.IsAbs(dir) {
				h.reportFinding(p.Name, at, "the program %q has %q in its PATH, which depends on where it runs", p.Name, dir)
			} else if who := h.findWriter(dir); who != "" {
				h.reportFinding(p.Name, at, "the program %q has %s in its PATH: %s", p.Name, dir, who)
			}
		}
	}
}

// supervisordProgram is what browser-shell init starts.
const supervisordProgram = "/usr/bin/supervisord"

// startedProgram returns the program that a command starts by browser-shell start, or "".
func startedProgram(command string) string {
	words := strings.Fields(command)
	if len(words) < 2 || path.Base(firstWord(command)) != "browser-shell" || words[1] != "start" {
		return ""
	}
	for words = words[2:]; len(words) > 1 && strings.HasPrefix(words[0], "-"); words = words[1:] {
		if words[0] != "--" && !strings.Contains(words[0], "=") {
			words = words[1:] // the flag; next is its value
		}
	}
	return firstWord(strings.Join(words, " "))
}

// loaders lists variables by which a program loads other code or settings: ld.so(8), python(1), node(1), bash(1),
// perlrun(1), openssl-env(7).
var loaders = lazyregexp.New(`^(LD_.*|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|GETCONF_DIR|MALLOC_.*|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|USERBASE|WARNINGS|EXECUTABLE|PLATLIBDIR|CASEOK|PYCACHEPREFIX)|NODE_(OPTIONS|PATH|EXTRA_CA_CERTS|REPL_EXTERNAL_MODULE|CHANNEL_FD)|BASH_ENV|BASH_FUNC_.*|ENV|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|PS4|IFS|CDPATH|PERL5(LIB|OPT|DB)|PERLLIB|RUBY(OPT|LIB)|OPENSSL_(CONF|ENGINES|MODULES)|SSL_CERT_(FILE|DIR)|SSLKEYLOGFILE|GTK_(MODULES|PATH|EXE_PREFIX)|GDK_PIXBUF_MODULE.*|GIO_(EXTRA_MODULES|MODULE_DIR)|QT_(PLUGIN_PATH|QPA_PLATFORM_PLUGIN_PATH)|XDG_(CONFIG|DATA)_(DIRS|HOME)|VK_.*|LIBGL_DRIVERS_PATH|__EGL_.*|FONTCONFIG_.*|CHROME_(WRAPPER|USER_FLAGS|DEVEL_SANDBOX)|CHROMIUM_(USER_)?FLAGS|AGENT_BROWSER_.*|(HTTPS?|ALL|FTP|NO)_PROXY|(https?|all|ftp|no)_proxy)$`)

func programLoaders(h *held) {
	if c := h.Surface.Supervisord; c != nil {
		for _, name := range sortedKeys(c.Environment) {
			if loaders.MatchString(name) || name == "PATH" {
				h.reportFinding("supervisord", h.at(c.Path), "supervisord gives every program %s", name)
			}
		}
	}
	for _, p := range h.Surface.Programs {
		for _, name := range sortedKeys(p.Environment) {
			if loaders.MatchString(name) {
				h.reportFinding(p.Name, []tree.Place{p.Place}, "the program %q is started with %s", p.Name, name)
			}
		}
	}
}

// openFlags lists Chromium's flags that open it (content/public/common/content_switches.cc and others of Chromium).
var openFlags = lazyregexp.New(`^--(remote-debugging-(address|pipe)|remote-allow-origins|disable-web-security|disable-site-isolation.*|disable-features=.*(IsolateOrigins|SitePerProcess).*|allow-running-insecure-content|allow-file-access-from-files|allow-file-access|ignore-certificate-errors.*|load-extension|disable-extensions-except|load-component-extension|allow-legacy-extension-manifests|enable-automation|utility-cmd-prefix|renderer-cmd-prefix|gpu-launcher|ppapi-plugin-launcher|browser-subprocess-path|crash-dumps-dir|no-proxy-server|proxy-auto-detect|proxy-pac-url|ssl-key-log-file|log-net-log|policy-.*|allow-chrome-.*|enable-logging|auth-server-allowlist|js-flags|enable-blink-features|register-pepper-plugins|use-system-proxy-resolver|disable-policy.*|guest|app-shell.*)(=.*)?$`)

// proxyFlags lists flags that send every request through the egress proxy; the managed policy does the same.
var proxyFlags = []string{"--proxy-server=http://127.0.0.1:8118", "--proxy-bypass-list=<-loopback>"}

func browserFlags(h *held) {
	for _, p := range h.Surface.Programs {
		if p.Name != "browser" {
			continue
		}
		at := []tree.Place{p.Place}
		words := strings.Fields(p.Command)
		for _, w := range words {
			if openFlags.MatchString(strings.Trim(w, `"'`)) {
				h.reportFinding(w, at, "the browser is started with %s", w)
			}
		}
		for _, want := range proxyFlags {
			name, _, _ := strings.Cut(want, "=")
			for _, w := range words {
				if w = strings.Trim(w, `"'`); strings.HasPrefix(w, name+"=") && w != want {
					h.reportFinding(name, at, "the browser is started with %s instead of %s", w, want)
				}
			}
			if !slices.Contains(words, want) {
				h.reportFinding(name, at, "the browser is started without %s", want)
			}
		}
	}
}

func supervisordMain(h *held) {
	s := h.Surface
	if len(h.want.Programs) == 0 {
		return
	}
	switch {
	case s.Start.Supervisord == "" || s.Supervisord == nil:
		h.reportFinding("", nil, "no supervisord is seen to start, so nothing is known of programs")
	case !h.isLaid(s.Start.Supervisord):
		h.reportFinding(s.Start.Supervisord, h.at(s.Start.Supervisord), "supervisord starts with %s, which the profile does not lay", s.Start.Supervisord)
	}
}

// firstWord returns the program of a command, without quotes.
func firstWord(command string) string {
	words := strings.Fields(command)
	if len(words) == 0 {
		return ""
	}
	return strings.Trim(words[0], `"'`)
}
