package nginx

import (
	"maps"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

// model fills in the configuration from the statements of the main file.
func (s *source) model(block []*statement) {
	defer s.recovered()
	s.check(block)
	s.checkOnce(block)
	if user := only(block, "user"); len(user) > 0 {
		s.config.User, s.config.Group = user[0].arg(1), user[0].arg(2)
	}
	for _, st := range block {
		if !st.isBlock {
			continue
		}
		switch st.name() {
		case "http":
			s.part("", st)
		case Stream, Mail:
			s.part(st.name(), st)
		}
	}
	if len(only(block, "events")) == 0 {
		s.noteAt(tree.Place{Path: s.main}, `no "events" section: nginx would not start`)
	}
	s.checkListeners(s.config.Servers)
	for i := range s.config.Servers {
		s.checkLocations(s.config.Servers[i].Locations, nil)
	}
}

// builder makes the servers of http, stream or mail.
type builder struct {
	*source
	*variables
	protocol   string
	upstreams  map[string][]string
	everywhere []string // the addresses of all upstreams, as many of them as are listed and one more
	locations  int
	listens    int
	scopes     []scope // of each location of the server, in the order in which eachLocation visits them
}

func (s *source) part(protocol string, st *statement) {
	b := &builder{
		source: s, protocol: protocol, upstreams: map[string][]string{},
		variables: &variables{of: map[string]*variable{}, unfilled: s.unfilled, uses: map[string][]string{}},
	}
	b.collect(st.block)
	s.checkVariables(b.variables, st.block)
	for _, u := range only(st.block, "upstream") {
		name := strings.ToLower(u.arg(1))
		if _, twice := b.upstreams[name]; twice {
			s.note(u, "duplicate upstream %q: nginx would not start", cut(name))
		}
		addresses := []string{}
		for _, server := range only(u.block, "server") {
			addresses = append(addresses, withPort(server.arg(1), 80))
		}
		if len(addresses) == 0 {
			s.note(u, "no servers are inside upstream %q: nginx would not start", cut(name))
		}
		if len(addresses) > maxValues {
			s.note(u, "upstream %q has more than %d servers: only these are listed", cut(name), maxValues)
			addresses = addresses[:maxValues]
		}
		b.upstreams[name] = addresses
		if name = u.arg(1); protocol != "" {
			name = protocol + ":" + name
		}
		s.config.Upstreams[name] = addresses
	}
	for _, name := range slices.Sorted(maps.Keys(b.upstreams)) {
		for _, a := range b.upstreams[name] {
			if len(b.everywhere) <= maxValues && !slices.Contains(b.everywhere, a) {
				b.everywhere = append(b.everywhere, a)
			}
		}
	}
	http := scope{root: "html"}
	http.enter(st.block)
	for _, server := range only(st.block, "server") {
		switch {
		case !server.isBlock:
		case protocol == "":
			s.config.Servers = append(s.config.Servers, b.server(server, http))
		default:
			s.config.Servers = append(s.config.Servers, b.plainServer(server, st.block))
		}
	}
	b.maps(st.block)
}

func (b *builder) maps(block []*statement) {
	for _, st := range only(block, "map") {
		if len(names(st.arg(2))) != 1 {
			b.note(st, "invalid variable name %q: nginx would not start", cut(st.arg(2)))
		}
		m := Map{Source: st.arg(1), Variable: st.arg(2), Values: map[string]string{}, Place: b.place(st)}
		for _, e := range st.block {
			if len(e.words) != 2 {
				if e.name() != "hostnames" && e.name() != "volatile" {
					b.note(e, "invalid number of map parameters: nginx would not start")
				}
				continue
			}
			if _, twice := m.Values[e.name()]; twice {
				b.note(e, "conflicting parameter %q: nginx would not start", cut(e.name()))
				continue
			}
			m.Keys = append(m.Keys, e.name())
			m.Values[e.name()] = e.arg(1)
		}
		m.Parts = b.parts(m.Variable, nil)
		m.Decides = slices.Sorted(slices.Values(b.uses[strings.ToLower(strings.TrimPrefix(m.Variable, "$"))]))
		b.config.Maps = append(b.config.Maps, m)
	}
}

// scope is what is in force in a block, by inheritance.
type scope struct {
	root       string
	alias      bool
	auth       string
	basic      string
	satisfyAny bool
	access     []string
	errors     []*statement
	also       []*statement // what sends the request somewhere else too, or lets it write files
	index      []*statement
	regex      []string // where $1 to $9 may come from
}

// enter adds what a block says of itself. The order of its directives doesn't matter.
func (c *scope) enter(block []*statement) {
	var access []string
	var errors, inIf, also, index []*statement
	for _, st := range block {
		switch st.name() {
		case "root", "alias":
			c.root, c.alias = st.arg(1), st.name() == "alias"
		case "auth_request":
			if c.auth = st.arg(1); c.auth == "off" {
				c.auth = ""
			}
		case "auth_basic":
			if c.basic = st.arg(1); c.basic == "off" {
				c.basic = ""
			}
		case "satisfy":
			c.satisfyAny = st.arg(1) == "any"
		case "allow", "deny":
			access = append(access, st.String())
		case "error_page":
			errors = append(errors, st)
		case "if":
			inIf = append(inIf, only(st.block, "error_page")...)
		case "mirror", "add_before_body", "add_after_body", "post_action", "dav_methods":
			also = append(also, st)
		case "index":
			index = append(index, st)
		}
	}
	if index != nil {
		c.index = index
	}
	if also != nil {
		c.also = append(slices.DeleteFunc(slices.Clone(c.also), func(old *statement) bool {
			return slices.ContainsFunc(also, func(st *statement) bool { return st.name() == old.name() })
		}), also...)
	}
	if access != nil {
		c.access = access
	}
	if errors != nil {
		c.errors = errors
	}
	c.errors = append(slices.Clip(c.errors), inIf...)
}

// denied says whether the access rules refuse everybody.
func (c *scope) denied() bool {
	if c.satisfyAny && (c.auth != "" || c.basic != "") {
		return false
	}
	for _, rule := range c.access {
		if rule == "deny all" {
			return true
		}
		if strings.HasPrefix(rule, "allow ") {
			return false
		}
	}
	return false
}

// authURI is the URI of the auth_request that everybody has to pass.
func (c *scope) authURI() string {
	if c.satisfyAny && (c.basic != "" || slices.ContainsFunc(c.access, func(rule string) bool { return strings.HasPrefix(rule, "allow ") })) {
		return ""
	}
	return c.auth
}

func (b *builder) server(st *statement, http scope) Server {
	s := Server{Place: b.place(st), Locations: []Location{}}
	b.listeners(&s, st)
	for _, n := range only(st.block, "server_name") {
		s.Names = append(s.Names, n.words[1:]...)
	}
	own := http
	own.enter(st.block)
	for _, name := range s.Names {
		b.checkServerName(st, name)
		if strings.HasPrefix(name, "~") && strings.Contains(name, "(") && own.regex == nil {
			own.regex = []string{"server_name"}
		}
	}
	for _, m := range only(st.block, "merge_slashes") {
		s.KeepSlashes = strings.EqualFold(m.arg(1), "off")
	}
	p := b.phase(st.block, own)
	s.Cases = p.cases
	if p.end != nil && len(p.escapes) == 0 && len(p.cases) == 0 {
		s.Direct = p.end
	} else if p.end != nil {
		s.Cases = append(s.Cases, Case{When: "otherwise", Target: *p.end, Place: p.at})
	}
	b.scopes = nil
	for _, l := range only(st.block, "location") {
		s.Locations = b.addLocation(s.Locations, l, own)
	}
	if !slices.ContainsFunc(s.Locations, func(l Location) bool {
		return (l.Modifier == "" || l.Modifier == "^~") && (l.Pattern == "/" || l.Pattern == "")
	}) {
		l := Location{Place: b.place(st)}
		b.scopes = append(b.scopes, own)
		b.content(&l, st.block, own, phase{})
		s.Unmatched = &l
	}
	b.errorPages(&s, own)
	b.openGates(&s)
	return s
}

// checkServerName notes names that nginx refuses, and those that are not known.
func (b *builder) checkServerName(st *statement, name string) {
	switch pattern, isRegexp := strings.CutPrefix(name, "~"); {
	case isRegexp:
		if _, err := compile(pattern, false); err != nil || pattern == "" {
			b.note(st, "the server_name %q is not understood, so what it matches is not known: %v", cut(name), err)
		}
	case strings.EqualFold(name, "$hostname"):
		b.note(st, "the server_name $hostname is known at run time only")
	case strings.Contains(name, "*") && (strings.Count(name, "*") > 1 || !strings.HasPrefix(name, "*.") && !strings.HasSuffix(name, ".*") || len(name) < 3),
		name == ".", strings.Contains(name, ".."):
		b.note(st, "invalid server name or wildcard %q: nginx would not start", cut(name))
	}
}

// plainServer reads a server of stream or mail.
func (b *builder) plainServer(st *statement, outer []*statement) Server {
	s := Server{Protocol: b.protocol, Place: b.place(st), Locations: []Location{}}
	b.listeners(&s, st)
	for _, n := range only(st.block, "server_name") {
		s.Names = append(s.Names, n.words[1:]...)
	}
	for _, d := range append(only(outer, "auth_http"), st.block...) {
		var t Target
		switch d.name() {
		case "proxy_pass":
			t = b.passTo(d, "tcp://"+d.arg(1), 0, nil)
			t.Value, t.RawURI = d.arg(1), false
		case "return":
			t = Target{Kind: Return, Status: 200, Value: d.arg(1)}
		case "auth_http":
			address, _ := b.authority(d.arg(1))
			t = Target{Kind: Proxy, Value: d.arg(1), Addresses: []string{withPort(address, 80)}}
		case "pass", "js_access", "js_preread", "js_filter":
			t = Target{Kind: Handler, Value: d.String()}
		default:
			continue
		}
		s.Direct = &t
	}
	if s.Direct == nil {
		b.note(st, "it is not known what this server of %s {} does", b.protocol)
		s.Direct = &Target{Kind: Handler, Value: b.protocol}
	}
	return s
}
