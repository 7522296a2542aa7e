package verify

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/mcp"
)

var mcpRules = []rule{
	{Rule: Rule{
		ID: "mcp-server", Title: "The MCP servers are those of the profile", Severity: Error,
		Why: "Each further server gives every agent that reaches /mcp its tools; one over stdio is any command at all.",
		Fix: "Keep the two files of l0: mcp-hub.json and asset:mcp-hub.json.template name browser_shell alone.",
	}, each: mcpServers},
	{Rule: Rule{
		ID: "mcp-command", Title: "Each MCP server is a program that the profile lays", Severity: Error,
		Why: "The hub starts whatever the entry names: a script beside the real program, or a server somewhere else by its URL, answers in its place and sees all that agents send.",
		Fix: "Let the entry's command be the laid program, type stdio, without url.",
	}, each: mcpCommands},
	{Rule: Rule{
		ID: "mcp-tool", Title: "The tools on /mcp are those of the profile", Severity: Error,
		Why: "A further tool runs shells, reads files or drives the browser past browser-shell's policy. A server whose tools are not known may have any.",
		Fix: "Remove the server that brings the tool; browser_shell alone, with its one tool, may be there.",
	}, each: mcpTools},
	{Rule: Rule{
		ID: "mcp-built-in", Title: "No program brings MCP tools of its own", Severity: Error,
		Why: "On lines B and C the base's python-server always adds its own tools to /mcp, sandbox_execute_bash among them, whatever mcp-hub.json says.",
		Fix: "Remove the program and its supervisord configuration.",
	}, each: mcpBuiltIn},
	{Rule: Rule{
		ID: "mcp-enable-file", Title: "No file switches an older MCP server on", Severity: Error, Holes: []string{"l"},
		Why: "On line A a start script looks for mcp.disabled: once somebody deletes it, supervisord.mcp.conf and nginx.mcp.conf come alive, and the route ~ ^/(sse|message|mcp) wins over /mcp.",
		Fix: "Remove mcp.disabled together with supervisord.mcp.conf and nginx.mcp.conf.",
	}, each: mcpEnableFile},
}

// eachMCP visits the servers of every file, and those that no file names.
func (h *held) eachMCP(visit func(s mcp.Server, config *mcp.Config)) {
	if h.Surface.MCP == nil {
		return
	}
	for i := range h.Surface.MCP.Configs {
		for _, s := range h.Surface.MCP.Configs[i].Servers {
			visit(s, &h.Surface.MCP.Configs[i])
		}
	}
	for _, s := range h.Surface.MCP.BuiltIn {
		visit(s, nil)
	}
}

func mcpServers(h *held) error {
	h.eachMCP(func(s mcp.Server, c *mcp.Config) {
		if c != nil && !slices.Contains(h.want.MCPServers, s.Name) {
			h.found(s.Name, []tree.Place{s.Place}, "%s has the MCP server %q; the profile has %s", c.Path, s.Name, list(h.want.MCPServers))
		}
	})
	if h.Surface.MCP == nil {
		return nil
	}
	live := 0
	for _, c := range h.Surface.MCP.Configs {
		names := map[string]int{}
		for _, s := range c.Servers {
			names[s.Name]++
		}
		for _, name := range h.want.MCPServers {
			if names[name] == 0 {
				h.found(name, h.at(c.Path), "%s lacks the MCP server %q", c.Path, name)
			}
		}
		for name, n := range names {
			if n > 1 {
				h.found(name, h.at(c.Path), "%s has the MCP server %q %d times: which one counts is up to its reader", c.Path, name, n)
			}
		}
		if !c.Template {
			live++
		}
	}
	if live == 0 && len(h.want.MCPServers) > 0 {
		h.found("", nil, "there is no mcp-hub.json, so the hub has no server")
	}
	return nil
}

func mcpCommands(h *held) error {
	h.eachMCP(func(s mcp.Server, c *mcp.Config) {
		if c == nil || !slices.Contains(h.want.MCPServers, s.Name) {
			return // found as what it is
		}
		at := []tree.Place{s.Place}
		switch {
		case s.Type != "stdio" || s.URL != "":
			h.found(s.Name, at, "the MCP server %q is reached by %s %s", s.Name, s.Type, s.URL)
		case !path.IsAbs(s.Command):
			h.found(s.Name, at, "the MCP server %q runs %q, which is looked up in PATH", s.Name, s.Command)
		case !h.laysProgram(image.Clean(s.Command)):
			h.found(s.Name, at, "the MCP server %q runs %s, which is no program that the profile lays", s.Name, s.Command)
		}
		if s.Hidden {
			h.found(s.Name, at, "the MCP server %q is hidden: its tools can be called and are not listed", s.Name)
		}
	})
	if h.Surface.MCP == nil {
		return nil
	}
	for _, c := range h.Surface.MCP.Configs {
		if err := h.mcpEnvironment(c); err != nil {
			return err
		}
	}
	return nil
}

// mcpEnvironment finds servers that are started with variables that load code, or elsewhere.
func (h *held) mcpEnvironment(c mcp.Config) error {
	e, ok := h.Files.Stat(c.Path)
	if !ok || e.Size > tree.MaxRead || e.Digest == (tree.Digest{}) {
		return nil
	}
	contents, err := h.read([]string{c.Path})
	if err != nil {
		return err
	}
	var file struct {
		Servers map[string]struct {
			Env map[string]any `json:"env"`
			Cwd any            `json:"cwd"`
		} `json:"mcpServers"`
	}
	if json.Unmarshal(contents[c.Path], &file) != nil {
		return nil // not-understood has it
	}
	for name, s := range file.Servers {
		for variable := range s.Env {
			if loaders.MatchString(variable) || variable == "PATH" {
				h.found(name, h.at(c.Path), "the MCP server %q is started with %s", name, variable)
			}
		}
		if s.Cwd != nil {
			h.found(name, h.at(c.Path), "the MCP server %q is started in %v", name, s.Cwd)
		}
	}
	return nil
}

func mcpTools(h *held) error {
	have := map[string]bool{}
	h.eachMCP(func(s mcp.Server, _ *mcp.Config) {
		for _, tool := range s.Tools {
			have[tool] = true
			if !slices.Contains(h.want.Tools, tool) {
				h.found(tool, []tree.Place{s.Place}, "the MCP server %q has the tool %q; the profile has %s", s.Name, tool, list(h.want.Tools))
			}
		}
		if s.Unknown {
			h.found(s.Name, []tree.Place{s.Place}, "the tools of the MCP server %q are not known", s.Name)
		}
	})
	for _, tool := range h.want.Tools {
		if !have[tool] && h.Surface.MCP != nil {
			h.found(tool, nil, "no MCP server is known to have the tool %q", tool)
		}
	}
	return nil
}

func mcpBuiltIn(h *held) error {
	h.eachMCP(func(s mcp.Server, c *mcp.Config) {
		if c == nil {
			h.found(s.Name, []tree.Place{s.Place}, "%q brings %s, whatever mcp-hub.json says", s.Name, list(s.Tools))
		}
	})
	return nil
}

// enableFiles are what line A's entrypoint.sh looks for, copies and renders (facts: aio-base.md 2.1, 4.4 l).
var enableFiles = []string{
	"/opt/gem/mcp.disabled", "/opt/gem/supervisord.mcp.conf", "/opt/gem/nginx.mcp.conf",
	"/opt/gem/supervisord/mcp.conf", "/opt/gem/nginx/mcp.conf",
}

func mcpEnableFile(h *held) error {
	for _, p := range enableFiles {
		if _, ok := h.Files.Lookup(p); ok {
			h.found(p, h.at(p), "%s is there: a part of the switch for the base's older MCP server", p)
		}
	}
	h.eachLocation(func(l *location) {
		if l.regex() && strings.Contains(l.Pattern, "mcp") {
			h.found(l.name(), []tree.Place{l.Place}, "the route %s takes /mcp and more, before any prefix does", l.name())
		}
	})
	return nil
}
