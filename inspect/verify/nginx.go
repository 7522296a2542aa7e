package verify

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/internal/lazyregexp"
)

var nginxRules = []rule{
	{Rule: Rule{
		ID: "nginx-many-servers", Title: "Each address has one server", Severity: Error, Holes: []string{"b", "c"},
		Why: "With several servers on one address the client's Host header, or an absolute request line, picks the one that is open. The base has one whose name holds a port: Host: 8091-x reaches that local port, whatever other servers deny.",
		Fix: "Keep one server on each address.",
	}, each: nginxManyServers},
	{Rule: Rule{
		ID: "nginx-stream", Title: "nginx serves HTTP only", Severity: Error, Holes: []string{"m"},
		Why: "A server in stream {} or mail {} hands every byte on to where it leads: no location, no gate and no log is between.",
		Fix: "Remove the block.",
	}, each: nginxStreams},
	{Rule: Rule{
		ID: "nginx-does-not-start", Title: "nginx starts with its configuration, and slimctl understands it", Severity: Error, Holes: []string{"e"},
		Why: "A second `location /`, an unknown variable or a missing file stops nginx: the image is down, and whoever repairs it takes the file out that denied. What slimctl does not understand may open anything.",
		Fix: "Correct the configuration.",
	}, each: nginxStarts},
	{Rule: Rule{
		ID: "nginx-regex-order", Title: "No regular expression decides between routes", Severity: Error, Holes: []string{"g"},
		Why: "Regular expressions win over prefixes, in the order of files: one that denies all blocks /mcp, and an earlier one still answers.",
		Fix: "Write exact locations; nest an expression in the prefix that it is for.",
	}, each: nginxRegexes},
	{Rule: Rule{
		ID: "nginx-raw-path", Title: "No path goes on as the client wrote it", Severity: Error, Holes: []string{"h"},
		Why: "proxy_pass without an URI sends /mcp/../v1/docs on unchanged: nginx has checked another path than the server behind it takes.",
		Fix: "Give proxy_pass an URI.",
	}, each: nginxRawPaths},
	{Rule: Rule{
		ID: "nginx-auth-by-request-uri", Title: "The query does not decide who is let in", Severity: Error, Holes: []string{"i"},
		Why: "The base lets requests through without a key whose $request_uri ends in .js, and that holds the query: GET /mcp?x=.js.",
		Fix: "Decide by location; $uri has no query.",
	}, each: nginxRequestURI},
	{Rule: Rule{
		ID: "nginx-writable-include", Title: "Only root may write what nginx reads", Severity: Error, Holes: []string{"m"},
		Why: "On line B nginx, started as root, includes a file that belongs to the desktop user: he adds any server to it.",
		Fix: "Give file and directories to root, mode 0644 and 0755, or drop the include.",
	}, each: nginxWritable},
	{Rule: Rule{
		ID: "nginx-include-missing", Title: "What nginx includes is there, laid, and included by name", Severity: Error, Holes: []string{"a", "m"},
		Why: "A file that is not there yet is there once somebody writes it; one that the profile does not lay says what nobody checked; with include *.conf every file that a layer, a package or a script puts there adds routes.",
		Fix: "Drop the include, or lay the file and include it by its name.",
	}, each: nginxIncludes},
}

// nginxStreams finds servers other than HTTP.
func nginxStreams(h *held) {
	h.eachServer(func(_ *nginx.Config, s *nginx.Server) {
		if s.Protocol != "" {
			h.reportFinding(serverName(s), []tree.Place{s.Place}, "the server %s is one for %s", serverName(s), s.Protocol)
		}
	})
}

func nginxManyServers(h *held) {
	for i := range h.Surface.Nginx {
		c := &h.Surface.Nginx[i]
		by := map[string][]*nginx.Server{}
		for j := range c.Servers {
			s := &c.Servers[j]
			for _, l := range s.Listen {
				a := address(l.Address, l.Port)
				if !slices.Contains(by[a], s) {
					by[a] = append(by[a], s)
				}
			}
			if len(s.Listen) == 0 {
				by["*:80"] = append(by["*:80"], s) // nginx's default
			}
		}
		for _, a := range sortedKeys(by) {
			if len(by[a]) < 2 {
				continue
			}
			var places []tree.Place
			var names []string
			for _, s := range by[a] {
				places = append(places, s.Place)
				names = append(names, fmt.Sprintf("%q", strings.Join(s.Names, " ")))
			}
			h.reportFinding(a, places, "%d servers listen on %s: %s", len(by[a]), a, joinNames(names))
		}
	}
}

func nginxStarts(h *held) {
	for _, c := range h.Surface.Nginx {
		for _, n := range c.Notes {
			h.reportFinding("nginx", []tree.Place{n.Place}, "%s", n.Text)
		}
		if len(c.Servers) == 0 {
			h.reportFinding(c.Path, h.at(c.Path), "%s has no server", c.Path)
		}
	}
}

func nginxRegexes(h *held) {
	h.eachLocation(func(l *location) {
		if l.regex() && len(l.parents) == 0 {
			h.reportFinding(l.name(), []tree.Place{l.Place}, "the route %s is a regular expression beside the others", l.name())
		}
	})
}

func nginxRawPaths(h *held) {
	h.eachAnswer(func(a answer) {
		if a.target.Kind == nginx.Proxy && a.target.RawURI {
			h.reportFinding(a.name(), a.at, "the route %s leads to %s with the path as the client wrote it", a.name(), a.target.Value)
		}
	})
}

// withQuery lists the variables that contain the query.
var withQuery = lazyregexp.New(`\$\{?(request_uri|request|args|query_string|arg_\w+|is_args)\b`)

func nginxRequestURI(h *held) {
	for _, c := range h.Surface.Nginx {
		for _, m := range c.Maps {
			parts := strings.Join(append(slices.Clip(m.Parts), m.Source), " ")
			if len(m.Decides) > 0 && withQuery.MatchString(parts) {
				h.reportFinding(m.Variable, []tree.Place{m.Place}, "%s is chosen by %s, which holds the query, and decides on %s", m.Variable, m.Source, joinNames(m.Decides))
			}
		}
	}
	h.eachAnswer(func(a answer) {
		if a.when != "" && answers(a.target) && withQuery.MatchString(a.when) {
			h.reportFinding(a.name(), a.at, "the route %s %s: that holds the query", a.name(), describeAction(a.target))
		}
	})
}

func nginxWritable(h *held) {
	for _, c := range h.Surface.Nginx {
		for _, f := range append([]string{c.Path}, c.Files...) {
			if who := h.findWriter(f); who != "" {
				h.reportFinding(f, h.at(f), "nginx reads %s: %s", f, who)
			}
		}
		for _, i := range c.Includes {
			if dir := path.Dir(i.Pattern); !strings.ContainsAny(dir, "*?[$") {
				if who := h.findWriter(dir); who != "" {
					h.reportFinding(i.Pattern, []tree.Place{i.Place}, "nginx includes %s: %s", i.Pattern, who)
				}
			}
		}
	}
}

func nginxIncludes(h *held) {
	for _, c := range h.Surface.Nginx {
		for _, i := range c.Includes {
			if i.Glob || strings.ContainsAny(i.Pattern, "*?[") {
				h.reportFinding(i.Pattern, []tree.Place{i.Place}, "nginx includes every %s", i.Pattern)
			} else if i.Missing || len(i.Files) == 0 {
				h.reportFinding(i.Pattern, []tree.Place{i.Place}, "nginx includes %s, which is not there", i.Pattern)
			}
			for _, f := range i.Files {
				if !h.isLaid(f) {
					h.reportFinding(f, []tree.Place{i.Place}, "nginx includes %s, which the profile does not lay", f)
				}
			}
		}
		if !h.isLaid(c.Path) {
			h.reportFinding(c.Path, h.at(c.Path), "nginx starts with %s, which the profile does not lay", c.Path)
		}
	}
}
