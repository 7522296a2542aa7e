package verify

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/supervisord"
)

var invariants = []rule{
	{Rule: Rule{
		ID: "gate", Title: "Every route that answers asks the gate", Severity: Error, Holes: []string{"d", "i"},
		Why: "A location without auth_request answers strangers; an internal one is reached by error_page, try_files or a header. auth_request lets in everybody whom the named location answers with 2xx.",
		Fix: "Add auth_request with an internal location that passes to the gate's socket, or remove the location.",
	}, each: checkGate},
	{Rule: Rule{
		ID: "laid", Title: "The start reads and runs files of the profile only", Severity: Error, Holes: []string{"k", "m"},
		Why: "The base's start scripts run words of the environment, give the desktop user sudo and write configuration anew at each start. Every file that an include names or matches adds programs or routes.",
		Fix: "Start with browser-shell init, and let supervisord, nginx and mcp-hub.json name files that an overlay of the profile adds.",
	}, each: checkLaid},
	{Rule: Rule{
		ID: "code", Title: "No variable or file loads code into programs", Severity: Error,
		Why: "LD_PRELOAD, PYTHONPATH, NODE_OPTIONS, /etc/ld.so.preload and their like run other code inside of programs that this report calls good.",
		Fix: "Remove the variable or the file.",
	}, each: checkCode},
	{Rule: Rule{
		ID: "writable", Title: "Only root may change what root's programs are made of", Severity: Error, Holes: []string{"m"},
		Why: "Whoever may write a program, a library, a Python module, a configuration file or a directory above it can replace it, and then acts as the account that runs it.",
		Fix: "Give file and directories to root, mode 0644 and 0755, and name programs by absolute paths, without a shell.",
	}, each: checkWritable},
	{Rule: Rule{
		ID: "accounts", Title: "No account has a shell, a password or another account's rights", Severity: Error,
		Why: "An account with a shell or a password is one su away from being used; a second account with uid 0, or a member of docker, disk or shadow, is root by another name. A program without user= is root if a page breaks out of it.",
		Fix: "Give the account /usr/sbin/nologin, a locked password and no second group, and each program a user=.",
	}, each: checkAccounts},
	{Rule: Rule{
		ID: "secrets", Title: "The image config holds no secret", Severity: Error,
		Why: "Everybody who pulls an image reads its config and history. A key that is set there is the key of every container that sets no other.",
		Fix: "Remove it, and change the secret: it is known.",
	}, each: checkSecrets},
	{Rule: Rule{
		ID: "interpreter", Title: "An interpreter that stays has its library", Severity: Error,
		Why: "A script whose interpreter lacks its library ends at once: the image doesn't start.",
		Fix: "Keep the package in the profile's keep (docs/small.md).",
	}, each: checkInterpreter},
	{Rule: Rule{
		ID: "not-understood", Title: "Everything that was read makes sense", Severity: Error, Holes: []string{"e"},
		Why: "A line that slimctl reads otherwise than supervisord, nginx or the hub hides what they do. A second `location /`, an unknown variable or a missing file stops nginx.",
		Fix: "Correct the place, or report it as an error of slimctl.",
	}, each: checkNotes},
}

// checkLaid checks that the entrypoint, and every file from which programs, routes and MCP servers come, is the profile's.
func checkLaid(h *held) {
	s := h.Surface
	command := slices.Concat(s.Config.Entrypoint, s.Config.Cmd)
	switch {
	case len(command) == 0:
		h.reportFinding("entrypoint", nil, "the image has neither entrypoint nor command: whoever starts it chooses")
	case !h.isLaidProgram(command[0]):
		h.reportFinding(command[0], h.at(command[0]), "the image starts %s, which is no program that the profile adds", command[0])
	case !s.Start.Clean:
		h.reportFinding(command[0], h.at(command[0]), "programs get the environment that the container is started with")
	}
	for _, script := range s.Start.Scripts {
		h.reportFinding(script.Path, []tree.Place{script.Place}, "the script %s is run at the start, by %s", script.Path, script.By)
	}
	if s.Supervisord == nil && len(h.want.Programs) > 0 {
		h.reportFinding("supervisord", nil, "no supervisord is seen to start, so nothing is known of programs")
	} else if s.Supervisord != nil {
		h.checkFilesLaid("supervisord", append([]string{s.Supervisord.Path}, s.Supervisord.Files...), s.Supervisord.Includes)
	}
	for _, c := range s.Nginx {
		var globs []string
		for _, i := range c.Includes {
			if i.Glob || i.Missing || len(i.Files) == 0 {
				globs = append(globs, i.Pattern)
			}
		}
		h.checkFilesLaid("nginx", append([]string{c.Path}, c.Files...), globs)
	}
	for c, server := range s.MCP.Servers() {
		switch {
		case c == nil:
		case server.Type != "stdio" || server.URL != "":
			h.reportFinding(server.Name, []tree.Place{server.Place}, "the MCP server %q is reached by %s %s", server.Name, server.Type, server.URL)
		case !h.isLaidProgram(server.Command):
			h.reportFinding(server.Name, []tree.Place{server.Place}, "the MCP server %q runs %s, which is no program that the profile adds", server.Name, server.Command)
		}
	}
}

// checkFilesLaid checks the files that a program reads, and its includes that name no single file.
func (h *held) checkFilesLaid(program string, files, includes []string) {
	for _, f := range difference(files, nil) {
		if _, ok := h.want.Laid[f]; !ok {
			h.reportFinding(f, h.at(f), "%s reads %s, which the profile does not add", program, f)
		}
	}
	for _, pattern := range difference(includes, nil) {
		h.reportFinding(pattern, h.at(files[0]), "%s includes %s: every file of such a name is read, also one that comes later", program, pattern)
	}
}

// isLaidProgram reports whether the profile adds a path and it is an executable file.
func (h *held) isLaidProgram(p string) bool {
	e, ok := h.Files.Lookup(p)
	_, laid := h.want.Laid[p]
	return ok && laid && e.Type == image.TypeFile && e.Mode&0o111 != 0
}

// loaders matches variables by which a program loads other code or settings: ld.so(8), python(1), node(1), bash(1),
// perlrun(1), openssl-env(7).
var loaders = regexp.MustCompile(`^(LD_.*|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|GETCONF_DIR|MALLOC_.*|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|USERBASE|WARNINGS|EXECUTABLE|PLATLIBDIR|CASEOK|PYCACHEPREFIX)|NODE_(OPTIONS|PATH|EXTRA_CA_CERTS|REPL_EXTERNAL_MODULE|CHANNEL_FD)|BASH_ENV|BASH_FUNC_.*|ENV|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|PS4|IFS|CDPATH|PERL5(LIB|OPT|DB)|PERLLIB|RUBY(OPT|LIB)|OPENSSL_(CONF|ENGINES|MODULES)|SSL_CERT_(FILE|DIR)|SSLKEYLOGFILE|GTK_(MODULES|PATH|EXE_PREFIX)|GDK_PIXBUF_MODULE.*|GIO_(EXTRA_MODULES|MODULE_DIR)|QT_(PLUGIN_PATH|QPA_PLATFORM_PLUGIN_PATH)|XDG_(CONFIG|DATA)_(DIRS|HOME)|VK_.*|LIBGL_DRIVERS_PATH|__EGL_.*|FONTCONFIG_.*|CHROME_(WRAPPER|USER_FLAGS|DEVEL_SANDBOX)|CHROMIUM_(USER_)?FLAGS|AGENT_BROWSER_.*|(HTTPS?|ALL|FTP|NO)_PROXY|(https?|all|ftp|no)_proxy)$`)

func checkCode(h *held) {
	s := h.Surface
	report := func(who string, at []tree.Place, names []string) {
		for _, name := range names {
			if loaders.MatchString(name) || name == "PATH" {
				h.reportFinding(name, at, "%s with %s", who, name)
			}
		}
	}
	for _, name := range sortedKeys(s.Config.Env) {
		if s.Config.Env[name] != "" && loaders.MatchString(name) {
			h.reportFinding(name, nil, "the image sets %s", name)
		}
	}
	if c := s.Supervisord; c != nil {
		report("supervisord starts every program", h.at(c.Path), sortedKeys(c.Environment))
	}
	for _, p := range s.Programs {
		names := slices.DeleteFunc(sortedKeys(p.Environment), func(name string) bool { return name == "PATH" }) // see checkWritable
		report(fmt.Sprintf("the program %q is started", p.Name), []tree.Place{p.Place}, names)
	}
	for _, server := range s.MCP.Servers() {
		report(fmt.Sprintf("the MCP server %q is started", server.Name), []tree.Place{server.Place}, server.Env)
	}
	const preload = "/etc/ld.so.preload"
	if e, ok := h.Files.Lookup(preload); ok && (e.Size > 0 || e.Type != image.TypeFile) {
		h.reportFinding(preload, h.at(preload), "%s loads code into every program", preload)
	}
}

// supervisordProgram is what browser-shell init starts.
const supervisordProgram = "/usr/bin/supervisord"

// libraryDirs are the directories in which ld.so and Python search by default.
var libraryDirs = strings.Fields(`/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /lib/x86_64-linux-gnu /lib/aarch64-linux-gnu
	/usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/local/lib/x86_64-linux-gnu /usr/local/lib/aarch64-linux-gnu`)

// interpreters matches programs that execute their arguments, or another program found through PATH.
var interpreters = regexp.MustCompile(`^(ba|da|z|k|c|tc|fi|a)?sh$|^(busybox|env|xargs|eval|exec|python[0-9.]*|perl|ruby|node|nodejs|socat|nc|ncat|script|setsid|nohup|stdbuf|timeout|sudo|su|chroot|unshare)$`)

// checkWritable checks the programs, their libraries, Python modules and PATH, the files that the profile adds and those
// that nginx reads, and supervisord's sockets.
func checkWritable(h *held) {
	told := map[string]bool{}
	check := func(p, what string, at []tree.Place) {
		if who := h.findWriter(p); who != "" && !told[who] {
			told[who] = true
			h.reportFinding(p, at, "%s: %s", what, who)
		}
	}
	check(supervisordProgram, "init runs "+supervisordProgram, h.at(supervisordProgram))
	for _, p := range h.Surface.Programs {
		at := []tree.Place{p.Place}
		words := [2]string{firstWord(p.Command), startedProgram(p.Command)}
		for i, program := range words {
			switch {
			case i == 1 && (program == "" || !runsAsSupervisord(p)):
				if interpreters.MatchString(path.Base(program)) {
					h.reportFinding(p.Name, at, "the program %q runs %s, which starts what its arguments name", p.Name, program)
				}
			case !path.IsAbs(program):
				h.reportFinding(p.Name, at, "the program %q runs %q, which is no absolute path", p.Name, program)
			case interpreters.MatchString(path.Base(program)):
				h.reportFinding(p.Name, at, "the program %q runs %s, which starts what its arguments name", p.Name, program)
			default:
				check(program, fmt.Sprintf("the program %q runs %s", p.Name, program), at)
			}
		}
		for dir := range strings.SplitSeq(p.Environment["PATH"], ":") {
			switch {
			case p.Environment["PATH"] == "":
			case !path.IsAbs(dir):
				h.reportFinding(p.Name, at, "the program %q has %q in its PATH, which depends on where it runs", p.Name, dir)
			default:
				check(dir, fmt.Sprintf("the program %q has %s in its PATH", p.Name, dir), at)
			}
		}
	}
	for _, c := range h.Surface.Nginx {
		for _, f := range append([]string{c.Path}, c.Files...) {
			check(f, "nginx reads "+f, h.at(f))
		}
	}
	for _, p := range sortedKeys(h.want.Laid) {
		if f, ok := h.Files.Lookup(p); ok && f.UID == 0 {
			check(path.Dir(p), "the profile adds "+p, h.at(path.Dir(p)))
		}
	}
	h.checkLibraries(check)
	if c := h.Surface.Supervisord; c != nil {
		for _, s := range c.Sockets {
			owner, _, _ := strings.Cut(s.Owner, ":")
			if mode := strings.TrimLeft(s.Mode, "0o"); s.Mode != "" && !strings.HasSuffix(mode, "00") || owner != "" && owner != "root" && owner != "0" {
				h.reportFinding(s.Address, []tree.Place{s.Place}, "others than root control supervisord by %s (mode %s, owner %s)", s.Address, s.Mode, s.Owner)
			}
		}
	}
}

// checkLibraries checks shared libraries, and Python's modules with their directories.
func (h *held) checkLibraries(check func(p, what string, at []tree.Place)) {
	for _, dir := range libraryDirs {
		if e, ok := h.Files.Lookup(dir); !ok || !e.IsDir() {
			continue
		}
		for _, e := range h.Files.Dir(dir) {
			name := path.Base(e.Path)
			switch {
			case strings.HasPrefix(name, "python3") && e.IsDir():
				for module := range h.Files.Walk(e.Path) {
					if h.mayWrite(*module) != "" {
						check(module.Path, "Python loads modules of "+e.Path, h.at(module.Path))
					}
				}
			case strings.Contains(name, ".so") && h.mayWrite(e) != "":
				check(e.Path, "programs load the library "+e.Path, h.at(e.Path))
			}
		}
		check(dir, "programs load libraries of "+dir, h.at(dir))
	}
}

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

// runsAsSupervisord reports whether a program runs as supervisord's account, which may be root.
func runsAsSupervisord(p supervisord.Program) bool {
	account, _, _ := strings.Cut(p.User, ":")
	return slices.Contains([]string{"", "root", "0", "%(ENV_SLIM_SUPERVISOR_USER)s"}, account)
}

func checkAccounts(h *held) {
	for _, u := range h.Surface.Privilege.Users {
		at := []tree.Place{u.Place}
		if shell := path.Base(u.Shell); shell != "nologin" && shell != "false" { // an empty shell is /bin/sh (passwd(5))
			h.reportFinding(u.Name, at, "the account %s has the shell %q", u.Name, u.Shell)
		}
		if u.Password != "locked" {
			h.reportFinding(u.Name, at, "the account %s isn't locked: its password is %s", u.Name, u.Password)
		}
		if u.UID == 0 && u.Name != "root" {
			h.reportFinding(u.Name, at, "the account %s is root by another name", u.Name)
		} else if u.GID == 0 && u.UID != 0 {
			h.reportFinding(u.Name, at, "the account %s is in root's group", u.Name)
		}
	}
	for _, g := range h.Surface.Privilege.Groups {
		if members := difference(g.Members, []string{"root"}); len(members) > 0 {
			h.reportFinding(g.Name, []tree.Place{g.Place}, "the group %s has %s", g.Name, joinNames(members))
		}
	}
	for _, p := range h.Surface.Programs {
		if p.Name != "nginx" && runsAsSupervisord(p) {
			h.reportFinding(p.Name, []tree.Place{p.Place}, "the program %q runs as root where supervisord does", p.Name)
		}
	}
}

// checkInterpreter checks the Python of supervisord's script: an interpreter whose package has a library, and no library.
func checkInterpreter(h *held) {
	e, ok := h.Files.Stat(supervisordProgram)
	if !ok || e.Type != image.TypeFile || e.Size > 1<<20 {
		return
	}
	data, err := h.Files.ReadFile(h.ctx, e.Path)
	words := image.Interpreter(data)
	if err != nil || len(words) == 0 {
		h.err = err
		return
	}
	real, ok := h.Files.Stat(words[0])
	if !ok {
		h.reportFinding(words[0], h.at(e.Path), "%s needs the interpreter %s, which is not there", e.Path, words[0])
		return
	}
	module := path.Join(path.Dir(path.Dir(real.Path)), "lib", path.Base(real.Path), "os.py")
	if owner := h.Packages.Owner(module); owner != nil {
		if _, ok := h.Files.Stat(module); !ok {
			h.reportFinding(module, h.at(real.Path), "the interpreter %s is there, and its library isn't: %s of %s", real.Path, module, owner.Name)
		}
	}
}

func checkNotes(h *held) {
	for _, n := range h.Surface.Notes {
		f := Finding{Platform: platformOf(h.Image), Subject: n.Place.Path, Places: []tree.Place{n.Place}, Message: n.Text}
		if slices.Contains(h.Packages.Notes, n) {
			f.Severity = Warning // a file without a package counts as nobody's
		}
		h.addFinding(f)
	}
	for _, c := range h.Surface.Nginx {
		if len(c.Servers) == 0 {
			h.reportFinding(c.Path, h.at(c.Path), "%s has no server", c.Path)
		}
	}
}

// checkSecrets checks variables, labels and the history.
func checkSecrets(h *held) {
	for _, name := range sortedKeys(h.Surface.Config.Env) {
		if secretVariable(name, h.Surface.Config.Env[name]) {
			h.reportFinding(name, nil, "the image sets %s (its value is not shown)", name)
		}
	}
	for _, name := range sortedKeys(h.Surface.Config.Labels) {
		if shapes.MatchString(h.Surface.Config.Labels[name]) {
			h.reportFinding(name, nil, "the label %s holds what looks like a secret (it is not shown)", name)
		}
	}
	if h.Files.Config == nil {
		return
	}
	for i, line := range h.Files.Config.History {
		for _, text := range []string{line.CreatedBy, line.Comment, line.Author} {
			if what := secretIn(text); what != "" {
				h.reportFinding(fmt.Sprintf("history %d", i+1), nil, "line %d of the history sets %s (it is not shown)", i+1, what)
			}
		}
	}
}

// secretName matches names of variables with a secret, in whole words.
var secretName = regexp.MustCompile(`(?i)(^|[_.-])(KEY|APIKEY|TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|CREDENTIALS?|AUTH|PRIVATE)$|(?i)(SECRET|PASSWORD|PASSWD|PRIVATE_?KEY|ACCESS_?KEY|API_?KEY|TOKEN)`)

// notSecret matches names that look like these but aren't.
var notSecret = regexp.MustCompile(`(?i)^(PWD|OLDPWD|SSH_AUTH_SOCK|.*_(FILE|PATH|DIR|URL|TTL|TTL_SECONDS|TIMEOUT|SIZE|LIMIT|MAX|COUNT|ENABLED|TYPE|ID|LENGTH)|JWT_PUBLIC_KEY|.*PUBLIC_KEY|DISABLE_.*|ENABLE_.*|TOKENIZERS_.*|MAX_.*)$`)

// shapes matches secrets with a recognizable form: keys in PEM, tokens with a service's own prefix (GitHub, GitLab,
// npm, PyPI, Slack, AWS, Google, OpenAI, Anthropic, Docker, Stripe), and JWTs.
var shapes = regexp.MustCompile(`-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----|\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,}|glpat-[A-Za-z0-9_-]{20}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}|xox[abprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|sk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}|dckr_pat_[A-Za-z0-9_-]{20,}|[rs]k_live_[A-Za-z0-9]{20,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})`)

// credentials matches a URL with a password.
var credentials = regexp.MustCompile(`[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@$%{]+@`)

// assignment matches NAME=value in ENV, ARG, export and BuildKit's own "|2 NAME=value", or the older "ENV NAME value".
var assignment = regexp.MustCompile(`(?:^|[\s;|&"'])(?:(?:ENV|ARG)\s+([A-Za-z_][A-Za-z0-9_]*)\s+|([A-Za-z_][A-Za-z0-9_]*)=)("[^"]*"|'[^']*'|[^\s;|&"']+)`)

// secretVariable reports whether a variable probably contains a secret, by its name or its value.
func secretVariable(name, value string) bool {
	named := secretName.MatchString(name) && !notSecret.MatchString(name) && !slices.Contains([]string{"true", "false", "0", "1", "none"}, strings.ToLower(value))
	return value != "" && (named || shapes.MatchString(value) || credentials.MatchString(value))
}

// secretIn returns the name that a text sets to a probable secret; "" if there is none.
func secretIn(text string) (what string) {
	for _, m := range assignment.FindAllStringSubmatch(text, -1) {
		name, value := m[1]+m[2], strings.Trim(m[3], `"'`)
		if secretName.MatchString(name) && !notSecret.MatchString(name) && value != "" && !strings.HasPrefix(value, "$") {
			what = name
		}
	}
	if what == "" && (shapes.MatchString(text) || credentials.MatchString(text)) {
		what = "something that looks like a secret"
	}
	return what
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
