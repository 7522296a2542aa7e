package diff

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/nginx"
)

// things holds things of one kind in an image: names with their values.
type things map[string][]string

// add adds words to a thing's values; empty words add nothing.
func (t things) add(name string, words ...string) {
	t[name] = append(t[name], strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
}

// values joins the values of things with one name, such as a route that two variants define differently.
func (t things) values() map[string]string {
	out := make(map[string]string, len(t))
	for name, values := range t {
		slices.Sort(values)
		out[name] = strings.Join(slices.Compact(values), " | ")
	}
	return out
}

// surfaceChanges compares the images' surfaces.
func surfaceChanges(base, slim *inspect.Surface) Surface {
	of := func(list func(*inspect.Surface, things)) Group {
		b, s := things{}, things{}
		list(base, b)
		list(slim, s)
		old, new := b.values(), s.values()
		g := Group{Base: len(old), Slim: len(new), Items: fields(old, new)}
		for name, value := range old {
			if to, ok := new[name]; ok && to == value {
				g.Same = append(g.Same, name)
			}
		}
		slices.Sort(g.Same)
		return g
	}
	var outside Count
	outside.Base, _ = base.Outside()
	outside.Slim, _ = slim.Outside()
	locations := of(routes)
	locations.Base, locations.Slim = len(base.Routes), len(slim.Routes) // as inspect counts them; several may have one name
	return Surface{
		Outside:  outside,
		Programs: of(programs), Routes: locations, Listeners: of(listeners), MCPServers: of(mcpServers), Tools: of(tools),
		Switches: of(switches), Hooks: of(hooks), Privileged: of(privileged), Users: of(users), Sudo: of(sudo), Packages: of(packageList),
	}
}

func (s *Surface) same() bool {
	return !slices.ContainsFunc([]Group{
		s.Programs, s.Routes, s.Listeners, s.MCPServers, s.Tools, s.Switches, s.Hooks, s.Privileged, s.Users, s.Sudo, s.Packages,
	}, func(g Group) bool { return len(g.Items) > 0 })
}

func programs(s *inspect.Surface, t things) {
	for _, p := range s.Programs {
		name := p.Name
		if p.Kind != "program" && p.Kind != "" {
			name = p.Kind + ":" + p.Name
		}
		words := []string{"autostart=" + p.Autostart, "command=" + p.Command}
		if p.User != "" {
			words = append([]string{"user=" + p.User}, words...)
		}
		t.add(name, words...)
	}
}

// routes names each route by its server's ports and names, so that a server that only listens on other addresses keeps
// its name.
func routes(s *inspect.Surface, t things) {
	for _, r := range s.Routes {
		words := append(target(r.Target), auth(r.Auth)...)
		if !r.Answers {
			words = append(words, "closed")
		}
		for _, o := range r.Also {
			words = append(words, "or")
			words = append(append(words, target(o.Target)...), auth(o.Auth)...)
			if len(o.When) > 0 {
				words = append(words, "when "+strings.Join(o.When, ", "))
			}
		}
		t.add(serverOf(r)+" "+r.Path, words...)
	}
}

func serverOf(r nginx.Route) string {
	var ports, names []string
	for _, word := range strings.Fields(r.Server) {
		i := strings.LastIndexByte(word, ':')
		switch {
		case word == "_":
		case strings.HasPrefix(word, "unix:"):
			ports = append(ports, word)
		case i >= 0 && !strings.HasPrefix(word, "~"):
			if port := word[i+1:]; !slices.Contains(ports, port) {
				ports = append(ports, port)
			}
		default:
			names = append(names, word)
		}
	}
	if !r.Public {
		ports = append(ports, "loopback")
	}
	return strings.Join(append(ports, names...), " ")
}

func target(t nginx.Target) []string {
	words := []string{t.Kind}
	if t.Status != 0 {
		words = append(words, fmt.Sprint(t.Status))
	}
	if t.Value != "" {
		words = append(words, t.Value)
	}
	for _, a := range t.Addresses {
		if !strings.Contains(t.Value, a) {
			words = append(words, "("+a+")")
		}
	}
	if len(t.Chosen) > 0 {
		words = append(words, "chosen by "+strings.Join(t.Chosen, ", "))
	}
	return words
}

func auth(uri string) []string {
	if uri == "" {
		return nil
	}
	return []string{"auth=" + uri}
}

func listeners(s *inspect.Surface, t things) {
	for _, l := range s.Listeners {
		name, where := l.Address, "public"
		if l.Port != 0 {
			name = fmt.Sprintf("%s:%d", l.Address, l.Port)
		}
		if l.Loopback {
			where = "loopback"
		}
		t.add(name, where, "by", l.By)
	}
}

func mcpServers(s *inspect.Surface, t things) {
	for _, m := range s.MCP.Servers() {
		words := append([]string{m.Type, m.Command}, m.Args...)
		words = append(words, m.URL)
		if m.Hidden {
			words = append(words, "(hidden)")
		}
		if m.Unknown {
			words = append(words, "(may have other tools)")
		}
		t.add(m.Name, words...)
	}
}

func tools(s *inspect.Surface, t things) {
	for _, m := range s.MCP.Servers() {
		for _, tool := range m.Tools {
			t.add(tool, "of", m.Name)
		}
	}
}

func switches(s *inspect.Surface, t things) {
	for _, sw := range s.Start.Switches {
		if len(sw.Places) == 0 {
			continue
		}
		words := []string{sw.Kind + ":", sw.Effect}
		if sw.Set {
			words = append(words, fmt.Sprintf("=%q", sw.Value))
		}
		t.add(sw.Name, words...)
	}
}

func hooks(s *inspect.Surface, t things) {
	for _, h := range s.Start.Hooks {
		t.add(h.Variable, h.How, "in", h.Place.Path)
	}
}

func privileged(s *inspect.Surface, t things) {
	for _, f := range s.Privilege.Files {
		e := f.Entry
		t.add(e.Path, strings.Join(f.Kinds, ","), fmt.Sprintf("%04o %d:%d", e.Mode, e.UID, e.GID), f.Capabilities)
	}
}

func users(s *inspect.Surface, t things) {
	groups := map[string][]string{} // by member
	for _, g := range s.Privilege.Groups {
		for _, m := range g.Members {
			groups[m] = append(groups[m], g.Name)
		}
	}
	members := map[string]string{}
	for m, g := range groups {
		members[m] = memberOf(g)
	}
	for _, u := range s.Privilege.Users {
		words := []string{fmt.Sprintf("%d:%d", u.UID, u.GID), "home=" + u.Home, "shell=" + u.Shell, "password=" + u.Password}
		t.add(u.Name, append(words, members[u.Name])...)
	}
}

// maxGroups limits the listed groups of a user; a hostile image has many of both.
const maxGroups = 20

func memberOf(groups []string) string {
	slices.Sort(groups)
	groups = slices.Compact(groups)
	words := "groups=" + strings.Join(groups[:min(len(groups), maxGroups)], ",")
	if len(groups) > maxGroups {
		words += fmt.Sprintf(" and %d more, sha256:%x", len(groups)-maxGroups, sha256.Sum256([]byte(strings.Join(groups, ","))))
	}
	return words
}

func sudo(s *inspect.Surface, t things) {
	for _, n := range s.Privilege.Sudo {
		t.add(n.Text, "in", n.Place.Path)
	}
}

func packageList(s *inspect.Surface, t things) {
	for _, p := range s.Packages {
		name := p.Kind + " " + p.Name
		if p.Dir != "" {
			name += " in " + p.Dir
		}
		t.add(name, p.Version, p.Arch, strconv.FormatInt(p.Size, 10)+" bytes")
	}
}
