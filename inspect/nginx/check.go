package nginx

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// valueBlocks are blocks that hold no directives.
var valueBlocks = []string{"map", "geo", "types", "split_clients", "charset_map", "match", "geoip2", "otel_exporter"}

// contexts are the blocks in which crossplane knows what may stand, with what a block needs to be one.
var contexts = map[string]string{
	"": "", "events": "events {", "mail": "mail {", "mail server": "mail { server {", "stream": "stream {", "stream server": "stream { server {",
	"stream upstream": "stream { upstream x {", "http": "http {", "http upstream": "http { upstream x {", "http server": "http { server {",
	"http server if": "http { server { if (x) {", "http location": "http { server { location x {",
	"http location if": "http { server { location x { if (x) {", "http location limit_except": "http { server { location x { limit_except x {",
}

// check notes directives that nginx doesn't have, or not there, or not with such arguments. crossplane has the tables.
func (s *source) check(block []*statement) { s.checkIn(block, "", map[string]string{}) }

func (s *source) checkIn(block []*statement, context string, answers map[string]string) {
	for _, st := range block {
		s.checkName(st)
		if open, ok := contexts[context]; ok && known(st.name()) {
			statement := shape(st)
			answer, asked := answers[open+statement]
			if !asked {
				answer = ask(open, statement)
				answers[open+statement] = answer
			}
			if strings.HasPrefix(answer, "invalid value ") { // it quotes a word of ours
				answer = fmt.Sprintf("%q must be on or off", st.name())
			}
			if answer != "" {
				s.note(st, "%s: nginx would not start", answer)
			}
		}
		switch inner := strings.TrimSpace(context + " " + st.name()); {
		case slices.Contains(valueBlocks, st.name()):
		case strings.HasPrefix(context, "http") && st.name() == "location": // nested or not
			s.checkIn(st.block, "http location", answers)
		default:
			s.checkIn(st.block, inner, answers)
		}
	}
}

// shape is a statement with words that stand for its own, where only their number, parentheses, and on and off count.
func shape(st *statement) string {
	out := st.name()
	for _, w := range st.words[1:min(len(st.words), 10)] {
		word := "x"
		if strings.EqualFold(w, "on") || strings.EqualFold(w, "off") {
			word = w
		}
		if strings.HasPrefix(w, "(") {
			word = "(" + word
		}
		if w != "(" && strings.HasSuffix(w, ")") {
			word += ")"
		}
		out += " " + word
	}
	if st.isBlock {
		return out + " {}"
	}
	return out + ";"
}

// ask gives what crossplane has against a statement in a block.
func ask(open, statement string) string {
	text := open + "\n" + statement + "\n" + strings.Repeat("}", strings.Count(open, "{"))
	payload, err := crossplane.Parse("nginx.conf", &crossplane.ParseOptions{
		Open:             func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil },
		Glob:             func(string) ([]string, error) { return nil, nil },
		SingleFile:       true,
		DirectiveSources: []crossplane.MatchFunc{crossplane.MatchOssLatest, crossplane.MatchOss124},
	})
	if err != nil {
		return err.Error()
	}
	for _, e := range payload.Errors {
		var at *crossplane.ParseError
		if errors.As(e.Error, &at) && e.Line != nil && *e.Line == 2 {
			return at.What
		}
	}
	return ""
}

// known says whether nginx itself has the directive.
func known(name string) bool {
	_, latest := crossplane.MatchOssLatest(name)
	_, old := crossplane.MatchOss124(name)
	return latest || old
}

func (s *source) checkName(st *statement) {
	name := st.name()
	switch {
	case name == "load_module":
		s.note(st, "%s: what a module does is not known", st)
	case strings.HasPrefix(name, "perl"), name == "ssi" && st.arg(1) != "off":
		s.note(st, "%s: code decides what is answered", st.brief())
	case known(name):
	case strings.HasPrefix(name, "js_") || strings.Contains(name, "_by_lua") || strings.HasPrefix(name, "lua_"):
		s.note(st, "%s: code decides what is answered; it is not read", st.brief())
	default:
		s.note(st, "%q is no directive of nginx itself; what a module makes of it is not known", cut(name))
	}
}

// once are directives that may stand in a block once only.
var once = []string{
	"root", "alias", "auth_request", "proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass",
	"limit_except", "satisfy", "merge_slashes", "user", "try_files", "http", "events", "stream", "mail", "pid",
}

func (s *source) checkOnce(block []*statement) {
	first := map[string]*statement{}
	for _, st := range block {
		group := st.name()
		if group == "alias" {
			group = "root"
		}
		if slices.Contains(once, group) {
			if first[group] != nil {
				s.note(st, "duplicate %q: nginx would not start", st.name())
			}
			first[group] = st
		}
		if !slices.Contains(valueBlocks, st.name()) {
			s.checkOnce(st.block)
		}
	}
}

// evaluated are the directives whose arguments, from the given one on, are expressions with variables.
var evaluated = map[string]int{
	"set": 2, "return": 1, "rewrite": 2, "proxy_pass": 1, "grpc_pass": 1, "fastcgi_pass": 1, "uwsgi_pass": 1, "scgi_pass": 1,
	"memcached_pass": 1, "proxy_set_header": 2, "grpc_set_header": 2, "proxy_method": 1, "proxy_set_body": 1,
	"proxy_cache_key": 1, "proxy_bind": 1, "proxy_ssl_name": 1, "add_header": 2, "add_trailer": 2, "root": 1, "alias": 1,
	"try_files": 1, "error_page": 1, "access_log": 1, "auth_request_set": 2, "auth_basic": 1, "auth_basic_user_file": 1,
	"sub_filter": 1, "fastcgi_param": 2, "uwsgi_param": 2, "scgi_param": 2, "limit_rate": 1, "limit_req_zone": 1,
	"limit_conn_zone": 1, "index": 1, "proxy_redirect": 1, "map": 1, "split_clients": 1, "geo": 1, "mirror": 99,
}

// checkVariables notes variables that nginx does not have.
func (s *source) checkVariables(v *variables, block []*statement) {
	for _, st := range block {
		var exprs []string
		if from, ok := evaluated[st.name()]; ok && from < len(st.words) {
			exprs = st.words[from:]
		}
		switch st.name() {
		case "rewrite":
			exprs = st.words[min(2, len(st.words)):min(3, len(st.words))]
		case "if":
			for i, w := range st.words[1:] {
				if op := st.words[i]; !strings.HasSuffix(op, "~") && !strings.HasSuffix(op, "~*") { // not a regular expression
					exprs = append(exprs, strings.Trim(w, "()"))
				}
			}
		case "map":
			exprs = slices.Clone(st.words[1:min(2, len(st.words))])
			for _, e := range st.block {
				exprs = append(exprs, e.words[1:]...)
			}
		case "split_clients", "geo":
			exprs = st.words[1:max(1, len(st.words)-1)]
		case "log_format":
			exprs = st.words[min(2, len(st.words)):]
		}
		for _, e := range exprs {
			if !strings.Contains(e, "$") {
				continue
			}
			segments, err := split(e)
			if err != nil {
				s.note(st, "%v in %q: nginx would not start", err, cut(e))
			}
			for _, g := range segments {
				if g.name != "" && !isCapture(g.name) && v.of[g.name] == nil && !v.unfilled[g.name] && !knownVariable(g.name) {
					s.note(st, "unknown %q variable: nginx would not start", cut(g.name))
				}
			}
		}
		if !slices.Contains(valueBlocks, st.name()) {
			s.checkVariables(v, st.block)
		}
	}
}

// checkLocations notes what nginx refuses about locations (ngx_http_core_location, ngx_http_join_exact_locations).
func (s *source) checkLocations(locations []Location, parent *Location) {
	seen := map[string]bool{}
	for i := range locations {
		l := &locations[i]
		note := func(format string, args ...any) { s.noteAt(l.Place, format+": nginx would not start", args...) }
		if key := fmt.Sprint(l.Modifier == "=", l.Pattern); l.Modifier == "" || l.Modifier == "=" || l.Modifier == "^~" {
			if seen[key] {
				note("duplicate location %q", cut(l.Pattern))
			}
			seen[key] = true
		}
		if parent != nil {
			switch {
			case parent.Modifier == "=" || parent.Modifier == "@":
				note("location %q cannot be inside of %q", cut(l.Pattern), cut(parent.Path()))
			case l.Modifier == "@":
				note("named location %q can be on the server level only", cut(l.Pattern))
			case !l.isRegexp() && !strings.HasPrefix(l.Pattern, parent.Pattern):
				note("location %q is outside of %q", cut(l.Pattern), cut(parent.Path()))
			}
		}
		if l.isRegexp() {
			if _, err := compile(l.Pattern, l.Modifier == "~*"); err != nil {
				s.noteAt(l.Place, "the regular expression %q is not understood, so what it matches is not known: %v", cut(l.Pattern), err)
			}
		}
		s.checkLocations(l.Locations, l)
	}
}

// checkListeners notes what nginx refuses about listeners, and settles who is the default server.
func (s *source) checkListeners(servers []Server) {
	type socket struct {
		byName bool
		first  *Listen
		set    bool
	}
	sockets := map[string]*socket{}
	for i := range servers {
		own := map[string]bool{}
		for j := range servers[i].Listen {
			l := &servers[i].Listen[j]
			key := l.key()
			if servers[i].Protocol != "" {
				key += " " + servers[i].Protocol
			}
			at := sockets[key]
			if at == nil {
				at = &socket{first: l}
				sockets[key] = at
			}
			if own[key] {
				s.noteAt(l.Place, "a duplicate listen %s: nginx would not start", cut(l.Value))
			}
			own[key] = true
			set := slices.ContainsFunc(l.Options, func(o string) bool {
				name, _, _ := strings.Cut(o, "=")
				return slices.Contains([]string{
					"bind", "setfib", "fastopen", "backlog", "rcvbuf", "sndbuf", "deferred", "ipv6only", "reuseport", "so_keepalive", "multipath",
				}, name)
			})
			if set && at.set {
				s.noteAt(l.Place, "duplicate listen options for %s: nginx would not start", cut(l.Value))
			}
			at.set = at.set || set
			if l.Default {
				if at.byName {
					s.noteAt(l.Place, "a duplicate default server for %s: nginx would not start", cut(l.Value))
					l.Default = false
				} else {
					at.byName, at.first = true, l
				}
			}
		}
	}
	for _, at := range sockets {
		at.first.Default = true
	}
}
