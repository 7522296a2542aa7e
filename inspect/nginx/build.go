package nginx

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// model is a Config under construction.
type model struct {
	*conf.Config
	config *Config
	cases  int
}

// meaning interprets a configuration that was read.
func meaning(c *conf.Config) *Config {
	s := &model{Config: c, config: &Config{Path: c.Path, Variant: c.Variant, Files: c.Files, Includes: c.Includes, Upstreams: map[string][]string{}}}
	s.build(c.Block)
	s.config.Notes = c.Notes
	return s.config
}

// build fills the configuration from the statements of the main file. A panic, which would be a bug of this package,
// becomes a Note.
func (s *model) build(block []*conf.Statement) {
	defer func() {
		if r := recover(); r != nil {
			s.Notes = append(s.Notes, tree.Note{Place: tree.Place{Path: s.Path}, Text: fmt.Sprintf("the configuration can't be read: %v", r)})
		}
	}()
	if user := conf.Only(block, "user"); len(user) > 0 {
		s.config.User, s.config.Group = user[0].Arg(1), user[0].Arg(2)
	}
	for _, st := range block {
		if !st.IsBlock {
			continue
		}
		switch st.Name() {
		case "http":
			s.part("", st)
		case Stream, Mail:
			s.part(st.Name(), st)
		}
	}
	setDefaults(s.config.Servers)
	for i := range s.config.Servers {
		s.checkLocations(s.config.Servers[i].Locations)
	}
}

// builder builds the servers of http, stream or mail.
type builder struct {
	*model
	*variables
	protocol   string
	upstreams  map[string][]string
	everywhere []string // the addresses of all upstreams, up to one beyond the listed number
	locations  int
	listens    int
	scopes     []scope // of each location of the server, in the order of eachLocation
}

func (s *model) part(protocol string, st *conf.Statement) {
	b := &builder{
		model: s, protocol: protocol, upstreams: map[string][]string{},
		variables: &variables{of: map[string]*variable{}, unfilled: s.Unfilled, uses: map[string][]string{}},
	}
	b.collect(st.Block)
	s.checkVariables(b.variables, st.Block)
	for _, u := range conf.Only(st.Block, "upstream") {
		name := strings.ToLower(u.Arg(1))
		addresses := []string{}
		for _, server := range conf.Only(u.Block, "server") {
			addresses = append(addresses, withPort(server.Arg(1), 80))
		}
		if len(addresses) > maxValues {
			s.Note(u, "upstream %q has more than %d servers: only these are listed", conf.Cut(name), maxValues)
			addresses = addresses[:maxValues]
		}
		b.upstreams[name] = addresses
		if name = u.Arg(1); protocol != "" {
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
	http.enter(st.Block)
	for _, server := range conf.Only(st.Block, "server") {
		switch {
		case !server.IsBlock:
		case protocol == "":
			s.config.Servers = append(s.config.Servers, b.server(server, http))
		default:
			s.config.Servers = append(s.config.Servers, b.plainServer(server))
		}
	}
	b.maps(st.Block)
}

func (b *builder) maps(block []*conf.Statement) {
	for _, st := range conf.Only(block, "map") {
		m := Map{Source: st.Arg(1), Variable: st.Arg(2), Values: map[string]string{}, Place: b.Place(st)}
		for _, e := range st.Block {
			if len(e.Words) != 2 {
				continue
			}
			m.Keys = append(m.Keys, e.Name())
			m.Values[e.Name()] = e.Arg(1)
		}
		m.Parts = b.parts(m.Variable, nil)
		m.Decides = slices.Sorted(slices.Values(b.uses[strings.ToLower(strings.TrimPrefix(m.Variable, "$"))]))
		b.config.Maps = append(b.config.Maps, m)
	}
}

// scope holds the inherited directives in a block.
type scope struct {
	root   string
	alias  bool
	auth   string
	basic  string
	access []string
	errors []*conf.Statement
	regex  []string // possible sources of $1 to $9
}

// enter adds a block's own directives. Their order doesn't matter.
func (c *scope) enter(block []*conf.Statement) {
	var access []string
	var errors, inIf []*conf.Statement
	for _, st := range block {
		switch st.Name() {
		case "root", "alias":
			c.root, c.alias = st.Arg(1), st.Name() == "alias"
		case "auth_request":
			if c.auth = st.Arg(1); c.auth == "off" {
				c.auth = ""
			}
		case "auth_basic":
			if c.basic = st.Arg(1); c.basic == "off" {
				c.basic = ""
			}
		case "allow", "deny":
			access = append(access, st.String())
		case "error_page":
			errors = append(errors, st)
		case "if":
			inIf = append(inIf, conf.Only(st.Block, "error_page")...)
		}
	}
	if access != nil {
		c.access = access
	}
	if errors != nil {
		c.errors = errors
	}
	c.errors = append(slices.Clip(c.errors), inIf...)
}

// denied reports whether the access rules refuse everybody.
func (c *scope) denied() bool {
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

func (b *builder) server(st *conf.Statement, http scope) Server {
	s := Server{Place: b.Place(st), Locations: []Location{}}
	b.listeners(&s, st)
	for _, n := range conf.Only(st.Block, "server_name") {
		s.Names = append(s.Names, n.Words[1:]...)
	}
	own := http
	own.enter(st.Block)
	for _, name := range s.Names {
		if strings.EqualFold(name, "$hostname") {
			b.Note(st, "the server_name $hostname is known at run time only")
		}
		if strings.HasPrefix(name, "~") && strings.Contains(name, "(") && own.regex == nil {
			own.regex = []string{"server_name"}
		}
	}
	for _, m := range conf.Only(st.Block, "merge_slashes") {
		s.KeepSlashes = strings.EqualFold(m.Arg(1), "off")
	}
	p := b.phase(st.Block, own)
	s.Cases = p.cases
	if p.end != nil && len(p.escapes) == 0 && len(p.cases) == 0 {
		s.Direct = p.end
	} else if p.end != nil {
		s.Cases = append(s.Cases, Case{When: "otherwise", Target: *p.end, Place: p.at})
	}
	b.scopes = nil
	for _, l := range conf.Only(st.Block, "location") {
		s.Locations = b.addLocation(s.Locations, l, own)
	}
	if !slices.ContainsFunc(s.Locations, func(l Location) bool {
		return (l.Modifier == "" || l.Modifier == "^~") && (l.Pattern == "/" || l.Pattern == "")
	}) {
		l := Location{Place: b.Place(st)}
		b.scopes = append(b.scopes, own)
		b.content(&l, st.Block, own, phase{})
		s.Unmatched = &l
	}
	b.errorPages(&s, own)
	b.openGates(&s)
	return s
}

// plainServer reads a server of stream or mail.
func (b *builder) plainServer(st *conf.Statement) Server {
	s := Server{Protocol: b.protocol, Place: b.Place(st), Locations: []Location{}, Direct: &Target{Kind: Handler, Value: b.protocol}}
	b.listeners(&s, st)
	for _, n := range conf.Only(st.Block, "server_name") {
		s.Names = append(s.Names, n.Words[1:]...)
	}
	b.Note(st, "what this server of %s {} does is not followed", b.protocol)
	return s
}
