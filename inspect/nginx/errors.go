package nginx

import (
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// errorPages adds the error_page directives with an answer other than an error. Every code counts: a client can cause
// most of them. If one leads to a location with another, nginx may follow that, too.
func (b *builder) errorPages(s *Server, own scope) {
	for range maxRedirects {
		e := errorFollower{newFollower(s), map[string]bool{}}
		i, more := 0, false
		if s.Direct != nil || len(s.Cases) > 0 {
			s.Cases, more = b.errorCases(e, s.Cases, own, s.Place)
		}
		s.eachLocation(func(l *Location) {
			n := len(l.Cases)
			l.Cases, _ = b.errorCases(e, l.Cases, b.scopes[i], l.Place)
			more = more || len(l.Cases) > n
			i++
		})
		if !more {
			return
		}
	}
}

// errorFollower caches the error pages that answer.
type errorFollower struct {
	*follower
	known map[string]bool
}

func (e errorFollower) answers(c Case) bool {
	key := c.Target.Value + " " + strconv.Itoa(c.Target.Status)
	if _, ok := e.known[key]; !ok {
		e.known[key] = slices.ContainsFunc(e.follow(c.Target, c.When, c.Place), answers)
	}
	return e.known[key]
}

func (b *builder) errorCases(e errorFollower, cases []Case, own scope, at tree.Place) (_ []Case, more bool) {
	if len(own.errors) > maxValues {
		b.NoteAt(at, "more than %d error_page directives: only these are read", maxValues)
	}
	for _, st := range own.errors[:min(len(own.errors), maxValues)] {
		if len(st.Words) < 3 {
			continue
		}
		if b.cases > maxCases {
			break
		}
		c := Case{When: st.Brief(), Target: b.rewriteTo(st.Last(), own.regex), Place: b.Place(st)}
		if code, ok := strings.CutPrefix(st.Arg(len(st.Words)-2), "="); ok {
			c.Target.Status = max(0, number(code))
		} else if c.Target.Kind == Rewrite {
			c.Target.Status = max(0, number(st.Arg(1)))
		}
		known := slices.ContainsFunc(cases, func(old Case) bool { return old.When == c.When && old.Place == c.Place })
		if !known && e.answers(c) && b.another(at) {
			cases, more = append(cases, c), true
		}
	}
	return cases, more
}

// openGates removes an auth_request whose target nginx itself answers with 2xx: everybody passes it. nginx ignores
// access rules there.
func (b *builder) openGates(s *Server) {
	f := newFollower(s)
	open := map[string]bool{}
	check := func(uri string) string {
		if _, ok := open[uri]; uri != "" && !ok {
			if gate, known := f.goal(uri); !known {
				open[uri] = true
			} else if gate != nil {
				open[uri] = slices.ContainsFunc(f.outcomes(gate), func(o Outcome) bool {
					return o.Target.Kind == Deny || o.Answers && o.Target.Kind != Proxy && o.Target.Kind != Redirect
				})
			}
			if open[uri] {
				b.NoteAt(s.Place, "auth_request %s asks what lets everybody in", conf.Cut(uri))
			}
		}
		if open[uri] {
			return ""
		}
		return uri
	}
	s.eachLocation(func(l *Location) {
		l.Auth = check(l.Auth)
		for i := range l.Cases {
			l.Cases[i].Auth = check(l.Cases[i].Auth)
		}
	})
}
