package nginx

import (
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// Limits for the locations in http, and the cases in one configuration.
const (
	maxLocations = 2000
	maxCases     = 10_000
)

// addLocation reads a location and its nested ones.
func (b *builder) addLocation(to []Location, st *conf.Statement, outer scope) []Location {
	if b.locations++; b.locations > maxLocations {
		b.Note(st, "there are more than %d locations: only these are read", maxLocations)
		return to
	}
	l := Location{Place: b.Place(st), Pattern: st.Arg(1)}
	switch {
	case len(st.Words) == 3:
		if l.Modifier, l.Pattern = st.Arg(1), st.Arg(2); !slices.Contains([]string{"=", "^~", "~", "~*"}, l.Modifier) {
			b.Note(st, "invalid location modifier %q: nginx would not start", conf.Cut(l.Modifier))
			l.Modifier = ""
		}
	default:
		for _, modifier := range []string{"=", "^~", "~*", "~", "@"} {
			if rest, ok := strings.CutPrefix(l.Pattern, modifier); ok {
				l.Modifier = modifier
				if modifier != "@" {
					l.Pattern = rest
				}
				break
			}
		}
	}
	own := outer
	own.enter(st.Block)
	if l.isRegexp() {
		own.regex = append(slices.Clone(outer.regex), "location")
	}
	l.Internal = l.Modifier == "@" || len(conf.Only(st.Block, "internal")) > 0
	b.scopes = append(b.scopes, own)
	b.content(&l, st.Block, own, b.phase(st.Block, own))
	for i := range l.Cases {
		if !b.another(l.Place) {
			l.Cases = slices.Clone(l.Cases[:i])
			break
		}
	}
	for _, inner := range conf.Only(st.Block, "location") {
		l.Locations = b.addLocation(l.Locations, inner, own)
	}
	return append(to, l)
}

// content sets the target of a location after its rewrite phase.
func (b *builder) content(l *Location, block []*conf.Statement, own scope, p phase) {
	l.Basic, l.Access = own.basic, own.access
	if len(l.Access) > maxValues {
		b.NoteAt(l.Place, "more than %d access rules: only these are listed", maxValues)
		l.Access = l.Access[:maxValues]
	}
	b.use(own.auth, "auth")
	b.use(own.basic, "auth")
	b.use(own.root, "files")
	auth := own.auth
	handled, at := b.handler(l, block, own)
	if handled.Kind == "" {
		handled = b.files(l, own)
	}
	l.SlashRedirect = handled.Kind == Proxy && strings.HasSuffix(l.Pattern, "/") && !l.isRegexp()
	b.otherMethods(l, block, own, handled)
	handled.RawURI = handled.RawURI && !p.cooked
	if own.denied() {
		handled, auth = Target{Kind: Deny, Value: "deny all"}, ""
	}
	add := func(when string, t Target, auth string, at tree.Place) {
		l.Cases = append(l.Cases, Case{When: when, Target: t, Auth: auth, Place: at})
	}
	// After the rewrite phase a request gets the content of the if that it passed, if that has any.
	past := p.ifs
	l.Cases = append(p.cases, l.Cases...)
	if l.Target, l.Auth = handled, auth; p.end != nil {
		l.Target, l.Auth, past = *p.end, "", p.escapes
	}
	for _, inner := range past {
		t, place := b.handler(l, inner.block, own)
		switch t.RawURI = t.RawURI && !p.cooked; {
		case handled.Kind == Deny:
		case t.Kind != "":
			add(inner.when, t, auth, place)
		case p.end != nil:
			add(inner.when, handled, auth, at)
		}
	}
	if p.end == nil {
		b.tryFiles(l, block)
	}
}

// another reports whether one more case is allowed. Cases are inherited, so few directives may cause many.
func (b *builder) another(at tree.Place) bool {
	if b.cases++; b.cases == maxCases+1 {
		b.NoteAt(tree.Place{Path: at.Path, Layer: at.Layer}, "there are more than %d cases in which something else answers: only these are read", maxCases)
	}
	return b.cases <= maxCases
}

// otherMethods sets the target for methods that limit_except doesn't name. They skip the location's rewrites, and
// inherit only directives that pass requests on.
func (b *builder) otherMethods(l *Location, block []*conf.Statement, own scope, handled Target) {
	for _, st := range conf.Only(block, "limit_except") {
		inner := own
		inner.enter(st.Block)
		if inner.denied() {
			l.Methods = append(l.Methods, st.Words[1:]...)
			continue
		}
		t, _ := b.handler(l, st.Block, inner)
		switch {
		case t.Kind != "":
		case handled.Kind == Proxy:
			t = handled
		default:
			t = b.files(l, inner)
		}
		l.Cases = append(l.Cases, Case{When: st.Brief(), Target: t, Auth: inner.auth, Place: b.Place(st)})
	}
}

// tryFiles sets the target for missing files.
func (b *builder) tryFiles(l *Location, block []*conf.Statement) {
	for _, st := range conf.Only(block, "try_files") {
		if len(st.Words) < 3 {
			continue
		}
		for _, w := range st.Words[1:] {
			b.use(w, "location")
		}
		last := st.Last()
		t := b.rewriteTo(last, nil)
		if code, ok := strings.CutPrefix(last, "="); ok {
			t = Target{Kind: Return, Status: max(0, number(code))}
		}
		if strings.Join(st.Words[1:len(st.Words)-1], "") == "" { // it can't match a file
			l.Target, l.Auth = t, ""
			continue
		}
		l.Cases = append(l.Cases, Case{When: st.Brief(), Target: t, Place: b.Place(st)})
	}
}

// files returns the target without a handler.
func (b *builder) files(l *Location, in scope) Target {
	t := Target{Kind: Static, Value: in.root}
	if in.alias && (l.Modifier == "" || l.Modifier == "^~") {
		t.Escapes = strings.HasSuffix(in.root, "/") && l.Pattern != "" && !strings.HasSuffix(l.Pattern, "/")
	}
	return t
}

// handler returns the target by the directives of block: the last one that sets a handler wins, as in nginx. A Target
// without a kind means none.
func (b *builder) handler(l *Location, block []*conf.Statement, in scope) (t Target, at tree.Place) {
	at = l.Place
	for _, st := range conf.Only(block, "proxy_pass") {
		t, at = b.passTo(st, in.regex), b.Place(st)
		if _, uri := b.authority(t.Value); uri != "" && !strings.Contains(t.Value, "$") && (l.isRegexp() || l.Modifier == "@") {
			b.Note(st, `"proxy_pass" cannot have an URI in a location given by a regular expression or a name: nginx would not start`)
		}
	}
	return t, at
}
