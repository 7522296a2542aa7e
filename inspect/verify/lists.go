package verify

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/privilege"
	"github.com/slimctl/slimctl/inspect/start"
)

// list is one of the profile's lists with what an image has of it. It is a rule: an image has every entry of the
// list, and nothing else.
type list struct {
	Rule
	// key is the profile's key, and lacks says that an entry was not found.
	key, lacks string
	want       func(*expect.Expect) []string
	found      func(*held) []group
	// same reports whether an entry of the list means what was found; nil compares texts.
	same func(entry, name string) bool
	// spare lets an entry of which nothing is found pass with a warning.
	spare bool
}

// group is what one file has of a list. Each group of an image has to have all that the profile requires.
type group struct {
	of    string
	items []item
}

// item is one thing that was found. An empty name is never allowed.
type item struct {
	name, subject, says string
	at                  []tree.Place
}

var lists = []list{
	{
		Rule: Rule{
			ID: "programs", Title: "The programs are those of the profile", Severity: Error,
			Why: "Each program of the base listens somewhere: shells, editors, notebooks and proxies without a password.",
			Fix: "Remove the section from supervisord.conf, or list the program in expect.programs.",
		},
		key: "expect.programs", lacks: "the program %s is not there",
		want: func(e *expect.Expect) []string { return e.Programs }, found: foundPrograms,
	},
	{
		Rule: Rule{
			ID: "routes", Title: "The routes that answer are those of the profile", Severity: Error, Holes: []string{"a"},
			Why: "A longer, exact or regular location wins over `location /`: a server that denies / still answers /v1/shell, /cdp/ and /proxy/PORT. A prefix in place of an exact route answers /mcpfoo too.",
			Fix: "Remove the location, or list its pattern in expect.routes and write it exact (=) unless it ends in /.",
		},
		key: "expect.routes", lacks: "the route %s does not answer",
		want: func(e *expect.Expect) []string { return e.Routes }, found: foundRoutes,
	},
	{
		Rule: Rule{
			ID: "upstreams", Title: "Routes lead to the profile's upstreams", Severity: Error, Holes: []string{"b", "c", "f"},
			Why: "A route to another port publishes whatever listens there, such as the browser's debugging port. If the request chooses the port, as with x-aio-proxy-port, every local port is published.",
			Fix: "Correct proxy_pass, root or alias, or list the address in expect.upstreams.",
		},
		key: "expect.upstreams", lacks: "no route leads to the upstream %s",
		want: func(e *expect.Expect) []string { return e.Upstreams }, found: foundUpstreams, same: sameAddress, spare: true,
	},
	{
		Rule: Rule{
			ID: "listeners", Title: "The listeners are those of the profile", Severity: Error, Holes: []string{"m"},
			Why: "No route and no key guards a socket of another program. On line A eight services listen on 0.0.0.0 beside nginx, and pages reach those on loopback.",
			Fix: "Bind it to loopback or remove the program, or list the address in expect.listeners.",
		},
		key: "expect.listeners", lacks: "nothing listens on %s",
		want: func(e *expect.Expect) []string { return e.Listeners }, found: foundListeners, same: sameAddress, spare: true,
	},
	{
		Rule: Rule{
			ID: "mcp-servers", Title: "The MCP servers are those of the profile", Severity: Error,
			Why: "Each MCP server gives its tools to every agent that reaches /mcp; a server over stdio is a command.",
			Fix: "Let mcp-hub.json name the profile's servers only, or list the server in expect.mcpServers.",
		},
		key: "expect.mcpServers", lacks: "the MCP server %s is not there",
		want: func(e *expect.Expect) []string { return e.MCPServers }, found: foundMCPServers,
	},
	{
		Rule: Rule{
			ID: "tools", Title: "The tools on /mcp are those of the profile", Severity: Error,
			Why: "A further tool runs shells, reads files or drives the browser without browser-shell's policy. A server with unknown tools may have any.",
			Fix: "Remove the server that brings the tool, or list the tool in expect.tools.",
		},
		key: "expect.tools", lacks: "no MCP server is known to have the tool %s",
		want: func(e *expect.Expect) []string { return e.Tools }, found: foundTools,
	},
	{
		Rule: Rule{
			ID: "switches", Title: "The variables that change the image are those of the profile", Severity: Error,
			Why: "What a variable brings back isn't closed: EXTRA_MCP_SERVERS adds a command to /mcp, BROWSER_EXTRA_ARGS opens the debugging port. An image that sets a key or SLIM_ALLOW_ANONYMOUS lets in whoever published it, or everybody.",
			Fix: "Write the value into the file that reads the variable, or list the variable in expect.switches. Set no switch in the image.",
		},
		key: "expect.switches", lacks: "nothing reads the variable %s",
		want: func(e *expect.Expect) []string { return e.Switches }, found: foundSwitches, spare: true,
	},
	{
		Rule: Rule{
			ID: "privileged", Title: "Files with special rights are those of the profile", Severity: Error,
			Why: "setuid, setgid, capabilities, sudo and devices lead from the browser's account to root when a page breaks out. A file that everybody may write lets one program change what another reads.",
			Fix: "Remove the file or the right, or list the path in privileged. Devices and rules of sudo can't be listed.",
		},
		key: "privileged", lacks: "no file matches %s",
		want: func(e *expect.Expect) []string { return e.Privileged }, found: foundPrivileged, same: matchGlob, spare: true,
	},
}

// compare reports what was found and isn't listed, what is listed and wasn't found, and what was found twice where
// readers disagree on which one counts.
func (l list) compare(h *held) {
	same := l.same
	if same == nil {
		same = func(entry, name string) bool { return entry == name }
	}
	want, groups := l.want(h.want), l.found(h)
	if len(groups) == 0 {
		groups = []group{{}}
	}
	for _, g := range groups {
		there := map[string]bool{}
		for _, i := range g.items {
			entry := slices.IndexFunc(want, func(e string) bool { return i.name != "" && same(e, i.name) })
			if entry >= 0 {
				there[want[entry]] = true
				continue
			}
			if i.subject == "" {
				i.subject = i.name
			}
			if i.name != "" {
				i.says += "; " + l.key + " doesn't list it"
			}
			h.reportFinding(i.subject, i.at, "%s", i.says)
		}
		for _, entry := range difference(want, nil) {
			switch {
			case there[entry]:
			case l.spare:
				h.addFinding(Finding{Platform: platformOf(h.Image), Subject: entry, Severity: Warning, Message: fmt.Sprintf(l.lacks, entry) + ", which " + l.key + " lists"})
			default:
				h.reportFinding(entry, h.at(g.of), l.lacks+", which "+l.key+" lists", entry)
			}
		}
	}
}

func foundPrograms(h *held) []group {
	var g group
	for i, p := range h.Surface.Programs {
		found := item{p.Name, p.Name, fmt.Sprintf("the program %q runs %s", p.Name, firstWord(p.Command)), []tree.Place{p.Place}}
		switch {
		case p.Kind != "program":
			found.name, found.says = "", fmt.Sprintf("%q is a %s: the profile names plain programs", p.Name, p.Kind)
		case slices.ContainsFunc(g.items[:i], func(o item) bool { return o.name == p.Name }):
			found.name, found.says = "", fmt.Sprintf("there are two programs %q", p.Name)
		}
		g.items = append(g.items, found)
	}
	return []group{g}
}

// foundRoutes returns the answering locations of each main file. It treats internal locations as reachable: an
// error_page, a try_files, an index or an upstream's X-Accel-Redirect may lead there. The location that auth_request
// asks sends no body to the client, and a text without variables reveals nothing.
func foundRoutes(h *held) []group {
	groups, asked := map[string]*group{}, h.asked()
	for i := range h.Surface.Nginx {
		groups[h.configKey(i)] = &group{of: h.Surface.Nginx[i].Path}
	}
	h.eachAnswer(func(a answer) {
		i := item{subject: a.name(), at: a.at}
		switch {
		case a.named():
			i.says = fmt.Sprintf("the named location %s %s: others lead to it", a.name(), describeAction(a.target))
		case !answers(a.target) || a.isQuestion(asked):
			return
		case a.Internal && a.target.Kind == nginx.Return && a.target.Status == 200 && !strings.Contains(a.target.Value, "$"):
			return
		case a.Internal:
			i.says = fmt.Sprintf("the internal location %s %s: an error page, a try_files or the server behind a route leads there", a.name(), describeAction(a.target))
		case h.expectedRoute(a.location) != "":
			i.name = h.expectedRoute(a.location)
		case slices.Contains(h.want.Routes, a.Pattern):
			i.says = fmt.Sprintf("the route %s isn't exact: it also answers every longer path that starts so", a.name())
		default:
			i.says = fmt.Sprintf("the route %s answers: it %s", a.name(), describeAction(a.target))
		}
		if i.name == "" && !a.Internal && !a.named() {
			i.says += "; expect.routes doesn't list it"
		}
		g := groups[a.key]
		g.items = append(g.items, i)
	})
	var out []group
	for _, key := range sortedKeys(groups) {
		out = append(out, *groups[key])
	}
	return out
}

// expectedRoute returns the profile's route for a location: its own, if it is exact or a prefix that ends in a slash, or
// one above it; "" if there is none.
func (h *held) expectedRoute(l *location) string {
	for _, at := range append(slices.Clip(l.parents), l.Location) {
		prefix := strings.HasSuffix(at.Pattern, "/") && (at.Modifier == "" || at.Modifier == "^~")
		if (prefix || at.Modifier == "=" && at == l.Location) && slices.Contains(h.want.Routes, at.Pattern) {
			return at.Pattern
		}
	}
	return ""
}

// unserved matches directories with private content.
var unserved = regexp.MustCompile(`^/($|(etc|root|home|run|var|proc|sys|dev|tmp|usr|bin|sbin|lib|output|opt/gem|opt/agent-browser)(/|$)|opt/?$)`)

// foundUpstreams returns the addresses to which routes lead, and the directories that they must not serve.
func foundUpstreams(h *held) []group {
	var g group
	h.eachAnswer(func(a answer) {
		add := func(name, format string, args ...any) {
			g.items = append(g.items, item{name, a.name(), "the route " + a.name() + " " + fmt.Sprintf(format, args...), a.at})
		}
		switch a.target.Kind {
		case nginx.Proxy, nginx.Rewrite:
			for _, part := range a.target.Chosen {
				add("", "leads to %s, and %s chooses where", a.target.Value, part)
			}
			if a.target.Kind == nginx.Rewrite {
				return
			}
			if len(a.target.Addresses) == 0 && len(a.target.Chosen) == 0 {
				add("", "leads to %s, and it is not known where that is", a.target.Value)
			}
			for _, to := range a.target.Addresses[:min(len(a.target.Addresses), mostOfARule)] {
				add(to, "leads to %s", to)
			}
		case nginx.Static:
			dir := a.target.Value
			real := path.Clean(dir)
			if e, ok := h.Files.Stat(dir); ok {
				real = e.Path
			}
			// A distribution's pages lie in /usr/share, and a link to them may have been found there.
			if strings.Contains(dir, "$") || !path.IsAbs(dir) || unserved.MatchString(path.Clean(dir)) || unserved.MatchString(real) && !strings.HasPrefix(real, "/usr/share/") {
				add("", "serves files of %s", dir)
			}
		}
	})
	return []group{g}
}

func foundListeners(h *held) []group {
	var g group
	for _, l := range h.Surface.Listeners {
		who := "everybody who reaches the container"
		if l.Loopback {
			who = "every program of the container"
		}
		a := address(l.Address, l.Port)
		g.items = append(g.items, item{a, a, fmt.Sprintf("%s listens on %s, for %s", l.By, a, who), []tree.Place{l.Place}})
	}
	return []group{g}
}

// address formats an address like expect.Expect.Listeners: "*:8080", "[::1]:8080", "unix:/run/x.sock".
func address(host string, port int) string {
	if strings.HasPrefix(host, "unix:") {
		return host
	}
	host = strings.Trim(host, "[]")
	switch host {
	case "", "0.0.0.0":
		host = "*"
	case "localhost":
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
		if ip.Unmap().Is6() {
			host = "[" + host + "]"
		}
	}
	return host + ":" + strconv.Itoa(port)
}

// canonicalAddress converts a complete address to the form of address.
func canonicalAddress(a string) string {
	a = strings.TrimPrefix(strings.TrimPrefix(a, "http://"), "https://")
	if file, ok := strings.CutPrefix(a, "unix:"); ok {
		return "unix:" + strings.TrimSuffix(file, ":")
	}
	i := strings.LastIndex(a, ":")
	if i < 0 || strings.HasSuffix(a, "]") {
		return address(a, 80)
	}
	port, err := strconv.Atoi(a[i+1:])
	if err != nil {
		return a
	}
	return address(a[:i], port)
}

func sameAddress(entry, name string) bool { return canonicalAddress(entry) == canonicalAddress(name) }

func foundMCPServers(h *held) []group {
	var groups []group
	for _, c := range h.Surface.MCP.Configs {
		g, seen := group{of: c.Path}, map[string]bool{}
		for _, s := range c.Servers {
			i := item{s.Name, s.Name, fmt.Sprintf("%s has the MCP server %q", c.Path, s.Name), []tree.Place{s.Place}}
			if seen[s.Name] {
				i.name, i.says = "", i.says+" twice: which one counts is up to its reader"
			}
			seen[s.Name] = true
			g.items = append(g.items, i)
		}
		groups = append(groups, g)
	}
	return groups
}

func foundTools(h *held) []group {
	var g group
	for _, s := range h.Surface.MCP.Servers() {
		for _, tool := range s.Tools {
			g.items = append(g.items, item{tool, tool, fmt.Sprintf("the MCP server %q has the tool %q", s.Name, tool), []tree.Place{s.Place}})
		}
		if s.Unknown {
			g.items = append(g.items, item{"", s.Name, fmt.Sprintf("the tools of the MCP server %q are not known", s.Name), []tree.Place{s.Place}})
		}
	}
	return []group{g}
}

// setByInit lists the variables that `browser-shell init` checks and sets for supervisord.
var setByInit = []string{"SLIM_SUPERVISOR_USER", "SLIM_DESKTOP_USER", "SLIM_SERVICE_USER", "SLIM_NGINX_CONF", "SLIM_SCREEN", "SLIM_WINDOW", "SLIM_LANG"}

// harmlessSwitch is safe with any value: browser-shell init accepts names of time zones only.
const harmlessSwitch = "TZ"

// foundSwitches returns the variables that the start and the programs' commands read, and the switches that the image
// itself sets otherwise than the profile.
func foundSwitches(h *held) []group {
	var g group
	names := slices.Clone(h.want.Switches)
	for _, s := range h.Surface.Start.Switches {
		names = append(names, s.Name)
		g.items = append(g.items, item{s.Name, s.Name, fmt.Sprintf("%s changes what the image does (%s): %s", s.Name, s.Kind, s.Effect), s.Places})
		if s.Kind == start.Auth && s.Set && s.Value != "" && h.Surface.Config.Env[s.Name] == "" {
			g.items = append(g.items, item{"", s.Name, "the image sets " + s.Name, s.Places})
		}
	}
	for _, p := range h.Surface.Programs {
		for _, name := range difference(p.Variables, setByInit) {
			g.items = append(g.items, item{name, p.Name, fmt.Sprintf("the program %q depends on the variable %s", p.Name, name), []tree.Place{p.Place}})
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if value := h.Surface.Config.Env[name]; value != "" && value != h.want.Env[name] && name != harmlessSwitch {
			g.items = append(g.items, item{"", name, "the image sets " + name, nil})
		}
	}
	return []group{g}
}

func foundPrivileged(h *held) []group {
	var g group
	for _, f := range h.Surface.Privilege.Files {
		e := f.Entry
		i := item{e.Path, e.Path, strings.TrimSpace(fmt.Sprintf("%s (%d:%d, %04o) is %s %s", e.Path, e.UID, e.GID, e.Mode, strings.Join(f.Kinds, ", "), f.Capabilities)), []tree.Place{f.Place}}
		if slices.Contains(f.Kinds, privilege.Device) {
			i.name = ""
		}
		g.items = append(g.items, i)
	}
	_, sudo := h.Files.Stat("/usr/bin/sudo")
	for _, n := range h.Surface.Privilege.Sudo {
		if sudo || !h.grantsNothing(n.Text) {
			g.items = append(g.items, item{"", n.Place.Path, "a rule of sudo: " + n.Text, []tree.Place{n.Place}})
		}
	}
	return []group{g}
}

func matchGlob(glob, p string) bool {
	ok, err := doublestar.Match(glob, p)
	return ok && err == nil
}

// grantsNothing reports whether a line of sudoers grants nothing to anyone: it is about root or an empty group, or is a
// setting.
func (h *held) grantsNothing(line string) bool {
	who := firstWord(line)
	if who == "root" || who == "Defaults" {
		return true
	}
	name, group := strings.CutPrefix(who, "%")
	if !group {
		return false
	}
	for _, g := range h.Surface.Privilege.Groups {
		if g.Name == name {
			return !h.inGroup(g.GID)
		}
	}
	return true
}

// firstWord returns the first word of a command or a rule, without quotes.
func firstWord(command string) string {
	words := strings.Fields(command)
	if len(words) == 0 {
		return ""
	}
	return strings.Trim(words[0], `"'`)
}
