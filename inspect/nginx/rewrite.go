package nginx

import (
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// phase is the result of the rewrite module's directives in a block, in their order.
type phase struct {
	end     *Target // the end of every request outside the cases; nil if it continues to the content
	at      tree.Place
	cases   []Case
	escapes []ifBlock // conditions under which a request continues to the content before end
	ifs     []ifBlock
	cooked  bool // nginx has set the path or its arguments; they aren't the client's any more
}

type ifBlock struct {
	when  string
	block []*conf.Statement
}

// always lists regular expressions that match every path.
var always = []string{"^", "", ".*", "^.*", "^/", "/", "^(.*)$", "(.*)", "^(.*)", "^/(.*)$", "^/(.*)", "^.*$", "^/.*$", "^/.*"}

// phase evaluates the rewrite directives of a server or location.
func (b *builder) phase(block []*conf.Statement, own scope) phase {
	var p phase
	var moved *Case // by a rewrite without a flag: used if nothing else ends the phase
	b.steps(&p, &moved, block, own, "")
	switch {
	case moved == nil, p.end != nil && len(p.escapes) == 0:
	case p.end == nil && moved.When == "":
		p.end, p.at = &moved.Target, moved.Place
	default:
		p.cases = append(p.cases, *moved)
	}
	return p
}

// steps evaluates the directives of a block under a condition; an empty condition is always true.
func (b *builder) steps(p *phase, moved **Case, block []*conf.Statement, own scope, when string) {
	end := func(st *conf.Statement, t Target, when string) {
		if when == "" {
			p.end, p.at = &t, b.Place(st)
		} else {
			p.cases = append(p.cases, Case{When: when, Target: t, Place: b.Place(st)})
		}
	}
	for _, st := range block {
		switch st.Name() {
		case "set":
			if when == "" && strings.EqualFold(st.Arg(1), "$args") {
				p.cooked = true
			}
		case "return":
			end(st, b.returned(st), when)
			return
		case "break":
			if when != "" {
				p.escapes = append(p.escapes, ifBlock{when, block})
			}
			return
		case "rewrite":
			if len(st.Words) < 3 {
				continue
			}
			matches := slices.Contains(always, st.Arg(1))
			cond := when
			if !matches {
				cond = strings.TrimSpace(when + " rewrite " + st.Arg(1))
			}
			flag := st.Arg(3)
			t := b.rewriteTo(st.Arg(2), append(slices.Clone(own.regex), "rewrite"))
			if flag == "redirect" || flag == "permanent" {
				t.Kind, t.Status, t.Addresses = Redirect, 302, nil
				if flag == "permanent" {
					t.Status = 301
				}
			}
			switch {
			case t.Kind == Redirect || flag == "last":
				if end(st, t, cond); matches {
					return
				}
			case flag == "break":
				if cond == "" {
					p.cooked, *moved = true, nil
				} else {
					p.escapes = append(p.escapes, ifBlock{cond, block})
				}
				if matches {
					return
				}
			default:
				if *moved == nil || cond == "" {
					*moved = &Case{When: cond, Target: t, Place: b.Place(st)}
				} else {
					p.cases = append(p.cases, Case{When: cond, Target: t, Place: b.Place(st)})
				}
			}
		case "if":
			for _, w := range st.Words[1:] {
				if strings.Contains(w, "$") {
					b.use(strings.Trim(w, "()"), "if")
				}
			}
			cond := strings.TrimSpace(when + " " + st.Brief())
			p.ifs = append(p.ifs, ifBlock{cond, st.Block})
			b.steps(p, moved, st.Block, own, cond)
		}
	}
}

// returned returns the target of a return directive (ngx_http_rewrite_return).
func (b *builder) returned(st *conf.Statement) Target {
	code, value := number(st.Arg(1)), st.Arg(2)
	if code < 0 || len(st.Arg(1)) > 4 {
		code, value = 302, st.Arg(1)
		if !strings.HasPrefix(value, "http://") && !strings.HasPrefix(value, "https://") && !strings.HasPrefix(value, "$scheme") {
			b.Note(st, "invalid return code %q: nginx would not start", conf.Cut(value))
		}
	}
	switch code {
	case 301, 302, 303, 307, 308:
		return Target{Kind: Redirect, Status: code, Value: value}
	}
	return Target{Kind: Return, Status: code, Value: value}
}
