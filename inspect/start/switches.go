package start

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect/shell"
)

// row is the effect of one variable of the base, or of several that match a pattern (facts/aio-base.md section 6.3).
type row struct {
	names  string // "*" matches any rest
	kind   string
	effect string
	// by is the program that reads it on lines, in a language that isn't followed; empty if only scripts read it.
	lines, by string
	// how is that of the Hook, if by runs its value.
	how string
}

var table = []row{
	{"DISABLE_*", Program, `keeps a program from starting when it is "true", and only then`, "", "", ""},
	{"ENABLE_CJK_IME", Program, `starts the input method, dbus and fcitx5, when it is "true"`, "", "", ""},
	{"LOG_STDOUT_SERVER", Program, `starts log_tail, which writes python-server's log to the container's, when it is "true"`, "", "", ""},
	{"EXTRA_MCP_SERVERS", MCP, "adds MCP servers to mcp-hub.json, with any command", "", "", ""},
	{"RUN_HOOK_INIT", Command, "is run by bash as root, before anything else", "", "", ""},
	{"RUN_HOOK_PRE_SERVICES", Command, "is run by bash as root, before the programs start", "", "", ""},
	{"RUN_HOOK_POST_READY", Command, "is run by bash as root, once the programs answer", "", "", ""},
	{"RUN_HOOKS_STRICT", Command, `stops the start when a hook fails, when it is "true"`, "", "", ""},
	{"SANDBOX_SHUTDOWN_HOOKS", Command, "are commands that python-server runs when the container stops", "BC", "python-server", "python-server, at stop"},
	{"SANDBOX_SHUTDOWN_HOOKS_TIMEOUT", Command, "is how long the commands at stop may take", "BC", "python-server", ""},
	{"PROXY_SERVER", Outbound, "starts the outbound proxy and sends the browser through it; without it the proxy's program is removed", "", "", ""},
	{"PROXY_AUTH_CMD", Command, "is run by bash as root, for the proxy's password", "", "", ""},
	{"PROXY_AUTH_WATCH", Outbound, "has the proxy's password command run again and again", "BC", "gost", ""},
	{"PROXY_MAP", Outbound, "adds nginx servers on ports 80 and 443 of loopback, each with a target of its own", "", "", ""},
	{"PROXY_EXCLUDE", Outbound, "decides which addresses go through the outbound proxy", "BC", "gost", ""},
	{"PROXY_INCLUDE", Outbound, "decides which addresses go through the outbound proxy", "BC", "gost", ""},
	{"PROXY_BYPASS_LIST", Outbound, "decides which addresses go through the outbound proxy", "BC", "gost", ""},
	{"BROWSER_EXTRA_ARGS", Browser, "adds any flags to the browser's command line, such as --remote-debugging-address=0.0.0.0", "", "", ""},
	{"BROWSER_COMMANDLINE_ARGS", Browser, "adds any flags to the browser's command line, such as --remote-debugging-address=0.0.0.0", "", "", ""},
	{"BROWSER_NO_SANDBOX", Browser, "is added to the browser's command line; --no-sandbox unless it says otherwise", "", "", ""},
	{"BROWSER_EXECUTABLE_PATH", Code, "names the program that is started as the browser", "", "", ""},
	{"BROWSER_USER_AGENT", Browser, "goes into the browser's command line", "", "", ""},
	{"BROWSER_LANG", Browser, "goes into the browser's command line and settings", "", "", ""},
	{"HOMEPAGE", Browser, "goes into the browser's command line", "", "", ""},
	{"BROWSER_REMOTE_DEBUGGING_PORT", Listener, "is the browser's debugging port, which routes lead to", "", "", ""},
	{"PUBLIC_PORT", Listener, "is the port that nginx serves to everybody", "", "", ""},
	{"PUBLIC_LISTEN_IPV4", Listener, "is the address that nginx listens on", "", "", ""},
	{"PUBLIC_LISTEN_IPV6", Listener, "is the address that nginx listens on", "", "", ""},
	{"RUNTIME_LISTEN", Listener, "adds listeners to nginx", "", "", ""},
	{"_BYTEFAAS_RUNTIME_PORT", Listener, "adds a port to nginx", "", "", ""},
	{"FAAS_SANDBOX_RUNTIME_INJECTION_ENABLE_SANDBOXD", Listener, `moves nginx to loopback and lets _BYTEFAAS_RUNTIME_PORT add a port, when it is "true"`, "", "", ""},
	{"JWT_PUBLIC_KEY", Auth, "is the key that tokens are checked with; when every key is blank nobody is asked for one", "A", "gem-server", ""},
	{"JWT_PUBLIC_KEY", Auth, "is the key that tokens are checked with; when every key is blank nobody is asked for one", "BC", "python-server", ""},
	{"SANDBOX_API_KEY", Auth, "is the key that callers show; when every key is blank nobody is asked for one", "BC", "python-server", ""},
	{"TICKET_TTL_SECONDS", Auth, "is how long a ticket is good", "A", "gem-server", ""},
	{"TICKET_TTL_SECONDS", Auth, "is how long a ticket is good", "BC", "python-server", ""},
	{"WAIT_*", Wait, "makes nginx wait for ports or files, and not start at all when they don't come", "", "", ""},
	{"MCP_HUB_WAIT_PORTS", Wait, "makes the MCP hub wait for ports", "", "", ""},
	{"FASTAPI_WAIT_*", Wait, "makes the MCP hub wait for python-server, or not", "", "", ""},
	{"*_PORT", Listener, "is a port that a program listens on or a route leads to", "", "", ""},
	{"NODEJS_REPL_PORT_*", Listener, "is a port that a program listens on", "", "", ""},
	{"USER", Account, "is the account that programs run as, which is made at start", "", "", ""},
	{"AIO_USER", Account, "is the account that programs run as, in the place of USER", "", "", ""},
	{"USER_UID", Account, "is the number of the account that programs run as", "", "", ""},
	{"USER_GID", Account, "is the group of the account that programs run as", "", "", ""},
	{"WORKSPACE", Account, "is the directory that programs work in", "", "", ""},
	{"SRV_PYTHONPATH", Code, "names directories that python-server loads code from", "", "", ""},
	{"PYTHONPATH", Code, "names directories that Python loads code from", "", "", ""},
	{"OPENCODE_*", Code, "configures the opencode agent", "", "", ""},
	{"CODEX_*", Code, "configures the codex agent", "", "", ""},
	{"AIO_SKILLS_PATH", Code, "names directories that skills are loaded from", "BC", "python-server", ""},
	{"AIO_CLI_SKILL_ENABLED", Code, `gives the account skills of the image, when it is "true"`, "", "", ""},
	{"PATH", Code, "names the directories that programs are taken from, root's too", "", "", ""},
	{"BASH_ENV", Code, "names a file that bash runs before every script of the start, as root", "", "", ""},
	{"DNS_OVER_HTTPS_TEMPLATES", Browser, "sets the browser's name servers by policy", "", "", ""},
	{"BROWSER_URL_BLOCKLIST", Browser, "sets by policy what the browser opens", "", "", ""},
	{"BROWSER_URL_ALLOWLIST", Browser, "sets by policy what the browser opens", "", "", ""},
	{"MAX_SHELL_SESSIONS", Other, "is how many shells python-server lets be open", "ABC", "python-server", ""},
	{"MAX_BASH_SESSIONS", Other, "is how many shells python-server lets be open", "BC", "python-server", ""},
	{"BASH_SESSION_TIMEOUT", Other, "is how long python-server keeps a shell", "BC", "python-server", ""},
}

// rowOf returns the row for a variable: the row of that name, otherwise the first whose pattern matches.
func rowOf(name string) row {
	for _, exact := range []bool{true, false} {
		for _, r := range table {
			if exact == !strings.Contains(r.names, "*") {
				if ok, err := path.Match(r.names, name); ok && err == nil {
					return r
				}
			}
		}
	}
	return row{kind: Other, effect: "is read; what it changes is not known"}
}

// setSwitches sets Switches from the variables that were read.
func (r *Report) setSwitches() {
	for i := range r.Renderings {
		template := r.Renderings[i].Template
		r.Renderings[i].Once = slices.ContainsFunc(r.Changes, func(c Change) bool { return c.How == "rm" && c.Path == template })
	}
	for _, h := range r.Hooks {
		if r.walk.Reads[h.Variable] == nil {
			r.walk.Reads[h.Variable] = &shell.Reading{Live: !h.Dormant}
		}
	}
	r.Switches = nil
	for _, name := range slices.Sorted(maps.Keys(r.walk.Reads)) {
		read := r.walk.Reads[name]
		known := rowOf(name)
		s := Switch{Name: name, Kind: known.kind, Effect: known.effect, Programs: r.decides[name], Places: read.Places, Dormant: !read.Live}
		s.Value, s.Set = r.env[name]
		if s.Kind == Other && len(s.Programs) > 0 {
			s.Kind, s.Effect = Program, "starts or stops "+strings.Join(s.Programs, ", ")
		}
		if s.Kind == Other && slices.ContainsFunc(r.Hooks, func(h Hook) bool { return h.Variable == name }) {
			s.Kind, s.Effect = Command, "goes into a command that a shell reads, and so can be one"
		}
		r.Switches = append(r.Switches, s)
	}
}
