package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits for a frame, which is one line on stdio and one body on HTTP.
const (
	MaxFrame = 1 << 20 // bytes, without the newline
	MaxDepth = 64      // nested objects and arrays

	MaxValues = 10_000 // in all objects and arrays: each costs memory beyond its bytes
)

const maxSafeInteger = 1<<53 - 1 // RFC 8259 section 6; go-sdk keeps ids exactly up to this

// noID is the id of a refusal for a frame without a trustworthy id.
var noID jsonrpc.ID

func refuse(id jsonrpc.ID, code int64, message string) *jsonrpc.Response {
	return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: code, Message: message}}
}

func invalid(id jsonrpc.ID, message string) *jsonrpc.Response {
	return refuse(id, jsonrpc.CodeInvalidRequest, message)
}

func tooLong() *jsonrpc.Response {
	return invalid(noID, fmt.Sprintf("the frame is longer than %d bytes", MaxFrame))
}

// parseFrame parses one frame by JSON-RPC 2.0 and MCP (jsonrpc.org/specification section 4, MCP basic/index.mdx
// "Messages"). Of a repeated key the last counts. It returns the message or a refusal. It returns neither for a bad
// notification or a bad answer, which get no answer in JSON-RPC.
func parseFrame(text []byte) (jsonrpc.Message, *jsonrpc.Response) {
	text = bytes.Trim(text, blanks)
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, refuse(noID, jsonrpc.CodeParseError, "the frame is not JSON in UTF-8")
	}
	if text[0] != '{' {
		return nil, invalid(noID, "the frame is not an object; batches are not supported")
	}
	values, depth := measure(text)
	if values > MaxValues {
		return nil, invalid(noID, fmt.Sprintf("the frame has more than %d values", MaxValues))
	}
	var top map[string]json.RawMessage
	_ = json.Unmarshal(text, &top) // it is an object
	id := makeID(top["id"])
	fault := ""
	switch {
	case depth > MaxDepth:
		fault = fmt.Sprintf("the frame is nested deeper than %d", MaxDepth)
	case top["id"] != nil && !id.IsValid():
		fault = "id is not a string, nor an integer of at most 2^53-1 written without a fraction or an exponent"
	}
	if isAnswer(top) {
		return parseAnswer(text, fault == "" && id.IsValid()), nil
	}
	req, refused := parseRequest(top, id)
	if fault != "" {
		refused = invalid(id, fault)
	}
	switch {
	case refused == nil:
		return req, nil
	case req != nil && top["id"] == nil:
		return nil, nil
	}
	return nil, refused
}

// measure returns the number of values in the objects and arrays of valid JSON, or a few more, and the levels of its
// nesting. It allocates nothing.
func measure(text []byte) (values, depth int) {
	inString, level := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case inString:
		case c == ',':
			values++
		case c == '[' || c == '{':
			values++ // its first one
			level++
			depth = max(depth, level)
		case c == ']' || c == '}':
			level--
		}
	}
	return values, depth
}

// isAnswer also returns true for a broken answer: answering answers would cause a storm.
func isAnswer(top map[string]json.RawMessage) bool {
	return top["method"] == nil && (top["result"] != nil || top["error"] != nil)
}

func parseAnswer(text []byte, good bool) jsonrpc.Message {
	if !good {
		return nil
	}
	msg, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil
	}
	return msg
}

// parseRequest returns a request together with a refusal if only its params are wrong.
func parseRequest(top map[string]json.RawMessage, id jsonrpc.ID) (*jsonrpc.Request, *jsonrpc.Response) {
	if string(top["jsonrpc"]) != `"2.0"` {
		return nil, invalid(id, `"jsonrpc" is not "2.0"`)
	}
	method, ok := readString(top["method"])
	if !ok {
		return nil, invalid(id, `"method" is not a string`)
	}
	req := &jsonrpc.Request{ID: id, Method: method}
	if top["result"] != nil || top["error"] != nil {
		return req, invalid(id, "the frame is a request and a response at once")
	}
	switch params := top["params"]; {
	case params == nil || string(params) == "null": // some clients send null
	case params[0] == '{':
		req.Params = params
	default:
		return req, refuse(id, jsonrpc.CodeInvalidParams, `"params" is not an object`)
	}
	return req, nil
}

// checkVersion refuses a request with an unknown revision (MCP 2026-07-28 basic/versioning.mdx "Protocol Version
// Negotiation"). go-sdk ignores one that sorts before 2026-07-28.
func checkVersion(msg jsonrpc.Message) *jsonrpc.Response {
	req, ok := msg.(*jsonrpc.Request)
	if !ok || !req.IsCall() {
		return nil
	}
	raw := versionOf(req)
	version, isString := readString(raw)
	switch {
	case raw == nil || slices.Contains(mcp.SupportedProtocolVersions(), version):
		return nil
	case !isString:
		return refuse(req.ID, jsonrpc.CodeInvalidParams, "_meta."+mcp.MetaKeyProtocolVersion+" is not a string")
	}
	refused := ownError(nil, mcp.CodeUnsupportedProtocolVersion)
	refused.Data = versionData(version)
	return &jsonrpc.Response{ID: req.ID, Error: refused}
}

// versionOf returns the revision that a request names, as JSON, or nil.
func versionOf(req *jsonrpc.Request) json.RawMessage {
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(req.Params, &params) // params of another form name none
	return params.Meta[mcp.MetaKeyProtocolVersion]
}

// makeID returns an id that go-sdk preserves exactly; from any other value it returns an invalid one.
func makeID(raw json.RawMessage) jsonrpc.ID {
	var value any
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil && -maxSafeInteger <= n && n <= maxSafeInteger {
		value = float64(n)
	} else if s, ok := readString(raw); ok {
		value = s
	}
	id, _ := jsonrpc.MakeID(value) // accepts a float64, a string and nil
	return id
}

// readString parses a JSON string. (json.Unmarshal alone accepts null.)
func readString(raw json.RawMessage) (s string, ok bool) {
	ok = len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &s) == nil
	return s, ok
}
