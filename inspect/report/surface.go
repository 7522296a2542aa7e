package report

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/packages"
	"github.com/slimctl/slimctl/inspect/size"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
)

// surfacePage returns the page of a surface, in the order of a reader's questions.
func surfacePage(s *inspect.Surface) page {
	p := page{Platform: quote(s.Platform), Facts: []fact{
		{"image", quote(s.Reference)},
		{"digest", quote(s.Digest)},
		{"platform", quote(s.Platform)},
		{"line", cmp.Or(quote(s.Line), "not told by its files")},
		{"entrypoint", cmp.Or(argv(s.Config.Entrypoint), "none")},
		{"command", cmp.Or(argv(s.Config.Cmd), "none")},
		{"user", cmp.Or(quote(s.Config.User), "root")},
		{"size", fmt.Sprintf("%s to download in %s; %s in %s visible, %s hidden", Bytes(s.Size.Transfer),
			count(len(s.Size.Layers), "layer"), Bytes(s.Size.Visible), count(s.Size.Files, "file"), Bytes(s.Size.Hidden))},
	}}
	if s.IndexDigest != "" {
		p.Facts = slices.Insert(p.Facts, 1, fact{"index", quote(s.IndexDigest)})
	}
	p.Summary = []string{exposes(s)}
	p.Sections = []section{
		programs(s), listeners(s), routes(s), servers(s), tools(s), hooks(s), switches(s), sockets(s),
		privileged(s), users(s), sudo(s), packageKinds(s), biggestPackages(s),
		components(s.Size), directories(s.Size), layers(s.Size), scripts(s), environment(s), notes(s),
	}
	for i := range p.Sections {
		switch p.Sections[i].ID { // programs and exposure, switches, privileges, content
		case "programs", "hooks", "privileged", "packages", "notes":
			p.Sections[i].First = true
		}
	}
	return p
}

// exposes returns the surface in one sentence.
func exposes(s *inspect.Surface) string {
	answer, public := s.Outside()
	of := []string{
		count(len(s.Programs), "program"), count(public, "public listener"), count(answer, "public route") + " that answer",
		count(len(tools(s).Rows), "tool") + " of " + count(len(servers(s).Rows), "MCP server"), count(len(hooks(s).Rows), "hook"),
		count(len(switches(s).Rows), "switch") + " in the environment", count(len(privileged(s).Rows), "privileged file"),
	}
	return "It exposes " + enumerate(of) + "."
}

func programs(s *inspect.Surface) section {
	out := newSection("programs", "programs", name("name"), name("user"), name("autostart"), name("command"), detail("from"))
	out.Limit = 40
	var short brief
	add := func(of []supervisord.Program, quiet bool) {
		for _, p := range of {
			called := quote(p.Name)
			if p.Kind != "" && p.Kind != "program" {
				called = quote(p.Kind + ":" + p.Name)
			}
			user := cmp.Or(withVariables(p.User), "supervisord's")
			cells := []string{called, user, withVariables(p.Autostart), withVariables(p.Command), from(p.Place)}
			out.Rows = append(out.Rows, row{Cells: cells, Quiet: quiet})
			starts := "by variable"
			switch {
			case quiet:
				starts = "dormant"
			case p.Autostart == "true":
				starts = "always"
			case p.Autostart == "false":
				starts = "when asked"
			}
			short.add(called, quiet, starts, "as "+user)
		}
	}
	add(s.Programs, false)
	out.Count = number(len(s.Programs))
	for _, d := range s.Dormant {
		for _, p := range d.Programs {
			p.Autostart, p.Variables = "dormant: nothing reads "+d.Path, nil
			add([]supervisord.Program{p}, true)
		}
	}
	if dormant := len(out.Rows) - len(s.Programs); dormant > 0 {
		out.Count += ", " + number(dormant) + " dormant"
	}
	if len(out.Rows) > fewPrograms {
		out.Brief = &short
	}
	return out
}

// fewPrograms is the maximum number of programs that the text lists one by one.
const fewPrograms = 8

// variable matches supervisord's references to variables of the environment.
var variable = regexp.MustCompile(`%\(ENV_([^)]*)\)s`)

func withVariables(s string) string { return quote(variable.ReplaceAllString(s, "$$$1")) }

func listeners(s *inspect.Surface) section {
	out := newSection("listeners", "listeners", name("address"), words("reach"), name("by"), name("from"))
	out.Limit, out.Brief = 40, &brief{Lines: 2}
	of := slices.Clone(s.Listeners)
	slices.SortStableFunc(of, func(a, b inspect.Listener) int { return truth(a.Loopback) - truth(b.Loopback) })
	for _, l := range of {
		address := l.Address
		if l.Port != 0 {
			address += ":" + strconv.Itoa(l.Port)
		}
		cells := []string{quote(address), reach(!l.Loopback), quote(l.By), from(l.Place)}
		out.Rows = append(out.Rows, row{Cells: cells, Quiet: l.Loopback})
		out.Brief.add(cells[0]+" "+cells[2], l.Loopback, cells[1])
	}
	return out.counted()
}

func reach(public bool) string {
	if public {
		return "public"
	}
	return "loopback"
}

// routes returns routes with a target that the request chooses first, then routes reachable from outside.
func routes(s *inspect.Surface) section {
	out := newSection("routes", "routes", name("path"), name("leads to"), name("auth"), words("reach"),
		detail("server"), detail("from"))
	out.Limit = 32
	rank := func(r nginx.Route) int {
		switch {
		case r.Answers && len(r.Target.Chosen) > 0:
			return 0
		case r.Answers && r.Public:
			return 1
		case r.Answers:
			return 2
		}
		return 3
	}
	of := slices.Clone(s.Routes)
	slices.SortStableFunc(of, func(a, b nginx.Route) int { return rank(a) - rank(b) })
	for _, r := range of {
		path, auth := quote(cmp.Or(r.Path, r.Pattern, "every request")), cmp.Or(quote(r.Auth), "none")
		cells := []string{path, leadsTo(r.Target), auth, reach(r.Public), quote(r.Server), from(r.Place)}
		out.Rows = append(out.Rows, row{Cells: cells, Quiet: !r.Answers})
	}
	answers, _ := s.Outside()
	out.Count = fmt.Sprintf("%s, %s answer to the outside", number(len(of)), number(answers))
	out.Brief = briefRoutes(of)
	return out
}

// briefRoutes joins on one line the paths with the same kind of target and the same key. A public route isn't repeated
// for loopback.
func briefRoutes(of []nginx.Route) *brief {
	out := &brief{}
	seen := map[[3]string]bool{}
	inside, refused := 0, 0
	for _, public := range []bool{true, false} {
		for _, r := range of {
			key := [3]string{r.Path, r.Auth, leadsTo(r.Target)}
			switch {
			case r.Public != public:
			case !r.Answers:
				refused++
			case !public && seen[key]:
				inside++
			default:
				seen[key] = true
				to, who := shortTarget(r.Target), "no auth"
				if r.Auth != "" {
					who = "auth " + quote(r.Auth)
				}
				if !public {
					who += ", on loopback"
				}
				out.add(quote(cmp.Or(r.Path, r.Pattern, "every request")), !public, to, who)
			}
		}
	}
	var left []string
	if inside > 0 {
		left = append(left, number(inside)+" the same on loopback")
	}
	if refused > 0 {
		left = append(left, number(refused)+" answer no request from outside")
	}
	if len(left) > 0 {
		out.Left = "and " + enumerate(left)
	}
	return out
}

// shortTarget describes the answering program, or nginx's own way of answering.
func shortTarget(t nginx.Target) string {
	addresses := quote(strings.Join(t.Addresses, ", "))
	switch {
	case t.Free && addresses != "":
		return "as the request says: " + addresses
	case t.Kind == nginx.Proxy && addresses != "", t.Kind == nginx.Rewrite && addresses != "":
		return addresses
	case t.Kind == nginx.Static:
		return "files"
	case t.Kind == nginx.Return, t.Kind == nginx.Redirect, t.Kind == nginx.Rewrite:
		return "status or redirect"
	}
	return leadsTo(t)
}

// leadsTo describes the target of a route.
func leadsTo(t nginx.Target) string {
	out := t.Value
	switch t.Kind {
	case nginx.Return:
		out = strings.TrimSpace(fmt.Sprintf("status %d %s", t.Status, t.Value))
	case nginx.Redirect:
		out = fmt.Sprintf("redirect %d to %s", t.Status, t.Value)
	case nginx.Rewrite:
		out = "route " + t.Value
	case nginx.Static:
		out = "files in " + t.Value
	case nginx.Deny:
		out = "refused"
	}
	if len(t.Addresses) > 0 && !strings.Contains(t.Value, t.Addresses[0]) {
		out += " at " + strings.Join(t.Addresses, ", ")
	}
	if len(t.Chosen) > 0 {
		out += ", chosen by " + strings.Join(t.Chosen, ", ")
	}
	return quote(out)
}

func servers(s *inspect.Surface) section {
	out := newSection("mcp", "MCP servers", name("name"), name("type"), name("leads to"), numeral("tools"), name("from"))
	out.Limit, out.Brief = 30, &brief{}
	eachServer(&s.MCP, func(v mcp.Server, from string) {
		leads := quote(v.URL)
		if v.Command != "" {
			leads = argv(append([]string{v.Command}, v.Args...))
		}
		called := quote(v.Name)
		if v.Hidden {
			called += " (hidden)"
		}
		out.add(called, quote(v.Type), leads, toolCount(v), quote(from))
		tools := " tools"
		if !v.Unknown && len(v.Tools) == 1 {
			tools = " tool"
		}
		out.Brief.add(toolCount(v)+tools, false, called, leads)
	})
	return out.counted()
}

func toolCount(v mcp.Server) string {
	switch {
	case !v.Unknown:
		return number(len(v.Tools))
	case len(v.Tools) == 0:
		return "unknown"
	}
	return number(len(v.Tools)) + " or more"
}

// eachServer visits every server, except a template's that the rendered file also has.
func eachServer(r *mcp.Report, visit func(v mcp.Server, from string)) {
	for c, v := range r.Servers() {
		from := v.Place
		switch {
		case c == nil:
			visit(v, cmp.Or(from.String(), "built in"))
		case !c.Template || !rendered(r, v):
			from.Path = cmp.Or(from.Path, c.Path)
			visit(v, from.String())
		}
	}
}

// rendered reports whether a file that is not a template has the template's server v unchanged: then they are one
// server.
func rendered(r *mcp.Report, v mcp.Server) bool {
	v.Place = tree.Place{}
	for _, c := range r.Configs {
		if !c.Template && slices.ContainsFunc(c.Servers, func(o mcp.Server) bool {
			o.Place = tree.Place{}
			return reflect.DeepEqual(o, v)
		}) {
			return true
		}
	}
	return false
}

func tools(s *inspect.Surface) section {
	out := newSection("tools", "tools", name("server"), name("tool"))
	out.Limit, out.Brief = 30, &brief{Lines: 2}
	eachServer(&s.MCP, func(v mcp.Server, _ string) {
		for _, t := range v.Tools {
			out.add(quote(v.Name), quote(t))
			out.Brief.add(quote(t), false, quote(v.Name))
		}
	})
	return out.counted()
}

func hooks(s *inspect.Surface) section {
	out := newSection("hooks", "hooks", name("variable"), name("run by"), name("from"))
	out.Limit, out.Brief = 20, &brief{}
	for _, h := range s.Start.Hooks {
		out.add(quote(h.Variable), quote(h.How), from(h.Place))
		out.Brief.add(quote(h.Variable), false)
	}
	return out.counted()
}

// switches returns those without a known effect last.
func switches(s *inspect.Surface) section {
	out := newSection("switches", "switches", name("variable"), words("kind"), name("effect"), name("value"), detail("from"))
	out.Limit = 30
	short := brief{Lines: 1}
	of := slices.Clone(s.Start.Switches)
	slices.SortStableFunc(of, func(a, b start.Switch) int { return truth(a.Kind == start.Other) - truth(b.Kind == start.Other) })
	for _, w := range of {
		value := "not set"
		if w.Set {
			value = strconv.Quote(w.Value)
		}
		effect := w.Effect
		if len(w.Programs) > 0 && !strings.Contains(effect, w.Programs[0]) {
			effect = strings.TrimSpace(effect + " (" + strings.Join(w.Programs, ", ") + ")")
		}
		out.add(quote(w.Name), quote(w.Kind), quote(effect), value, places(w.Places))
		short.add(quote(w.Name), w.Kind == start.Other, quote(w.Kind))
	}
	if len(out.Rows) > fewSwitches {
		out.Brief = &short
	}
	return out.counted()
}

// fewSwitches is the maximum number of switches that the text lists one by one.
const fewSwitches = 8

func from(p tree.Place) string { return quote(p.String()) }

func places(of []tree.Place) string {
	var out []string
	for _, p := range of {
		out = append(out, from(p))
	}
	return strings.Join(out, ", ")
}

func sockets(s *inspect.Surface) section {
	out := newSection("sockets", "control sockets", name("address"), name("mode"), name("owner"), name("from"))
	out.Limit, out.Brief = 20, &brief{} // the listeners include them
	if s.Supervisord != nil {
		for _, c := range s.Supervisord.Sockets {
			out.add(quote(c.Address), cmp.Or(quote(c.Mode), "0700"), cmp.Or(quote(c.Owner), "supervisord's"), from(c.Place))
		}
	}
	return out.counted()
}

func privileged(s *inspect.Surface) section {
	out := newSection("privileged", "privileged files", name("path"), name("why"), name("mode"), name("owner"),
		name("capabilities"))
	out.Limit, out.Brief = 30, &brief{}
	for _, f := range s.Privilege.Files {
		out.Brief.add(quote(f.Entry.Path), false, quote(strings.Join(f.Kinds, ", ")))
		out.add(quote(f.Entry.Path), quote(strings.Join(f.Kinds, ", ")), mode(f.Entry), owner(f.Entry), quote(f.Capabilities))
	}
	return out.counted()
}

func mode(e tree.Entry) string  { return fmt.Sprintf("%04o", e.Mode) }
func owner(e tree.Entry) string { return fmt.Sprintf("%d:%d", e.UID, e.GID) }

// users returns those who can log in first.
func users(s *inspect.Surface) section {
	out := newSection("users", "users", name("name"), numeral("uid"), numeral("gid"), name("home"), name("shell"),
		words("password"), detail("from"))
	for _, u := range s.Privilege.Users {
		quiet := strings.HasSuffix(u.Shell, "/nologin") || strings.HasSuffix(u.Shell, "/false")
		cells := []string{
			quote(u.Name), strconv.Itoa(u.UID), strconv.Itoa(u.GID), quote(u.Home), quote(u.Shell), quote(u.Password), from(u.Place),
		}
		out.Rows = append(out.Rows, row{Cells: cells, Quiet: quiet})
	}
	slices.SortStableFunc(out.Rows, func(a, b row) int { return truth(a.Quiet) - truth(b.Quiet) })
	out.Count = number(len(out.Rows))
	out.Limit, out.Brief = 20, &brief{Lines: 1}
	for _, r := range out.Rows {
		can := "with a shell"
		if r.Quiet {
			can = "without"
		}
		out.Brief.add(r.Cells[0], r.Quiet, can, "password "+r.Cells[5])
	}
	return out
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

func sudo(s *inspect.Surface) section {
	out := newSection("sudo", "sudo", name("rule"), words("when"), name("from"))
	out.Limit, out.Brief = 20, &brief{Lines: 1}
	add := func(rule, when, from string) {
		out.add(rule, when, from)
		if !strings.HasPrefix(rule, "Defaults ") {
			out.Brief.Rows = append(out.Brief.Rows, briefRow{Cells: []string{when}, Names: []string{rule}})
		}
	}
	for _, n := range s.Privilege.Sudo {
		add(quote(strings.Join(strings.Fields(n.Text), " ")), "always", from(n.Place))
	}
	for _, n := range s.Start.Grants {
		add(quote(n.Text), "at start", from(n.Place))
	}
	return out.counted()
}

func packageKinds(s *inspect.Surface) section {
	out := newSection("packages", "packages", name("kind"), numeral("packages"), numeral("files"), numeral("size"))
	out.Count, out.Brief = number(len(s.Packages)), &brief{Lines: 2}
	type sum struct {
		packages, files int
		size            int64
		biggest         []string
	}
	by := map[string]sum{}
	for _, p := range bySize(s.Packages) {
		k := by[p.Kind]
		if len(k.biggest) < 5 {
			k.biggest = append(k.biggest, quote(p.Name)+" "+Bytes(p.Size))
		}
		by[p.Kind] = sum{k.packages + 1, k.files + p.Files, k.size + p.Size, k.biggest}
	}
	for _, kind := range slices.Sorted(maps.Keys(by)) {
		k := by[kind]
		out.add(quote(kind), number(k.packages), number(k.files), Bytes(k.size))
		left := k.biggest
		if n := k.packages - len(k.biggest); n > 0 {
			left = append(left, number(n)+" smaller")
		}
		out.Brief.Rows = append(out.Brief.Rows, briefRow{Cells: []string{number(k.packages) + " " + quote(kind), Bytes(k.size)}, Names: left})
	}
	return out
}

// bySize sorts by size, largest first.
func bySize(of []packages.Package) []packages.Package {
	of = slices.Clone(of)
	slices.SortStableFunc(of, func(a, b packages.Package) int { return cmp.Compare(b.Size, a.Size) })
	return of
}

func biggestPackages(s *inspect.Surface) section {
	out := newSection("biggest-packages", "biggest packages", name("package"), name("version"), name("kind"), numeral("size"),
		column{Name: "files", Number: true, Words: true, Detail: true}, detail("from"))
	out.Limit, out.Brief = 10, &brief{} // the packages include them
	for _, p := range bySize(s.Packages) {
		place := quote(cmp.Or(p.Dir, p.Place.String()))
		out.add(quote(p.Name), quote(p.Version), quote(p.Kind), Bytes(p.Size), number(p.Files), place)
	}
	return out
}

func components(s size.Sizes) section {
	out := newSection("components", "size by component", name("component"), numeral("size"), numeral("share"), numeral("files"))
	out.Limit, out.Bars = 6, true
	for _, c := range s.Components {
		out.addShare(c.Name, c.Size, s.Visible, c.Files)
	}
	return out
}

// addShare adds a row for a part of the total size all.
func (s *section) addShare(name string, size, all int64, files int) {
	of, words := share(size, all)
	s.Rows = append(s.Rows, row{Cells: []string{quote(name), Bytes(size), words, number(files)}, Share: of})
}

// share returns a percentage.
func share(of, all int64) (float64, string) {
	if all <= 0 {
		return 0, ""
	}
	percent := min(100, max(0, 100*float64(of)/float64(all)))
	return percent, fmt.Sprintf("%.1f %%", percent)
}

func directories(s size.Sizes) section {
	out := newSection("directories", "size by directory", name("directory"), numeral("size"), numeral("share"), numeral("files"))
	out.Bars, out.Brief = true, &brief{}
	for _, d := range s.Directories {
		out.addShare(d.Path, d.Size, s.Visible, d.Files)
	}
	return out
}

func layers(s size.Sizes) section {
	out := newSection("layers", "size by layer", numeral("layer"), name("digest"), numeral("download"), numeral("unpacked"),
		numeral("visible"), numeral("entries"), name("created by"))
	out.Bars, out.Brief = true, &brief{}
	for i, l := range s.Layers {
		cells := []string{
			number(i + 1), short(l.Digest), Bytes(l.Size), Bytes(l.Unpacked), Bytes(l.Visible), number(l.Entries), quote(l.CreatedBy),
		}
		if l.Unread {
			cells[3], cells[4], cells[5] = "not read", "", ""
		}
		of, _ := share(l.Size, s.Transfer)
		out.Rows = append(out.Rows, row{Cells: cells, Quiet: l.Unread, Share: of})
	}
	out.Count = number(len(s.Layers))
	return out
}

func scripts(s *inspect.Surface) section {
	out := newSection("scripts", "what runs at start", name("path"), name("does"), name("from"))
	out.Detail = true
	for _, c := range s.Start.Scripts {
		out.add(quote(c.Path), quote("is run by "+c.By), from(c.Place))
	}
	for _, r := range s.Start.Renderings {
		out.add(quote(r.Template), quote("becomes "+r.Output), from(r.Place))
	}
	return out.counted()
}

func environment(s *inspect.Surface) section {
	out := newSection("environment", "environment", name("variable"), name("value"))
	out.Detail = true
	out.Count = number(len(s.Config.Env))
	for _, k := range slices.Sorted(maps.Keys(s.Config.Env)) {
		out.add(quote(k), quote(s.Config.Env[k]))
	}
	return out
}

// notes returns those of the surface and of each part, each once, without omissions.
func notes(s *inspect.Surface) section {
	out := newSection("notes", "notes", name("from"), name("what could not be understood, or would not work"))
	out.Limit = 6
	seen := map[string]bool{}
	add := func(of []tree.Note) {
		for _, n := range of {
			if key := n.String(); !seen[key] {
				seen[key] = true
				out.add(from(n.Place), quote(n.Text))
			}
		}
	}
	add(s.Notes)
	add(s.Start.Notes)
	if s.Supervisord != nil {
		add(s.Supervisord.Notes)
	}
	for _, d := range s.Dormant {
		add(d.Notes)
	}
	for _, n := range s.Nginx {
		add(n.Notes)
	}
	add(s.MCP.Notes)
	add(s.Privilege.Notes)
	return out.counted()
}
