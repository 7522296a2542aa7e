package hub

import (
	"encoding/json"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxChecked limits a schema, and the arguments checked against it, in bytes.
const maxChecked = 64 << 10

// compileSchema returns a checker for a tool's arguments. It returns nil if only the server can check them: the schema
// is too large, of an unknown draft, or has references. Nothing is ever fetched, and a reference may be recursive.
func compileSchema(t *mcp.Tool) *jsonschema.Resolved {
	text, err := json.Marshal(t.InputSchema)
	if err != nil || len(text) > maxChecked || strings.Contains(string(text), `Ref"`) || strings.Contains(string(text), `"$ref"`) {
		return nil
	}
	var schema jsonschema.Schema
	if json.Unmarshal(text, &schema) != nil {
		return nil
	}
	if d := schema.Schema; d != "" && !strings.Contains(d, "draft/2020-12/schema") && !strings.Contains(d, "draft-07/schema") {
		return nil
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved
}

// checkArguments returns a failure for arguments that violate the tool's inputSchema.
func (t *tool) checkArguments(arguments json.RawMessage) *failure {
	if len(arguments) > maxChecked {
		return nil
	}
	schema := t.schema()
	if schema == nil {
		return nil
	}
	value := any(map[string]any{})
	if len(arguments) > 0 {
		if json.Unmarshal(arguments, &value) != nil {
			return nil // the guard has checked that it is JSON
		}
	}
	if value == nil { // null
		value = map[string]any{}
	}
	if err := schema.Validate(value); err != nil {
		return &failure{
			name: "INVALID_ARGUMENTS", rule: "arguments.schema",
			text: "the arguments of " + t.alias + " do not fit its inputSchema: " + shorten(err.Error()) + "; see tools/list",
		}
	}
	return nil
}

// shorten truncates a text that may quote an argument.
func shorten(s string) string {
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
