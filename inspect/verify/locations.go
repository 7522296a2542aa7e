package verify

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx"
)

// location is a location with its server and outer locations.
type location struct {
	*nginx.Location
	server  *nginx.Server
	parents []*nginx.Location // outermost first
	// key identifies the configuration, see configKey.
	key string
}

// The patterns for a server block's own directives, and for requests without a location.
const (
	wholeServer = "(server)"
	noLocation  = "(no location)"
)

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
func (a answer) name() string { return strings.TrimSpace(a.location.name() + " " + a.when) }

// configKey identifies the configuration i, of which there may be several with one main file.
func (h *held) configKey(i int) string { return h.Surface.Nginx[i].Path + "\x00" + strconv.Itoa(i) }

// eachAnswer visits every end: of each location and its cases, of a server's directives before any location, and of
// requests without a location.
func (h *held) eachAnswer(visit func(a answer)) {
	ends := func(l *location) {
		visit(answer{l, "", l.Target, l.Auth, []tree.Place{l.Place}})
		for _, c := range l.Cases {
			visit(answer{l, c.When, c.Target, c.Auth, []tree.Place{c.Place}})
		}
	}
	for i := range h.Surface.Nginx {
		for j := range h.Surface.Nginx[i].Servers {
			s, key := &h.Surface.Nginx[i].Servers[j], h.configKey(i)
			all := &location{&nginx.Location{Pattern: wholeServer, Place: s.Place, Cases: s.Cases, Target: nginx.Target{Kind: nginx.Deny}}, s, nil, key}
			if s.Direct != nil {
				all.Target = *s.Direct
			}
			ends(all)
			if s.Unmatched != nil {
				none := *s.Unmatched
				none.Modifier, none.Pattern = "", noLocation
				ends(&location{&none, s, nil, key})
			}
			var walk func(locations []nginx.Location, parents []*nginx.Location)
			walk = func(locations []nginx.Location, parents []*nginx.Location) {
				for i := range locations {
					ends(&location{&locations[i], s, parents, key})
					walk(locations[i].Locations, append(slices.Clip(parents), &locations[i]))
				}
			}
			walk(s.Locations, nil)
		}
	}
}

// answers reports whether the end may be something other than a refusal.
func answers(t nginx.Target) bool {
	return t.Kind != nginx.Deny && (t.Kind != nginx.Return || t.Status < 400)
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

// question identifies the target of an auth_request: a server and the pattern of an exact location.
type question struct {
	server *nginx.Server
	uri    string
}

// asked returns the targets of all auth_requests.
func (h *held) asked() map[question]bool {
	asked := map[question]bool{}
	h.eachAnswer(func(a answer) { asked[question{a.server, a.auth}] = true })
	return asked
}

// isQuestion reports whether an internal location is the target of an auth_request, which checkGate checks.
func (a answer) isQuestion(asked map[question]bool) bool {
	return a.Internal && a.Modifier == "=" && a.when == "" && a.target.Kind == nginx.Proxy && asked[question{a.server, a.Pattern}]
}

// pageAssets matches the file endings that a location without a key may serve, below one that asks for it.
var pageAssets = regexp.MustCompile(`\\\.\(\?:([a-z0-9?|]+)\)(\\z|\$)$`)

// checkGate checks that every answer but a redirect, a text of nginx's own and a page's public assets asks the gate, and
// that it is the gate which is asked.
func checkGate(h *held) {
	asked := h.asked()
	h.eachAnswer(func(a answer) {
		switch n := len(a.parents); {
		case a.auth != "":
			h.checkQuestion(a)
		case !answers(a.target) || a.isQuestion(asked):
		case a.target.Kind == nginx.Return || a.target.Kind == nginx.Redirect || a.target.Kind == nginx.Rewrite: // their targets ask
		case a.target.Kind == nginx.Static && n > 0 && a.Modifier == "~" && pageAssets.MatchString(a.Pattern) && a.parents[n-1].Auth != "":
		default:
			h.reportFinding(a.name(), a.at, "the route %s %s and asks nobody", a.name(), describeAction(a.target))
		}
	})
	for _, c := range h.Surface.Nginx {
		for _, s := range c.Servers {
			if s.Protocol != "" {
				h.reportFinding(s.Protocol, []tree.Place{s.Place}, "a server of %s {} hands on every byte and asks nobody", s.Protocol)
			}
		}
	}
}

// checkQuestion checks the location that an auth_request names.
func (h *held) checkQuestion(a answer) {
	i := slices.IndexFunc(a.server.Locations, func(l nginx.Location) bool { return l.Modifier == "=" && l.Pattern == a.auth })
	if i < 0 {
		h.reportFinding(a.name(), a.at, "the route %s asks %s, and no exact location answers that", a.name(), a.auth)
		return
	}
	gate := a.server.Locations[i]
	both := append(slices.Clip(a.at), gate.Place)
	switch {
	case gate.Target.Kind != nginx.Proxy:
		h.reportFinding(a.name(), both, "the route %s asks %s, which %s by itself", a.name(), a.auth, describeAction(gate.Target))
	case !gate.Internal:
		h.reportFinding(a.name(), both, "the route %s asks %s, which is not internal", a.name(), a.auth)
	case !isGate(gate.Target):
		h.reportFinding(a.name(), both, "the route %s asks %s, which %s: that is not the gate", a.name(), a.auth, describeAction(gate.Target))
	case gate.Auth != "":
		h.reportFinding(a.name(), both, "the route %s asks %s, which asks %s again", a.name(), a.auth, gate.Auth)
	case len(gate.Cases) > 0:
		h.reportFinding(a.name(), both, "the route %s asks %s, which answers otherwise %s", a.name(), a.auth, gate.Cases[0].When)
	}
}

// isGate reports whether a target is browser-shell's answer to auth_request (server/gate): no other path or program may
// decide about access.
func isGate(t nginx.Target) bool {
	return strings.HasSuffix(t.Value, "/auth") && len(t.Addresses) > 0 &&
		!slices.ContainsFunc(t.Addresses, func(to string) bool { return !strings.HasPrefix(to, "unix:/") || path.Base(to) != "gate.sock" })
}
