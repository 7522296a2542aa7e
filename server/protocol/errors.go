package protocol

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// texts replaces go-sdk's texts, which repeat names and params.
var texts = map[int64]string{
	jsonrpc.CodeParseError:             "the frame is not JSON in UTF-8",
	jsonrpc.CodeInvalidRequest:         "invalid request, or not at this time: initialize comes first, and once",
	jsonrpc.CodeMethodNotFound:         "the method is not offered: this server has tools only",
	jsonrpc.CodeInvalidParams:          "invalid params: use a tool and arguments that tools/list shows, and from revision 2026-07-28 on all fields of _meta",
	jsonrpc.CodeInternalError:          "internal error",
	mcp.CodeHeaderMismatch:             "the Mcp headers are missing or don't match the body",
	mcp.CodeUnsupportedProtocolVersion: "unsupported protocol version",
}

// The error for a request beyond the number that the server takes at a time, and its data.
const (
	CodeTooMany = jsonrpc.CodeInternalError
	TooMany     = `{"rule":"calls.count"}`
)

// ownError keeps the code of an error, or uses code, and replaces its text by ours. Only the error for an unknown
// revision has data.
func ownError(err error, code int64) *jsonrpc.Error {
	var given *jsonrpc.Error
	if errors.As(err, &given) && given.Code != 0 {
		code = given.Code
	}
	own := &jsonrpc.Error{Code: code, Message: texts[code]}
	if given != nil && code == jsonrpc.CodeInvalidParams && unknownTool.MatchString(given.Message) {
		own.Message = given.Message
	}
	if own.Message == "" {
		own.Message = "the request is refused"
	}
	if code == mcp.CodeUnsupportedProtocolVersion && given != nil {
		var data mcp.UnsupportedProtocolVersionData
		_ = json.Unmarshal(given.Data, &data) // invalid data is omitted
		own.Data = versionData(data.Requested)
	}
	return own
}

// unknownTool is the complete text of an UnknownTool without names.
var unknownTool = lazyregexp.New(`^unknown tool; tools/list shows [A-Za-z0-9_.-]{1,64}(, [A-Za-z0-9_.-]{1,64}){0,7}$`)

// UnknownTool returns the error for a call of a missing tool. It lists the existing ones if there are at most eight.
func UnknownTool(tools []string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool; tools/list shows " + strings.Join(tools, ", ")}
}

// plainAnswer converts go-sdk's error answer to ours. An error without a code belongs to a request at the wrong time:
// Middleware has handled all others.
func plainAnswer(res *jsonrpc.Response) *jsonrpc.Response {
	if res.Error == nil {
		return res
	}
	return &jsonrpc.Response{ID: res.ID, Error: ownError(res.Error, jsonrpc.CodeInvalidRequest)}
}

var harmlessVersion = lazyregexp.New(`^[0-9A-Za-z.-]{1,32}$`)

// versionData is the data of an error for an unknown revision (MCP 2026-07-28 schema UnsupportedProtocolVersionError).
// It repeats a requested revision only if that looks like one.
func versionData(requested string) json.RawMessage {
	data := map[string]any{"supported": mcp.SupportedProtocolVersions()}
	if harmlessVersion.MatchString(requested) {
		data["requested"] = requested
	}
	text, _ := json.Marshal(data) // strings always encode
	return text
}
