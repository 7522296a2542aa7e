package server

import (
	"bytes"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
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
	text := r.encodeJSON()
	out := &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: string(text)}},
		StructuredContent: json.RawMessage(text),
		IsError:           r.ExitCode != 0,
	}
	if r.Image != nil {
		out.Content = append(out.Content, r.Image)
	}
	if why := r.Refusal; why != nil {
		out.Meta = mcp.Meta{
			"code":           int(why.Code),
			"name":           why.Code.Name(),
			"rule":           why.Rule,
			"retryable":      why.Retryable,
			"retry_after_ms": why.RetryAfter.Milliseconds(),
		}
	}
	return out
}

func (r Result) encodeJSON() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		panic(err) // strings and an int always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
