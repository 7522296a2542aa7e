package conf

import (
	"errors"
	"io"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"

	"github.com/slimctl/slimctl/image/tree"
)

// noteUnknown notes directives with unknown effect: code, modules, and those that nginx itself lacks. crossplane has
// the tables.
func (s *source) noteUnknown(block []*Statement) {
	for _, st := range block {
		s.checkName(st)
		if !st.HoldsValues() {
			s.noteUnknown(st.Block)
		}
	}
}

// known reports whether nginx itself has the directive.
func known(name string) bool {
	_, latest := crossplane.MatchOssLatest(name)
	_, old := crossplane.MatchOss124(name)
	return latest || old
}

// notFollowed lists directives that change the answer or the access. Neither the base nor a closed image has one.
var notFollowed = strings.Fields(`mirror add_before_body add_after_body post_action dav_methods satisfy stub_status empty_gif
	random_index api status hls f4f upstream_conf grpc_pass fastcgi_pass uwsgi_pass scgi_pass memcached_pass geo split_clients`)

// isElsewhere reports whether a name of index or try_files may lead to a file other than the path's, or to a location.
func isElsewhere(word string) bool {
	rest := strings.NewReplacer("$uri", "", "${uri}", "", "$document_uri", "").Replace(word)
	return strings.Contains(rest, "$") || strings.HasPrefix(word, "/")
}

func (s *source) checkName(st *Statement) {
	name := st.Name()
	switch {
	case name == "load_module":
		s.Note(st, "%s: what a module does is not known", st)
	case strings.HasPrefix(name, "perl"), name == "ssi" && st.Arg(1) != "off":
		s.Note(st, "%s: code decides what is answered", st.Brief())
	case slices.Contains(notFollowed, name) && st.Arg(1) != "off" && st.String() != "satisfy all",
		name == "index" && slices.ContainsFunc(st.Words[1:], isElsewhere),
		name == "try_files" && len(st.Words) > 2 && slices.ContainsFunc(st.Words[1:len(st.Words)-1], isElsewhere):
		s.Note(st, "%s: what answers by it, or whom it lets in, is not followed", st.Brief())
	case known(name):
	case strings.HasPrefix(name, "js_") || strings.Contains(name, "_by_lua") || strings.HasPrefix(name, "lua_"):
		s.Note(st, "%s: code decides what is answered; it is not read", st.Brief())
	default:
		s.Note(st, "%q is no directive of nginx itself; what a module makes of it is not known", Cut(name))
	}
}

// flat lists arguments that are checked only by number and first letters.
var flat = strings.NewReplacer(`"`, "'", `\`, "/", "\n", " ", "\r", " ")

// lint notes directives that nginx doesn't accept at their place, or with their arguments: crossplane parses the
// statements again, one per line.
func (s *source) lint() {
	var text strings.Builder
	var lines []*Statement
	var write func(block []*Statement)
	write = func(block []*Statement) {
		for _, st := range block {
			lines = append(lines, st)
			for _, w := range st.Words {
				text.WriteString(`"` + flat.Replace(w) + `" `)
			}
			if !st.IsBlock {
				text.WriteString(";\n")
				continue
			}
			text.WriteString("{\n")
			write(st.Block)
			lines = append(lines, st)
			text.WriteString("}\n")
		}
	}
	write(s.Block)
	payload, err := crossplane.Parse(s.main, &crossplane.ParseOptions{
		Open:             func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text.String())), nil },
		SingleFile:       true,
		DirectiveSources: []crossplane.MatchFunc{crossplane.MatchOssLatest, crossplane.MatchOss124},
	})
	if err != nil {
		s.NoteAt(tree.Place{Path: s.main}, "%v: nginx would not start", err)
		return
	}
	for _, e := range payload.Errors {
		what := (*crossplane.ParseError)(nil)
		if errors.As(e.Error, &what) && e.Line != nil && 0 < *e.Line && *e.Line <= len(lines) {
			s.Note(lines[*e.Line-1], "%s: nginx would not start", Cut(what.What))
		}
	}
}
