package hub

import (
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// capabilities returns the capabilities of all servers together. A server that was never up is assumed to have tools.
func (h *Hub) capabilities() *mcp.ServerCapabilities {
	all := &mcp.ServerCapabilities{}
	for _, s := range h.listServers() {
		s.mu.Lock()
		c := s.offer.capabilities
		s.mu.Unlock()
		if c == nil {
			c = &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}
		}
		if c.Tools != nil {
			all.Tools = &mcp.ToolCapabilities{ListChanged: true}
		}
		if c.Prompts != nil {
			all.Prompts = &mcp.PromptCapabilities{ListChanged: true}
		}
		if c.Resources != nil {
			follow := c.Resources.Subscribe || all.Resources != nil && all.Resources.Subscribe
			all.Resources = &mcp.ResourceCapabilities{ListChanged: true, Subscribe: follow}
		}
		if c.Completions != nil {
			all.Completions = c.Completions
		}
		if c.Logging != nil {
			all.Logging = c.Logging
		}
	}
	return all
}

// offers reports whether a server supports the family of a method; go-sdk would answer with an empty list.
func (h *Hub) offers(method string) bool {
	c := h.capabilities()
	family, _, _ := strings.Cut(method, "/")
	switch family {
	case "tools":
		return c.Tools != nil
	case "prompts":
		return c.Prompts != nil
	case "resources":
		return c.Resources != nil
	case "completion":
		return c.Completions != nil
	case "logging":
		return c.Logging != nil
	}
	return true
}

// describeServers adds the servers' capabilities and instructions to go-sdk's answer.
func (h *Hub) describeServers(res mcp.Result) {
	capabilities, instructions := h.capabilities(), h.instructions()
	switch r := res.(type) {
	case *mcp.InitializeResult:
		r.Capabilities, r.Instructions = capabilities, instructions
	case *mcp.DiscoverResult:
		r.Capabilities, r.Instructions = capabilities, instructions
	}
}

func (h *Hub) instructions() string {
	servers := h.listServers()
	var parts []string
	for _, s := range servers {
		s.mu.Lock()
		text := s.offer.instructions
		s.mu.Unlock()
		if text != "" && len(servers) > 1 {
			text = fmt.Sprintf("# %s\n\n%s", s.config.Name, text)
		}
		if text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "\n\n")
}
