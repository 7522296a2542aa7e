package conf

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// contexts are the blocks in which crossplane knows what may stand, with what a block needs to be one.
var contexts = map[string]string{
	"": "", "events": "events {", "mail": "mail {", "mail server": "mail { server {", "stream": "stream {", "stream server": "stream { server {",
	"stream upstream": "stream { upstream x {", "http": "http {", "http upstream": "http { upstream x {", "http server": "http { server {",
	"http server if": "http { server { if (x) {", "http location": "http { server { location x {",
	"http location if": "http { server { location x { if (x) {", "http location limit_except": "http { server { location x { limit_except x {",
}

// A statement that ask writes has fewer words. Upstream's 2,048 take 100 kB each time.
func init() { crossplane.SetTokenChanCap(64) }

// check notes directives that nginx doesn't have, or not there, or not with such arguments. crossplane has the tables.
func (s *source) check(block []*Statement) { s.checkIn(block, "", map[string]string{}) }

func (s *source) checkIn(block []*Statement, context string, answers map[string]string) {
	for _, st := range block {
		s.checkName(st)
		if open, ok := contexts[context]; ok && known(st.Name()) {
			statement := shape(st)
			answer, asked := answers[open+statement]
			if !asked {
				answer = ask(open, statement)
				answers[open+statement] = answer
			}
			if strings.HasPrefix(answer, "invalid value ") { // it quotes a word of ours
				answer = fmt.Sprintf("%q must be on or off", st.Name())
			}
			if answer != "" {
				s.Note(st, "%s: nginx would not start", answer)
			}
		}
		switch inner := strings.TrimSpace(context + " " + st.Name()); {
		case st.HoldsValues():
		case strings.HasPrefix(context, "http") && st.Name() == "location": // nested or not
			s.checkIn(st.Block, "http location", answers)
		default:
			s.checkIn(st.Block, inner, answers)
		}
	}
}

// shape is a statement with words that stand for its own, where only their number, parentheses, and on and off count.
func shape(st *Statement) string {
	out := st.Name()
	for _, w := range st.Words[1:min(len(st.Words), 10)] {
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
	if st.IsBlock {
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

func (s *source) checkName(st *Statement) {
	name := st.Name()
	switch {
	case name == "load_module":
		s.Note(st, "%s: what a module does is not known", st)
	case strings.HasPrefix(name, "perl"), name == "ssi" && st.Arg(1) != "off":
		s.Note(st, "%s: code decides what is answered", st.Brief())
	case known(name):
	case strings.HasPrefix(name, "js_") || strings.Contains(name, "_by_lua") || strings.HasPrefix(name, "lua_"):
		s.Note(st, "%s: code decides what is answered; it is not read", st.Brief())
	default:
		s.Note(st, "%q is no directive of nginx itself; what a module makes of it is not known", Cut(name))
	}
}

// once are directives that may stand in a block once only.
var once = []string{
	"root", "alias", "auth_request", "proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass",
	"limit_except", "satisfy", "merge_slashes", "user", "try_files", "http", "events", "stream", "mail", "pid",
}

func (s *source) checkOnce(block []*Statement) {
	first := map[string]*Statement{}
	for _, st := range block {
		group := st.Name()
		if group == "alias" {
			group = "root"
		}
		if slices.Contains(once, group) {
			if first[group] != nil {
				s.Note(st, "duplicate %q: nginx would not start", st.Name())
			}
			first[group] = st
		}
		if !st.HoldsValues() {
			s.checkOnce(st.Block)
		}
	}
}
