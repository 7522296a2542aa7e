// Package mcp reads which MCP servers an image offers, and which tools they are known to have.
package mcp

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
)

// Server is an MCP server that /mcp leads to.
type Server struct {
	Name string `json:"name"`
	// Type is "stdio", "sse" or "streamable-http".
	Type    string   `json:"type"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	URL     string   `json:"url,omitempty"`
	Prefix  string   `json:"prefix,omitempty"`
	Hidden  bool     `json:"hidden,omitempty"`
	// Tools are those known by name, with their prefix, sorted; Unknown says that there may be others.
	Tools   []string   `json:"tools,omitempty"`
	Unknown bool       `json:"unknown,omitempty"`
	Place   tree.Place `json:"place"`
}

// Config is a file with MCP servers.
type Config struct {
	Path string `json:"path"`
	// Template is true for one that is rendered to a file of the same name at start.
	Template bool     `json:"template,omitempty"`
	Servers  []Server `json:"servers"`
}

// Report is every MCP server that was found.
type Report struct {
	Configs []Config `json:"configs"`
	// BuiltIn are servers that no file names: python-server's own on lines B and C.
	BuiltIn []Server    `json:"builtIn,omitempty"`
	Notes   []tree.Note `json:"notes,omitempty"`
}

// Read finds them. programs are the names of the supervisord programs that the image runs.
func Read(ctx context.Context, img *tree.Image, programs []string) (*Report, error) {
	panic("not yet")
}
