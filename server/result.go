package server

import (
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/protocol"
)

// Exit codes of browser-shell itself. A refusal has the code of its class (policy.Code.ExitCode), a failed command that
// of agent-browser.
const (
	exitFailed      = 1   // the command failed
	exitUnavailable = 69  // Chromium does not answer
	exitProtocol    = 70  // agent-browser's answer was not the promised JSON or image
	exitNoRun       = 127 // agent-browser is missing or of an unknown version
)

// toMCP converts a result to MCP.
func (r Result) toMCP() *mcp.CallToolResult {
	var meta mcp.Meta
	if why := r.Refusal; why != nil {
		meta = mcp.Meta{
			"code":           int(why.Code),
			"name":           why.Code.Name(),
			"rule":           why.Rule,
			"retryable":      why.Retryable,
			"retry_after_ms": why.RetryAfter.Milliseconds(),
		}
	}
	out := protocol.NewResult(r.SessionID, r.ExitCode, r.Stdout, r.Stderr, meta)
	if r.Image != nil {
		out.Content = append(out.Content, r.Image)
	}
	return out
}
