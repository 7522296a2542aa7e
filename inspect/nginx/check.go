package nginx

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect/nginx/conf"
	"github.com/slimctl/slimctl/inspect/nginx/pcre"
)

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
func (s *model) checkVariables(v *variables, block []*conf.Statement) {
	for _, st := range block {
		var exprs []string
		if from, ok := evaluated[st.Name()]; ok && from < len(st.Words) {
			exprs = st.Words[from:]
		}
		switch st.Name() {
		case "rewrite":
			exprs = st.Words[min(2, len(st.Words)):min(3, len(st.Words))]
		case "if":
			for i, w := range st.Words[1:] {
				if op := st.Words[i]; !strings.HasSuffix(op, "~") && !strings.HasSuffix(op, "~*") { // not a regular expression
					exprs = append(exprs, strings.Trim(w, "()"))
				}
			}
		case "map":
			exprs = slices.Clone(st.Words[1:min(2, len(st.Words))])
			for _, e := range st.Block {
				exprs = append(exprs, e.Words[1:]...)
			}
		case "split_clients", "geo":
			exprs = st.Words[1:max(1, len(st.Words)-1)]
		case "log_format":
			exprs = st.Words[min(2, len(st.Words)):]
		}
		for _, e := range exprs {
			if !strings.Contains(e, "$") {
				continue
			}
			segments, err := split(e)
			if err != nil {
				s.Note(st, "%v in %q: nginx would not start", err, conf.Cut(e))
			}
			for _, g := range segments {
				if g.name != "" && !isCapture(g.name) && v.of[g.name] == nil && !v.unfilled[g.name] && !conf.KnownVariable(g.name) {
					s.Note(st, "unknown %q variable: nginx would not start", conf.Cut(g.name))
				}
			}
		}
		if !st.HoldsValues() {
			s.checkVariables(v, st.Block)
		}
	}
}

// checkLocations notes what nginx refuses about locations (ngx_http_core_location, ngx_http_join_exact_locations).
func (s *model) checkLocations(locations []Location, parent *Location) {
	seen := map[string]bool{}
	for i := range locations {
		l := &locations[i]
		note := func(format string, args ...any) { s.NoteAt(l.Place, format+": nginx would not start", args...) }
		if key := fmt.Sprint(l.Modifier == "=", l.Pattern); l.Modifier == "" || l.Modifier == "=" || l.Modifier == "^~" {
			if seen[key] {
				note("duplicate location %q", conf.Cut(l.Pattern))
			}
			seen[key] = true
		}
		if parent != nil {
			switch {
			case parent.Modifier == "=" || parent.Modifier == "@":
				note("location %q cannot be inside of %q", conf.Cut(l.Pattern), conf.Cut(parent.Path()))
			case l.Modifier == "@":
				note("named location %q can be on the server level only", conf.Cut(l.Pattern))
			case !l.isRegexp() && !strings.HasPrefix(l.Pattern, parent.Pattern):
				note("location %q is outside of %q", conf.Cut(l.Pattern), conf.Cut(parent.Path()))
			}
		}
		if l.isRegexp() {
			if _, err := pcre.Compile(l.Pattern, l.Modifier == "~*"); err != nil {
				s.NoteAt(l.Place, "the regular expression %q is not understood, so what it matches is not known: %v", conf.Cut(l.Pattern), err)
			}
		}
		s.checkLocations(l.Locations, l)
	}
}

// checkListeners notes what nginx refuses about listeners, and settles who is the default server.
func (s *model) checkListeners(servers []Server) {
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
				s.NoteAt(l.Place, "a duplicate listen %s: nginx would not start", conf.Cut(l.Value))
			}
			own[key] = true
			set := slices.ContainsFunc(l.Options, func(o string) bool {
				name, _, _ := strings.Cut(o, "=")
				return slices.Contains([]string{
					"bind", "setfib", "fastopen", "backlog", "rcvbuf", "sndbuf", "deferred", "ipv6only", "reuseport", "so_keepalive", "multipath",
				}, name)
			})
			if set && at.set {
				s.NoteAt(l.Place, "duplicate listen options for %s: nginx would not start", conf.Cut(l.Value))
			}
			at.set = at.set || set
			if l.Default {
				if at.byName {
					s.NoteAt(l.Place, "a duplicate default server for %s: nginx would not start", conf.Cut(l.Value))
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
