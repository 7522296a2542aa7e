package verify

import (
	"path"
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
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
}

func mcpServers(h *held) {
	for c, s := range h.Surface.MCP.Servers() {
		if c != nil && !slices.Contains(h.want.MCPServers, s.Name) {
			h.reportFinding(s.Name, []tree.Place{s.Place}, "%s has the MCP server %q; the profile has %s", c.Path, s.Name, joinNames(h.want.MCPServers))
		}
	}
	live := 0
	for _, c := range h.Surface.MCP.Configs {
		names := map[string]int{}
		for _, s := range c.Servers {
			names[s.Name]++
		}
		for _, name := range h.want.MCPServers {
			if names[name] == 0 {
				h.reportFinding(name, h.at(c.Path), "%s lacks the MCP server %q", c.Path, name)
			}
		}
		for name, n := range names {
			if n > 1 {
				h.reportFinding(name, h.at(c.Path), "%s has the MCP server %q %d times: which one counts is up to its reader", c.Path, name, n)
			}
		}
		if !c.Template {
			live++
		}
	}
	if live == 0 && len(h.want.MCPServers) > 0 {
		h.reportFinding("", nil, "there is no mcp-hub.json, so the hub has no server")
	}
}

func mcpCommands(h *held) {
	for c, s := range h.Surface.MCP.Servers() {
		if c == nil || !slices.Contains(h.want.MCPServers, s.Name) {
			continue // reported with its actual kind
		}
		at := []tree.Place{s.Place}
		switch {
		case s.Type != "stdio" || s.URL != "":
			h.reportFinding(s.Name, at, "the MCP server %q is reached by %s %s", s.Name, s.Type, s.URL)
		case !path.IsAbs(s.Command):
			h.reportFinding(s.Name, at, "the MCP server %q runs %q, which is looked up in PATH", s.Name, s.Command)
		case !h.isLaidProgram(image.Clean(s.Command)):
			h.reportFinding(s.Name, at, "the MCP server %q runs %s, which is no program that the profile lays", s.Name, s.Command)
		}
		if s.Hidden {
			h.reportFinding(s.Name, at, "the MCP server %q is hidden: its tools can be called and are not listed", s.Name)
		}
		for _, variable := range s.Env {
			if loaders.MatchString(variable) || variable == "PATH" {
				h.reportFinding(s.Name, at, "the MCP server %q is started with %s", s.Name, variable)
			}
		}
		if s.Directory != "" {
			h.reportFinding(s.Name, at, "the MCP server %q is started in %s", s.Name, s.Directory)
		}
	}
}

func mcpTools(h *held) {
	have := map[string]bool{}
	for _, s := range h.Surface.MCP.Servers() {
		for _, tool := range s.Tools {
			have[tool] = true
			if !slices.Contains(h.want.Tools, tool) {
				h.reportFinding(tool, []tree.Place{s.Place}, "the MCP server %q has the tool %q; the profile has %s", s.Name, tool, joinNames(h.want.Tools))
			}
		}
		if s.Unknown {
			h.reportFinding(s.Name, []tree.Place{s.Place}, "the tools of the MCP server %q are not known", s.Name)
		}
	}
	for _, tool := range h.want.Tools {
		if !have[tool] {
			h.reportFinding(tool, nil, "no MCP server is known to have the tool %q", tool)
		}
	}
}
