package nginx

import (
	"fmt"

	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// checkVariables notes variables unknown to nginx.
func (s *model) checkVariables(v *variables, block []*conf.Statement) {
	for _, st := range block {
		if st.Name() == "location" || st.Name() == "server_name" { // regular expressions
			s.checkVariables(v, st.Block)
			continue
		}
		for _, name := range refs(st.Words) {
			if !isCapture(name) && v.of[name] == nil && !v.unfilled[name] && !conf.KnownVariable(name) {
				s.Note(st, "unknown %q variable: nginx would not start", conf.Cut(name))
			}
		}
		s.checkVariables(v, st.Block)
	}
}

// checkLocations notes duplicate locations, which prevent nginx from starting (ngx_http_join_exact_locations), and
// those that are not understood.
func (s *model) checkLocations(locations []Location) {
	seen := map[string]bool{}
	for i := range locations {
		l := &locations[i]
		if l.isRegexp() {
			if _, err := compile(l.Pattern, l.Modifier == "~*"); err != nil {
				s.NoteAt(l.Place, "the regular expression %q is not understood, so what it matches is not known: %v", conf.Cut(l.Pattern), err)
			}
		} else if key := fmt.Sprint(l.Modifier == "=", l.Pattern); l.Modifier != "@" {
			if seen[key] {
				s.NoteAt(l.Place, "duplicate location %q: nginx would not start", conf.Cut(l.Pattern))
			}
			seen[key] = true
		}
		s.checkLocations(l.Locations)
	}
}

// setDefaults sets the default server of each socket: the one marked as such, or the first.
func setDefaults(servers []Server) {
	first := map[string]*Listen{}
	for i := range servers {
		for j := range servers[i].Listen {
			l := &servers[i].Listen[j]
			key := l.key() + " " + servers[i].Protocol
			if at := first[key]; at == nil || l.Default && !at.Default {
				first[key] = l
			}
		}
	}
	for _, l := range first {
		l.Default = true
	}
}
