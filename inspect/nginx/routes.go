package nginx

import (
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

// Route is a location from a request's view, for lists.
type Route struct {
	// Server names the server: its listeners and names.
	Server string `json:"server"`
	// Path is modifier and pattern: "= /mcp", "/v1", "~ ^/(tickets|actions)$". Pattern is the pattern alone. The server
	// block's own answer has the path "(server)", its answers to some requests "(server) if …", and the answer without
	// a location "(no location)"; their Pattern is empty.
	Path    string `json:"path"`
	Pattern string `json:"pattern"`
	Target  Target `json:"target"`
	Auth    string `json:"auth,omitempty"`
	// Public is false if every listener of the server is on loopback.
	Public bool `json:"public"`
	// Answers is true if the answer can be other than an error (4xx, 5xx, deny, internal).
	Answers bool `json:"answers"`
	// Open is true if one of these answers requires no auth_request.
	Open  bool       `json:"open"`
	Place tree.Place `json:"place"`
	// Also lists the other ends with an answer, reached by conditions or internal redirects.
	Also []Outcome `json:"also,omitempty"`
}

// Outcome is a possible end of a request to a location, after rewrites, try_files and error pages.
type Outcome struct {
	// When lists the conditions on the way, Via the locations after the first one.
	When []string `json:"when,omitempty"`
	Via  []string `json:"via,omitempty"`
	// Target is the answer. A Rewrite has an unknown destination.
	Target Target `json:"target"`
	// Auth is the auth_request on the way; may be empty.
	Auth string `json:"auth,omitempty"`
	// Answers is true if it is not an error.
	Answers bool       `json:"answers"`
	Place   tree.Place `json:"place"`
}

// Routes returns every location of every server, nested ones included, and each server's Direct.
func (c *Config) Routes() []Route {
	var out []Route
	for i := range c.Servers {
		s := &c.Servers[i]
		f := newFollower(s)
		name, public := s.Label(), s.Public()
		add := func(r Route, ends []Outcome) {
			r.Server, r.Public = name, public
			for _, o := range ends {
				r.Answers = r.Answers || o.Answers
				r.Open = r.Open || o.Answers && o.Auth == ""
				if o.Answers && (len(o.When) > 0 || len(o.Via) > 0) {
					r.Also = append(r.Also, o)
				}
			}
			out = append(out, r)
		}
		for _, cs := range s.Cases {
			add(Route{Path: "(server) " + cs.When, Target: cs.Target, Place: cs.Place}, f.follow(cs.Target, "", cs.Place))
		}
		if s.Direct != nil {
			add(Route{Path: "(server)", Target: *s.Direct, Place: s.Place}, f.follow(*s.Direct, "", s.Place))
		}
		s.eachLocation(func(l *Location) {
			r := Route{Path: l.Path(), Pattern: l.Pattern, Target: l.Target, Auth: l.Auth, Place: l.Place}
			if l == s.Unmatched {
				r.Path = "(no location)"
			}
			var ends []Outcome
			switch {
			case !s.reached() || l.Modifier == "@":
			case l.Internal: // nginx answers 404, with the location's own error page
				inner := Location{Target: Target{Kind: Return, Status: 404}, Place: l.Place}
				for _, c := range l.Cases {
					if strings.HasPrefix(c.When, "error_page ") {
						inner.Cases = append(inner.Cases, c)
					}
				}
				ends = f.outcomes(&inner)
			default:
				ends = f.outcomes(l)
			}
			add(r, ends)
		})
	}
	return out
}

func answers(o Outcome) bool { return o.Answers }

// reached is false if the server block answers every request itself.
func (s *Server) reached() bool {
	return s.Direct == nil || s.Direct.Kind == Rewrite
}

// Label identifies the server by its listeners and names: "*:8080 [::]:8080 example.org". It lists only the first of
// very many.
func (s *Server) Label() string {
	var out []string
	for _, l := range s.Listen {
		out = append(out, l.String())
	}
	out = append(out, s.Names...)
	if len(out) > maxLabel {
		out = append(out[:maxLabel], "…")
	}
	return strings.Join(out, " ")
}

const maxLabel = 16

// String returns address and port: "*:8080", "unix:/run/x.sock". An unknown port is as written.
func (l Listen) String() string {
	switch {
	case strings.HasPrefix(l.Address, "unix:"):
		return l.Address
	case l.Port == 0:
		return l.Value
	}
	return l.Address + ":" + strconv.Itoa(l.Port)
}

// eachLocation visits every location, nested ones after their outer one, and finally Unmatched.
func (s *Server) eachLocation(visit func(*Location)) {
	var walk func(locations []Location)
	walk = func(locations []Location) {
		for i := range locations {
			visit(&locations[i])
			walk(locations[i].Locations)
		}
	}
	walk(s.Locations)
	if s.Unmatched != nil {
		visit(s.Unmatched)
	}
}

// Limits for following outcomes. nginx stops after 10 internal redirects (NGX_HTTP_MAX_URI_CHANGES).
const (
	maxRedirects = 10
	maxOutcomes  = 64
	maxGoals     = 2000
)

// follower follows targets of one server.
type follower struct {
	server *Server
	paths  matcher
	goals  map[string]*Location // destinations of requested URIs
	out    []Outcome
	steps  int
}

func newFollower(s *Server) *follower {
	return &follower{server: s, paths: matcher{}, goals: map[string]*Location{}}
}

func (f *follower) outcomes(l *Location) []Outcome {
	f.out, f.steps = nil, 0
	f.location(l, Outcome{}, 0, 0)
	return f.out
}

func (f *follower) follow(t Target, when string, at tree.Place) []Outcome {
	o := Outcome{Place: at}
	if when != "" {
		o.When = []string{when}
	}
	f.out, f.steps = nil, 0
	f.target(t, o, 0, 0)
	return f.out
}

func (f *follower) location(l *Location, o Outcome, status, redirects int) {
	o.Place = l.Place
	main := o
	if l.Auth != "" {
		main.Auth = l.Auth
	}
	f.target(l.Target, main, status, redirects)
	for _, c := range l.Cases {
		o := o
		o.Place = c.Place
		o.When = append(slices.Clone(o.When), c.When)
		if c.Auth != "" {
			o.Auth = c.Auth
		}
		f.target(c.Target, o, status, redirects)
	}
}

// target ends at t; status is the one set by an error_page, or 0.
func (f *follower) target(t Target, o Outcome, status, redirects int) {
	o.Target = t
	if f.steps++; f.steps > 10*maxOutcomes || len(f.out) >= maxOutcomes { // beyond the limit: the last one stands for all
		if f.steps < 1<<20 {
			o.Answers, f.steps = true, 1<<20
			f.out = append(f.out, o)
		}
		return
	}
	switch t.Kind {
	case Return:
		if status == 0 {
			status = t.Status
		}
		o.Answers = status < 400
	case Static:
		o.Answers = status < 400
	case Deny:
	case Rewrite:
		if t.Status != 0 {
			status = t.Status
		}
		goals := t.Addresses
		if len(goals) == 0 {
			goals = []string{t.Value}
		}
		for _, goal := range goals {
			next, known := f.goal(goal)
			switch {
			case !known:
				o.Answers = true
				f.out = append(f.out, o)
			case next == nil, redirects == maxRedirects: // nginx answers 500
				f.out = append(f.out, o)
			default:
				o := o
				o.Via = append(slices.Clone(o.Via), goal)
				f.location(next, o, status, redirects+1)
			}
		}
		return
	default:
		o.Answers = true
	}
	f.out = append(f.out, o)
}

// goal returns the location to which a URI or a name leads; false if that depends on the request.
func (f *follower) goal(uri string) (l *Location, known bool) {
	l, known = f.goals[uri]
	switch {
	case known:
		return l, true
	case strings.Contains(uri, "$"), len(f.goals) == maxGoals:
		return nil, false
	case strings.HasPrefix(uri, "@"):
		for i := range f.server.Locations {
			if n := &f.server.Locations[i]; n.Modifier == "@" && n.Pattern == uri {
				l = n
				break
			}
		}
	default:
		path, _, _ := strings.Cut(uri, "?")
		if l = f.paths.find(f.server.Locations, path); l == nil {
			l = f.server.Unmatched
		}
	}
	f.goals[uri] = l
	return l, true
}
