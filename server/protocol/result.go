package protocol

import (
	"bytes"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// SessionID matches a well-formed session_id.
var SessionID = lazyregexp.New(`^[a-zA-Z0-9._-]{1,64}$`)

// NewResult returns a result of the tool, with its four keys as text and as structured content. It is the only maker of
// such results: the tool's, and those for calls that were refused before the tool.
func NewResult(sessionID string, exitCode int, stdout, stderr string, meta mcp.Meta) *mcp.CallToolResult {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		SessionID string `json:"session_id"`
		ExitCode  int    `json:"exit_code"`
		Stdout    string `json:"stdout"`
		Stderr    string `json:"stderr"`
	}{sessionID, exitCode, stdout, stderr})
	if err != nil {
		panic(err) // strings and an int always encode
	}
	text := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return &mcp.CallToolResult{
		Meta: meta, IsError: exitCode != 0, StructuredContent: json.RawMessage(text),
		Content: []mcp.Content{&mcp.TextContent{Text: string(text)}},
	}
}

// NewRefusal returns the result for a call with these arguments that didn't reach the tool.
func NewRefusal(arguments json.RawMessage, exitCode int, text string, meta mcp.Meta) *mcp.CallToolResult {
	var given struct {
		SessionID string `json:"session_id"`
	}
	if json.Unmarshal(arguments, &given) != nil || !SessionID.MatchString(given.SessionID) {
		given.SessionID = ""
	}
	return NewResult(given.SessionID, exitCode, "", text+"\n", meta)
}
