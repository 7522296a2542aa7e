package verify

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
)

var platformRules = []rule{
	{Rule: Rule{
		ID: "platform", Title: "Every platform of the profile is there, and no other", Severity: Error,
		Why: "A tag is pulled by machines of both kinds. A platform that nobody verified is pulled like the others.",
		Fix: "Build all platforms of the profile into one index, or name those that it has with verify --platform.",
	}, all: platforms},
	{Rule: Rule{
		ID: "platform-differs", Title: "The platforms expose the same", Severity: Error,
		Why: "People try an image on one machine and run it on another: what is open on arm64 only is found by who looks for it.",
		Fix: "Build all platforms at once, from one base and one profile.",
	}, all: platformsDiffer},
}

func platforms(k *checker) error {
	have := map[string]int{}
	for _, img := range k.in.Images {
		p := platformOf(img)
		have[p]++
		if k.in.Expect[p] == nil {
			k.add(Finding{Platform: p, Subject: p, Message: fmt.Sprintf("the image is there for %s, which the profile does not have", p)})
		}
		if have[p] == 2 {
			k.add(Finding{Platform: p, Subject: p, Message: fmt.Sprintf("there are several images for %s: which one is run is up to who pulls", p)})
		}
	}
	for _, entry := range k.in.Ignored {
		k.add(Finding{Subject: entry, Message: "the index has an entry that some runtimes run: " + entry})
	}
	for _, p := range sortedKeys(k.in.Expect) {
		if have[p] == 0 {
			k.add(Finding{Platform: p, Subject: p, Message: fmt.Sprintf("there is no image for %s, which profile %s publishes", p, k.in.Expect[p].Profile)})
		}
	}
	return nil
}

// part is a part of a surface as lines that are the same on each platform; at is the evidence of a line.
type part struct {
	name  string
	lines []string
	at    map[string]tree.Place
}

func (p *part) add(at tree.Place, values ...any) {
	data, err := json.Marshal(values)
	if err != nil {
		data = fmt.Append(nil, values...)
	}
	line := string(data)
	p.lines = append(p.lines, line)
	if p.at == nil {
		p.at = map[string]tree.Place{}
	}
	p.at[line] = at
}

// partsOf says what of a surface must not differ between platforms: all but digests, sizes, packages and places.
func partsOf(img *inspect.Image) []*part {
	s := img.Surface
	config, programs, routes, servers := &part{name: "config"}, &part{name: "program"}, &part{name: "route"}, &part{name: "MCP server"}
	listeners, switches, accounts, hooks := &part{name: "listener"}, &part{name: "switch"}, &part{name: "account"}, &part{name: "hook"}
	rights := &part{name: "file with rights"}
	none := tree.Place{}
	c := s.Config
	config.add(none, "start", c.Entrypoint, c.Cmd, c.User, c.WorkingDir, c.StopSignal)
	config.add(none, "health", c.Healthcheck)
	for _, name := range sortedKeys(c.Env) {
		config.add(none, "env", name, c.Env[name])
	}
	for _, name := range sortedKeys(c.Labels) {
		config.add(none, "label", name, c.Labels[name])
	}
	for _, p := range slices.Concat(c.ExposedPorts, c.Volumes) {
		config.add(none, "port or volume", p)
	}
	for _, p := range s.Programs {
		programs.add(p.Place, p.Name, p.Kind, p.Command, p.User, p.Autostart, p.Environment)
	}
	for _, r := range s.Routes {
		routes.add(r.Place, r.Server, r.Path, r.Target, r.Auth, r.Public, r.Answers)
	}
	for _, l := range s.Listeners {
		listeners.add(l.Place, l.By, address(l.Address, l.Port))
	}
	if s.MCP != nil {
		for _, c := range s.MCP.Configs {
			for _, m := range c.Servers {
				servers.add(m.Place, c.Path, m.Name, m.Type, m.Command, m.Args, m.URL, m.Tools)
			}
		}
		for _, m := range s.MCP.BuiltIn {
			servers.add(m.Place, "", m.Name, m.Tools)
		}
	}
	if s.Start != nil {
		for _, w := range s.Start.Switches {
			at := none
			if len(w.Places) > 0 {
				at = w.Places[0]
			}
			switches.add(at, w.Name, w.Kind)
		}
		for _, k := range s.Start.Hooks {
			hooks.add(k.Place, k.Variable, k.How)
		}
	}
	if s.Privilege != nil {
		for _, u := range s.Privilege.Users {
			accounts.add(u.Place, u.Name, u.UID, u.GID, u.Home, u.Shell, u.Password)
		}
		for _, g := range s.Privilege.Groups {
			accounts.add(g.Place, g.Name, g.GID, g.Members)
		}
		for _, f := range s.Privilege.Files {
			rights.add(f.Place, f.Entry.Path, f.Kinds, f.Capabilities)
		}
	}
	return []*part{config, programs, routes, servers, listeners, switches, accounts, hooks, rights}
}

func platformsDiffer(k *checker) error {
	if len(k.held) < 2 {
		return nil
	}
	first := k.held[0]
	a := partsOf(first.Image)
	for _, h := range k.held[1:] {
		for i, b := range partsOf(h.Image) {
			tell := func(only []string, in, notIn *held, at map[string]tree.Place) {
				for _, line := range only {
					var places []tree.Place
					if at[line].Path != "" {
						places = append(places, at[line])
					}
					k.add(Finding{
						Platform: platformOf(in.Image), Subject: b.name, Places: places,
						Message: fmt.Sprintf("%s has a %s that %s has not: %s", platformOf(in.Image), b.name, platformOf(notIn.Image), line),
					})
				}
			}
			tell(difference(a[i].lines, b.lines), first, h, a[i].at)
			tell(difference(b.lines, a[i].lines), h, first, b.at)
		}
	}
	return nil
}
