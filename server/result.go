package server

import (
	"bytes"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/policy"
)

// Result is what a call answers: these four keys, in this order, in success,
// failure and refusal alike.
type Result struct {
	SessionID string `json:"session_id"` // as given; empty when it was not well-formed
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"` // one line of JSON, the command's data; empty unless exit_code is 0
	Stderr    string `json:"stderr"` // what went wrong, or a warning
}

// Exit codes of browser-shell itself. A refusal has its class's code
// (policy.Code.ExitCode), a failed command has agent-browser's own.
const (
	exitFailed   = 1   // agent-browser reported failure and exited 0
	exitProtocol = 70  // agent-browser did not answer with the JSON it promises
	exitNoRun    = 127 // agent-browser is missing or of an unknown version
)

// refused turns a refusal into a result.
func refused(sessionID string, r *policy.Refusal) Result {
	return Result{SessionID: sessionID, ExitCode: r.Code.ExitCode(), Stderr: r.Error() + "\n"}
}

// answer wraps a result for MCP. r is nil unless the call was refused; image
// is nil unless there is a screenshot to show.
func (res Result) answer(r *policy.Refusal, image *mcp.ImageContent) *mcp.CallToolResult {
	text := res.encode()
	out := &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: string(text)}},
		StructuredContent: json.RawMessage(text),
		IsError:           res.ExitCode != 0,
	}
	if image != nil {
		out.Content = append(out.Content, image)
	}
	if r != nil {
		out.Meta = mcp.Meta{
			"code":           int(r.Code),
			"name":           r.Code.Name(),
			"rule":           r.Rule,
			"retryable":      r.Retryable,
			"retry_after_ms": r.RetryAfter.Milliseconds(),
		}
	}
	return out
}

func (res Result) encode() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(res); err != nil {
		panic(err) // strings and an int always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
