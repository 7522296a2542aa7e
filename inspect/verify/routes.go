package verify

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/internal/lazyregexp"
)

var routeRules = []rule{
	{Rule: Rule{
		ID: "nginx-longer-location", Title: "Only the profile's routes answer", Severity: Error, Holes: []string{"a"},
		Why: "A longer prefix, an exact location or a regular expression wins over `location /`, wherever it stands: a server that denies / still answers /v1/shell, /cdp/ and /proxy/PORT. A prefix where the profile has an exact route answers /mcpfoo too.",
		Fix: "Remove the location. Name its pattern in expect.routes only if your profile adds it on purpose, and write it exact (=) unless it ends in /.",
	}, each: routesUnexpected},
	{Rule: Rule{
		ID: "nginx-route-missing", Title: "Every route of the profile answers", Severity: Error,
		Why: "An image that does not answer is replaced in a hurry by one that does.",
		Fix: "Lay the profile's nginx configuration, or drop the route from expect.routes.",
	}, each: routesMissing},
	{Rule: Rule{
		ID: "nginx-no-auth", Title: "Every route asks the gate", Severity: Error, Holes: []string{"d"},
		Why: "A location without auth_request answers strangers; the base's port proxy has none even with a key set. An internal one is reached by error_page, try_files or a header of the server behind.",
		Fix: "Add auth_request, or remove the location.",
	}, each: routesAuth},
	{Rule: Rule{
		ID: "nginx-gate", Title: "The gate that routes ask is the gate", Severity: Error,
		Why: "auth_request lets in whom the location that it names answers with 2xx: one that returns 200 by itself, or asks another server, lets everybody in.",
		Fix: "Let auth_request name an internal location that passes to the gate's socket.",
	}, each: routesGate},
	{Rule: Rule{
		ID: "nginx-upstream", Title: "Routes lead to the profile's upstreams only", Severity: Error, Holes: []string{"b", "c", "f"},
		Why: "A route to another port is the surface of whatever listens there, and one to another host hands keys and screens to it. Where the request chooses, by a name or a header such as x-aio-proxy-port, it chooses any local port.",
		Fix: "Correct proxy_pass. Name the address in expect.upstreams only if your profile adds it on purpose.",
	}, each: routesUpstream},
	{Rule: Rule{
		ID: "nginx-static", Title: "Files are served from a directory that is for serving", Severity: Error,
		Why: "A root or alias above the pages serves keys, logs and configuration; an alias without its last slash serves the directories beside it, and one below a prefix without a slash those above it.",
		Fix: "Let the alias of a prefix that ends in / end in /, and name a directory of pages.",
	}, each: routesStatic},
}

// location is a location with its configuration, server and outer locations.
type location struct {
	*nginx.Location
	config  *nginx.Config
	server  *nginx.Server
	parents []*nginx.Location // outermost first
}

// The patterns for a server block's own directives, and for requests without a location.
const (
	wholeServer = "(server)"
	noLocation  = "(no location)"
)

func (l *location) regex() bool { return strings.HasPrefix(l.Modifier, "~") }
func (l *location) named() bool { return l.Modifier == "@" || strings.HasPrefix(l.Pattern, "@") }

// name returns modifier and pattern as in the file.
func (l *location) name() string {
	if l.Modifier == "" || l.Modifier == "@" {
		return l.Modifier + strings.TrimPrefix(l.Pattern, l.Modifier)
	}
	return l.Modifier + " " + l.Pattern
}

// answer is one possible end of a request at a location.
type answer struct {
	*location
	when   string // the condition in the file; empty for the end without one
	target nginx.Target
	auth   string
	at     []tree.Place
}

// name returns the location with the condition.
func (a answer) name() string {
	if a.when == "" {
		return a.location.name()
	}
	return a.location.name() + " " + a.when
}

func (h *held) eachServer(visit func(c *nginx.Config, s *nginx.Server)) {
	for i := range h.Surface.Nginx {
		c := &h.Surface.Nginx[i]
		for j := range c.Servers {
			visit(c, &c.Servers[j])
		}
	}
}

// eachLocation visits every location of every server, nested ones after the outer ones.
func (h *held) eachLocation(visit func(l *location)) {
	h.eachServer(func(c *nginx.Config, s *nginx.Server) {
		var walk func(locations []nginx.Location, parents []*nginx.Location)
		walk = func(locations []nginx.Location, parents []*nginx.Location) {
			for i := range locations {
				visit(&location{&locations[i], c, s, parents})
				walk(locations[i].Locations, append(slices.Clip(parents), &locations[i]))
			}
		}
		walk(s.Locations, nil)
	})
}

// eachAnswer visits every end: of each location and its cases, of a server's directives before any location, and of
// requests without a location.
func (h *held) eachAnswer(visit func(a answer)) {
	ends := func(l *location) {
		visit(answer{l, "", l.Target, l.Auth, []tree.Place{l.Place}})
		for _, c := range l.Cases {
			visit(answer{l, c.When, c.Target, c.Auth, []tree.Place{c.Place}})
		}
	}
	h.eachServer(func(c *nginx.Config, s *nginx.Server) {
		all := &location{&nginx.Location{Pattern: wholeServer, Place: s.Place, Cases: s.Cases}, c, s, nil}
		if all.Target = (nginx.Target{Kind: nginx.Deny}); s.Direct != nil {
			all.Target = *s.Direct
		}
		ends(all)
		if s.Unmatched != nil {
			none := *s.Unmatched
			none.Modifier, none.Pattern = "", noLocation
			ends(&location{&none, c, s, nil})
		}
	})
	h.eachLocation(ends)
}

// answers reports whether the end may be something other than a refusal.
func answers(t nginx.Target) bool {
	switch t.Kind {
	case nginx.Deny:
		return false
	case nginx.Return:
		return t.Status < 400
	}
	return true
}

// expected reports whether the profile has this route: the route itself, if it is exact or a prefix that ends in a
// slash, or a route above it.
func (h *held) expected(l *location) bool {
	for _, p := range l.parents {
		if h.expected(&location{p, l.config, l.server, nil}) && strings.HasSuffix(p.Pattern, "/") {
			return true
		}
	}
	exact := l.Modifier == "=" || strings.HasSuffix(l.Pattern, "/") && (l.Modifier == "" || l.Modifier == "^~")
	return exact && slices.Contains(h.want.Routes, l.Pattern)
}

// asked maps the server and URI of each auth_request, as serverKey and the pattern of an exact location.
func (h *held) asked() map[string]bool {
	asked := map[string]bool{}
	h.eachAnswer(func(a answer) { asked[serverKey(a.location)+a.auth] = true })
	return asked
}

// question reports whether an internal location is the target of an auth_request, which routesGate checks.
func (a answer) question(asked map[string]bool) bool {
	return a.Internal && a.Modifier == "=" && a.when == "" && a.target.Kind == nginx.Proxy && asked[serverKey(a.location)+a.Pattern]
}

// routesUnexpected treats internal locations as reachable: an error_page, try_files or index may lead there, and so may
// an upstream by X-Accel-Redirect. The target of auth_request sends no body to the client, and a text without variables
// reveals nothing about the request or the programs.
func routesUnexpected(h *held) {
	asked := h.asked()
	h.eachAnswer(func(a answer) {
		switch {
		case a.named():
			h.reportFinding(a.name(), a.at, "the named location %s %s: others lead to it", a.name(), describeAction(a.target))
		case !answers(a.target) || h.expected(a.location) || a.question(asked):
		case a.Internal && a.target.Kind == nginx.Return && a.target.Status == 200 && !strings.Contains(a.target.Value, "$"):
		case a.Internal:
			h.reportFinding(a.name(), a.at, "the internal location %s %s: an error page, a try_files or the server behind a route leads there", a.name(), describeAction(a.target))
		case slices.Contains(h.want.Routes, a.Pattern):
			h.reportFinding(a.name(), a.at, "the route %s is no exact one: it answers every path that starts so, too", a.name())
		default:
			h.reportFinding(a.name(), a.at, "the route %s answers: it %s", a.name(), describeAction(a.target))
		}
	})
}

// describeAction describes a target's action, for a sentence.
func describeAction(t nginx.Target) string {
	switch t.Kind {
	case nginx.Proxy:
		return "leads to " + t.Value
	case nginx.Static:
		return "serves files of " + t.Value
	case nginx.Return, nginx.Redirect:
		return strings.TrimSpace(fmt.Sprintf("answers %d %s", t.Status, t.Value))
	case nginx.Rewrite:
		return "goes on as " + t.Value
	case nginx.Deny:
		return "refuses"
	case nginx.Handler:
		return "is answered by nginx's " + t.Value
	}
	return strings.TrimSpace("does something else " + t.Kind + " " + t.Value)
}

func serverName(s *nginx.Server) string {
	var listen []string
	for _, l := range s.Listen {
		listen = append(listen, l.Value)
	}
	return strings.TrimSpace(strings.Join(listen, ",") + " " + strings.Join(s.Names, " "))
}

func routesMissing(h *held) {
	if len(h.Surface.Nginx) == 0 && len(h.want.Routes) > 0 {
		h.reportFinding("", nil, "no nginx is seen to start, so no route answers")
	}
	there := map[*nginx.Config]map[string]bool{}
	h.eachAnswer(func(a answer) {
		if there[a.config] == nil {
			there[a.config] = map[string]bool{}
		}
		if !a.Internal && answers(a.target) && h.expected(a.location) {
			there[a.config][a.Pattern] = true
		}
	})
	for i := range h.Surface.Nginx {
		c := &h.Surface.Nginx[i]
		for _, want := range h.want.Routes {
			if !there[c][want] {
				h.reportFinding(want, h.at(c.Path), "the route %s does not answer", want)
			}
		}
	}
}

// assets lists the file endings that a location without a key may serve, below one that asks for it.
var assets = lazyregexp.New(`\\\.\(\?:([a-z0-9?|]+)\)(\\z|\$)$`)

func routesAuth(h *held) {
	asked := h.asked()
	h.eachAnswer(func(a answer) {
		if a.auth != "" || !answers(a.target) || a.question(asked) {
			return
		}
		switch a.target.Kind {
		case nginx.Return, nginx.Redirect, nginx.Rewrite: // their targets ask; they have no content of their own
			return
		case nginx.Static:
			if n := len(a.parents); n > 0 && a.Modifier == "~" && assets.MatchString(a.Pattern) && a.parents[n-1].Auth != "" {
				return
			}
		}
		h.reportFinding(a.name(), a.at, "the route %s %s and asks nobody", a.name(), describeAction(a.target))
	})
}

func serverKey(l *location) string {
	return l.config.Path + "\x00" + l.config.Variant + "\x00" + l.server.Place.String() + "\x00" + serverName(l.server) + "\x00"
}

// isGate reports whether a target is browser-shell's answer to auth_request (server/gate): no other path or program may
// decide about access.
func isGate(t nginx.Target) bool {
	return strings.HasSuffix(t.Value, "/auth") && len(t.Addresses) > 0 &&
		!slices.ContainsFunc(t.Addresses, func(to string) bool { return !strings.HasPrefix(to, "unix:/") || path.Base(to) != "gate.sock" })
}

func routesGate(h *held) {
	h.eachAnswer(func(a answer) {
		if a.auth == "" {
			return
		}
		gate := a.server.Match(a.auth)
		if strings.Contains(a.auth, "$") || gate == nil {
			h.reportFinding(a.name(), a.at, "the route %s asks %s, and no location answers that", a.name(), a.auth)
			return
		}
		both := append(slices.Clip(a.at), gate.Place)
		switch {
		case gate.Target.Kind != nginx.Proxy:
			h.reportFinding(a.name(), both, "the route %s asks %s, which %s by itself", a.name(), a.auth, describeAction(gate.Target))
		case !gate.Internal || gate.Modifier != "=":
			h.reportFinding(a.name(), both, "the route %s asks %s, which is no exact internal location", a.name(), a.auth)
		case !isGate(gate.Target):
			h.reportFinding(a.name(), both, "the route %s asks %s, which %s: that is not the gate", a.name(), a.auth, describeAction(gate.Target))
		case gate.Auth != "":
			h.reportFinding(a.name(), both, "the route %s asks %s, which asks %s again", a.name(), a.auth, gate.Auth)
		case len(gate.Cases) > 0:
			h.reportFinding(a.name(), both, "the route %s asks %s, which answers otherwise %s", a.name(), a.auth, gate.Cases[0].When)
		}
	})
}

func routesUpstream(h *held) {
	h.eachAnswer(func(a answer) {
		byQuery := withQuery.MatchString(strings.Join(a.target.Chosen, " ")) // covered by nginx-auth-by-request-uri
		if a.target.Kind == nginx.Proxy || a.target.Kind == nginx.Rewrite && !byQuery {
			for _, part := range a.target.Chosen {
				h.reportFinding(a.name(), a.at, "the route %s leads to %s, and %s chooses where", a.name(), a.target.Value, part)
			}
		}
		if a.target.Kind != nginx.Proxy {
			return
		}
		if len(a.target.Addresses) == 0 && len(a.target.Chosen) == 0 {
			h.reportFinding(a.name(), a.at, "the route %s leads to %s, and it is not known where that is", a.name(), a.target.Value)
		}
		for _, to := range a.target.Addresses {
			if !h.isFull() && !hasAddress(h.want.Upstreams, to) {
				h.reportFinding(a.name(), a.at, "the route %s leads to %s", a.name(), to)
			}
		}
	})
}

// unserved lists directories with private content.
var unserved = lazyregexp.New(`^/($|(etc|root|home|run|var|proc|sys|dev|tmp|usr|bin|sbin|lib|output|opt/gem|opt/agent-browser)(/|$)|opt/?$)`)

func routesStatic(h *held) {
	h.eachAnswer(func(a answer) {
		if a.target.Kind != nginx.Static {
			return
		}
		dir := a.target.Value
		switch {
		case strings.Contains(dir, "$"):
			h.reportFinding(a.name(), a.at, "the route %s serves %s, which the request chooses", a.name(), dir)
		case !path.IsAbs(dir) || unserved.MatchString(path.Clean(dir)):
			h.reportFinding(a.name(), a.at, "the route %s serves files of %s", a.name(), dir)
		case a.target.Escapes || a.Modifier != "=" && !a.regex() && strings.HasSuffix(a.Pattern, "/") != strings.HasSuffix(dir, "/"):
			h.reportFinding(a.name(), a.at, "the route %s serves %s: only one of them ends in /", a.name(), dir)
		default:
			if e, ok := h.Files.Stat(dir); ok && unserved.MatchString(e.Path) {
				h.reportFinding(a.name(), a.at, "the route %s serves %s, which is %s", a.name(), dir, e.Path)
			}
		}
	})
}
